"""A topic of the user, and how messages of a flow are known in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import FlowError
from headrace.queues.kafka_admin import KafkaAdmin

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
    return _partitions(topic, KafkaAdmin(topic.servers, topic.settings, TIMEOUT_S))


def _partitions(topic: KafkaTopic, admin: KafkaAdmin) -> list[int]:
    found = admin.partitions(topic.topic, f"look at topic {topic.topic}")
    if not found:
        raise FlowError(f"there is no topic {topic.topic} at {topic.servers}; create it, or look at its name")
    return found


def ends_of(topic: KafkaTopic, committed: bool = False) -> dict[str, int]:
    """Where its partitions end; what is `committed` of them, if that is asked for. Plain values for JSON."""
    admin = KafkaAdmin(topic.servers, topic.settings, TIMEOUT_S)
    found = admin.offsets(topic.topic, _partitions(topic, admin), f"look at topic {topic.topic}", committed=committed)
    return {str(part): offset for part, offset in found.items()}
