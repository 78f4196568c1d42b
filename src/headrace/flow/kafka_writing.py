"""Records of a flow as messages of a topic.

Every message has a header with the task and the number of its record. A task that starts again looks at what the topic
has had since its last commit, and leaves out the numbers that are there: so no message comes twice, and none is missing
where one partition had got further than another. What has no key goes to a partition by its number, so that all copies
of a task, and all its runs, send it to the same one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import QueueUnreachable
from headrace.flow.io import Opening, SinkWriter
from headrace.flow.kafka_topic import HEADER, TIMEOUT_S, KafkaTopic, number_of, partitions_of
from headrace.queues.kafka_admin import KafkaAdmin
from headrace.queues.kafka_client import (
    Deliveries,
    Lot,
    Trouble,
    client_settings,
    confluent,
    new_client,
    queue_error,
    unreachable,
)

Ints = npt.NDArray[np.int64]

_AT_ONCE: Final = 1000
_BY_KEY: Final = -1
"""In place of a partition."""
_GATHER_MS: Final = "2"
_FEW: Final = 64
"""Fewer messages do not wait for others to go with them. So many do: each takes the client 8 µs of the processor then,
and 16 where every few of them are a request of their own."""
_FLUSH_S: Final = 0.001
"""For how long that is asked for; whoever asks has a thread that is about to do it."""
_OPEN_S: Final = 90.0
"""How long to wait for a transaction of another writer: it ends by itself after 60 s, where that was not changed."""


class KafkaWriter(SinkWriter):
    """Of one task. `committed` has the offsets that the last commit reached, by partition."""

    def __init__(self, topic: KafkaTopic, opening: Opening, committed: Mapping[str, int] | None):
        self._topic, self._opening = topic, opening
        # Of this flow, since it was first begun: another one may write to the same topic.
        self._mark = f"{opening.flow}.{opening.began_us:x}.{opening.node}.{opening.split}"
        self._trouble = Trouble()
        ends = {**(opening.beginning or {}), **(committed or {})}
        self._ends: dict[int, int] = {int(part): offset for part, offset in ends.items()}
        self._problem: Exception | None = None
        self._batches: list[tuple[Ints, pa.RecordBatch]] = []
        self._deliveries = Deliveries(self._delivered)
        own: dict[str, Any] = {"enable.idempotence": True, "acks": "all"}
        if topic.transactional:
            own["transactional.id"] = f"headrace-{opening.flow}-{opening.node}-{opening.split}"
        wanted = {"linger.ms": _GATHER_MS, **topic.settings}
        self._producer = new_client(confluent().Producer, client_settings(topic.servers, wanted, self._trouble, own))
        if topic.transactional:
            self._explained("begin", lambda: self._producer.init_transactions(TIMEOUT_S))
        self._partitions = partitions_of(topic)
        self._there = self._found()

    def write(self, first: int, batch: pa.RecordBatch) -> None:
        numbers = np.arange(first, first + batch.num_rows)
        if len(self._there) and first <= self._there[-1]:
            is_new = ~np.isin(numbers, self._there)
            numbers, batch = numbers[is_new], batch.filter(pa.array(is_new))
        if len(numbers) and self._topic.transactional:
            self._batches.append((numbers, batch))
        elif len(numbers):
            self._produce(numbers, batch)

    def _produce(self, numbers: Ints, batch: pa.RecordBatch) -> None:
        if self._problem is not None:
            raise self._problem
        values = batch.column("value").to_pylist()
        keys = batch.column("key").to_pylist() if "key" in batch.schema.names else [None] * len(values)
        topic, partitions = self._topic.topic, self._partitions
        lot, left = self._deliveries.begin(len(values)), len(values)
        try:
            for number, key, value in zip(numbers.tolist(), keys, values, strict=True):
                header = {HEADER: f"{self._mark}:{number}"}
                to = _BY_KEY if key else partitions[number % len(partitions)]
                while True:
                    try:
                        self._producer.produce(topic, value, key, to, headers=header, on_delivery=lot.answer)
                        left -= 1
                        break
                    except BufferError:
                        self._producer.poll(0.1)
        finally:
            lot.withdraw(left)
        if len(values) < _FEW:
            self._producer.flush(_FLUSH_S)
        else:
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._problem = queue_error(error, self._doing("write to"), self._topic.servers, TIMEOUT_S, self._trouble)
        else:
            # Of a message that a broker had already, it may not say where.
            self._ends[message.partition()] = max(message.offset() + 1, self._ends.get(message.partition(), 0))

    def cut(self) -> Callable[[], Any]:
        batches, self._batches = self._batches, []
        # What comes after the cut may be there before the commit is: a task that starts again must find it.
        sent, ends = self._deliveries.cut(), dict(self._ends)
        return lambda: self._commit(batches, sent, ends)

    def _commit(
        self, batches: list[tuple[Ints, pa.RecordBatch]], sent: Sequence[Lot], ends: dict[int, int]
    ) -> dict[str, int]:
        if batches:
            self._explained("begin", self._producer.begin_transaction)
            for numbers, batch in batches:
                self._produce(numbers, batch)
            self._wait_for(self._deliveries.cut())
            self._explained("commit to", lambda: self._producer.commit_transaction(TIMEOUT_S))
            ends = self._ends
        else:
            self._wait_for(sent)
        return {str(partition): offset for partition, offset in sorted(ends.items())}

    def _wait_for(self, sent: Sequence[Lot]) -> None:
        if self._deliveries.wait(self._producer, sent, TIMEOUT_S):
            raise unreachable(self._doing("write to"), self._topic.servers, TIMEOUT_S, self._trouble.reason)
        if self._problem is not None:
            raise self._problem

    def _explained(self, verb: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except confluent().KafkaException as error:
            raise queue_error(error.args[0], self._doing(verb), self._topic.servers, TIMEOUT_S, self._trouble) from None

    def _doing(self, verb: str) -> str:
        return f"{verb} topic {self._topic.topic}"

    # ------------------------------------------------------- after a restart

    def _found(self) -> Ints:
        """The numbers of this task among the messages since its last commit, in order."""
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
                error.args[0], self._doing("look at"), self._topic.servers, TIMEOUT_S, self._trouble
            ) from None
        finally:
            consumer.close()

    def _to_look_at(self, consumer: Any) -> dict[int, int]:
        """The partitions that have had something since, with where they end; the consumer is set to read them."""
        # A reader of committed messages would say that a partition ends where anybody's transaction is open.
        admin = KafkaAdmin(self._topic.servers, self._topic.settings, TIMEOUT_S)
        lows, highs = (
            admin.offsets(self._topic.topic, self._partitions, self._doing("look at"), last) for last in (False, True)
        )
        starts = {part: max(self._ends.get(part, 0), low) for part, low in lows.items()}
        left = {part: high for part, high in highs.items() if starts[part] < high}
        consumer.assign([confluent().TopicPartition(self._topic.topic, part, starts[part]) for part in left])
        return left

    def _scan(self, consumer: Any, left: dict[int, int]) -> Ints:
        found, mine = list[int](), self._mark
        patience_s = _OPEN_S if self._topic.transactional else TIMEOUT_S
        deadline = time.monotonic() + patience_s
        while left:
            for message in consumer.consume(_AT_ONCE, 0.2):
                if message.error() is not None:
                    continue
                deadline = time.monotonic() + patience_s
                task, number = number_of(message)
                if task == mine:
                    found.append(number)
            for place in consumer.position([confluent().TopicPartition(self._topic.topic, part) for part in left]):
                if place.offset >= left[place.partition]:
                    del left[place.partition]
            if time.monotonic() > deadline:
                raise self._stuck(min(left), patience_s)
        return np.unique(np.array(found, np.int64))

    def _stuck(self, partition: int, waited_s: float) -> QueueUnreachable:
        doing = f"cannot {self._doing('look at')} at {self._topic.servers}"
        if not self._topic.transactional:
            return QueueUnreachable(f"{doing}: it does not answer")
        return QueueUnreachable(
            f"{doing}: nothing comes of partition {partition}, where a transaction of another writer has been open for "
            f"{waited_s:.0f} s, or the broker does not answer; end that transaction, or wait for its time to be over"
        )

    def close(self) -> None:
        self._producer.flush(1.0)
