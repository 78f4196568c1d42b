"""A topic of the user, and how messages of a flow are known in it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import FlowError
from headrace.queues.kafka_admin import KafkaAdmin
from headrace.queues.kafka_client import Trouble, client_settings, confluent, new_client, queue_error

HEADER: Final = "headrace"
"""Of each message that a sink writes: the task and the number of its record."""
TIMEOUT_S: Final = 30.0


@dataclass(frozen=True)
class KafkaTopic:
    """A topic. As a source it gives the columns of `MESSAGES`; as a sink it takes `value`, and `key` if given."""

    topic: str
    servers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    transactional: bool = False
    from_start: bool = True
    every_copy: bool = False


def number_of(message: Any) -> tuple[str, int]:
    """The task that wrote a message and its number; messages of others have none."""
    task, _, number = dict(message.headers() or ()).get(HEADER, b"").decode().rpartition(":")
    return task, int(number) if task else -1


def partitions_of(topic: KafkaTopic) -> list[int]:
    trouble = Trouble()
    admin = new_client(confluent().admin.AdminClient, client_settings(topic.servers, topic.settings, trouble, {}))
    began = time.monotonic()
    doing = f"look at topic {topic.topic}"
    try:
        found = admin.list_topics(topic.topic, timeout=TIMEOUT_S).topics.get(topic.topic)
    except confluent().KafkaException as error:
        raise queue_error(error.args[0], doing, topic.servers, time.monotonic() - began, trouble) from None
    if found is None or found.error is not None or not found.partitions:
        raise FlowError(f"there is no topic {topic.topic} at {topic.servers}; create it, or look at its name")
    return sorted(found.partitions)


def ends_of(topic: KafkaTopic, committed: bool = False) -> dict[str, int]:
    """Where its partitions end; what is `committed` of them, if that is asked for. Plain values for JSON."""
    admin = KafkaAdmin(topic.servers, topic.settings, TIMEOUT_S)
    found = admin.offsets(topic.topic, partitions_of(topic), f"look at topic {topic.topic}", committed=committed)
    return {str(part): offset for part, offset in found.items()}
