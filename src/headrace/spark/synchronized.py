"""`hr.synchronize`: a sequential program over a DataFrame, run by a tree of workers with the same results.

On a batch DataFrame: events go to the tasks of their workers, sorted by time, and all tasks run together as one barrier
stage, a gang whose members talk over TCP.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from pyspark import BarrierTaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.errors import ProgramError
from headrace.spark.gang import Gang
from headrace.spark.live import slot_count
from headrace.spark.location import find_location
from headrace.spark.operator import column
from headrace.spark.schema import spark_struct
from headrace.spark.synchronized_stream import ITAG, RANK, StreamingTask
from headrace.state.places import place_of
from headrace.synchronize.codec import Codec
from headrace.synchronize.explain import explain
from headrace.synchronize.gang_task import GangTask
from headrace.synchronize.inputs import Inputs, inputs_of, ticks_of
from headrace.synchronize.mailbox import Events
from headrace.synchronize.optimize import Optimizer, optimizer_of
from headrace.synchronize.plan import Plan, make_plan
from headrace.synchronize.program import Program
from headrace.synchronize.tags import BUCKETS, OTHER, Bucket, Other, in_tag_order, said_rates, tag_space, tag_text

TASK: Final = "__headrace_task"
_BUCKET: Final = "__headrace_bucket"
_MOST_TAGS: Final = 1000


@dataclass(frozen=True)
class _Known:
    """A tag (or bucket) of a stream that there is, how often, and its place among those of one time."""

    tag: Any
    stream: Any
    rate: float
    row: tuple[Any, ...]
    """The values of the columns by which events find it."""


class Synchronized:
    """What `hr.synchronize` gives: for `df.transform`."""

    def __init__(
        self, program: Program, inputs: Inputs, parallelism: int | None, rates: Mapping[Any, float] | None,
        optimizer: Optimizer, tasks: int | None, streams: Sequence[Any], state: str | None,
    ):  # fmt: skip
        self.program, self.inputs = program, inputs
        self._parallelism, self._rates, self._optimizer, self._tasks = parallelism, rates, optimizer, tasks
        self._streams, self._state = tuple(map(str, streams)), state

    def __call__(self, df: DataFrame) -> DataFrame:
        self.inputs.check(df.columns)
        if df.isStreaming:
            return self._stream(df)
        df = df.where(column(self.inputs.tag[0]).isNotNull())  # heartbeats: all has come anyway
        known = self._known(df)
        if not known:
            return df.sparkSession.createDataFrame([], self._outputs())
        plan = self.plan(known, slot_count(df.sparkSession))
        return self._run(self._placed(df, known, plan), df.columns, plan)

    def _stream(self, df: DataFrame) -> DataFrame:
        streams = ("None",) if self.inputs.stream is None else self._streams
        if not streams:
            raise ProgramError(self.program.name, f"say streams=[...]: all values that {self.inputs.stream} can have")
        location, _ = find_location(df.sparkSession, self._state)
        place_of(location).check()
        known = self._said()
        plan = self.plan(known, slot_count(df.sparkSession))
        codec, names = Codec(self.program), tuple(df.columns)
        task = StreamingTask(plan, self.inputs, codec, names, streams, location, secrets.token_bytes(32))
        return self._gang(self._placed(df, known, plan), task.work, plan.tasks)

    def explain(self, df: DataFrame, form: Literal["tree", "mermaid"] = "tree") -> str:
        """The tree of workers that would run, with rates, as text or for Mermaid."""
        self.inputs.check(df.columns)
        known = self._said() if df.isStreaming else self._known(df.where(column(self.inputs.tag[0]).isNotNull()))
        if not known:
            return f"program {self.program.name}: there are no events"
        return explain(self.plan(known, slot_count(df.sparkSession)), form)

    # -------------------------------------------------------------------- plan

    @property
    def is_bucketed(self) -> bool:
        """Are there too many tags to list them? Then keys that depend on nothing but themselves share buckets."""
        is_listed = self.program.tags is not None or self._rates is not None
        return self.program.table is not None and len(self.inputs.tag) > 1 and not is_listed

    def plan(self, known: Sequence[_Known], slots: int) -> Plan:
        leaves = self._parallelism if self._parallelism is not None else slots
        tasks = min(self._tasks if self._tasks is not None else slots, leaves)
        rates = [(each.tag, each.stream, each.rate) for each in known]
        space = tag_space(self.program, rates, leaves, is_cut=all(each.stream is None for each in known))
        return make_plan(space, self._optimizer(space, leaves), tasks)

    def _known(self, df: DataFrame) -> list[_Known]:
        """What there is, counted if nothing was said."""
        if self._rates is not None:
            return self._said()
        counted = df.groupBy(*self._columns(df)).count().orderBy(*[F.col(name) for name, _ in self._keys(df)])
        rows = counted.limit(_MOST_TAGS + 1).collect() if not self.is_bucketed else counted.collect()
        if len(rows) > _MOST_TAGS and not self.is_bucketed:
            raise ProgramError(
                self.program.name,
                f"there are more than {_MOST_TAGS} tags; say depends as a table, with tags of a kind and a key, and "
                f"keys share buckets: depends = {{'reset': ('reset', 'increment')}}, tag=('kind', 'key')",
            )
        found = [self._read(tuple(row)) for row in rows]
        for each in found if self.program.tags is not None else ():
            if each.tag not in (self.program.tags or ()):
                listed = ", ".join(map(tag_text, self.program.tags or ()))
                problem = f"an event has the tag {tag_text(each.tag)}, and its tags are {listed}; add it to them"
                raise ProgramError(self.program.name, problem)
        return found

    def _said(self) -> list[_Known]:
        """What rates= says, or the program."""
        columns = len(self.inputs.tag)
        known = said_rates(self.program, columns, self._rates)
        found = []
        for tag, stream, rate in in_tag_order(known):
            row: Any = (tag.kind, tag.number) if isinstance(tag, Bucket) else (tag,) if columns == 1 else tag
            found.append(_Known(tag, stream, rate, row))
        return found

    @property
    def _by_stream(self) -> bool:
        """Are the tags of each stream counted for themselves?"""
        return self.inputs.stream is not None and self._rates is None

    def _keys(self, df: DataFrame) -> list[tuple[str, Column]]:
        """What events are counted by: stream and tag, or stream, kind and bucket."""
        by_stream = self._by_stream and not df.isStreaming
        stream = [("__stream", column(str(self.inputs.stream)))] if by_stream else []
        if not self.is_bucketed:
            return [*stream, *((f"__tag{n}", column(name)) for n, name in enumerate(self.inputs.tag))]
        return [*stream, ("__tag0", column(self.inputs.tag[0])), (_BUCKET, self._bucket(df))]

    def _columns(self, df: DataFrame) -> list[Column]:
        return [key.alias(name) for name, key in self._keys(df)]

    def _bucket(self, df: DataFrame) -> Column:
        """As `bucket_of` has it: of keys as texts."""
        for name in self.inputs.tag[1:]:
            type = df.schema[name].dataType
            if not isinstance(type, T.IntegralType | T.StringType):
                raise ProgramError(
                    self.program.name, f"key {name} is {type.simpleString()}; a key is a number or a text"
                )
        texts = [F.coalesce(column(name).cast("string"), F.lit("None")) for name in self.inputs.tag[1:]]
        return F.pmod(F.crc32(F.concat_ws("\x00", *texts).cast("binary")), F.lit(BUCKETS)).cast("int")

    def _read(self, row: tuple[Any, ...]) -> _Known:
        *values, count = row
        key = tuple(values)
        stream = values.pop(0) if self._by_stream else None
        if self.is_bucketed:
            return _Known(Bucket(values[0], values[1]), stream, float(count), key)
        return _Known(values[0] if len(values) == 1 else tuple(values), stream, float(count), key)

    # --------------------------------------------------------------------- run

    def _placed(self, df: DataFrame, known: Sequence[_Known], plan: Plan) -> DataFrame:
        """Events with their implementation tag and rank, at the task of their worker; in order, where Spark sorts."""
        bases = {(entry.tag, entry.stream): number for number, entry in enumerate(plan.entries) if entry.part == 0}
        keys = self._keys(df)
        table = [
            (*each.row, bases[each.tag, each.stream], plan.entries[bases[each.tag, each.stream]].parts, rank)
            for rank, each in enumerate(known)
            if not isinstance(each.tag, Other)
        ]
        keyed = df.select("*", *[key.alias(name) for name, key in keys])
        fields = [T.StructField(f"{name}_", keyed.schema[name].dataType) for name, _ in keys]
        more = [T.StructField(name, T.IntegerType()) for name in ("__base", "__parts", "__rank")]
        places = df.sparkSession.createDataFrame(table, T.StructType([*fields, *more]))
        same = [F.col(name).eqNullSafe(F.col(f"{name}_")) for name, _ in keys]
        met = keyed.join(F.broadcast(places), _all(same), "left")
        spread = F.pmod(F.xxhash64(column(self.inputs.time)), F.col("__parts")).cast("int")
        itag = F.coalesce(F.col("__base") + spread, self._unknown(bases))
        tasks = F.array(*[F.lit(plan.members[owner].task) for owner in plan.owner])
        columns = [column(name) for name in df.columns]
        placed = met.select(*columns, itag.alias(ITAG), self._rank(len(known)).alias(RANK))
        # A heartbeat has no tag: any task will do.
        placed = placed.withColumn(TASK, F.coalesce(F.element_at(tasks, F.col(ITAG) + 1), F.lit(0)))
        shared = placed.repartitionById(plan.tasks, F.col(TASK)).drop(TASK)
        if df.isStreaming:
            return shared
        ties = [column(f.name) for f in df.schema.fields if _is_sortable(f.dataType) and f.name != self.inputs.time]
        return shared.sortWithinPartitions(column(self.inputs.time), F.col(RANK), *ties)

    def _unknown(self, bases: Mapping[Any, int]) -> Column:
        """What a tag is that is in no list: other, an error, or no tag at all."""
        tag = column(self.inputs.tag[0])
        if (OTHER, None) in bases:
            return F.when(tag.isNotNull(), F.lit(bases[OTHER, None]))
        shown = F.concat_ws(", ", *[column(name).cast("string") for name in self.inputs.tag])
        known = ", ".join(dict.fromkeys(tag_text(each) for each, _ in bases))
        problem = F.concat(
            F.lit(f"program {self.program.name}: an event has the tag "), shown, F.lit(f", and there are only {known}")
        )
        return F.when(tag.isNotNull(), F.raise_error(problem).cast("int"))

    def _rank(self, tags: int) -> Column:
        """The order of events of one time: by arrival, or by stream and tag."""
        if self.inputs.arrival is not None:
            return column(self.inputs.arrival).cast("long")
        own = F.coalesce(F.col("__rank"), F.lit(tags)).cast("long")
        if self.inputs.stream is None or (self._by_stream and not self._streams):
            return own
        texts = F.array(*[F.lit(name) for name in self._streams])
        place = F.array_position(texts, column(self.inputs.stream).cast("string"))
        return place.cast("long") * F.lit(1 << 20) + own

    def _run(self, df: DataFrame, names: Sequence[str], plan: Plan) -> DataFrame:
        inputs, secret, codec = self.inputs, secrets.token_bytes(32), Codec(self.program)

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _work(plan, inputs, codec, list(names), secret, batches)

        return self._gang(df, work, plan.tasks)

    def _gang(self, df: DataFrame, work: Any, tasks: int) -> DataFrame:
        """Spark starts a barrier stage again only where another one follows: so what it gives is handed on."""
        given = df.mapInArrow(work, self._outputs(), barrier=True)
        return given.repartitionById(tasks, F.spark_partition_id())

    def _outputs(self) -> T.StructType:
        return spark_struct([(field.name, field.type) for field in self.program.outputs])


def _work(
    plan: Plan, inputs: Inputs, codec: Codec, names: list[str], secret: bytes, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    context = BarrierTaskContext.get()
    gang = Gang(context.partitionId(), plan.tasks, secret, context.allGather)
    program = plan.space.program

    def events() -> Iterator[Events]:
        for batch in batches:
            times = ticks_of(batch.column(inputs.time), program.name, inputs.time)
            ranks = ticks_of(batch.column(RANK), program.name, inputs.arrival or RANK)
            yield Events(batch.select(names), times, ranks, batch.column(ITAG).to_numpy().astype(np.int64))

    schema = pa.schema([(name, pa.null()) for name in names])
    task = GangTask(plan, gang, codec, schema)
    try:
        yield from task.run(events())
    except Exception as error:
        task.fail(error)
        raise
    finally:
        gang.close()


def _all(conditions: Sequence[Column]) -> Column:
    found = conditions[0]
    for condition in conditions[1:]:
        found = found & condition
    return found


def _is_sortable(type: T.DataType) -> bool:
    return isinstance(type, T.AtomicType)


def synchronize(
    program: Program, *, time: str | None = None, tag: str | Sequence[str] | None = None, stream: str | None = None,
    arrival: str | None = None, parallelism: int | None = None, tasks: int | None = None,
    rates: Mapping[Any, float] | None = None, optimizer: str | Optimizer = "by_rate",
    streams: Sequence[Any] = (), state: str | None = None,
) -> Synchronized:  # fmt: skip
    """A sequential program run in parallel, with its results: `df.transform(hr.synchronize(program, time=…, tag=…))`.

    Gives what the program gives (`program.outputs`), in any order. Events are taken by `time`; those of one time by
    `arrival`, where that is given, else by stream, tag, and all their columns. `hr.check` tells whether a program may
    be run so.

    `tag`          the column, or columns, that `depends` is about
    `stream`       a column that says which source an event came from; without it, events whose order among themselves
                   does not matter are shared out
    `parallelism`  how many leaves the tree of workers has at most; as many as there are task slots, unless said
    `tasks`        how many Spark tasks share the workers, all at the same time; as many as there are slots at most
    `rates`        how often each tag comes, in any unit; counted in the data unless said
    `optimizer`    "by_rate", "balanced", "sequential", or a function that makes the tree

    For streaming DataFrames, where times must rise from batch to batch along each stream:

    `streams`      all values that the column `stream` can have; a batch takes what is before the time that all of them
                   have reached. Rows without a tag are heartbeats: all events of their stream up to that time have
                   come
    `state`        a folder that all workers reach, for what is kept between batches
    """
    for name, value in (("parallelism", parallelism), ("tasks", tasks)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ProgramError(getattr(program, "name", "?"), f"{name}={value!r}; use a number from 1 on")
    inputs = inputs_of(program, time, tag, stream, arrival)
    chosen = optimizer_of(program.name, optimizer)
    return Synchronized(program, inputs, parallelism, rates, chosen, tasks, streams, state)
