"""Topics of the user as the ends of a flow. Each partition of a topic is a split; each record keeps key and value."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.io import Feed, Opening, Sink, SinkWriter, Source, SplitReader
from headrace.flow.kafka_topic import KafkaTopic, ends_of, number_of, partitions_of
from headrace.flow.kafka_writing import KafkaWriter
from headrace.queues.kafka import KafkaQueues
from headrace.queues.kafka_client import (
    Trouble,
    client_settings,
    confluent,
    new_client,
    queue_error,
)

MESSAGES: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
    ]
)


@dataclass(frozen=True)
class KafkaSource(Source):
    """A task for each partition."""

    topic: KafkaTopic

    schema = MESSAGES

    def splits(self) -> int:
        return len(partitions_of(self.topic))

    def beginning(self) -> dict[str, int] | None:
        return None if self.topic.from_start else ends_of(self.topic, committed=True)

    def open(self, opening: Opening, position: Any) -> SplitReader:
        return KafkaSplit(self.topic, opening, position)

    def check(self) -> None:
        partitions_of(self.topic)


@dataclass(frozen=True)
class KafkaSink(Sink):
    """Messages with the number of their record in a header."""

    topic: KafkaTopic

    @property
    def keeps_until_commit(self) -> bool:
        return self.topic.transactional

    @property
    def keeps_first(self) -> bool:  # type: ignore[override]
        """Its readers do."""
        return self.topic.every_copy

    def beginning(self) -> dict[str, int]:
        """No message of this flow is before these offsets: clocks, which may differ, need not say it."""
        return ends_of(self.topic)

    def open(self, opening: Opening, committed: Any) -> SinkWriter:
        return KafkaWriter(self.topic, opening, committed)

    def problem(self, schema: pa.Schema) -> str | None:
        if "value" in schema.names and _is_text(schema.field("value").type):
            return None
        return (
            f"topic {self.topic.topic} takes a column value (text or binary), and key if you like; it is given "
            f"{', '.join(f'{entry.name} {entry.type}' for entry in schema)}"
        )

    def check(self) -> None:
        partitions_of(self.topic)


def kafka(
    topic: str,
    servers: str,
    *,
    transactional: bool = False,
    from_start: bool = True,
    every_copy: bool = False,
    settings: Mapping[str, str] | None = None,
) -> KafkaTopic:
    """A Kafka topic, which must exist, as a source or a sink of a flow.

    `servers`        the brokers, "host:9092,other:9092"
    `settings`       of librdkafka, for TLS, SASL and the like
    `from_start`     of a source: with False it begins where the topic ended when the flow was started for the first
                     time; what comes while the flow does not run is read when it runs again
    `transactional`  of a sink: messages become visible at each commit, all at once, to readers of committed messages,
                     and a worker that was replaced but does not know it cannot write any more; without it, messages
                     are visible at once
    `every_copy`     where tasks have copies (`replicas=2`): all of them write to the topic, so that nobody waits for
                     one to take over. Readers drop messages whose number, in the header `headrace`, is not above the
                     last one of the same task; a source with `every_copy` does that

    A sink sends records without a key to the partitions in turn. A few messages leave at once; many are gathered for up
    to 2 ms (`linger.ms`).
    """
    if transactional and every_copy:
        raise FlowError(f"topic {topic}: of a transaction there is one copy; say transactional or every_copy")
    return KafkaTopic(topic, servers, dict(settings or {}), transactional, from_start, every_copy)


def kafka_queues(servers: str, prefix: str = "headrace-", settings: Mapping[str, str] | None = None) -> KafkaQueues:
    """Queues of flows as topics of a Kafka cluster, for `flow.start(spark, queues=...)`."""
    return KafkaQueues(servers, prefix, dict(settings or {}))


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_binary(type) or pa.types.is_large_string(type))


# ---------------------------------------------------------------------- source


class KafkaSplit(SplitReader):
    """One partition. The worker takes what is there itself; where nothing is, a thread waits for it, and wakes it.

    Two threads that both work hard wait for each other: at 25,000 messages a second for half of the time.
    """

    def __init__(self, topic: KafkaTopic, opening: Opening, position: Any):
        """`position` is an offset; with the last numbers of writers, where second copies are left out."""
        self._topic, self._opening = topic, opening
        self._partition = partitions_of(topic)[opening.split]
        self._had: dict[str, int] = dict(position[1]) if isinstance(position, list) else {}
        position = position[0] if isinstance(position, list) else position
        self._found: list[Any] = []
        self._trouble = Trouble()
        own = {"group.id": f"headrace-{opening.flow}", "enable.auto.commit": False, "auto.offset.reset": "error"}
        wanted = {"fetch.wait.max.ms": "50", "queued.max.messages.kbytes": str(16 << 10), **topic.settings}
        self._consumer = new_client(confluent().Consumer, client_settings(topic.servers, wanted, self._trouble, own))
        start = self._start() if position is None else position
        self._consumer.assign([confluent().TopicPartition(topic.topic, self._partition, start)])
        self._stopped, self._waits = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headrace-{topic.topic}", daemon=True)
        self._thread.start()

    def _start(self) -> int:
        """The same at every restart, whatever has come meanwhile: what was sent on has numbers from there."""
        if self._topic.from_start:
            return int(confluent().OFFSET_BEGINNING)
        return int((self._opening.beginning or {}).get(str(self._partition), confluent().OFFSET_END))

    def _run(self) -> None:
        # Looked at on both sides of the wait: what comes while it is closed clears what `close` has set.
        while not self._stopped.is_set():
            self._waits.wait()
            first = None if self._stopped.is_set() else self._consumer.poll(0.1)
            if first is not None:
                self._found.append(first)
                self._waits.clear()
                self._opening.wake()

    def poll(self, most_records: int) -> Feed | None:
        if self._waits.is_set():
            return None
        taken = self._taken(most_records)
        if not taken:
            self._waits.set()
            return None
        count = len(taken)
        position: Any = taken[-1].offset() + 1
        if self._topic.every_copy:
            taken = [message for message in taken if self._is_first(message)]
            count, position = len(taken), [position, dict(self._had)]
        columns = [
            pa.array([message.key() for message in taken], pa.binary()),
            pa.array([message.value() for message in taken], pa.binary()),
            pa.array([self._partition] * count, pa.int32()),
            pa.array([message.offset() for message in taken], pa.int64()),
            pa.array([message.timestamp()[1] for message in taken], pa.int64()).view(MESSAGES.types[4]),
        ]
        return Feed(pa.record_batch(columns, schema=MESSAGES), position)

    def _taken(self, most: int) -> list[Any]:
        found, self._found = self._found, []
        found += self._consumer.consume(max(1, most - len(found)), 0)
        bad = [error for message in found if (error := message.error()) is not None]
        if bad and not bad[0].retriable():
            doing = f"read topic {self._topic.topic}, partition {self._partition}"
            raise queue_error(bad[0], doing, self._topic.servers, 0.0, self._trouble)
        return [message for message in found if message.error() is None] if bad else found

    def _is_first(self, message: Any) -> bool:
        """Is it not a second copy? Messages of others have no number."""
        task, number = number_of(message)
        if not task:
            return True
        is_first = number > self._had.get(task, -1)
        self._had[task] = max(number, self._had.get(task, -1))
        return is_first

    def due_s(self) -> float:
        return 0.1

    def close(self) -> None:
        self._stopped.set()
        self._waits.set()
        self._thread.join()
        self._consumer.close()
