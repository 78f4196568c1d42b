"""A program in a flow: sources mark how far they have come, and every worker of the tree is a task.

Between them go *envelopes*: a record with its place in the order, a mark of a source, or a message of a worker. Workers
talk through a loop of the flow. Each takes all in the order of keys, so what it sends depends on what comes on each of
its channels, and on nothing else: a task that starts again sends the same again, as all tasks of a flow.

A source marks its way where its times step over a multiple of `beat`: so where marks are depends on its records alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import OrderBroken, ProgramError
from headrace.flow.operators import MAIN, Behaviour, Operator, Outputs, Shape
from headrace.synchronize import snapshots
from headrace.synchronize.codec import Codec
from headrace.synchronize.inputs import Inputs, ticks_of, time_text
from headrace.synchronize.mailbox import FIRST, LAST, Events
from headrace.synchronize.node import DOWN, UP
from headrace.synchronize.optimize import Optimizer, optimizer_of
from headrace.synchronize.plan import Plan, make_plan
from headrace.synchronize.program import Program
from headrace.synchronize.tags import Ints, said_rates, tag_space
from headrace.synchronize.tree import TreeTask

MESSAGES: Final = "messages"
_EVENT, _MARK, _MESSAGE = 0, 1, 2
RESERVED: Final = "__headrace_"
"""What columns of an envelope begin with that are not of the record."""
_FIELDS: Final = (
    pa.field("__headrace_to", pa.int32()),
    pa.field("__headrace_kind", pa.int8()),
    pa.field("__headrace_source", pa.int32()),
    pa.field("__headrace_time", pa.int64()),
    pa.field("__headrace_rank", pa.int64()),
    pa.field("__headrace_tag", pa.int32()),
    pa.field("__headrace_message", pa.binary()),
)
_BEAT_US: Final = 5000
_RANK_BITS: Final = 40
_TAGS_SHOWN: Final = 5
"""Of the number of a record; those before it are of its source."""


def envelope(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, *_FIELDS])


def check_names(program: str, names: Sequence[str]) -> None:
    """Raises ProgramError where a column of the records is called as one of an envelope may be."""
    taken = next((name for name in names if name.startswith(RESERVED)), None)
    if taken is not None:
        raise ProgramError(
            program, f"its events have a column {taken}; names that begin with {RESERVED} are Headrace's own: rename it"
        )


def to_worker(batch: pa.RecordBatch, tasks: int) -> Ints:
    """The route of an envelope."""
    found: Ints = batch.column("__headrace_to").to_numpy().astype(np.int64) % tasks
    return found


def _enveloped(rows: pa.RecordBatch, columns: Mapping[str, Any]) -> pa.RecordBatch:
    count = rows.num_rows
    arrays = [
        pa.array(columns[each.name], each.type) if each.name in columns else pa.nulls(count, each.type)
        for each in _FIELDS
    ]
    return pa.RecordBatch.from_arrays([*rows.columns, *arrays], schema=envelope(rows.schema))


# ---------------------------------------------------------------------- sources


@dataclass(frozen=True)
class Marked(Behaviour):
    """Gives the records of a stream their places, and marks how far each of its tasks has come."""

    plan: Plan
    inputs: Inputs
    first_source: int
    """The number of its task 0 among all sources."""
    beat: int
    given: pa.Schema

    def open(self, shape: Shape) -> Operator:
        return _Marking(self, self.first_source + shape.index, shape)

    def schema(self, stage: str, given: pa.Schema) -> pa.Schema:
        return envelope(given)

    @property
    def is_stateful(self) -> bool:
        return True

    @property
    def counts_tasks(self) -> bool:
        """Workers wait for each of them."""
        return True

    def __str__(self) -> str:
        return f"marks of {self.inputs.time}"


class _Marking(Operator):
    changes_are_all = True

    def __init__(self, behaviour: Marked, source: int, shape: Shape):
        self._inputs, self._beat, self._given = behaviour.inputs, behaviour.beat, behaviour.given
        self._space = behaviour.plan.space
        self._owner = np.array(behaviour.plan.owner, np.int64)
        self._members = np.array([member.number for member in behaviour.plan.members if member.tags], np.int64)
        self._source, self._place = source, f"{shape.stage}, task {shape.index}"
        self._seen = 0
        self._time: int | None = None
        self._is_after = False
        """Has a heartbeat said that all of that time have come?"""
        self._is_dirty = False

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        if not batch.num_rows:
            return []
        self._is_dirty = True
        times = ticks_of(batch.column(self._inputs.time), self._inputs.program, self._inputs.time)
        is_beat = batch.column(self._inputs.tag[0]).is_null().to_numpy(zero_copy_only=False)
        is_news = ~is_beat | (times >= np.maximum.accumulate(self._before(times)))
        if not is_news.all():  # a heartbeat that is late says nothing new
            return self.apply(batch.filter(pa.array(is_news)))
        self._check(times, is_beat)
        rows = np.flatnonzero(~is_beat)
        numbers = np.arange(self._seen, self._seen + len(rows))
        ranks = np.zeros(len(times), np.int64)
        ranks[rows] = (self._source << _RANK_BITS) + numbers
        before = self._before(times, times[0] - self._beat)
        steps = np.flatnonzero((times // self._beat > before // self._beat) | is_beat)
        self._seen += len(rows)
        self._time, self._is_after = int(times[-1]), bool(is_beat[-1])
        return [(MAIN, self._joined(batch, times, ranks, rows, numbers, steps, is_beat))]

    def _joined(
        self, batch: pa.RecordBatch, times: Ints, ranks: Ints, rows: Ints, numbers: Ints, steps: Ints, is_beat: Any
    ) -> pa.RecordBatch:
        """Records, and before each that steps over a beat a mark for every worker that has tags."""
        tags = self._space.numbers_of([batch.column(n).take(pa.array(rows)) for n in self._inputs.tag], None, numbers)
        count, width = len(rows), len(self._members)
        marked = np.repeat(steps, width)
        mark_ranks = np.where(is_beat, LAST[1], ranks)
        order = np.argsort(np.concatenate([2 * rows + 1, 2 * marked]), kind="stable")
        source = pa.array(np.concatenate([rows, np.zeros(len(marked), np.int64)])[order], mask=order >= count)
        columns = {
            "__headrace_to": np.concatenate([self._owner[tags], np.tile(self._members, len(steps))]),
            "__headrace_kind": np.repeat([_EVENT, _MARK], [count, len(marked)]),
            "__headrace_source": np.full(count + len(marked), self._source),
            "__headrace_time": np.concatenate([times[rows], times[marked]]),
            "__headrace_rank": np.concatenate([ranks[rows], mark_ranks[marked]]),
            "__headrace_tag": np.concatenate([tags, np.full(len(marked), -1)]),
        }
        return _enveloped(batch.take(source), {name: values[order] for name, values in columns.items()})

    def _before(self, times: Ints, first: int | None = None) -> Ints:
        """For each time the one before it; for the very first `first`, or itself."""
        start = times[0] if first is None else first
        return np.concatenate([[start if self._time is None else self._time], times[:-1]])

    def _check(self, times: Ints, is_beat: Any) -> None:
        before = self._before(times)
        was_beat = np.concatenate([[self._is_after], is_beat[:-1]])
        back = np.flatnonzero((times < before) | (was_beat & ~is_beat & (times == before)))
        if len(back):
            at = int(back[0])
            after_beat = "a heartbeat" if was_beat[at] else "one"
            type = self._given.field(self._inputs.time).type
            time, earlier = time_text(int(times[at]), type), time_text(int(before[at]), type)
            raise OrderBroken(self._place, f"an event of time {time} comes after {after_beat} of time {earlier}")

    def finish(self) -> Outputs:
        """The last mark: nothing more will come."""
        count = len(self._members)
        nothing = pa.RecordBatch.from_arrays([pa.nulls(count, each.type) for each in self._given], schema=self._given)
        columns = {
            "__headrace_to": self._members,
            "__headrace_kind": np.full(count, _MARK),
            "__headrace_source": np.full(count, self._source),
            "__headrace_time": np.full(count, LAST[0]),
            "__headrace_rank": np.full(count, LAST[1]),
            "__headrace_tag": np.full(count, -1),
        }
        return [(MAIN, _enveloped(nothing, columns))] if count else []

    def changes(self) -> bytes | None:
        if not self._is_dirty:
            return None
        return self.content()

    def content(self) -> bytes:
        self._is_dirty = False
        return json.dumps([self._seen, self._time, self._is_after]).encode()

    def restore(self, parts: Sequence[bytes]) -> None:
        self._seen, self._time, self._is_after = json.loads(parts[-1])


# ------------------------------------------------------------------------- tree


@dataclass(frozen=True)
class Tree(Behaviour):
    """The workers of a plan, one a task."""

    plan: Plan
    sources: tuple[str, ...]
    given: pa.Schema
    """The columns of events."""
    time: str
    codec: Codec = field(compare=False)

    def open(self, shape: Shape) -> Operator:
        return _TreeOperator(self, shape)

    def schema(self, stage: str, given: pa.Schema) -> pa.Schema:
        found: pa.Schema = self.plan.space.program.outputs
        return found

    @property
    def is_stateful(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"{self.plan.space.program.name}, {len(self.plan.members)} workers"


class _TreeOperator(Operator):
    changes_are_all = True

    def __init__(self, behaviour: Tree, shape: Shape):
        members = tuple(replace(m, task=m.number % shape.tasks) for m in behaviour.plan.members)
        plan = replace(behaviour.plan, members=members, tasks=shape.tasks)
        self._shape, self._codec, self._given = shape, behaviour.codec, behaviour.given
        self._names = behaviour.given.names
        self._type = behaviour.given.field(behaviour.time).type
        self._tree = TreeTask(plan, shape.index, behaviour.given, behaviour.sources, is_total=True)
        self._tree.start_alone()
        # A worker without tags, and with none above it, hears nothing ever: it is done from the start.
        self._tree.work()
        self._is_dirty = False
        self._moved_s = [time.monotonic()] * len(behaviour.sources)

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        self._is_dirty = True
        given: list[pa.RecordBatch] = []
        kinds = batch.column("__headrace_kind").to_numpy()
        sources = batch.column("__headrace_source").fill_null(-1).to_numpy()
        times, ranks, tags = (
            batch.column(f"{RESERVED}{name}").fill_null(-1).to_numpy() for name in ("time", "rank", "tag")
        )
        runs = np.flatnonzero((np.diff(kinds) != 0) | (np.diff(sources) != 0)) + 1
        for start, stop in zip([0, *runs.tolist()], [*runs.tolist(), len(kinds)], strict=True):
            if kinds[start] == _EVENT:
                cut = slice(start, stop)
                rows = batch.slice(start, stop - start).select(self._names)
                events = Events(rows, times[cut], ranks[cut], tags[cut].astype(np.int64))
                self._tree.push(int(sources[start]), events)
            elif kinds[start] == _MARK:
                self._moved_s[int(sources[start])] = time.monotonic()  # for its report alone
                for row in range(start, stop):
                    self._tree.complete(int(sources[start]), (int(times[row]), int(ranks[row])))
            else:
                given += self._receive(batch.column("__headrace_message").slice(start, stop - start).to_pylist())
        given += self._tree.work()
        return [*((MAIN, each) for each in given), *self._messages()]

    def _receive(self, contents: Sequence[bytes]) -> list[pa.RecordBatch]:
        """A state lets go what was held up. So all that came before it is done first: otherwise it would depend on
        where the input is cut whether the next requests leave before the state that goes down, or behind it."""
        given: list[pa.RecordBatch] = []
        for content in contents:
            message = self._codec.decode(content)
            is_state = message.kind in (UP, DOWN)
            given += self._tree.work() if is_state else []
            self._tree.receive(message)
            given += self._tree.work() if is_state else []
        return given

    def _messages(self) -> Outputs:
        if not self._tree.outbox:
            return []
        sent, self._tree.outbox = self._tree.outbox, []
        count = len(sent)
        nothing = pa.RecordBatch.from_arrays([pa.nulls(count, each.type) for each in self._given], schema=self._given)
        columns = {
            "__headrace_to": [message.to for _, message in sent],
            "__headrace_kind": np.full(count, _MESSAGE),
            "__headrace_message": [self._codec.encode(message) for _, message in sent],
        }
        return [(MESSAGES, _enveloped(nothing, columns))]

    def finish(self) -> Outputs:
        if not self._tree.is_done:
            raise ProgramError(
                self._tree.plan.space.program.name,
                f"its input ended, and {self._tree.rows} events were not taken by {self._shape.stage}, "
                f"task {self._shape.index}",
            )
        return []

    def changes(self) -> bytes | None:
        return self.content() if self._is_dirty else None

    def content(self) -> bytes:
        self._is_dirty = False
        parts = [(number, snapshots.dump(node, self._codec)) for number, node in self._tree.nodes.items()]
        header = json.dumps([[number, len(part)] for number, part in parts] + [self._tree.frontiers]).encode()
        return b"".join([len(header).to_bytes(4, "little"), header, *(part for _, part in parts)])

    def restore(self, parts: Sequence[bytes]) -> None:
        content = parts[-1]
        at = 4 + int.from_bytes(content[:4], "little")
        *sizes, frontiers = json.loads(content[4:at])
        self._tree.frontiers = [(time, rank) for time, rank in frontiers]
        for number, size in sizes:
            snapshots.load(self._tree.nodes[number], self._codec, content[at : at + size])
            at += size

    def report(self) -> Mapping[str, Any] | None:
        """How many events wait, and which streams they wait for, if it is a stream."""
        now = time.monotonic()
        waits, tags = [], self._tree.tags_waited_for()
        named = ", ".join(tags[:_TAGS_SHOWN]) + (", …" if len(tags) > _TAGS_SHOWN else "")
        for source in self._tree.waits_for():
            time_, since_s = self._tree.frontiers[source][0], now - self._moved_s[source]
            last = "nothing has come of it" if time_ == FIRST[0] else f"it has come to {time_text(time_, self._type)}"
            stream = self._tree.sources[source]
            waits.append(f"waiting for stream {stream}, tag {named} since {since_s:.1f} s: {last}")
        return {"waiting": self._tree.rows, "waits_for": waits}


# ------------------------------------------------------------------------- draw


def planned(
    program: Program, inputs: Inputs, leaves: int, rates: Mapping[Any, float] | None, optimizer: str | Optimizer
) -> Plan:
    """The tree of workers for a flow. Raises ProgramError, PlanError."""
    chosen = optimizer_of(program.name, optimizer)
    known = said_rates(program, len(inputs.tag), rates)
    space = tag_space(program, known, leaves)
    return make_plan(space, chosen(space, leaves), leaves)


def beat_of(given: pa.Schema, inputs: Inputs, heartbeat: int | None) -> int:
    """In the unit of the times: 5 ms where they are time stamps, else 1."""
    if heartbeat is not None:
        if isinstance(heartbeat, bool) or not isinstance(heartbeat, int) or heartbeat < 1:
            raise ProgramError(inputs.program, f"heartbeat={heartbeat!r}; use a number from 1 on, in the unit of times")
        return heartbeat
    return _BEAT_US if pa.types.is_timestamp(given.field(inputs.time).type) else 1
