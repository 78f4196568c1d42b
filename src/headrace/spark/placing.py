"""Events on their way to tasks: with their implementation tag and rank, at the task of their worker."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.errors import ProgramError
from headrace.spark.event_columns import PREFIX, EventColumns, lookup_array
from headrace.spark.synchronized_stream import ITAG, RANK
from headrace.synchronize.plan import Plan
from headrace.synchronize.ranks import STREAM, known_rank
from headrace.synchronize.tags import OTHER, Other, tag_text

TASK: Final = f"{PREFIX}_task"
_BASE: Final = f"{PREFIX}_base"
_PARTS: Final = f"{PREFIX}_parts"
_OWN_RANK: Final = f"{PREFIX}_own_rank"


@dataclass(frozen=True)
class Known:
    """A tag (or bucket) of a stream that there is, and how often. Those of one time are ordered as they are listed."""

    tag: Any
    stream: Any
    rate: float
    row: tuple[Any, ...]
    """The values of the columns by which events find it."""


@dataclass(frozen=True)
class Placing:
    """Where the events of a DataFrame go. `keys` are the columns by which they find what is known, with their names."""

    events: EventColumns
    keys: tuple[tuple[str, Column], ...]
    known: Sequence[Known]
    plan: Plan
    streams: tuple[str, ...]

    def placed(self) -> DataFrame:
        """In order, where Spark sorts."""
        events, plan = self.events, self.plan
        same = [F.col(name).eqNullSafe(F.col(f"{name}_")) for name, _ in self.keys]
        met = self._keyed.join(F.broadcast(self._places()), reduce(and_, same), "left")
        columns = [*events.all, self._itag().alias(ITAG), self._rank().alias(RANK)]
        # A heartbeat has no tag: any task will do.
        tasks = F.array(*[F.lit(plan.members[owner].task) for owner in plan.owner])
        task = F.coalesce(F.element_at(tasks, F.col(ITAG) + 1), F.lit(0))
        shared = met.select(*columns).withColumn(TASK, task).repartitionById(plan.tasks, F.col(TASK)).drop(TASK)
        if events.df.isStreaming:
            return shared
        return shared.sortWithinPartitions(events[events.inputs.time], F.col(RANK), *events.ties)

    @cached_property
    def _keyed(self) -> DataFrame:
        return self.events.df.select("*", *[key.alias(name) for name, key in self.keys])

    @property
    def _types(self) -> list[T.DataType]:
        return [self._keyed.schema[name].dataType for name, _ in self.keys]

    @cached_property
    def _bases(self) -> Mapping[Any, int]:
        return {(each.tag, each.stream): at for at, each in enumerate(self.plan.entries) if each.part == 0}

    @cached_property
    def _listed(self) -> list[Known]:
        return [each for each in self.known if not isinstance(each.tag, Other)]

    def _places(self) -> DataFrame:
        """For each tag that is known, the number of its first part, how many there are, and its rank."""
        inputs, program = self.events.inputs, self.plan.space.program.name
        # A bucket is a number already: what does not fit then is the kind, or the stream.
        named = [*([str(inputs.stream)] if len(self.keys) > len(inputs.tag) else []), *inputs.tag]
        columns, fields = [], []
        for at, ((key, _), type, name) in enumerate(zip(self.keys, self._types, named, strict=True)):
            columns.append(lookup_array([each.row[at] for each in self._listed], type, program, name))
            fields.append(T.StructField(f"{key}_", type))
        self._check_apart(columns)
        bases = [self._bases[each.tag, each.stream] for each in self._listed]
        ranks = [known_rank(at) for at in range(len(bases))]
        columns += [
            pa.array(bases, pa.int32()),
            pa.array([self.plan.entries[base].parts for base in bases], pa.int32()),
        ]
        columns.append(pa.array(ranks, pa.int64()))
        fields += [T.StructField(_BASE, T.IntegerType()), T.StructField(_PARTS, T.IntegerType())]
        fields.append(T.StructField(_OWN_RANK, T.LongType()))
        table = pa.Table.from_arrays(columns, names=[field.name for field in fields])
        return self.events.df.sparkSession.createDataFrame(table, T.StructType(fields))

    def _check_apart(self, columns: Sequence[pa.Array]) -> None:
        """Raises ProgramError for tags that are one in the columns: each event would find both, and come twice."""
        seen: dict[Any, Known] = {}
        for row, each in zip(zip(*(column.to_pylist() for column in columns), strict=True), self._listed, strict=True):
            if row in seen:
                twice = f"{tag_text(seen[row].tag)} and {tag_text(each.tag)}"
                problem = f"the tags {twice} are the same in the columns of the events; leave one of them out"
                raise ProgramError(self.plan.space.program.name, problem)
            seen[row] = each

    # --------------------------------------------------------- implementation tag

    def _itag(self) -> Column:
        spread = F.pmod(F.xxhash64(self.events[self.events.inputs.time]), F.col(_PARTS)).cast("int")
        found = F.coalesce(F.col(_BASE) + spread, self._unknown())
        # On a stream tasks look at the streams, before anything else.
        if self.events.inputs.stream is None or not self.streams or self.events.df.isStreaming:
            return found
        shown = F.coalesce(self.events[self.events.inputs.stream].cast("string"), F.lit("null"))
        return F.when(self._stream_place() > 0, found).otherwise(self._raised("stream", shown, ", ".join(self.streams)))

    def _unknown(self) -> Column:
        """What a tag is that is in no list: other, an error, or no tag at all."""
        is_there = self.events.tag[0].isNotNull()
        if (OTHER, None) in self._bases:
            return F.when(is_there, F.lit(self._bases[OTHER, None]))
        shown = F.concat_ws(", ", *[each.cast("string") for each in self.events.tag])
        known = ", ".join(dict.fromkeys(tag_text(each) for each, _ in self._bases))
        return F.when(is_there, self._raised("tag", shown, known))

    def _raised(self, what: str, shown: Column, known: str) -> Column:
        start = F.lit(f"program {self.plan.space.program.name}: an event has the {what} ")
        return F.raise_error(F.concat(start, shown, F.lit(f", and there are only {known}"))).cast("int")

    # --------------------------------------------------------------------- rank

    def _rank(self) -> Column:
        """The order of events of one time: by arrival, or by stream and tag, as `Ranks` has it."""
        if self.events.inputs.arrival is not None:
            return self.events.arrival()
        own = F.col(_OWN_RANK)
        if (OTHER, None) in self._bases:
            own = F.coalesce(own, self._rank_between())
        if self.events.inputs.stream is None or not self.streams:
            return own
        return self._stream_place() * F.lit(STREAM) + own

    def _rank_between(self) -> Column:
        """Of a tag that is not known: twice the number of those before it."""
        names = [f"{PREFIX}_{at}" for at in range(len(self.keys))]

        def struct(values: Sequence[Column]) -> Column:
            return F.struct(*[value.alias(name) for value, name in zip(values, names, strict=True)])

        rows = [
            struct([_literal(value).cast(type) for value, type in zip(each.row, self._types, strict=True)])
            for each in self._listed
        ]
        if not rows:
            return F.lit(0).cast("long")
        own = struct([F.col(name) for name, _ in self.keys])
        return F.size(F.filter(F.array(*rows), lambda each: each < own)).cast("long") * 2

    def _stream_place(self) -> Column:
        """Among those of `streams=`, from 1 on."""
        texts = F.array(*[F.lit(name) for name in self.streams])
        text = F.coalesce(self.events[str(self.events.inputs.stream)].cast("string"), F.lit("None"))
        return F.array_position(texts, text).cast("long")


def _literal(value: Any) -> Column:
    """Times as texts: a local one would be taken for one of the zone of this process, and years have four digits."""
    return F.lit(value.isoformat() if isinstance(value, dt.date) else value)
