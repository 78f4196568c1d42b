"""Topics of the user as the ends of a flow. Each partition of a topic is a split; each record keeps key and value.

A sink gives every message a header with the task and the number of its record. A task that starts again looks at what
the topic has had since its last commit, and goes on after the highest number that is there: so no message comes twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from headrace.errors import FlowError, QueueUnreachable
from headrace.flow.io import Feed, Opening, Sink, SinkWriter, Source, SplitReader
from headrace.queues.kafka import KafkaQueues
from headrace.queues.kafka_client import (
    Deliveries,
    Trouble,
    client_settings,
    confluent,
    new_client,
    queue_error,
    unreachable,
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
HEADER: Final = "headrace"
_TIMEOUT_S: Final = 30.0
_AT_ONCE: Final = 1000


@dataclass(frozen=True)
class KafkaTopic:
    """A topic. As a source it gives the columns of `MESSAGES`; as a sink it takes `value`, and `key` if given."""

    topic: str
    servers: str
    settings: Mapping[str, str] = field(default_factory=dict)
    transactional: bool = False
    from_start: bool = True
    every_copy: bool = False


@dataclass(frozen=True)
class KafkaSource(Source):
    """A task for each partition."""

    topic: KafkaTopic

    schema = MESSAGES

    @property
    def starts_alike(self) -> bool:  # type: ignore[override]
        return self.topic.from_start

    def splits(self) -> int:
        return len(_partitions(self.topic))

    def open(self, opening: Opening, position: Any) -> SplitReader:
        return KafkaSplit(self.topic, opening, position)

    def check(self) -> None:
        _partitions(self.topic)


@dataclass(frozen=True)
class KafkaSink(Sink):
    """Messages with the number of their record in a header."""

    topic: KafkaTopic

    @property
    def keeps_first(self) -> bool:  # type: ignore[override]
        """Its readers do."""
        return self.topic.every_copy

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
        _partitions(self.topic)


def kafka(
    topic: str,
    servers: str,
    *,
    transactional: bool = False,
    from_start: bool = True,
    every_copy: bool = False,
    settings: Mapping[str, str] | None = None,
) -> KafkaTopic:
    """A Kafka topic as a source or a sink. `settings` are librdkafka's, for TLS and SASL and the like.

    `transactional` makes what a sink writes visible (to readers of committed messages) at each commit, all at once, and
    shuts out a worker that was replaced but does not know it; without, messages are there at once.

    `every_copy`, where tasks have copies (`replicas=2`): all of them write to the topic, so that nobody waits for one
    to take over; who reads leaves out messages whose number, in the header `headrace`, is not above the last one of the
    same task. A source with `every_copy` does.
    """
    if transactional and every_copy:
        raise FlowError(f"topic {topic}: of a transaction there is one copy; say transactional or every_copy")
    return KafkaTopic(topic, servers, dict(settings or {}), transactional, from_start, every_copy)


def kafka_queues(servers: str, prefix: str = "headrace-", settings: Mapping[str, str] | None = None) -> KafkaQueues:
    """Queues of flows as topics of a Kafka cluster, for `flow.start(spark, queues=...)`."""
    return KafkaQueues(servers, prefix, dict(settings or {}))


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_binary(type) or pa.types.is_large_string(type))


def _partitions(topic: KafkaTopic) -> list[int]:
    trouble = Trouble()
    admin = new_client(confluent().admin.AdminClient, client_settings(topic.servers, topic.settings, trouble, {}))
    began = time.monotonic()
    doing = f"look at topic {topic.topic}"
    try:
        found = admin.list_topics(topic.topic, timeout=_TIMEOUT_S).topics.get(topic.topic)
    except confluent().KafkaException as error:
        raise queue_error(error.args[0], doing, topic.servers, time.monotonic() - began, trouble) from None
    if found is None or found.error is not None or not found.partitions:
        raise FlowError(f"there is no topic {topic.topic} at {topic.servers}; create it, or look at its name")
    return sorted(found.partitions)


# ---------------------------------------------------------------------- source


class KafkaSplit(SplitReader):
    """One partition. The worker takes what is there itself; where nothing is, a thread waits for it, and wakes it.

    Two threads that both work hard wait for each other: at 25,000 messages a second for half of the time.
    """

    def __init__(self, topic: KafkaTopic, opening: Opening, position: Any):
        """`position` is an offset; with the last numbers of writers, where second copies are left out."""
        self._topic, self._opening = topic, opening
        self._partition = _partitions(topic)[opening.split]
        self._had: dict[str, int] = dict(position[1]) if isinstance(position, list) else {}
        position = position[0] if isinstance(position, list) else position
        self._found: list[Any] = []
        self._trouble = Trouble()
        own = {"group.id": f"headrace-{opening.flow}", "enable.auto.commit": False, "auto.offset.reset": "error"}
        wanted = {"fetch.wait.max.ms": "50", "queued.max.messages.kbytes": str(16 << 10), **topic.settings}
        self._consumer = new_client(confluent().Consumer, client_settings(topic.servers, wanted, self._trouble, own))
        start = confluent().OFFSET_BEGINNING if topic.from_start else confluent().OFFSET_END
        place = confluent().TopicPartition(topic.topic, self._partition, start if position is None else position)
        self._consumer.assign([place])
        self._stopped, self._waits = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"headrace-{topic.topic}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._waits.wait()
            if self._stopped.is_set():
                return
            first = self._consumer.poll(0.1)
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
            pa.array([message.timestamp()[1] for message in taken], pa.int64()).cast(MESSAGES.types[4]),
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
        task, _, number = dict(message.headers() or ()).get(HEADER, b"").decode().rpartition(":")
        if not task:
            return True
        is_first = int(number) > self._had.get(task, -1)
        self._had[task] = max(int(number), self._had.get(task, -1))
        return is_first

    def due_s(self) -> float:
        return 0.1

    def close(self) -> None:
        self._stopped.set()
        self._waits.set()
        self._thread.join()
        self._consumer.close()


# ------------------------------------------------------------------------ sink


class KafkaWriter(SinkWriter):
    """Of one task. `committed` has the offsets that the last commit reached, by partition."""

    def __init__(self, topic: KafkaTopic, opening: Opening, committed: Mapping[str, int] | None):
        self._topic, self._opening = topic, opening
        # Of this flow, since it was first begun: another one may write to the same topic.
        self._mark = f"{opening.flow}.{opening.began_us:x}.{opening.node}.{opening.split}"
        self._trouble = Trouble()
        self._ends: dict[int, int] = {int(part): offset for part, offset in (committed or {}).items()}
        self._problem: Exception | None = None
        self._batches: list[tuple[int, pa.RecordBatch]] = []
        self._deliveries = Deliveries()
        own: dict[str, Any] = {"enable.idempotence": True, "acks": "all", "linger.ms": 0}
        if topic.transactional:
            own["transactional.id"] = f"headrace-{opening.flow}-{opening.node}-{opening.split}"
        self._producer = new_client(
            confluent().Producer, client_settings(topic.servers, topic.settings, self._trouble, own)
        )
        if topic.transactional:
            self._explained("begin", lambda: self._producer.init_transactions(_TIMEOUT_S))
        self._first_new = self._highest() + 1

    def write(self, first: int, batch: pa.RecordBatch) -> None:
        skipped = min(max(0, self._first_new - first), batch.num_rows)
        if skipped < batch.num_rows:
            pair = first + skipped, batch.slice(skipped)
            if self._topic.transactional:
                self._batches.append(pair)
            else:
                self._produce(*pair)

    def _produce(self, first: int, batch: pa.RecordBatch) -> None:
        if self._problem is not None:
            raise self._problem
        values = batch.column("value").to_pylist()
        keys = batch.column("key").to_pylist() if "key" in batch.schema.names else [None] * len(values)
        for at, (key, value) in enumerate(zip(keys, values, strict=True)):
            header = {HEADER: f"{self._mark}:{first + at}"}
            while True:
                try:
                    self._producer.produce(self._topic.topic, value, key, headers=header, on_delivery=self._delivered)
                    self._deliveries.sent += 1
                    break
                except BufferError:
                    self._producer.poll(0.1)
        self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._problem = queue_error(error, self._doing("write to"), self._topic.servers, _TIMEOUT_S, self._trouble)
        else:
            self._ends[message.partition()] = message.offset() + 1
        self._deliveries.answer()

    def cut(self) -> Callable[[], Any]:
        batches, self._batches = self._batches, []
        sent = self._deliveries.sent
        return lambda: self._commit(batches, sent)

    def _commit(self, batches: list[tuple[int, pa.RecordBatch]], sent: int) -> dict[str, int]:
        if batches:
            self._explained("begin", self._producer.begin_transaction)
            for first, batch in batches:
                self._produce(first, batch)
            self._wait_for(self._deliveries.sent)
            self._explained("commit to", lambda: self._producer.commit_transaction(_TIMEOUT_S))
        else:
            self._wait_for(sent)
        return {str(partition): offset for partition, offset in sorted(self._ends.items())}

    def _wait_for(self, sent: int) -> None:
        if self._deliveries.wait(self._producer, sent, _TIMEOUT_S):
            raise unreachable(self._doing("write to"), self._topic.servers, _TIMEOUT_S, self._trouble.reason)
        if self._problem is not None:
            raise self._problem

    def _explained(self, verb: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except confluent().KafkaException as error:
            raise queue_error(
                error.args[0], self._doing(verb), self._topic.servers, _TIMEOUT_S, self._trouble
            ) from None

    def _doing(self, verb: str) -> str:
        return f"{verb} topic {self._topic.topic}"

    # ------------------------------------------------------- after a restart

    def _highest(self) -> int:
        """The highest number of this task among the messages since its last commit; -1 if there is none."""
        kafka = confluent()
        own = {"group.id": f"headrace-{self._opening.flow}", "enable.auto.commit": False, "auto.offset.reset": "error"}
        own |= {"isolation.level": "read_committed" if self._topic.transactional else "read_uncommitted"}
        consumer = new_client(
            kafka.Consumer, client_settings(self._topic.servers, self._topic.settings, self._trouble, own)
        )
        try:
            left = self._to_look_at(consumer)
            return self._scan(consumer, left)
        except kafka.KafkaException as error:
            raise queue_error(
                error.args[0], self._doing("look at"), self._topic.servers, _TIMEOUT_S, self._trouble
            ) from None
        finally:
            consumer.close()

    def _to_look_at(self, consumer: Any) -> dict[int, int]:
        """The partitions that have had something since, with where they end; the consumer is set to read them."""
        kafka = confluent()
        starts = self._starts(consumer)
        left: dict[int, int] = {}
        places = []
        for partition, start in starts.items():
            low, high = consumer.get_watermark_offsets(
                kafka.TopicPartition(self._topic.topic, partition), timeout=_TIMEOUT_S
            )
            if max(start, low) < high:
                left[partition] = high
                places.append(kafka.TopicPartition(self._topic.topic, partition, max(start, low)))
        consumer.assign(places)
        return left

    def _starts(self, consumer: Any) -> dict[int, int]:
        """Of each partition: where the last commit was, or where it was when the flow first began."""
        kafka = confluent()
        began_ms = self._opening.began_us // 1000
        unknown = [
            kafka.TopicPartition(self._topic.topic, partition, began_ms)
            for partition in _partitions(self._topic)
            if partition not in self._ends
        ]
        asked = consumer.offsets_for_times(unknown, timeout=_TIMEOUT_S) if unknown else []
        found = {part.partition: part.offset for part in asked}
        # A negative offset: nothing is that new.
        never = 1 << 62
        return {**{part: offset if offset >= 0 else never for part, offset in found.items()}, **self._ends}

    def _scan(self, consumer: Any, left: dict[int, int]) -> int:
        highest, mine = -1, self._mark
        deadline = time.monotonic() + _TIMEOUT_S
        while left:
            for message in consumer.consume(_AT_ONCE, 0.2):
                if message.error() is not None:
                    continue
                deadline = time.monotonic() + _TIMEOUT_S
                task, _, number = dict(message.headers() or ()).get(HEADER, b"").decode().rpartition(":")
                if task == mine:
                    highest = max(highest, int(number))
            for place in consumer.position([confluent().TopicPartition(self._topic.topic, part) for part in left]):
                if place.offset >= left[place.partition]:
                    del left[place.partition]
            if time.monotonic() > deadline:
                raise QueueUnreachable(f"cannot {self._doing('look at')} at {self._topic.servers}: it does not answer")
        return highest

    def close(self) -> None:
        self._producer.flush(1.0)
