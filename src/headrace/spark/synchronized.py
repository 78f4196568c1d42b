"""`hr.synchronize`: a sequential program over a DataFrame, run by a tree of workers with the same results.

On a batch DataFrame: events go to the tasks of their workers, sorted by time, and all tasks run together as one barrier
stage, a gang whose members talk over TCP.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
from pyspark import BarrierTaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.errors import DefinitionError, ProgramError
from headrace.spark.event_columns import PREFIX, EventColumns, events_in
from headrace.spark.gang import Gang
from headrace.spark.location import find_location
from headrace.spark.meeting import roll_call
from headrace.spark.placing import Known, Placing
from headrace.spark.program_progress import ProgramProgress, read_program_progress
from headrace.spark.schema import spark_type
from headrace.spark.slots import free_slots
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
from headrace.synchronize.ranks import Ranks, stream_text
from headrace.synchronize.tags import (
    Bucket,
    Other,
    check_tags,
    in_tag_order,
    said_rates,
    tag_space,
    tag_text,
    values_of,
)
from headrace.synchronize.versions import Versions

_MOST_TAGS: Final = 1000


class Synchronized:
    """What `hr.synchronize` gives: for `df.transform`."""

    def __init__(
        self, program: Program, inputs: Inputs, parallelism: int | None, rates: Mapping[Any, float] | None,
        optimizer: Optimizer, tasks: int | None, streams: Sequence[Any], state: str | None,
    ):  # fmt: skip
        self.program, self.inputs = program, inputs
        self._parallelism, self._rates, self._optimizer, self._tasks = parallelism, rates, optimizer, tasks
        self._streams, self._state = tuple(map(stream_text, streams)), state

    def __call__(self, df: DataFrame) -> DataFrame:
        events = events_in(df, self.inputs)
        if df.isStreaming:
            return self._stream(events)
        self._check_order()
        slots = self._free(df)
        events = events.without_heartbeats()  # all has come anyway
        known = self._known(events)
        if not known:
            return df.sparkSession.createDataFrame([], self._outputs())
        plan = self.plan(known, slots)
        return self._run(self._placed(events, known, plan), events.names, plan)

    @property
    def _all_streams(self) -> tuple[str, ...]:
        return ("None",) if self.inputs.stream is None else self._streams

    def progress(self, query: Any) -> ProgramProgress:
        """How far each stream of a streaming query has come, and what its events wait for, as of its last batch."""
        location, _ = find_location(SparkSession.active(), self._state)
        versions = Versions(place_of(location), str(query.id), self.program.name, Codec(self.program))
        return read_program_progress(versions, str(query.id), self._all_streams, self.inputs.time)

    def _stream(self, events: EventColumns) -> DataFrame:
        streams = self._all_streams
        if not streams:
            raise ProgramError(self.program.name, f"say streams=[...]: all values that {self.inputs.stream} can have")
        location, _ = find_location(events.df.sparkSession, self._state)
        place_of(location).check()
        _keep_empty_batches(events.df.sparkSession)
        known = self._said()
        plan = self.plan(known, self._free(events.df))
        ranks = None
        if self.inputs.arrival is None:
            tags = tuple(each.tag for each in known if not isinstance(each.tag, Other))
            ranks = Ranks(tags, () if self.inputs.stream is None else self._streams)
        codec, secret = Codec(self.program), secrets.token_bytes(32)
        task = StreamingTask(plan, self.inputs, codec, events.names, streams, location, secret, ranks, events.given)
        return self._gang(self._placed(events, known, plan), task.work, plan.tasks)

    def _check_order(self) -> None:
        """Raises ProgramError where nothing says in which order the streams of a batch are."""
        is_open = self._rates is not None and self.inputs.arrival is None and not self._streams
        if self.inputs.stream is not None and is_open:
            raise ProgramError(
                self.program.name,
                f"events of one time are ordered by stream, and with rates= nothing is counted; say streams=[...] as "
                f"well, all values that {self.inputs.stream} can have in their order, or arrival=, or leave rates= out",
            )

    def explain(self, df: DataFrame, form: Literal["tree", "mermaid"] = "tree") -> str:
        """The tree of workers that would run, with rates, as text or for Mermaid."""
        events, slots = events_in(df, self.inputs), self._free(df)
        known = self._said() if df.isStreaming else self._known(events.without_heartbeats())
        if not known:
            return f"program {self.program.name}: there are no events"
        return explain(self.plan(known, slots), form)

    # -------------------------------------------------------------------- plan

    @property
    def is_bucketed(self) -> bool:
        """Are there too many tags to list them? Then keys that depend on nothing but themselves share buckets."""
        is_listed = self.program.tags is not None or self._rates is not None
        return self.program.table is not None and len(self.inputs.tag) > 1 and not is_listed

    def plan(self, known: Sequence[Known], slots: int) -> Plan:
        leaves = self._parallelism if self._parallelism is not None else slots
        # Spark refuses a barrier stage that is wider than all slots, after a wait, and stops the whole session with it.
        tasks = min(self._tasks or slots, slots, leaves)
        rates = [(each.tag, each.stream, each.rate) for each in known]
        space = tag_space(self.program, rates, leaves, is_cut=all(each.stream is None for each in known))
        return make_plan(space, self._optimizer(space, leaves), tasks)

    def _free(self, df: DataFrame) -> int:
        # A barrier stage that is wider than what flows have left would wait for them, and say nothing.
        return free_slots(df.sparkSession, f"program {self.program.name}")

    def _known(self, events: EventColumns) -> list[Known]:
        """What there is, counted if nothing was said."""
        if self._rates is not None:
            return self._said()
        check_tags(self.program, len(self.inputs.tag), self.program.tags or (), "tags")
        keys = self._keys(events)
        counted = events.df.groupBy(*[key.alias(name) for name, key in keys]).count()
        counted = counted.orderBy(*[F.col(name) for name, _ in keys])
        # By Arrow, as events come to tasks: tags must be equal to theirs, also time stamps and binary ones.
        table = (counted if self.is_bucketed else counted.limit(_MOST_TAGS + 1)).toArrow()
        found = [self._read(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
        if len(found) > _MOST_TAGS and not self.is_bucketed:
            self._refuse_many(found)
        for each in found if self.program.tags is not None else ():
            if each.tag not in (self.program.tags or ()):
                listed = ", ".join(map(tag_text, self.program.tags or ()))
                problem = f"an event has the tag {tag_text(each.tag)}, and its tags are {listed}; add it to them"
                raise ProgramError(self.program.name, problem)
        return found

    def _refuse_many(self, found: Sequence[Known]) -> None:
        if len({each.stream for each in found}) > len({each.tag for each in found}):
            raise ProgramError(
                self.program.name,
                f"there are more than {_MOST_TAGS} streams with their tags in {self.inputs.stream}; leave stream= out, "
                f"and order events of one time by arrival=, or say streams=[...] with rates=",
            )
        raise ProgramError(
            self.program.name,
            f"there are more than {_MOST_TAGS} tags; say depends as a table, with tags of a kind and a key, and "
            f"keys share buckets: depends = {{'reset': ('reset', 'increment')}}, tag=('kind', 'key')",
        )

    def _said(self) -> list[Known]:
        """What rates= says, or the program."""
        columns = len(self.inputs.tag)
        known = said_rates(self.program, columns, self._rates)
        found = []
        for tag, stream, rate in in_tag_order(known):
            found.append(Known(tag, stream, rate, values_of(tag)))
        return found

    @property
    def _by_stream(self) -> bool:
        """Are the tags of each stream counted for themselves?"""
        return self.inputs.stream is not None and self._rates is None

    def _keys(self, events: EventColumns) -> list[tuple[str, Column]]:
        """What events are counted by: stream and tag, or stream, kind and bucket."""
        by_stream = self._by_stream and not events.df.isStreaming
        columns = [events[str(self.inputs.stream)]] if by_stream else []
        columns += [events.tag[0], events.bucket()] if self.is_bucketed else events.tag
        return [(f"{PREFIX}_key_{at}", key) for at, key in enumerate(columns)]

    def _read(self, row: tuple[Any, ...]) -> Known:
        *values, count = row
        key = tuple(values)
        stream = values.pop(0) if self._by_stream else None
        if self.is_bucketed:
            return Known(Bucket(values[0], values[1]), stream, float(count), key)
        return Known(values[0] if len(values) == 1 else tuple(values), stream, float(count), key)

    # --------------------------------------------------------------------- run

    def _placed(self, events: EventColumns, known: Sequence[Known], plan: Plan) -> DataFrame:
        return Placing(events, tuple(self._keys(events)), known, plan, self._streams).placed()

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
        fields = []
        for field in self.program.outputs:
            try:
                fields.append(T.StructField(field.name, spark_type(field.type)))
            except DefinitionError as error:
                raise ProgramError(self.program.name, f"its outputs have the column {field.name}: {error}") from None
        return T.StructType(fields)


_EXCLUDED: Final = "spark.sql.adaptive.optimizer.excludedRules"
_EMPTY: Final = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"


def _keep_empty_batches(spark: SparkSession) -> None:
    """Adaptive execution leaves out all stages of a micro-batch without rows: no task would write its version, and
    the next batch would find none. A query takes over the settings of its session when it starts."""
    rules = [rule.strip() for rule in (spark.conf.get(_EXCLUDED, None) or "").split(",") if rule.strip()]
    if _EMPTY not in rules:
        spark.conf.set(_EXCLUDED, ",".join([*rules, _EMPTY]))


def _work(
    plan: Plan, inputs: Inputs, codec: Codec, names: list[str], secret: bytes, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    gang = Gang(roll_call(BarrierTaskContext.get(), plan.tasks, secret))
    program = plan.space.program

    def events() -> Iterator[Events]:
        for batch in batches:
            rows = pa.RecordBatch.from_arrays(batch.columns[: len(names)], names=names)
            times = ticks_of(rows.column(inputs.time), program.name, inputs.time)
            ranks = ticks_of(batch.column(RANK), program.name, inputs.arrival or RANK)
            yield Events(rows, times, ranks, batch.column(ITAG).to_numpy().astype(np.int64))

    schema = pa.schema([(name, pa.null()) for name in names])
    task = GangTask(plan, gang, codec, schema)
    try:
        yield from task.run(events())
    except Exception as error:
        task.fail(error)
        raise
    finally:
        gang.close()


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
    `parallelism`  how many leaves the tree of workers has at most; unless said, as many as there are task slots that
                   no flow of this process holds
    `tasks`        how many Spark tasks share the workers, all at the same time; at most as many as there are such slots
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
    if streams and inputs.stream is None:
        raise ProgramError(program.name, f"streams={list(streams)!r}: say which column has them, stream=")
    found = Synchronized(program, inputs, parallelism, rates, chosen, tasks, streams, state)
    found._outputs()
    return found
