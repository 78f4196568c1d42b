"""`hr.synchronize` on a streaming DataFrame: every micro-batch is a gang that goes on from the last one's state."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import BarrierTaskContext

from headrace.errors import ProgramError, StateError
from headrace.model.failures import shown
from headrace.spark.gang import Gang
from headrace.spark.meeting import roll_call
from headrace.spark.waited import as_now
from headrace.state.places import place_of
from headrace.synchronize.codec import Codec
from headrace.synchronize.gang_task import GangTask
from headrace.synchronize.inputs import Inputs, ticks_of
from headrace.synchronize.mailbox import Events
from headrace.synchronize.plan import Plan
from headrace.synchronize.ranks import Ranks, stream_text
from headrace.synchronize.tags import Ints
from headrace.synchronize.versions import Version, Versions, below, check_rising, newest_of

ITAG: Final = "__headrace_tag"
RANK: Final = "__headrace_rank"
_RUN: Final = re.compile(r"\brunId = ([0-9a-f-]{36})")
FAR: Final = -(1 << 63)
"""A stream of which nothing has come."""


@dataclass(frozen=True)
class StreamingTask:
    """All that a task of a micro-batch is told."""

    plan: Plan
    inputs: Inputs
    codec: Codec
    names: tuple[str, ...]
    streams: tuple[str, ...]
    """All streams there are; one without a name where nothing was said."""
    location: str
    secret: bytes
    ranks: Ranks | None = None
    """Where events of one time are not in the order of their arrival."""
    given: pa.Schema | None = None
    """The columns of events, as Spark gives them; events that have waited may have had others."""

    def work(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = BarrierTaskContext.get()
        batch, query = (context.getLocalProperty(f) for f in ("streaming.sql.batchId", "sql.streaming.queryId"))
        if batch is None or query is None:
            raise StateError("a streaming program ran outside of a streaming query")
        program = self.plan.space.program
        run = self._run(context.getLocalProperty("spark.job.description"))
        versions = Versions(place_of(self.location), query, program.name, self.codec, run)
        before = versions.load(int(batch), program.init())
        parts = [part for part in batches if part.num_rows]
        names = [*self.names, ITAG, RANK]
        rows = pa.Table.from_batches(parts).rename_columns(names) if parts else pa.table({})
        newest = json.dumps(self._newest(rows, before)).encode()
        gang = Gang(roll_call(context, self.plan.tasks, self.secret), newest)
        try:
            heard = [before.newest, *map(json.loads, gang.words)]
            reached = {name: max(each.get(name, FAR) for each in heard) for name in self.streams}
            task = GangTask(self.plan, gang, self.codec, pa.schema([(name, pa.null()) for name in self.names]))
            try:
                ready, waiting = self._split(rows, before, min(reached.values()), gang.task)
                yield from task.run_stretch(before.state, ready)
            except Exception as error:
                task.fail(error)
                raise
            versions.save(int(batch), gang.task, gang.size, task.has_root, task.state, reached, waiting)
        finally:
            gang.close()

    def _run(self, description: str | None) -> tuple[str, str] | None:
        """Which start of the query this is, as Spark describes its jobs, and for which of its inputs."""
        found = _RUN.search(description or "")
        return None if found is None else (found[1], hashlib.sha256(self.secret).hexdigest()[:16])

    def _newest(self, rows: pa.Table, before: Version) -> dict[str, int]:
        if not rows.num_rows:
            return {}
        program = self.plan.space.program.name
        times = ticks_of(rows.column(self.inputs.time).combine_chunks(), program, self.inputs.time)
        streams, is_beat = self._streams_of(rows), rows.column(self.inputs.tag[0]).is_null().to_numpy()
        check_rising(program, times, is_beat, streams, before.newest, rows.column(self.inputs.time).type)
        return newest_of(times, is_beat, streams)

    def _split(self, rows: pa.Table, before: Version, until: int, task: int) -> tuple[Events, pa.Table]:
        """The events of this task before a time, in order, and the others."""
        program, inputs, space = self.plan.space.program, self.inputs, self.plan.space
        owner = np.array([self.plan.members[member].task for member in self.plan.owner], np.int64)
        parts = [rows] if rows.num_rows else []
        for table in before.waiting:
            # As the events and the plan are now: they may have had other columns then, and it other tasks.
            if self.given is not None:
                table = as_now(table, self.given, inputs)
            times = ticks_of(table.column(inputs.time).combine_chunks(), program.name, inputs.time)
            tags = space.numbers_of([table.column(name).combine_chunks() for name in inputs.tag], None, times)
            at = table.schema.get_field_index(ITAG)
            table = self._ranked(table.set_column(at, ITAG, pa.array(tags, pa.int32())))
            parts.append(table.filter(pa.array(owner[tags] == task)))
        if not parts:
            nothing = np.zeros(0, np.int64)
            return Events(pa.RecordBatch.from_pylist([], pa.schema([])), nothing, nothing, nothing), pa.table({})
        whole = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
        whole = whole.filter(pc.is_valid(whole.column(inputs.tag[0])))
        times = ticks_of(whole.column(inputs.time).combine_chunks(), program.name, inputs.time)
        ranks = ticks_of(whole.column(RANK).combine_chunks(), program.name, inputs.arrival or RANK)
        is_ready = below(times, until)
        waiting, ready = whole.filter(pa.array(~is_ready)), whole.filter(pa.array(is_ready))
        return self._ordered(ready, times[is_ready], ranks[is_ready]), waiting

    def _ranked(self, table: pa.Table) -> pa.Table:
        """Events that have waited, in the order that they have among those of now."""
        if self.ranks is None:
            arrival = str(self.inputs.arrival)
            ranks = ticks_of(table.column(arrival).combine_chunks(), self.plan.space.program.name, arrival)
        else:
            streams = None if self.inputs.stream is None else self._streams_of(table)
            ranks = self.ranks.of_rows([table.column(name).combine_chunks() for name in self.inputs.tag], streams)
        return table.set_column(table.schema.get_field_index(RANK), RANK, pa.array(ranks, pa.int64()))

    def _ordered(self, rows: pa.Table, times: Ints, ranks: Ints) -> Events:
        order = np.lexsort((ranks, times))
        same = (np.diff(times[order]) == 0) & (np.diff(ranks[order]) == 0)
        if same.any():
            ties = [f.name for f in rows.schema if not pa.types.is_nested(f.type) and f.name not in (ITAG, RANK)]
            names = dict.fromkeys((self.inputs.time, RANK, *self.inputs.tag, *ties))
            order = sorted_as_spark(rows.select(list(names)))
        batch = rows.select(list(self.names)).take(pa.array(order)).combine_chunks()
        tags = rows.column(ITAG).to_numpy()[order].astype(np.int64)
        first = batch.to_batches()[0] if batch.num_rows else pa.RecordBatch.from_pylist([], batch.schema)
        return Events(first, times[order], ranks[order], tags)

    def _streams_of(self, rows: pa.Table) -> list[Any]:
        """Of each row. Raises ProgramError for one that is not among those that there are."""
        stream = self.inputs.stream
        if stream is None:
            return [None] * rows.num_rows
        found: list[Any] = rows.column(stream).to_pylist()
        for each in dict.fromkeys(found):
            if each is None or stream_text(each) not in self.streams:
                (row,) = rows.select(list(self.names)).slice(found.index(each), 1).to_pylist()
                problem = f"an event is of stream {stream_text(each)}, and streams= are {', '.join(self.streams)}"
                if each is None:
                    problem = f"an event has no {stream}: a null is no stream; leave such rows out before"
                raise ProgramError(self.plan.space.program.name, f"{problem} (row {shown(row)})")
        return list(map(stream_text, found))


def sorted_as_spark(rows: pa.Table) -> Any:
    """The numbers of rows by all their columns, from the left: nulls first, and NaN behind all other numbers."""
    keys: dict[str, Any] = {}
    for number, column in enumerate(rows.columns):
        keys[f"{number}v"] = pc.is_valid(column)
        if pa.types.is_floating(column.type):
            is_nan = pc.fill_null(pc.is_nan(column), False)
            keys[f"{number}n"] = is_nan
            column = pc.if_else(is_nan, pa.scalar(0, column.type), column)
        keys[f"{number}"] = column
    by = [(name, "ascending") for name in keys]
    return pc.sort_indices(pa.table(keys), sort_keys=by).to_numpy()
