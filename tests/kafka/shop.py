"""Orders through three ordinary streaming queries, and a witness who knows when one is done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from headrace.spark.broker import Broker
from headrace.spark.kafka import add_kafka
from headrace.spark.query_tracker import QueryTracker
from headrace.spark.tracked_queries import link, track_queries
from headrace.spark.tracked_topics import Link

PATIENCE_S = 120.0


def new_topics(broker: Broker, partitions: Sequence[int]) -> list[str]:
    names = [f"{name}-{uuid4().hex[:8]}" for name in ("orders", "priced", "packed")[: len(partitions)]]
    for name, count in zip(names, partitions, strict=True):
        create(AdminClient({"bootstrap.servers": broker.address}), name, count)
    return names


def create(admin: AdminClient, topic: str, partitions: int) -> None:
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    until(lambda: bool(admin.list_topics(topic, timeout=30).topics[topic].partitions))


def field_of(name: str) -> Column:
    return F.get_json_object(F.col("value").cast("string"), f"$.{name}")


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@dataclass(frozen=True)
class Order:
    """Of 1 to 5 records, the last one of which is its marker."""

    number: int

    @property
    def records(self) -> int:
        return 1 + self.number * 7 % 5

    @property
    def is_filtered(self) -> bool:
        return self.number % 6 == 0

    @property
    def rows(self) -> int:
        """That reach the end: the second query makes one to three of each record."""
        return 0 if self.is_filtered else sum(1 + (self.number + n) % 3 for n in range(self.records))


PACKED = """
    SELECT to_json(struct(order, n, part)) AS value
    FROM (SELECT get_json_object(text, '$.order') AS order, get_json_object(text, '$.n') AS n
          FROM (SELECT CAST(value AS STRING) AS text FROM {priced}))
    LATERAL VIEW explode(sequence(1, 1 + pmod(CAST(order AS INT) + CAST(n AS INT), 3))) AS part
"""
"""The second query: several records of one, in any partition."""


def kafka_rows(spark: SparkSession, servers: str, topic: str, at_once: int) -> DataFrame:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    options |= {"maxOffsetsPerTrigger": str(at_once), "kafka.fetch.max.wait.ms": "50"}
    return add_kafka(spark).readStream.format("kafka").options(**options).load()


class Shop:
    """Three queries in a row. What the last one has processed is the truth."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path, at_once: int):
        self.spark, self.broker, self.folder, self.at_once = spark, broker, folder, at_once
        self.topics = new_topics(broker, [3, 2, 3])
        self.queries: dict[int, StreamingQuery] = {}
        self.processed: list[int] = []
        """The orders of the rows that the last query had, copies as well."""
        self.rows: dict[int, set[tuple[int, int]]] = {}
        self.fails_after_write = 0
        """How many more times a batch of the second query fails when all of it is written."""
        self._producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "log_level": 0})

    def order(self, orders: Sequence[Order]) -> None:
        for number, n in [(order.number, n) for n in range(5) for order in orders if n < order.records]:
            record = {"order": number, "n": n, "last": n + 1 == Order(number).records}
            self._producer.produce(self.topics[0], json.dumps(record), str(number))
            self._producer.poll(0)
        assert self._producer.flush(30) == 0

    def links(self) -> list[Link]:
        ends = [field_of("last") == "true", None, None]
        return [
            link(topic, by=field_of("order"), checkpoint=self.checkpoint(at), ends=ends[at])
            for at, topic in enumerate(self.topics)
        ]

    def checkpoint(self, at: int) -> str:
        return str(self.folder / f"query-{at + 1}")

    def start(self, *which: int) -> None:
        for at in which:
            read = kafka_rows(self.spark, self.broker.address, self.topics[at], self.at_once)
            writer = (self._priced, self._packed, self._shipped)[at](read)
            self.queries[at] = writer.option("checkpointLocation", self.checkpoint(at)).start()

    def stop(self, *which: int) -> None:
        for at in which:
            self.queries[at].stop()

    def _to(self, topic: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.broker.address, "topic": topic}

    def _priced(self, read: DataFrame) -> Any:
        """Leaves orders out."""
        kept = read.where(field_of("order").cast("int") % 6 != 0).select("value")
        return kept.writeStream.format("kafka").options(**self._to(self.topics[1]))

    def _packed(self, read: DataFrame) -> Any:
        """Fails now and then, and then writes all of it again."""

        def write(rows: DataFrame, batch: int) -> None:
            rows.write.format("kafka").options(**self._to(self.topics[2])).save()
            if self.fails_after_write > 0 and batch > 0:
                self.fails_after_write -= 1
                raise RuntimeError("this batch is written, and fails")

        return self.spark.sql(PACKED, priced=read).writeStream.foreachBatch(write)

    def _shipped(self, read: DataFrame) -> Any:
        found = read.select(*(field_of(name).cast("int").alias(name) for name in ("order", "n", "part")))

        def write(rows: DataFrame, _: int) -> None:
            for order, n, part in rows.collect():
                self.processed.append(order)
                self.rows.setdefault(order, set()).add((n, part))

        return found.writeStream.foreachBatch(write)


@dataclass
class Witness:
    """Is told which orders are done, and looks at the truth at that moment."""

    shop: Shop
    told: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    at: dict[int, int] = field(default_factory=dict)

    def __call__(self, name: str) -> None:
        order = Order(int(name))
        self.told.append(name)
        self.at[order.number] = len(self.shop.processed)
        has = len(self.shop.rows.get(order.number, ()))
        if has != order.rows:
            self.problems.append(f"order {name} is said to be done when {has} of its {order.rows} rows are")

    def check(self, orders: Sequence[Order]) -> None:
        assert self.problems == []
        assert sorted(map(int, self.told)) == [order.number for order in orders], "each once"
        last = {order: at for at, order in enumerate(self.shop.processed)}
        after = {order: at for order, at in last.items() if at >= self.at[order]}
        assert after == {}, "rows that were processed after their order was done"


@contextmanager
def tracking(shop: Shop, **more: Any) -> Iterator[QueryTracker]:
    with track_queries(shop.spark, shop.links(), str(shop.folder / "tracker"), shop.broker.address, **more) as tracker:
        yield tracker
