"""Source order through an ordinary Structured Streaming query, with the partitions of a Kafka topic as data paths."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, IntegralType, StringType

from headrace.errors import FlowError
from headrace.queues.kafka_admin import TOPIC_SETTINGS
from headrace.queues.kafka_client import confluent
from headrace.spark.merger import WAIT_S, Callback, Merger, OrderProgress
from headrace.spark.query_paths import TIMEOUT_S, Client, Paths, marks_to
from headrace.spark.real_time import RealTimeMerger, committed_by, written_at_once


class OrderedQuery:
    """A query that runs, and its merger, in a thread of this process."""

    def __init__(self, query: StreamingQuery, merger: Merger):
        self.query, self._merger = query, merger
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="headrace-merger", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._merger.run()
        except Exception as problem:
            self._problem = problem
            self.query.stop()

    @property
    def progress(self) -> OrderProgress:
        return self._merger.progress

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the query has ended and the last of it is written; False if not in time. Raises what went wrong."""
        began = time.monotonic()
        while self._thread.is_alive():
            if not self.query.isActive:
                self._merger.stop()
            self._thread.join(WAIT_S)
            if timeout_s is not None and time.monotonic() - began > timeout_s:
                return not self._thread.is_alive()
        if self._problem is not None:
            raise self._problem
        self.query.awaitTermination()  # it is over, or raises
        return True

    def stop(self, timeout_s: float | None = None) -> bool:
        """What the query has written leaves first. Started again with its checkpoint and name, it goes on there."""
        self.query.stop()
        return self.wait(timeout_s)


def order_query(
    df: DataFrame,
    to: str | Callback,
    servers: str,
    *,
    checkpoint: str,
    parallelism: int,
    name: str | None = None,
    sequence: str = "offset",
    trigger: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> OrderedQuery:
    """Start a query whose rows reach the topic `to` in the order of their `sequence`, each once, whatever fails.

    The streaming DataFrame has a column `value` and, if you like, `key` and `headers`, as for Spark's Kafka sink. Its
    column `sequence` is a number of its own for each row, and rises from micro-batch to micro-batch.

    `to`           a topic that exists, with one partition, to be read with `isolation.level=read_committed`; or a
                   function that takes Arrow batches, some of them again after a crash
    `parallelism`  the partitions of the topic in between, and the tasks that write to it
    `name`         under which it goes on after a restart; needed for a function, by default the name of the topic
    `trigger`      as of Spark's `trigger`, `{"processingTime": "1 second"}`
    `settings`     of librdkafka, and `options` of Spark's Kafka sink, for TLS and SASL

    With `trigger={"realTime": "5 seconds"}` a row leaves as soon as the rows of all offsets before it have. If a row
    was filtered away, the rows behind its offset wait for the query's next commit.
    """
    if name is None and callable(to):
        raise FlowError("order_query to a function needs a name, under which it goes on after a restart: name=...")
    paths = Paths(name or str(to), servers, parallelism, sequence, dict(settings or {}), dict(options or {}))
    _check_rows(df, paths)
    is_real_time = trigger is not None and "realTime" in trigger
    if is_real_time and sequence != "offset":
        raise FlowError(
            f"in Real-Time Mode a row has the place of its offset, and the sequence is {sequence}; keep the offset of "
            f"the source, or run in micro-batches: another trigger"
        )
    _prepare(paths, to)
    merger = RealTimeMerger(paths, to) if is_real_time else Merger(paths, to)
    writer = written_at_once(df, paths) if is_real_time else df.writeStream.foreachBatch(paths.write)
    writer = writer.option("checkpointLocation", checkpoint).queryName(paths.name)
    query = (writer.trigger(**trigger) if trigger else writer).start()
    if isinstance(merger, RealTimeMerger):
        merger.committed = partial(committed_by, query)
    return OrderedQuery(query, merger)


def _check_rows(df: DataFrame, paths: Paths) -> None:
    if paths.parallelism < 1:
        raise FlowError(f"the parallelism is {paths.parallelism}; it is the number of tasks, at least 1")
    if not df.isStreaming:
        raise FlowError("order_query takes a streaming DataFrame; sort a bounded one with df.orderBy")
    has = {entry.name: entry.dataType for entry in df.schema}
    shown = ", ".join(f"{name} {type.simpleString()}" for name, type in has.items())
    if not isinstance(has.get(paths.sequence), IntegralType):
        raise FlowError(
            f"order_query needs an integer column {paths.sequence}, and has {shown}; keep the offset of the source, or "
            f"say which column has the order: sequence=..."
        )
    if not isinstance(has.get("value"), StringType | BinaryType):
        raise FlowError(
            f"order_query writes a column value (text or binary), and has {shown}; make one, as to_json does"
        )
    count = _source_partitions(df, paths) if paths.sequence == "offset" else 0
    if count > 1:
        raise FlowError(
            f"the source has {count} partitions, and their offsets are no order among them; read one partition, or say "
            f"which column has the order: sequence=..."
        )


def _partitions(paths: Paths) -> dict[str, int]:
    """Of all topics."""
    found = Client(paths, "AdminClient", {})("list the topics", "list_topics", timeout=TIMEOUT_S).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def _source_partitions(df: DataFrame, paths: Paths) -> int:
    """How many a DataFrame reads from Kafka, if its plan tells: on Spark Connect it does not."""
    plan, count = getattr(df, "_jdf", None), 0
    leaves = plan.queryExecution().analyzed().collectLeaves() if plan is not None else None
    for leaf in (leaves.apply(at) for at in range(leaves.size())) if leaves is not None else ():
        if leaf.getClass().getSimpleName() == "StreamingRelationV2" and leaf.sourceName() == "kafka":
            asked = leaf.extraOptions().get
            if asked("assign"):
                count += sum(len(each) for each in json.loads(asked("assign")).values())
                continue
            names = "|".join(re.escape(name.strip()) for name in (asked("subscribe") or "").split(","))
            there = _partitions(replace(paths, servers=asked("kafka.bootstrap.servers")))
            wanted = re.compile(asked("subscribePattern") or names)
            count += sum(partitions for name, partitions in there.items() if wanted.fullmatch(name))
    return count


def _prepare(paths: Paths, to: str | Callback) -> None:
    """Look at the topics; make that of the paths."""
    there, at = _partitions(paths), paths.servers
    if isinstance(to, str) and there.get(to) != 1:
        if to not in there:
            raise FlowError(f"there is no topic {to} at {at}; create it, with one partition")
        raise FlowError(f"topic {to} has {there[to]} partitions, which have no order among them; write to one with one")
    if there.get(paths.topic, paths.parallelism) != paths.parallelism:
        raise FlowError(
            f"topic {paths.topic} has {there[paths.topic]} partitions, and the parallelism is {paths.parallelism}; say "
            f"the same as before or, when all that the query wrote has left, delete the topic"
        )
    if paths.topic not in there:
        kafka, admin = confluent(), Client(paths, "AdminClient", {})
        new = kafka.admin.NewTopic(paths.topic, paths.parallelism, replication_factor=-1, config=TOPIC_SETTINGS)
        try:
            admin.it.create_topics([new])[paths.topic].result(TIMEOUT_S)
        except kafka.KafkaException as error:
            raise admin.problem(error.args[0], f"create topic {paths.topic}") from None
        # What is known of a topic of this name that was deleted says nothing about this one.
        marks_to.cache_clear()
        with suppress(kafka.KafkaException):
            admin.it.delete_consumer_groups([paths.topic])[paths.topic].result(TIMEOUT_S)
