"""Punctuations, the baseline of the tracker, as stages of a flow; and RR-N, the workload of the trAcker paper.

A punctuation is a row among the records: it says that its substream has ended. The stage in the task of the source puts
one for each task of the first step behind the last record of a substream. Every task sends a punctuation on, to all
tasks of the next step, once it has come from all tasks that send to it (a soft bound). With alignment it also keeps
back what comes from a sender behind its punctuation until all have it (a firm bound).

Rows carry who sent them and to whom, so that a task can tell its channels apart. All senders must end the same
substreams in the same order, as sources do whose substreams come one after the other: then what has come from a sender
is a number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from bench.support.virtual_cluster import VirtualCluster
from bench.support.virtual_costs import Costs
from headrace.flow.builder import Stream
from headrace.flow.hashing import hash_rows
from headrace.flow.io import Feed, Opening, Source, SplitReader
from headrace.flow.operators import MAIN, Behaviour, Operator, Outputs, Shape
from headrace.model import plain_json
from headrace.model.frames import Frame, Kind
from headrace.track.terms import Told

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
System = Literal["none", "punctuations", "tracked", "passed on"]

PUNCTUATION: Final = 1
"""The kind of a row; records have 0."""
OUT: Final = "out"
"""The sink of RR-N; of punctuations, each task gets one of them for each substream, behind its records."""
NOTICES: Final = "notices"
"""The sink of notifications, where they come by a way of their own."""
_ENDED: Final = pa.schema([("substream", pa.int64())])
_FIELDS: Final = (pa.field("kind", pa.int8()), pa.field("sender", pa.int32()), pa.field("target", pa.int32()))


def ints(batch: pa.RecordBatch, name: str) -> Ints:
    found: Ints = batch.column(name).to_numpy(zero_copy_only=False)
    return found


def is_punctuation(batch: pa.RecordBatch) -> Bools:
    found: Bools = ints(batch, "kind") == PUNCTUATION
    return found


def to_target(batch: pa.RecordBatch, tasks: int) -> Ints:
    """The route of records and punctuations."""
    return ints(batch, "target")


def _sent(rows: pa.RecordBatch, own: int, kinds: Ints | Bools, sender: int, targets: Ints) -> pa.RecordBatch:
    """The first `own` columns of the rows, and who sends them to whom."""
    said = (kinds.astype(np.int8), np.full(rows.num_rows, sender, np.int32), targets.astype(np.int32))
    return pa.RecordBatch.from_arrays(
        [*rows.columns[:own], *map(pa.array, said)], schema=pa.schema([*list(rows.schema)[:own], *_FIELDS])
    )


class _Counted(Behaviour):
    @property
    def is_stateful(self) -> bool:
        return True

    @property
    def counts_tasks(self) -> bool:
        """What it does depends on how many tasks there are."""
        return True


@dataclass(frozen=True)
class Inject(_Counted):
    """Records to the tasks of the first step, and behind each that is the last of its substream, punctuations to all.

    `last` is the column that says so. `by` is a column whose values decide the task; without one they take turns.
    `first_sender` is the number of its task 0 among all that send to the same step.
    """

    targets: int
    last: str = "last"
    by: str | None = None
    first_sender: int = 0

    def open(self, shape: Shape) -> Operator:
        return _Injecting(self, self.first_sender + shape.index)

    def schema(self, stage: str, given: pa.Schema) -> pa.Schema:
        return pa.schema([*given, *_FIELDS])

    def __str__(self) -> str:
        return "punctuations of a source"


class _Remembering(Operator):
    """Its state is small, and written whole."""

    _is_dirty = False

    @abstractmethod
    def state(self) -> Any: ...

    @abstractmethod
    def go_on(self, state: Any) -> None: ...

    def changes(self) -> bytes | None:
        return self.content() if self._is_dirty else None

    def content(self) -> bytes:
        self._is_dirty = False
        return plain_json.dumps(self.state(), "punctuations")

    def restore(self, parts: Sequence[bytes]) -> None:
        if parts:
            self.go_on(plain_json.loads(parts[-1]))


class _Turns:
    """Who gets a record: as `hr.rebalance`, or by the values of a column."""

    def __init__(self, targets: int, by: str | None, sender: int):
        self.targets, self._by = targets, by
        self.turn = sender

    def of(self, rows: pa.RecordBatch) -> Ints:
        if self._by is not None:
            return (hash_rows(rows, (self._by,)) % np.uint64(self.targets)).astype(np.int64)
        found: Ints = np.arange(self.turn, self.turn + rows.num_rows) % self.targets
        self.turn += rows.num_rows
        return found


class _Injecting(_Remembering):
    def __init__(self, behaviour: Inject, sender: int):
        self._last, self._sender = behaviour.last, sender
        self._turns = _Turns(behaviour.targets, behaviour.by, sender)

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        self._is_dirty = True
        is_last = batch.column(self._last).to_numpy(zero_copy_only=False)
        counts = 1 + is_last * self._turns.targets
        rows = np.repeat(np.arange(batch.num_rows), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        targets = np.where(within > 0, within - 1, self._turns.of(batch)[rows])
        taken = batch.take(pa.array(rows)) if is_last.any() else batch
        return [(MAIN, _sent(taken, batch.num_columns, within > 0, self._sender, targets))]

    def state(self) -> Any:
        return self._turns.turn

    def go_on(self, state: Any) -> None:
        self._turns.turn = state


# ------------------------------------------------------------------------- steps


@dataclass(frozen=True)
class PassOn(_Counted):
    """A step: records to the next one, and a punctuation to all its tasks once it has come from all `senders`.

    `targets` is how many tasks the next step has; 0 where there is none: then each punctuation is given once, behind
    all that came before it.
    """

    senders: int
    targets: int = 0
    aligned: bool = False
    by: str | None = None

    def open(self, shape: Shape) -> Operator:
        return _Passing(self, shape.index)

    def __str__(self) -> str:
        return "passes on, aligned" if self.aligned else "passes on"


class _Passing(_Remembering):
    def __init__(self, behaviour: PassOn, index: int):
        self._aligned, self._index = behaviour.aligned, index
        self._turns = _Turns(max(behaviour.targets, 1), behaviour.by, index)
        self._came: Ints = np.zeros(behaviour.senders, np.int64)
        """How many punctuations each sender has sent."""
        self._held: pa.RecordBatch | None = None
        self._held_for: Ints = np.zeros(0, np.int64)
        """How many punctuations each held record waits for."""

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        if not batch.num_rows:
            return []
        self._is_dirty = True
        marks = is_punctuation(batch)
        if not marks.any() and not self._aligned:
            return [(MAIN, self._to_next(batch, marks))]
        before = int(self._came.min())
        numbers = self._numbered(ints(batch, "sender"), marks)
        after = int(self._came.min())
        whole: Ints = np.zeros(after - before, np.int64)
        """Where the punctuations `before`, `before + 1`, … are complete: of several the last one stays."""
        is_whole = marks & (numbers < after)
        whole[numbers[is_whole] - before] = np.flatnonzero(is_whole)
        if self._aligned:
            return self._in_epochs(batch, marks, numbers, whole, before)
        leaves = ~marks
        leaves[whole] = True
        return self._given(batch, marks, np.flatnonzero(leaves))

    def _numbered(self, senders: Ints, marks: Bools) -> Ints:
        """For each row, how many punctuations its sender has sent before it."""
        if len(set(senders.tolist())) == len(senders):
            found: Ints = self._came[senders]
            self._came[senders[marks]] += 1
            return found
        order = np.argsort(senders, kind="stable")
        sorted_senders, sorted_marks = senders[order], marks[order]
        before: Ints = np.cumsum(sorted_marks) - sorted_marks
        starts = np.flatnonzero(np.diff(sorted_senders, prepend=-1))
        lengths = np.diff(starts, append=len(senders))
        numbers: Ints = np.empty(len(senders), np.int64)
        numbers[order] = before - np.repeat(before[starts], lengths) + self._came[sorted_senders]
        self._came += np.bincount(senders[marks], minlength=len(self._came))
        return numbers

    def _in_epochs(self, batch: pa.RecordBatch, marks: Bools, numbers: Ints, whole: Ints, before: int) -> Outputs:
        """A record leaves once all punctuations that its sender sent before it are complete, behind the last one."""
        if self._held is not None:
            batch = pa.concat_batches([self._held, batch])
            count = self._held.num_rows
            marks = np.concatenate([np.zeros(count, np.bool_), marks])
            numbers, whole = np.concatenate([self._held_for, numbers]), whole + count
        after = before + len(whole)
        waits = ~marks & (numbers > after)
        self._held = batch.filter(pa.array(waits)) if waits.any() else None
        self._held_for = numbers[waits]
        leaves = ~marks & ~waits
        leaves[whole] = True
        rows = np.flatnonzero(leaves)
        until = np.concatenate([[-1], whole])[np.maximum(numbers[rows] - before, 0)]
        is_late = ~marks[rows] & (until > rows)
        order = np.argsort(np.where(is_late, 2 * until + 1, 2 * rows), kind="stable")
        return self._given(batch, marks, rows[order])

    def _given(self, batch: pa.RecordBatch, marks: Bools, rows: Ints) -> Outputs:
        """These rows, in this order."""
        if not len(rows):
            return []
        return [(MAIN, self._to_next(batch.take(pa.array(rows)), marks[rows]))]

    def _to_next(self, batch: pa.RecordBatch, marks: Bools) -> pa.RecordBatch:
        own, count = batch.num_columns - len(_FIELDS), self._turns.targets
        if not marks.any():
            return _sent(batch, own, marks, self._index, self._turns.of(batch))
        targets: Ints = np.zeros(batch.num_rows, np.int64)
        targets[~marks] = self._turns.of(batch.filter(pa.array(~marks)))
        if count > 1:
            counts = np.where(marks, count, 1)
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            rows = np.repeat(np.arange(batch.num_rows), counts)
            batch, marks = batch.take(pa.array(rows)), marks[rows]
            targets = np.where(marks, within, targets[rows])
        return _sent(batch, own, marks, self._index, targets)

    def finish(self) -> Outputs:
        assert self._held is None, "all senders have ended, and not all have sent the same punctuations"
        return []

    def state(self) -> Any:
        held = b""
        if self._held is not None:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self._held.schema) as writer:
                writer.write_batch(self._held)
            held = sink.getvalue().to_pybytes()
        return [self._turns.turn, self._came.tolist(), self._held_for.tolist(), held]

    def go_on(self, state: Any) -> None:
        self._turns.turn, came, held_for, held = state
        self._came, self._held_for = np.array(came, np.int64), np.array(held_for, np.int64)
        self._held = next(iter(pa.ipc.open_stream(held))) if held else None


# -------------------------------------------------------------------------- RR-N


@dataclass(frozen=True)
class Items(Source):
    """At a steady rate, and each knows its substream from the first: who tracks them is told so by the source."""

    rr: RoundRobin

    schema = pa.schema([("n", pa.int64()), ("substream", pa.int64()), ("last", pa.bool_()), ("made_us", pa.int64())])

    def open(self, opening: Opening, position: Any) -> SplitReader:
        return _ItemReader(self.rr, hr.rate(self.rr.rate, self.rr.records).open(opening, position))


class _ItemReader(SplitReader):
    def __init__(self, rr: RoundRobin, numbers: SplitReader):
        self._rr, self._numbers = rr, numbers

    def poll(self, most_records: int) -> Feed | None:
        feed = self._numbers.poll(most_records)
        return feed if feed is None or feed.batch is None else replace(feed, batch=self._rr.made(feed.batch))

    def due_s(self) -> float:
        return self._numbers.due_s()


def service_in(queue: str, frame: Frame) -> tuple[str, int]:
    """What of a frame is there only for tracking: punctuations, one for each task that one is sent to; what tasks tell
    the tracker; what it tells them, "forgotten" where they are to forget. That all is over is not counted."""
    if frame.kind == Kind.REPORT:
        return "reports", frame.count
    names = frame.batch.schema.names if frame.batch is not None else ()
    if "kind" in names:
        return "punctuations", int(is_punctuation(frame.batch).sum())
    if "told" not in names:
        return "", 0
    told = set(ints(frame.batch, "told").tolist())
    what = "forgotten" if told == {Told.GONE} else "notices"
    return (what, frame.count) if told != {Told.OVER} else ("", 0)


@dataclass(frozen=True)
class RoundRobin:
    """RR-N: `steps` that pass records on, each to the next task in turn, one task a worker and step."""

    system: System
    steps: int = 30
    workers: int = 15
    granularity: int = 10
    records: int = 1000
    rate: float = 100.0
    aligned: bool = False
    as_records: bool = False
    """What is tracked tells a sink of its own, instead of the tasks of the last step."""

    @property
    def is_tracked(self) -> bool:
        return self.system in ("tracked", "passed on")

    @property
    def substreams(self) -> int:
        return -(-self.records // self.granularity)

    @property
    def punctuations(self) -> int:
        """How many it takes."""
        return self.substreams * (self.workers + (self.steps - 1) * self.workers**2)

    def made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The records of its source, from what `hr.rate` gives."""
        numbers = ints(batch, "n")
        is_last = (numbers % self.granularity == self.granularity - 1) | (numbers == self.records - 1)
        made_us = batch.column("ts").cast(pa.int64())
        columns = {"n": numbers, "substream": numbers // self.granularity, "last": is_last, "made_us": made_us}
        return pa.record_batch(columns)

    def flow(self, name: str = "rr") -> hr.Flow:
        flow = hr.Flow(name)
        last = self.begun(flow)
        if self.system == "punctuations":
            last = flow._stage("inject", Inject(self.workers), (last,), 1, None, None, {})
        for step in range(1, self.steps + 1):
            last = self._step(flow, last, step)
        flow.sink(OUT, last, hr.callback(self.came))
        if self.is_tracked:
            told = flow.ends("ends", self._tracked(last)) if self.as_records else last.side(NOTICES)
            flow.sink(NOTICES, told, hr.callback(self.ended))
        return flow

    def begun(self, flow: hr.Flow) -> Stream:
        """Its source."""
        return flow.source("items", Items(self))

    def step(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What a step does, but for the last one where it is told of ends."""
        return batch

    def came(self, batch: pa.RecordBatch) -> None:
        """What its sink does with records, and with punctuations."""

    def ended(self, batch: pa.RecordBatch) -> None:
        """What the sink of notices does with them."""

    def _tracked(self, last: Stream) -> Stream:
        return last.tracked(by="substream", ends=hr.marker("last"))

    def _step(self, flow: hr.Flow, last: Stream, step: int) -> Stream:
        name, width, in_turn = f"step-{step}", self.workers, hr.rebalance()
        if self.is_tracked and not self.as_records and step == self.steps:
            told, sides = self._tracked(last), {NOTICES: _ENDED}
            return flow.stage(name, _Informed, told, parallelism=width, route=in_turn, sides=sides)
        if self.system != "punctuations":
            passes_on = self.system == "passed on"
            return flow.stage(name, self.step, last, parallelism=width, route=in_turn, one_to_one=passes_on)
        passes = PassOn(1 if step == 1 else self.workers, self.workers if step < self.steps else 0, self.aligned)
        return flow._stage(name, passes, (last,), self.workers, hr.custom(to_target), None, {})

    def run(self, costs: Costs, **options: Any) -> VirtualCluster:
        """On a virtual cluster; all records came, and each task of the last step had each notification, once."""
        cluster = VirtualCluster(self.flow().graph(), self.workers, costs, service=service_in, **options)
        cluster.run()
        numbers = np.concatenate([ints(batch, "n") for _, batch in records_of(cluster)])
        assert np.array_equal(np.sort(numbers), np.arange(self.records)), "records are missing, or came twice"
        if self.system != "none":
            told = sorted((task, one) for _, task, found in notices_of(cluster) for one in found.tolist())
            told_tasks = 1 if self.is_tracked and self.as_records else self.workers
            wanted = [(task, one) for task in range(told_tasks) for one in range(self.substreams)]
            assert told == wanted, "notifications are missing, or came twice"
        return cluster

    def notification_ms(self, cluster: VirtualCluster) -> Floats:
        """From when the source had sent the last record of a substream until a task was told; for each of both."""
        emitted = np.full(self.records, np.nan)
        for given in cluster.fed:
            emitted[ints(given.batch, "n")] = given.at_s
        lasts = np.minimum(np.arange(1, self.substreams + 1) * self.granularity, self.records) - 1
        return self._told_ms(cluster, emitted[lasts])

    def after_records_ms(self, cluster: VirtualCluster) -> Floats:
        """From when the last of its records had come to the last step until a task was told."""
        came = np.zeros(self.substreams)
        for at_s, batch in records_of(cluster):
            np.maximum.at(came, ints(batch, "substream"), at_s)
        return self._told_ms(cluster, came)

    def _told_ms(self, cluster: VirtualCluster, since_s: Floats) -> Floats:
        return np.sort(np.concatenate([at_s - since_s[ended] for at_s, _, ended in notices_of(cluster)])) * 1e3

    def record_ms(self, cluster: VirtualCluster) -> Floats:
        """From when a record was due until it had passed the last step, by number. Record n is due when n + 1 are."""
        found = np.zeros(self.records)
        for at_s, batch in records_of(cluster):
            numbers = ints(batch, "n")
            found[numbers] = at_s - (numbers + 1) / self.rate
        return found * 1e3


class _Informed(hr.Stage):
    """The last step of what is tracked: records go on, and so does the end of each substream."""

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def on_ended(self, substream: int) -> Any:
        return {NOTICES: pa.record_batch([pa.array([substream])], schema=_ENDED)}


def records_of(cluster: VirtualCluster) -> list[tuple[float, pa.RecordBatch]]:
    """What the last step gave, and when."""
    return [(given.at_s, _of_kind(given.batch, False)) for given in cluster.delivered if given.node == OUT]


def notices_of(cluster: VirtualCluster) -> list[tuple[float, int, Ints]]:
    """When which task behind the last step was told of which substreams."""
    found = [(each, each.batch) for each in cluster.delivered if each.node == NOTICES]
    found += [(each, _of_kind(each.batch, True)) for each in cluster.delivered if each.node == OUT]
    told = [(given, ints(batch, "substream")) for given, batch in found if batch.num_rows]
    return [(given.at_s, int(given.task.rpartition(".")[2]), substreams) for given, substreams in told]


def _of_kind(batch: pa.RecordBatch, wanted: bool) -> pa.RecordBatch:
    if "kind" not in batch.schema.names:
        return batch.slice(0, 0) if wanted else batch
    return batch.filter(pa.array(is_punctuation(batch) == wanted))
