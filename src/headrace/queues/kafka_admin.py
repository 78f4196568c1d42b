"""Topics as queues: made, looked at, cut, sealed, deleted. Each call is a request to the broker, and waits for it."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import QueueError
from headrace.model.frames import MOST_BYTES
from headrace.queues.kafka_client import (
    Trouble,
    client_settings,
    confluent,
    is_no_queue,
    new_client,
    queue_error,
    unreachable,
)

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")
_PAUSE_S: Final = 0.01
TOPIC_SETTINGS: Final = {
    # Nothing goes by itself: only `truncate` deletes, whole segments at a time.
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(128 << 20),
    "max.message.bytes": str(MOST_BYTES + (1 << 20)),
}
_SEALED: Final = "0"
"""As `max.message.bytes`: the broker itself refuses every message, whoever sends it."""

_MOMENTARY: Final = {
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "NOT_CONTROLLER",
    "NOT_COORDINATOR",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
}


def check_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise QueueError(f"{name!r} is not a name: use 1 to 200 letters, digits, '-', '_' and '.', not just dots")


def topic_of(prefix: str, queue: str) -> str:
    """Kafka refuses two topics that differ in `.` and `_` only, so a name with a dot gets something of its own."""
    check_name(queue)
    return f"{prefix}{queue}-{zlib.crc32(queue.encode()):08x}" if "." in queue else prefix + queue


@dataclass(frozen=True)
class Topic:
    """What a writer must know about a queue."""

    name: str
    most_bytes: int


class KafkaAdmin:
    """Belongs to the process that made it."""

    def __init__(self, servers: str, settings: Mapping[str, str], timeout_s: float):
        self._kafka: Any = confluent()
        self._servers = servers
        self._settings = settings
        self._timeout_s = timeout_s
        self._trouble = Trouble()
        self._client = new_client(self._kafka.admin.AdminClient, client_settings(servers, settings, self._trouble, {}))
        self._groups: dict[str, Any] = {}

    def create(self, topics: Sequence[str], replication: int | None, settings: Mapping[str, str]) -> None:
        made = {**TOPIC_SETTINGS, **settings}
        if (replication or 0) >= 3:
            made.setdefault("min.insync.replicas", "2")
        new = [
            self._kafka.admin.NewTopic(
                topic, num_partitions=1, replication_factor=-1 if replication is None else replication, config=made
            )
            for topic in topics
        ]
        if new:
            doing = f"create {_named(topics)}"
            self._ask(lambda: self._client.create_topics(new, **self._times()), doing, ("TOPIC_ALREADY_EXISTS",))
            self._wait(topics, doing, lambda found: all(topic in found for topic in topics))
            self.ends(topics, doing)  # until the leaders know that they are

    def delete(self, topics: Sequence[str]) -> None:
        if topics:
            doing = f"delete {_named(topics)}"
            self._ask(lambda: self._client.delete_topics([*topics], **self._times()), doing, ("UNKNOWN_TOPIC_OR_PART",))
            self._wait(topics, doing, lambda found: not any(topic in found for topic in topics))

    def topic(self, name: str, doing: str) -> Topic:
        """Raises QueueError where nothing can be appended: it is not there, is sealed, or loses what it has."""
        resource = self._kafka.admin.ConfigResource(self._kafka.admin.ResourceType.TOPIC, name)
        found = self._ask(lambda: self._client.describe_configs([resource], request_timeout=self._timeout_s), doing)
        has = {entry.name: entry.value for entry in found[0].values()}
        if has["max.message.bytes"] == _SEALED:
            raise QueueError(f"cannot {doing}: it is sealed")
        for key in ("cleanup.policy", "retention.ms", "retention.bytes"):
            if has[key] != TOPIC_SETTINGS[key]:
                raise QueueError(
                    f"cannot {doing}: topic {name} was not made by Headrace and may lose frames ({key} is {has[key]}); "
                    f"delete it, or choose another prefix"
                )
        return Topic(name, int(has["max.message.bytes"]))

    def ends(self, topics: Sequence[str], doing: str, last: bool = True) -> dict[str, int]:
        """The offset after the last message of each, or that of the first one."""
        spec = self._kafka.admin.OffsetSpec
        asked = {self._partition(topic): spec.latest() if last else spec.earliest() for topic in topics}
        return dict(zip(topics, self._offsets(asked, doing), strict=True))

    def offsets(
        self, topic: str, partitions: Sequence[int], doing: str, last: bool = True, committed: bool = False
    ) -> dict[int, int]:
        """As `ends`, of the partitions of a topic; where those that are `committed` end, before open transactions."""
        spec, levels = self._kafka.admin.OffsetSpec, self._kafka.IsolationLevel
        asked = {self._partition(topic, part=part): spec.latest() if last else spec.earliest() for part in partitions}
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        return dict(zip(partitions, self._offsets(asked, doing, isolation_level=level), strict=True))

    def truncate(self, topic: str, offset: int, doing: str) -> None:
        cut = self._partition(topic, offset)
        self._ask(lambda: self._client.delete_records([cut], **self._times()), doing)

    def seal(self, topic: str, doing: str) -> None:
        admin = self._kafka.admin
        entry = admin.ConfigEntry("max.message.bytes", _SEALED, incremental_operation=admin.AlterConfigOpType.SET)
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._ask(lambda: self._client.incremental_alter_configs([resource], request_timeout=self._timeout_s), doing)
        self._wait_until_refused(topic, doing)

    def groups(self, prefix: str) -> list[str]:
        (found,) = self._ask(
            lambda: {"all": self._client.list_consumer_groups(request_timeout=self._timeout_s)}, "list the readers"
        )
        return [group.group_id for group in found.valid if group.group_id.startswith(prefix)]

    def committed(self, group: str, topics: Sequence[str]) -> dict[str, int]:
        """Those of the topics that the group has a position in.

        A consumer is asked, which never joins the group: the same question to an admin client ends the process
        (librdkafka 2.16, issue 5040) where the coordinator of the group is moving.
        """
        consumer = self._groups.get(group)
        if consumer is None:
            own = {"group.id": group, "enable.auto.commit": False}
            settings = client_settings(self._servers, self._settings, self._trouble, own)
            consumer = self._groups[group] = new_client(self._kafka.Consumer, settings)
        asked = [self._partition(topic) for topic in topics]
        try:
            found = consumer.committed(asked, timeout=self._timeout_s)
        except RuntimeError:
            return {}  # it was closed meanwhile: nobody wants to know
        except self._kafka.KafkaException as error:
            doing = f"ask where reader {group} is"
            raise queue_error(error.args[0], doing, self._servers, self._timeout_s, self._trouble) from None
        return {each.topic: each.offset for each in found if each.error is None and each.offset >= 0}

    def forget_groups(self) -> None:
        """Where they are is not asked for any more."""
        while self._groups:
            self._groups.popitem()[1].close()

    def topics(self) -> dict[str, int]:
        """All topics of the cluster but Kafka's own, with the number of their partitions."""
        found = self._metadata("list the topics")
        return {name: len(topic.partitions) for name, topic in sorted(found.items()) if not name.startswith("__")}

    def partitions(self, topic: str, doing: str) -> list[int]:
        """Of a topic; none where it is not there, or not yet."""
        found = self._metadata(doing, topic).get(topic)
        if found is None:
            return []
        if found.error is not None and not is_no_queue(found.error) and found.error.name() not in _MOMENTARY:
            raise self._error(found.error, doing)
        return sorted(found.partitions)

    def messages(self, topic: str, partitions: int) -> int:
        """How many there are in all partitions, about: a compacted topic has fewer."""
        doing = f"look at topic {topic}"
        first, last = (self.offsets(topic, range(partitions), doing, is_last) for is_last in (False, True))
        return sum(last.values()) - sum(first.values())

    # ------------------------------------------------------------------------

    def _partition(self, topic: str, offset: int = -1001, part: int = 0) -> Any:
        return self._kafka.TopicPartition(topic, part, offset)

    def _offsets(self, asked: Mapping[Any, Any], doing: str, **how: Any) -> list[int]:
        found = self._ask(lambda: self._client.list_offsets(asked, request_timeout=self._timeout_s, **how), doing)
        return [each.offset for each in found]

    def _times(self) -> dict[str, float]:
        return {"request_timeout": self._timeout_s, "operation_timeout": self._timeout_s}

    def _ask(
        self, request: Callable[[], Mapping[Any, Future[Any]]], doing: str, passes: Sequence[str] = ()
    ) -> list[Any]:
        """The answers, None for an error that passes. What a broker cannot do at this moment is asked for again."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            futures = request()
            try:
                return [self._answer(future, passes) for future in futures.values()]
            except self._kafka.KafkaException as error:
                problem = error.args[0]
            # The client may still believe what was true before a broker crashed: this makes it look.
            there = self._metadata(doing)
            is_momentary = problem.name() in _MOMENTARY or (
                problem.name() == "_NOENT" and all(getattr(asked, "topic", None) in there for asked in futures)
            )
            if not is_momentary or time.monotonic() > deadline:
                raise self._error(problem, doing)
            time.sleep(_PAUSE_S)

    def _answer(self, future: Future[Any], passes: Sequence[str]) -> Any:
        try:
            return future.result()
        except self._kafka.KafkaException as error:
            if error.args[0].name() in passes:
                return None
            raise

    def _error(self, error: Any, doing: str) -> QueueError:
        self._client.poll(0)  # where it tells `Trouble` what it knows
        return queue_error(error, doing, self._servers, self._timeout_s, self._trouble)

    def _metadata(self, doing: str, topic: str | None = None) -> dict[str, Any]:
        try:
            return self._client.list_topics(topic, timeout=self._timeout_s).topics  # type: ignore[no-any-return]
        except self._kafka.KafkaException as error:
            raise self._error(error.args[0], doing) from None

    def _wait(self, topics: Sequence[str], doing: str, is_done: Callable[[set[str]], bool]) -> None:
        """A change is agreed upon first, and done by the brokers a moment later."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            found = self._metadata(doing)
            ready = {name for name in topics if name in found and not is_no_queue_topic(found[name])}
            if is_done(ready):
                return
            if time.monotonic() > deadline:
                raise unreachable(doing, self._servers, self._timeout_s, "it is agreed upon, but not done")
            time.sleep(_PAUSE_S)

    def _wait_until_refused(self, topic: str, doing: str) -> None:
        """Send messages without content, which no reader shows, until the broker takes none."""
        own = {"acks": "all", "message.timeout.ms": int(self._timeout_s * 1000), "linger.ms": 0}
        producer = new_client(self._kafka.Producer, client_settings(self._servers, self._settings, self._trouble, own))
        said: list[Any] = []
        while True:
            producer.produce(topic, None, partition=0, on_delivery=lambda error, _: said.append(error))
            producer.flush()
            error = said.pop()
            if error is None:
                time.sleep(_PAUSE_S)
            elif error.name() == "MSG_SIZE_TOO_LARGE":
                return
            else:
                raise self._error(error, doing)


def is_no_queue_topic(metadata: Any) -> bool:
    """Whether a topic is not there, or nobody leads it yet."""
    if metadata.error is not None and is_no_queue(metadata.error):
        return True
    return not metadata.partitions or any(part.leader < 0 for part in metadata.partitions.values())


def _named(topics: Sequence[str]) -> str:
    return f"queue {topics[0]}" if len(topics) == 1 else f"{len(topics)} queues ({topics[0]}, …)"
