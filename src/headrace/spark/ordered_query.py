"""Source order through an ordinary Structured Streaming query, with the partitions of a Kafka topic as data paths.

Each task of a micro-batch writes its rows, sorted, to a partition of its own; a merger makes one stream of them again.
A run of a micro-batch has a *token*: the offset, in partition 0, of the mark that it begins with. What carries another
one than the newest is left over from a run that failed. A mark in every partition says that a run is complete.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType, IntegralType, StringType

from headrace.errors import FlowError, OrderBroken, QueueDamaged
from headrace.order.by_sequence import NEVER, BySequence, Ints
from headrace.order.columns import SEQUENCE, Keys, numbers
from headrace.queues.kafka_admin import TOPIC_SETTINGS
from headrace.queues.kafka_client import Trouble, client_settings, confluent, new_client, queue_error, unreachable
from headrace.spark.operator import column

Callback = Callable[[pa.RecordBatch], None]
TAG: Final = "headrace"
"""The header of a row on its path: token, number of the row in its task, sequence."""
WRITTEN: Final = "headrace-sequence"
"""The header of a message of the output."""
_BEGIN: Final = -1
_END: Final = -2
_ROW_BITS: Final = 33  # of monotonically_increasing_id; the rest is the task
_AT_ONCE: Final = 10_000
_WAIT_S: Final = 0.05
_TIMEOUT_S: Final = 30.0
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_ROWS: Final = pa.schema([(SEQUENCE, pa.int64()), ("key", pa.binary()), ("value", pa.binary()), ("headers", _HEADERS)])


# ----------------------------------------------------------------------- merge


@dataclass(frozen=True)
class Piece:
    """Messages of a path next to each other: rows of one run, or a mark (with the number of the micro-batch)."""

    token: int
    mark: int
    batch: int
    numbers: Ints
    rows: pa.RecordBatch
    after: int
    """The offset behind it."""


@dataclass(frozen=True)
class Done:
    """The last sequence that has left; the last complete micro-batch, and the highest sequence that it had."""

    released: int = NEVER
    batch: int | None = None
    highest: int = NEVER


class PathsMerge:
    """Decides what can leave: pieces in, rows in order out. It knows no Kafka."""

    def __init__(self, paths: list[str], done: Done, offsets: list[int]):
        self.done, self.dropped = done, 0
        self.offsets = offsets
        """Behind the last complete micro-batch: where to read from after a restart."""
        self._ends = [*offsets]
        self._paths, self._token, self._batch = paths, -1, done.batch
        self._clear()
        self._ended: set[int] = set(range(len(paths)))

    def _clear(self) -> None:
        self.merge = BySequence(self._paths, Keys())
        self._next, self._seen = [0] * len(self._paths), [-1] * len(self._paths)
        self._ended = set()
        # A query with a new checkpoint begins at 0 again, and what it reads again is dropped.
        self._follows = self.done.batch is not None and self._batch == self.done.batch + 1
        self._highest = self.done.highest if self._follows else NEVER

    @property
    def is_complete(self) -> bool:
        """Has all of the micro-batch come?"""
        return len(self._ended) == len(self._paths)

    def take(self, at: int, piece: Piece) -> bool:
        """False where its turn has not come: then keep it, and what follows it."""
        if piece.mark == _BEGIN:
            return self._begin(piece)
        if piece.token == self._token and at not in self._ended:
            if piece.mark == _END:
                self._end(at, piece)
            else:
                self._push(at, piece)
        # In partition 0 a run begins with its mark: what has none there is left over from before.
        return at == 0 or piece.token <= self._token

    def _begin(self, piece: Piece) -> bool:
        if self.is_complete and self.merge.rows:
            return False  # these leave first
        if self._batch is not None and piece.batch > self._batch:
            if piece.batch > self._batch + 1 or 0 not in self._ended:
                raise FlowError(
                    f"{self._paths[0]}: micro-batch {piece.batch} begins, and {self._batch} is not complete, so two "
                    f"queries write to these paths; stop both, delete the topic, and start one with a new checkpoint: "
                    f"what has left does not leave again"
                )
            if not self.is_complete:
                return False  # a query begins it when the one before is written: the rest will come
        # Else it is run again: what is left of the other run is not wanted.
        self.dropped += self.merge.rows
        self._token, self._batch = piece.token, piece.batch
        self._clear()
        return True

    def _end(self, at: int, piece: Piece) -> None:
        if self._seen[at] >= self._next[at]:
            raise QueueDamaged(self._paths[at], f"row {self._next[at]} of micro-batch {self._batch} is missing")
        self.merge.end(at)
        self._ended.add(at)
        self._ends[at] = piece.after
        if self.is_complete:
            self.offsets = [*self._ends]
            self.done = replace(self.done, batch=self._batch, highest=self._highest)

    def _push(self, at: int, piece: Piece) -> None:
        self._seen[at] = max(self._seen[at], int(piece.numbers.max()))
        turn = _in_turn(piece.numbers, self._next[at])
        rows = piece.rows if turn is None else piece.rows.take(pa.array(turn, pa.int64()))
        self._next[at] += rows.num_rows
        self.dropped += piece.rows.num_rows - rows.num_rows
        if not rows.num_rows:
            return
        ticks = numbers(rows, SEQUENCE)
        if self._follows and ticks[0] <= self.done.highest:
            had = f"micro-batch {self.done.batch} had {self.done.highest}"
            raise OrderBroken(self._paths[at], f"{ticks[0]} comes after {had}")
        self._highest = max(self._highest, int(ticks[-1]))
        start = int(ticks.searchsorted(self.done.released, "right"))
        if start:
            self.dropped += start
            self.merge.promise(at, int(ticks[start - 1]))
        self.merge.push(at, rows.slice(start))

    def release(self) -> pa.RecordBatch | None:
        rows = self.merge.release()
        if rows is not None:
            ticks = numbers(rows, SEQUENCE)
            if len(twice := np.flatnonzero(np.diff(ticks) <= 0)):
                problem = f"two rows have the sequence {ticks[twice[0]]}, and each must have its own"
                raise OrderBroken(self._paths[0], problem)
            self.done = replace(self.done, released=int(ticks[-1]))
        return rows


def _in_turn(found: Ints, expected: int) -> list[int] | None:
    """Where the rows are that come next; None if all do. Tasks that are run again write some twice, and leave gaps."""
    if (found == np.arange(expected, expected + len(found))).all():
        return None
    turn: list[int] = []
    for at, number in enumerate(found.tolist()):
        if number == expected + len(turn):
            turn.append(at)
    return turn


# ----------------------------------------------------------------------- paths


class _Client:
    """A client of Kafka, whose errors are in our words."""

    def __init__(self, paths: Paths, kind: str, own: Mapping[str, Any]):
        self.trouble, self._servers = Trouble(), paths.servers
        made = getattr(confluent().admin if kind == "AdminClient" else confluent(), kind)
        self.it = new_client(made, client_settings(paths.servers, paths.settings, self.trouble, own))

    def problem(self, error: Any, doing: str) -> Exception:
        if "FENCED" in error.name() or error.name() == "INVALID_PRODUCER_EPOCH":
            return FlowError(f"cannot {doing}: another merger of this name has taken over; run one of them")
        return queue_error(error, doing, self._servers, _TIMEOUT_S, self.trouble)

    def __call__(self, doing: str, method: str, *arguments: Any, **more: Any) -> Any:
        try:
            return getattr(self.it, method)(*arguments, **more)
        except confluent().KafkaException as error:
            raise self.problem(error.args[0], doing) from None


@dataclass(frozen=True)
class Paths:
    """The topic between a query and its merger. `options` are those of Spark's Kafka sink, `settings` librdkafka's."""

    name: str
    servers: str
    parallelism: int
    sequence: str = "offset"
    settings: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        return f"{self.name}-paths"

    def write(self, rows: DataFrame, batch: int) -> None:
        """A micro-batch, for `foreachBatch`. If it fails, Spark runs it again, under another token."""
        client = _Client(self, "Producer", {"enable.idempotence": True, "acks": "all", "linger.ms": 0})
        token = self._mark(client, [0], f"-1,{_BEGIN},{batch}")
        options = {"kafka.acks": "all", "kafka.enable.idempotence": "true", **self.options}
        options |= {"kafka.bootstrap.servers": self.servers, "topic": self.topic}
        self._tagged(rows, token).write.format("kafka").options(**options).save()
        self._mark(client, range(self.parallelism), f"{token},{_END},{batch}")

    def _tagged(self, rows: DataFrame, token: int) -> DataFrame:
        nothing = F.raise_error(F.lit(f"column {self.sequence} is null: a row without a sequence has no place"))
        number = F.monotonically_increasing_id().bitwiseAND(F.lit((1 << _ROW_BITS) - 1))
        sequence = F.coalesce(column(self.sequence).cast("bigint"), nothing.cast("bigint"))
        tag = F.concat_ws(",", F.lit(token), number, sequence).cast("binary")
        headers = F.array(F.struct(F.lit(TAG).alias("key"), tag.alias("value")))
        if "headers" in rows.columns:
            headers = F.concat(F.coalesce(F.col("headers"), F.array()), headers)
        columns = [F.col(name) for name in ("key", "value") if name in rows.columns]
        # Round robin sorts by hash before it deals out, and a shuffle has the rows of its map tasks in any order.
        sorted_rows = rows.coalesce(self.parallelism).sortWithinPartitions(column(self.sequence))
        return sorted_rows.select(*columns, headers.alias("headers"), F.spark_partition_id().alias("partition"))

    def _mark(self, client: _Client, partitions: Iterable[int], tag: str) -> int:
        """Gives the offset of the last one."""
        answers: list[tuple[Any, Any]] = []
        told, headers = (lambda *it: answers.append(it)), [(TAG, tag)]
        for at in partitions:
            client.it.produce(self.topic, headers=headers, partition=at, on_delivery=told)
        doing = f"write to topic {self.topic}"
        if client.it.flush(_TIMEOUT_S):
            raise unreachable(doing, self.servers, _TIMEOUT_S, client.trouble.reason)
        for error, _ in answers:
            if error is not None:
                raise client.problem(error, doing)
        return int(answers[-1][1].offset())


# ---------------------------------------------------------------------- merger


def pieces_of(messages: list[Any]) -> Iterator[Piece]:
    """Of messages of one partition."""
    headers = [message.headers() for message in messages]
    tags = np.fromstring(b",".join(each[-1][1] for each in headers), np.int64, sep=",").reshape(-1, 3)
    keys, values = [message.key() for message in messages], [message.value() for message in messages]
    others = pa.array([each[:-1] or None for each in headers], _HEADERS)
    rows = pa.record_batch([pa.array(tags[:, 2]), pa.array(keys, pa.binary()), values, others], schema=_ROWS)
    is_cut = (tags[1:, 1] < 0) | (tags[:-1, 1] < 0) | (tags[1:, 0] != tags[:-1, 0])
    for start, end in pairwise([0, *(np.flatnonzero(is_cut) + 1).tolist(), len(messages)]):
        token, number, batch = tags[start].tolist()
        token, after = messages[start].offset() if number == _BEGIN else token, messages[end - 1].offset() + 1
        yield Piece(token, min(number, 0), batch, tags[start:end, 1], rows.slice(start, end - start), after)


@dataclass(frozen=True)
class OrderProgress:
    """How far a merger is. `held` rows wait for those of the partitions `waits_for`; `dropped` ones had come before."""

    batch: int | None
    released: int | None
    rows: int
    dropped: int
    held: int
    waits_for: tuple[int, ...]


class Merger:
    """Reads the paths and writes the output: to a topic exactly once, to a callback at least once. One at a time."""

    def __init__(self, paths: Paths, to: str | Callback):
        self._paths, self._to, self._rows = paths, to, 0
        self._stopped, self._drains = threading.Event(), threading.Event()
        self._kept: list[deque[Piece]] = [deque() for _ in range(paths.parallelism)]
        self._paused: set[int] = set()
        self._admin = _Client(paths, "AdminClient", {})
        own = {"group.id": paths.topic, "enable.auto.commit": False, "auto.offset.reset": "error"}
        self._consumer = _Client(paths, "Consumer", {**own, "isolation.level": "read_committed"})
        self._producer = _Client(paths, "Producer", {"transactional.id": f"headrace-{paths.topic}", "linger.ms": 5})
        if isinstance(to, str):
            # Ends what the merger before has left open, and shuts it out.
            self._producer(f"write to topic {to}", "init_transactions", _TIMEOUT_S)
        reading = f"read topic {paths.topic}"
        places = [self._place(at) for at in range(paths.parallelism)]
        found = self._consumer(reading, "committed", places, _TIMEOUT_S)
        first = [self._consumer(reading, "get_watermark_offsets", place, _TIMEOUT_S)[0] for place in places]
        self._next = [each.offset if each.offset >= 0 else low for each, low in zip(found, first, strict=True)]
        # Kafka forgets groups that do nothing for a week: then the output tells.
        done = Done(*json.loads(found[0].metadata)) if found[0].offset >= 0 else Done(self._last_written())
        names = [f"topic {paths.topic}, partition {at}" for at in range(len(places))]
        self._merge = PathsMerge(names, done, [*self._next])
        self._consumer(reading, "assign", [self._place(at, offset) for at, offset in enumerate(self._next)])

    def _place(self, at: int, offset: int = -1001, state: str = "") -> Any:
        return confluent().TopicPartition(self._paths.topic, at, offset, state)

    def _last_written(self) -> int:
        """The highest sequence in the output; NEVER where there is none."""
        last, own = NEVER, {"group.id": self._paths.topic, "isolation.level": "read_committed"}
        if isinstance(self._to, str):
            reader = _Client(self._paths, "Consumer", {**own, "enable.partition.eof": True})
            reader.it.assign([confluent().TopicPartition(self._to, 0, confluent().OFFSET_BEGINNING)])
            while (message := reader.it.poll(_TIMEOUT_S)) is not None and message.error() is None:
                last = max(last, int(dict(message.headers() or ()).get(WRITTEN, NEVER)))
            if message is None or message.error().name() != "_PARTITION_EOF":
                raise unreachable(f"read topic {self._to}", self._paths.servers, _TIMEOUT_S, reader.trouble.reason)
            reader.it.close()
        return last

    @property
    def progress(self) -> OrderProgress:
        done, merge = self._merge.done, self._merge.merge
        released, waits_for = (None if done.released == NEVER else done.released), tuple(sorted(merge.last))
        return OrderProgress(done.batch, released, self._rows, self._merge.dropped, merge.rows, waits_for)

    def run(self) -> None:
        """Until `stop` is called, from another thread."""
        try:
            while not self._stopped.is_set():
                if not self._step() and self._drains.is_set() and self._has_all():
                    return
        finally:
            self._consumer.it.close()

    def stop(self, drain: bool = True) -> None:
        """With `drain`, after what is complete on the paths has left. Another one of this name goes on there."""
        (self._drains if drain else self._stopped).set()

    def _has_all(self) -> bool:
        places = [self._place(at) for at in range(len(self._next))]
        ends = [self._consumer("read", "get_watermark_offsets", place, _TIMEOUT_S)[1] for place in places]
        return self._next == ends

    def _step(self) -> bool:
        """Was there something to read?"""
        reading = f"read topic {self._paths.topic}"
        messages = self._consumer(reading, "consume", 1, _WAIT_S)
        messages += self._consumer(reading, "consume", _AT_ONCE, 0) if messages else []
        by_path: dict[int, list[Any]] = {}
        for message in messages:
            at, error = message.partition(), message.error()
            if error is not None and not error.retriable():
                raise self._consumer.problem(error, reading)
            if error is None and message.offset() >= self._next[at]:  # after a pause some are read again
                if message.offset() > self._next[at]:
                    raise QueueDamaged(f"{self._paths.topic}-{at}", f"offset {self._next[at]} is missing")
                self._next[at] += 1
                by_path.setdefault(at, []).append(message)
        for at, mine in by_path.items():
            self._kept[at].extend(pieces_of(mine))
        while by_path and self._advance():
            pass
        # No more is read of paths that are a micro-batch ahead: memory is bounded by one.
        ahead = {at for at, kept in enumerate(self._kept) if kept}
        for method, which in (("pause", ahead - self._paused), ("resume", self._paused - ahead)):
            self._consumer(reading, method, [self._place(at) for at in which])
        self._paused = ahead
        return bool(messages)

    def _advance(self) -> bool:
        was, has_moved = self._merge.offsets, False
        for at, kept in enumerate(self._kept):
            while kept and self._merge.take(at, kept[0]):
                kept.popleft()
                has_moved = True
        rows, offsets = self._merge.release(), self._merge.offsets
        if rows is not None or offsets is not was:
            self._write([] if rows is None else [rows])
        if offsets is not was:
            self._admin.it.delete_records([self._place(at, offset) for at, offset in enumerate(offsets)])
        return has_moved

    def _write(self, batches: list[pa.RecordBatch]) -> None:
        """Rows, and how far we are: both or, but for a callback, nothing."""
        done, producer = self._merge.done, self._producer
        state = json.dumps([done.released, done.batch, done.highest])
        places = [self._place(at, offset, state) for at, offset in enumerate(self._merge.offsets)]
        if callable(self._to):
            for rows in batches:
                self._to(rows.rename_columns(["sequence", *_ROWS.names[1:]]))
            self._consumer("commit", "commit", offsets=places, asynchronous=False)
        else:
            writing = f"write to topic {self._to}"
            producer(writing, "begin_transaction")
            for rows in batches:
                self._produce(self._to, rows, writing)
            group = self._consumer.it.consumer_group_metadata()
            producer(writing, "send_offsets_to_transaction", places, group, _TIMEOUT_S)
            producer(writing, "commit_transaction", _TIMEOUT_S)
        self._rows += sum(rows.num_rows for rows in batches)

    def _produce(self, topic: str, rows: pa.RecordBatch, writing: str) -> None:
        for sequence, key, value, headers in zip(*(each.to_pylist() for each in rows.columns), strict=True):
            others = [(header["key"], header["value"]) for header in headers or ()]
            while True:
                try:
                    written = [*others, (WRITTEN, str(sequence))]
                    self._producer(writing, "produce", topic, value, key, 0, headers=written)
                    break
                except BufferError:
                    self._producer.it.poll(_WAIT_S)


# ----------------------------------------------------------------------- query


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
            self._thread.join(_WAIT_S)
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

    The streaming DataFrame has a column `value` and, if you like, `key` and `headers`, as for Spark's Kafka sink, and
    its `sequence`: each row a number of its own, which rises from micro-batch to micro-batch. `to` has one partition,
    and is read with `isolation.level=read_committed`; or it is a function that takes Arrow batches, at least once.
    """
    if name is None and callable(to):
        raise FlowError("order_query to a function needs a name, under which it goes on after a restart: name=...")
    paths = Paths(name or str(to), servers, parallelism, sequence, dict(settings or {}), dict(options or {}))
    _check_rows(df, paths)
    if trigger and "realTime" in trigger:
        raise FlowError("order_query runs in micro-batches: Real-Time Mode has no foreachBatch; use another trigger")
    _prepare(paths, to)
    merger = Merger(paths, to)
    writer = df.writeStream.foreachBatch(paths.write).option("checkpointLocation", checkpoint).queryName(paths.name)
    return OrderedQuery((writer.trigger(**trigger) if trigger else writer).start(), merger)


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
    found = _Client(paths, "AdminClient", {})("list the topics", "list_topics", timeout=_TIMEOUT_S).topics
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
        kafka, admin = confluent(), _Client(paths, "AdminClient", {})
        new = kafka.admin.NewTopic(paths.topic, paths.parallelism, replication_factor=-1, config=TOPIC_SETTINGS)
        try:
            admin.it.create_topics([new])[paths.topic].result(_TIMEOUT_S)
        except kafka.KafkaException as error:
            raise admin.problem(error.args[0], f"create topic {paths.topic}") from None
        # Where a merger was in a topic of this name that was deleted says nothing about this one.
        with suppress(kafka.KafkaException):
            admin.it.delete_consumer_groups([paths.topic])[paths.topic].result(_TIMEOUT_S)
