"""Source order through ordinary streaming queries: nothing lost, nothing twice, nothing out of order."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.errors import FlowError, OrderBroken, QueueDamaged
from headrace.spark.broker import Broker
from headrace.spark.kafka import add_kafka
from headrace.spark.ordered_query import Done, OrderedQuery, Paths, PathsMerge, order_query, pieces_of

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(300)]
RECORDS, TASKS = 20_000, 4
PATIENCE_S = 120.0

# ------------------------------------------------------------ without a broker


@dataclass(frozen=True)
class Message:
    """What a merger uses of Kafka's."""

    at: int
    tag: str

    def headers(self) -> list[tuple[str, bytes]]:
        return [("headrace", self.tag.encode())]

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return self.tag.encode()


class Topic:
    """The paths, as queries that fail in every way write them."""

    def __init__(self, seed: int, paths: int = 3):
        self.random = random.Random(seed)
        self.logs: list[list[Message]] = [[] for _ in range(paths)]
        self._zombies: list[tuple[int, str]] = []

    def add(self, at: int, tag: str) -> int:
        self.logs[at].append(Message(len(self.logs[at]), tag))
        return len(self.logs[at]) - 1

    def begin(self, batch: int) -> int:
        return self.add(0, f"-1,-1,{batch}")

    def end(self, token: int, batch: int, paths: Sequence[int] | None = None) -> None:
        for at in range(len(self.logs)) if paths is None else paths:
            self.add(at, f"{token},-2,{batch}")

    def run(self, batch: int, sequences: Sequence[int], fails: bool = False) -> None:
        """Rows are dealt out anew in each run; a task may fail and be run again; late rows of dead runs come between."""
        token, choose = self.begin(batch), self.random
        tasks: list[list[int]] = [[] for _ in self.logs]
        for sequence in sequences:
            choose.choice(tasks).append(sequence)
        left = [deque(self._attempts(token, rows)) for rows in tasks]
        while any(left):
            at = choose.choice([at for at, rows in enumerate(left) if rows])
            tag = left[at].popleft()
            self.add(at, tag)
            if self._zombies and choose.random() < 0.2:
                self.add(*choose.choice(self._zombies))
            if choose.random() < 0.1:
                self._zombies.append((at, tag))
            if fails and choose.random() < 2 / (1 + len(sequences)):
                return
        self.end(token, batch, range(choose.randrange(len(self.logs))) if fails else None)

    def _attempts(self, token: int, rows: list[int]) -> list[str]:
        tags = [f"{token},{number},{sequence}" for number, sequence in enumerate(rows)]
        if self.random.random() < 0.6:
            return tags
        cut = self.random.randrange(len(tags) + 1)
        return [tag for tag in tags[:cut] if self.random.random() < 0.8] + tags


def merged(topic: Topic, restarts: float) -> list[int]:
    """What leaves, when the partitions are read at any pace, and the merger is started again now and then."""
    choose, out = topic.random, list[int]()
    done, offsets = Done(), [0] * len(topic.logs)
    while True:
        merge, reads = PathsMerge([f"p{at}" for at in range(len(offsets))], done, offsets), [*offsets]
        kept: list[deque[Any]] = [deque() for _ in offsets]
        while any(at < len(log) for at, log in zip(reads, topic.logs, strict=True)):
            if choose.random() < restarts:
                break
            at = choose.randrange(len(reads))
            found = topic.logs[at][reads[at] : reads[at] + choose.randrange(8)]
            reads[at] += len(found)
            kept[at].extend(pieces_of(found) if found else ())
            while advance(merge, kept, out):
                done, offsets = merge.done, merge.offsets
        else:
            return out


def advance(merge: PathsMerge, kept: list[deque[Any]], out: list[int]) -> bool:
    has_moved = False
    for at, pieces in enumerate(kept):
        while pieces and merge.take(at, pieces[0]):
            pieces.popleft()
            has_moved = True
    rows = merge.release()
    out += [] if rows is None else rows.column(0).to_pylist()
    return has_moved


@pytest.mark.parametrize("seed", range(150))
def test_runs_that_fail_leave_nothing_out_and_nothing_twice(seed: int) -> None:
    topic, expected, first = Topic(seed), list[int](), 0
    for batch in range(6):
        count = topic.random.choice([0, 1, 5, 30])
        rows = sorted(topic.random.sample(range(first, first + 2 * count), count))
        first += 2 * count
        while topic.random.random() < 0.4:
            topic.run(batch, rows, fails=True)
        topic.run(batch, rows)
        if topic.random.random() < 0.2:
            topic.run(batch, rows)  # complete, but Spark had no time to note it
        expected += rows
    assert merged(topic, restarts=0.02 * (seed % 3)) == expected


def test_a_query_with_a_new_checkpoint_begins_again_and_nothing_leaves_twice() -> None:
    topic = Topic(1)
    for batch, rows in enumerate([range(10), range(10, 20), range(20, 30)]):
        topic.run(batch, rows)
    for batch, rows in enumerate([range(15), range(15, 40)]):
        topic.run(batch, rows)
    assert merged(topic, restarts=0.0) == list(range(40))


def broken(write: Callable[[Topic], object]) -> str:
    topic = Topic(1)
    topic.run(0, range(10))
    write(topic)
    with pytest.raises((FlowError, OrderBroken, QueueDamaged)) as caught:
        merged(topic, restarts=0.0)
    return str(caught.value)


def test_what_has_no_order_does_not_leave() -> None:
    assert "5 comes after micro-batch 0 had 9" in broken(lambda topic: topic.run(1, [5, 11]))
    assert "micro-batch 2 begins, and 0 is not complete" in broken(lambda topic: topic.run(2, [20]))


def test_a_row_that_is_missing_is_seen() -> None:
    def write(topic: Topic) -> None:
        token = topic.begin(1)
        topic.add(1, f"{token},1,11")
        topic.end(token, 1)

    assert "p1: row 0 of micro-batch 1 is missing" in broken(write)


# --------------------------------------------------------------- with a broker


def new_topic(broker: Broker, partitions: int) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


def filled_topic(broker: Broker, records: int, partitions: int = 1) -> str:
    topic = new_topic(broker, partitions)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20})
    for n in range(records):
        producer.produce(topic, str(n), f"key {n % 5}", n % partitions, headers=[("from", str(n % 3))])
    assert producer.flush(30) == 0
    return topic


def stream(spark: SparkSession, broker: Broker, topic: str, at_once: int) -> DataFrame:
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "startingOffsets": "earliest"}
    options |= {"maxOffsetsPerTrigger": str(at_once), "includeHeaders": "true"}
    return add_kafka(spark).readStream.format("kafka").options(**options).load()


def parallel(messages: DataFrame, flag: Path | None = None) -> DataFrame:
    """Rows but those of multiples of 7, through tasks that are fast and slow; one fails, as long as there is no flag."""

    @F.udf("string")
    def slowly(value: str, task: int) -> str:
        time.sleep(0.0005 * (task % 3))
        if flag is not None and value == "12345" and not flag.exists():
            flag.touch()
            raise RuntimeError("this task fails once")
        return f"answer to {value}"

    dealt = messages.repartition(TASKS).where("offset % 7 != 0").withColumn("task", F.spark_partition_id())
    return dealt.select("key", slowly(F.col("value").cast("string"), "task").alias("value"), "headers", "offset")


def answers(broker: Broker, topic: str) -> list[tuple[int, str]]:
    """The sequences and values that the topic has now."""
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": uuid4().hex, "isolation.level": "read_committed",
         "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        headers = dict(message.headers() or ())
        assert headers["from"] == str(int(headers["headrace-sequence"]) % 3).encode()  # type: ignore[arg-type]
        found.append((int(headers["headrace-sequence"]), (message.value() or b"").decode()))  # type: ignore[arg-type]
    consumer.close()
    return found


EXPECTED = [(n, f"answer to {n}") for n in range(RECORDS) if n % 7]


def test_a_parallel_query_in_the_order_of_its_source(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    source, to = filled_topic(kafka_broker, RECORDS), new_topic(kafka_broker, 1)
    rows = parallel(stream(spark, kafka_broker, source, 5000))
    ordered = order_query(
        rows, to, kafka_broker.address, checkpoint=str(tmp_path), parallelism=TASKS, trigger={"availableNow": True}
    )
    assert ordered.wait(PATIENCE_S)
    assert answers(kafka_broker, to) == EXPECTED
    progress = ordered.progress
    assert (progress.batch, progress.released, progress.held) == (3, RECORDS - 1, 0)
    assert (progress.rows, progress.dropped) == (len(EXPECTED), 0)
