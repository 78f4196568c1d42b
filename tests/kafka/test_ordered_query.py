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
from headrace.order.runs import Done, PathsMerge
from headrace.spark.broker import Broker
from headrace.spark.kafka import add_kafka
from headrace.spark.merger import Merger, pieces_of
from headrace.spark.ordered_query import OrderedQuery, order_query
from headrace.spark.query_paths import Paths

from .topics import answers, filled_topic, new_topic

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
        """Rows are dealt out anew in each run; tasks may fail and be run again; late rows of dead runs come between."""
        token, choose = self.begin(batch), self.random
        tasks: list[list[int]] = [[] for _ in self.logs]
        for sequence in sequences:
            choose.choice(tasks).append(sequence)
        left = [deque(self._attempts(token, rows)) for rows in tasks]
        while any(left):
            at = choose.choice([at for at, rows in enumerate(left) if rows])
            tag = left[at].popleft()
            self.add(at, tag)
            self._haunt()
            if choose.random() < 0.1:
                self._zombies.append((at, tag))
            if fails and choose.random() < 2 / (1 + len(sequences)):
                return
        self.end(token, batch, range(choose.randrange(len(self.logs))) if fails else None)
        self._haunt()

    def _haunt(self) -> None:
        if self._zombies and self.random.random() < 0.2:
            self.add(*self.random.choice(self._zombies))

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


@pytest.mark.parametrize("seed", range(100))
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


def stream(spark: SparkSession, broker: Broker, topic: str, at_once: int) -> DataFrame:
    options = {"kafka.bootstrap.servers": broker.address, "subscribe": topic, "startingOffsets": "earliest"}
    options |= {"maxOffsetsPerTrigger": str(at_once), "includeHeaders": "true"}
    return add_kafka(spark).readStream.format("kafka").options(**options).load()


def parallel(messages: DataFrame, flag: Path | None = None) -> DataFrame:
    """All but the multiples of 7, through tasks that are fast and slow; one fails, as long as there is no flag."""

    @F.udf("string", useArrow=False)
    def slowly(value: str, task: int) -> str:
        if int(value) % 50 == 1:
            time.sleep(0.004 * (task % 3))
        if flag is not None and value == "12345" and not flag.exists():
            flag.touch()
            raise RuntimeError("this task fails once")
        return f"answer to {value}"

    dealt = messages.repartition(TASKS).where("offset % 7 != 0").withColumn("task", F.spark_partition_id())
    return dealt.select("key", slowly(F.col("value").cast("string"), "task").alias("value"), "headers", "offset")


def expected_of(records: int) -> list[tuple[int, str]]:
    return [(n, f"answer to {n}") for n in range(records) if n % 7]


EXPECTED = expected_of(RECORDS)


@pytest.mark.parametrize("records", [RECORDS, pytest.param(1_000_000, marks=pytest.mark.chaos)])
def test_a_parallel_query_in_the_order_of_its_source(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path, records: int
) -> None:
    source, to = filled_topic(kafka_broker, records), new_topic(kafka_broker)
    rows, expected = parallel(stream(spark, kafka_broker, source, records // 4)), expected_of(records)
    ordered = order_query(
        rows, to, kafka_broker.address, checkpoint=str(tmp_path), parallelism=TASKS, trigger={"availableNow": True}
    )
    assert ordered.wait(2 * PATIENCE_S)
    assert answers(kafka_broker, to) == expected
    progress = ordered.progress
    assert (progress.batch, progress.released, progress.held) == (3, expected[-1][0], 0)
    assert (progress.rows, progress.dropped) == (len(expected), 0)


MERGER = """
import sys
from headrace.spark.ordered_query import Merger, Paths
Merger(Paths(sys.argv[1], sys.argv[2], int(sys.argv[3])), sys.argv[1]).run()
"""


def merger_process(broker: Broker, to: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", MERGER, to, broker.address, str(TASKS)]
    return subprocess.Popen(command)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def end_of(consumer: Consumer, topic: str) -> int:
    """Grows with what is in the topic, be it committed or not."""
    return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])


@pytest.mark.chaos
def test_queries_and_mergers_that_end_in_the_middle(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:
    source, to = filled_topic(kafka_broker, RECORDS), new_topic(kafka_broker, 1)
    rows = parallel(stream(spark, kafka_broker, source, 4000), flag=tmp_path / "failed")

    def start() -> OrderedQuery:
        checkpoint, trigger = str(tmp_path / "checkpoint"), {"availableNow": True}
        return order_query(rows, to, kafka_broker.address, checkpoint=checkpoint, parallelism=TASKS, trigger=trigger)

    first = start()
    until(lambda: first.progress.rows > 0)
    first.query.stop()  # most likely in the middle of a micro-batch
    assert first.wait(PATIENCE_S)
    assert answers(kafka_broker, to) == EXPECTED[: first.progress.rows]

    paths = Paths(to, kafka_broker.address, TASKS)
    writer = rows.writeStream.foreachBatch(paths.write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    looker = Consumer({"bootstrap.servers": kafka_broker.address, "group.id": uuid4().hex})
    for _ in range(2):
        with merger_process(kafka_broker, to) as merger:
            try:
                before = end_of(looker, to)
                until(lambda before=before: not query.isActive or end_of(looker, to) > before)  # type: ignore[misc]
            finally:
                merger.kill()  # most likely in the middle of a transaction
    looker.close()
    with pytest.raises(StreamingQueryException, match="this task fails once"):
        query.awaitTermination()

    assert start().wait(PATIENCE_S)
    assert answers(kafka_broker, to) == EXPECTED


@pytest.mark.chaos
def test_a_second_merger_shuts_the_first_one_out(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:
    source, to = filled_topic(kafka_broker, 100), new_topic(kafka_broker, 1)
    rows = stream(spark, kafka_broker, source, 100).select("value", "headers", "offset")
    ordered = order_query(rows, to, kafka_broker.address, checkpoint=str(tmp_path), parallelism=2)
    until(lambda: ordered.progress.rows == 100)
    other = Merger(Paths(to, kafka_broker.address, 2), to)
    assert (other.progress.batch, other.progress.released) == (0, 99)
    producer = Producer({"bootstrap.servers": kafka_broker.address})
    producer.produce(source, "100", headers=[("from", "1")])
    producer.flush()
    with pytest.raises(FlowError, match="another merger of this name has taken over"):
        ordered.wait(PATIENCE_S)
    other.stop()
    other.run()
    assert [sequence for sequence, _ in answers(kafka_broker, to)] == list(range(101))


@pytest.mark.chaos
def test_several_partitions_with_an_order_of_their_own_to_a_function(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    source, found = filled_topic(kafka_broker, 500, partitions=2), list[pa.RecordBatch]()
    rows = stream(spark, kafka_broker, source, 1000).withColumn("n", F.col("value").cast("string").cast("int"))
    ordered = order_query(
        rows.repartition(3).drop("offset"), found.append, kafka_broker.address, name=f"f-{uuid4().hex[:8]}",
        checkpoint=str(tmp_path), parallelism=3, sequence="n", trigger={"availableNow": True},
    )  # fmt: skip
    assert ordered.wait(PATIENCE_S)
    table = pa.Table.from_batches(found)
    assert table.column("sequence").to_pylist() == list(range(500))
    assert table.column("value").to_pylist() == [b"%d" % n for n in range(500)]
    assert table.column("key").to_pylist() == [b"key %d" % (n % 5) for n in range(500)]


@pytest.mark.chaos
def test_the_output_tells_how_far_it_is_where_kafka_has_forgotten(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path
) -> None:
    source, to = filled_topic(kafka_broker, 300), new_topic(kafka_broker, 1)
    rows = stream(spark, kafka_broker, source, 300).select("value", "headers", "offset")
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    for number in range(2):
        trigger: dict[str, Any] = {"availableNow": True}
        checkpoint, parallelism = str(tmp_path / str(number)), 2 + number
        ordered = order_query(
            rows, to, kafka_broker.address, checkpoint=checkpoint, parallelism=parallelism, trigger=trigger
        )
        assert ordered.wait(PATIENCE_S)
        admin.delete_topics([f"{to}-paths"])[f"{to}-paths"].result(30)
        until(lambda: f"{to}-paths" not in admin.list_topics(timeout=30).topics)
    assert [sequence for sequence, _ in answers(kafka_broker, to)] == list(range(300))
    assert (ordered.progress.rows, ordered.progress.dropped) == (0, 300)


def test_what_is_refused(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:
    one, two, address = new_topic(kafka_broker, 1), new_topic(kafka_broker, 2), kafka_broker.address
    rows, many = stream(spark, kafka_broker, one, 10), stream(spark, kafka_broker, two, 10)

    def refused(df: DataFrame, match: str, to: Any = one, **more: Any) -> None:
        with pytest.raises(FlowError, match=match):
            order_query(df, to, address, checkpoint=str(tmp_path), **{"parallelism": 2, **more})

    refused(many, "the source has 2 partitions, and their offsets are no order among them; read one partition, or say")
    refused(rows.drop("offset"), r"needs an integer column offset, and has key binary, .*; keep the offset")
    refused(rows, "needs an integer column n,", sequence="n")
    refused(rows, "needs an integer column timestamp,", sequence="timestamp")
    refused(rows.select("offset"), r"writes a column value \(text or binary\), and has offset bigint; make one")
    refused(
        spark.range(3).selectExpr("id AS offset", "'x' AS value"), "takes a streaming DataFrame; sort a bounded one"
    )
    refused(rows, rf"topic {two} has 2 partitions, which have no order among them; write to one with one", to=two)
    refused(rows, r"there is no topic nowhere at .*; create it, with one partition", to="nowhere")
    refused(rows, "needs a name", to=print)
    refused(rows, "the parallelism is 0", parallelism=0)
    number = rows.withColumn("n", F.col("offset"))
    refused(number, "in Real-Time Mode a row has the place of its offset, and the sequence is n", sequence="n",
            trigger={"realTime": "5 seconds"})  # fmt: skip
    admin, paths = AdminClient({"bootstrap.servers": address}), f"{one}-paths"
    admin.create_topics([NewTopic(paths, 3, 1)])[paths].result(30)
    refused(rows, f"topic {paths} has 3 partitions, and the parallelism is 2; say the same as before or, when all")
