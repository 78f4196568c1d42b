"""The flows of `bench/track_uses.py`: a window join and snapshots of epochs, with the tracker and with punctuations.

**Window join.** NEXMark's query 8: every machine has a task of the source and a task of the join. Source tasks say
which of their records is the last of a window: the tracker is told so by a column (`hr.marker`), and the baseline puts
punctuations behind it, one for each task of the join. Both run the same join (`headrace.flow.window_join`).

**Snapshots.** A source, and steps that keep state and pass records on in turn; every task has a machine of its own, so
that an operator that saves holds up nobody else. When an epoch has ended for a task it *saves*, which takes the machine
so long. With the tracker a step reads a stream with a firm bound, and is told; with punctuations it is aligned. Flink
passes a punctuation on before it saves; others save first, and both are here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from bench.support.punctuations import Inject, PassOn, is_punctuation, to_target
from bench.support.virtual_cluster import Node, VirtualCluster
from bench.support.virtual_costs import Costs, whole
from headrace.demo.nexmark import AUCTION, PERSON, Nexmark, query_8
from headrace.flow import effects as fx
from headrace.flow.builder import Stream
from headrace.flow.graph import Graph
from headrace.flow.io import Feed, Opening, Source, SplitReader
from headrace.flow.operators import MAIN, Behaviour, Operator, Outputs, Shape, Wrapped
from headrace.flow.plan import make_plan
from headrace.flow.sources import Rate
from headrace.flow.substreams import FLUSH_S
from headrace.flow.window_join import WindowJoin, window_join
from headrace.model.ticks import SECOND, Ticks

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
System = Literal["tracked", "punctuations"]
OUT: Final = "out"


def ints(batch: pa.RecordBatch | pa.Table, name: str) -> Ints:
    found: Ints = batch.column(name).to_numpy()
    return found


def ignored(batch: pa.RecordBatch) -> None:
    """A sink that does nothing."""


@dataclass(frozen=True)
class Made(Source):
    """Records of the numbers that `hr.rate` gives, when they are due."""

    numbers: Rate
    make: Callable[[Ints], pa.RecordBatch]
    schema: pa.Schema

    def open(self, opening: Opening, position: Any) -> SplitReader:
        return _MadeReader(self.numbers.open(opening, position), self.make)


class _MadeReader(SplitReader):
    def __init__(self, inner: SplitReader, make: Callable[[Ints], pa.RecordBatch]):
        self._inner, self._make = inner, make

    def poll(self, most_records: int) -> Feed | None:
        feed = self._inner.poll(most_records)
        if feed is None or feed.batch is None:
            return feed
        return replace(feed, batch=self._make(ints(feed.batch, "n")))

    def due_s(self) -> float:
        return self._inner.due_s()


# ------------------------------------------------------------------- window join

_EVENTS: Final = pa.schema(
    [
        ("n", pa.int64()),
        ("what", pa.string()),
        ("key", pa.int64()),  # of a person, or of who opens the auction
        ("name", pa.string()),
        ("window", pa.int64()),
        ("last", pa.bool_()),
    ]
)
_GIVEN: Final = {"window": "window", "id": "left.key", "name": "left.name"}
Query8: type[WindowJoin] = window_join(
    _EVENTS, by="window", kind="what", left=PERSON, right=AUCTION, on=("key", "key"), given=_GIVEN, how="semi"
)


class AtPunctuations(hr.Stage):
    """The same join behind a step that gives each punctuation once, behind all records of its window."""

    def __init__(self) -> None:
        self._join = Query8()

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        marks, own, found, at = is_punctuation(batch), batch.select(_EVENTS.names), [], 0
        for place in np.flatnonzero(marks).tolist():
            self._join.on_batch(own.slice(at, place - at))
            found.append(self._join.on_ended(batch.column("window")[place].as_py()))
            at = place + 1
        self._join.on_batch(own.slice(at))
        given = [part for part in found if part is not None]
        return pa.concat_batches(given) if given else None

    def snapshot(self) -> Any:
        return self._join.snapshot()

    def restore(self, state: Any) -> None:
        self._join.restore(state)


@cache
def _all_events(nodes: int, rate: float, window: Ticks, count: int) -> pa.RecordBatch:
    site, numbers = Nexmark(rate * nodes), np.arange(count)
    events = site.events(numbers)
    is_person = np.asarray(events.column("kind").to_numpy(zero_copy_only=False) == PERSON)
    keys = np.where(is_person, ints(events, "id"), events.column("seller").fill_null(0).to_numpy())
    is_last = site.ends_window(numbers, nodes, window)
    columns = [numbers, events.column("kind"), keys, events.column("name"), site.windows(numbers, window), is_last]
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=_EVENTS)


@dataclass(frozen=True)
class WindowJoinRun:
    """Query 8 on so many machines, each with so many events a second."""

    system: System
    nodes: int
    window_s: float
    windows: int
    rate: float = 500.0
    flush_s: float = FLUSH_S

    @property
    def site(self) -> Nexmark:
        return Nexmark(self.rate * self.nodes)

    @property
    def window(self) -> Ticks:
        return Ticks(round(self.window_s * SECOND))

    @property
    def events(self) -> int:
        return round(self.rate * self.nodes * self.window_s) * self.windows

    def made(self, numbers: Ints) -> pa.RecordBatch:
        """The events of these numbers: they were made before, and take no time here."""
        return _all_events(self.nodes, self.rate, self.window, self.events).take(pa.array(numbers))

    def flow(self, folder: Path | None = None) -> hr.Flow:
        """With a folder, it writes down there when windows enter and leave."""
        flow = hr.Flow(f"query-8-{self.system}")
        events = Made(hr.rate(self.rate * self.nodes, self.events), self.made, _EVENTS)
        made = flow.source("events", events, parallelism=self.nodes)
        if folder is not None:
            made = flow.stage("enter", partial(entering, str(folder / "entered")), made, one_to_one=True)
        if self.system == "tracked":
            ends = hr.marker("last", each_source=True)
            windows = made.tracked(by="window", ends=ends, flush_s=self.flush_s)
            joined = flow.stage(
                "join", Query8, windows, parallelism=self.nodes, route=hr.key("key"), schema=Query8.gives
            )
        else:
            injected = flow._stage("inject", Inject(self.nodes, by="key"), (made,), self.nodes, None, None, {})
            passed = PassOn(self.nodes)
            whole = flow._stage("whole", passed, (injected,), self.nodes, hr.custom(to_target), None, {})
            joined = flow.stage("join", AtPunctuations, whole, schema=Query8.gives)
        sink = ignored if folder is None else partial(leaving, str(folder / "left"))
        flow.sink(OUT, joined, hr.callback(sink))
        return flow

    def check(self, found: pa.Table) -> None:
        """Raises AssertionError unless this is the answer of query 8."""
        wanted = query_8(self.site.make(0, self.events), self.window)
        assert len(set(ints(wanted, "id").tolist())) == wanted.num_rows
        got = found.sort_by([("window", "ascending"), ("id", "ascending")])
        wanted = wanted.set_column(0, "window", wanted.column("window").cast(pa.int64()))
        assert got.equals(wanted), f"{self}: {got.num_rows} results, not the {wanted.num_rows} of query 8"

    def run_ms(self, costs: Costs, **options: Any) -> tuple[Floats, VirtualCluster]:
        """Of each window, from when its last event had entered until its last result had left, in virtual time."""
        cluster = VirtualCluster(self.flow().graph(), self.nodes, costs, **options)
        cluster.run()
        self.check(pa.Table.from_batches([given.batch for given in cluster.delivered]))
        entered = [
            (self.site.windows(ints(given.batch, "n"), self.window), np.full(given.batch.num_rows, given.at_s))
            for given in cluster.fed
        ]
        left = [(ints(given.batch, "window"), np.full(given.batch.num_rows, given.at_s)) for given in cluster.delivered]
        return self._latencies_ms(entered, left), cluster

    def spark_ms(self, spark: Any, folder: Path) -> Floats:
        """The same on Spark, by the clock."""
        assert self.flow(folder).start(spark, folder / "at", workers=2).wait(200)
        rows = [np.fromfile(folder / name, np.int64).reshape(-1, 3) for name in ("entered", "left")]
        wanted = query_8(self.site.make(0, self.events), self.window)
        assert sorted(rows[1][:, 1].tolist()) == sorted(ints(wanted, "id").tolist()), "other results than query 8 has"
        entered, left = ([(each[:, 0], each[:, 2] / 1e6)] for each in rows)
        return self._latencies_ms(entered, left)

    def _latencies_ms(self, entered: list[tuple[Ints, Floats]], left: list[tuple[Ints, Floats]]) -> Floats:
        """From the last event of a window to its last result; both are windows and moments in seconds."""
        starts = np.unique(self.site.windows(np.arange(self.events), self.window))
        moments = np.zeros((2, len(starts)))
        for found, pairs in zip(moments, (entered, left), strict=True):
            for windows, at_s in pairs:
                np.maximum.at(found, np.searchsorted(starts, windows), at_s)
        latencies: Floats = (moments[1] - moments[0]) * 1e3
        return latencies


def entering(file: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Events as they are. Of those that are the last of their task in a window, the moment is written down."""
    _write_down(file, batch.filter(batch.column("last")), "n")
    return batch


def leaving(file: str, batch: pa.RecordBatch) -> None:
    _write_down(file, batch, "id")


def _write_down(file: str, batch: pa.RecordBatch, name: str) -> None:
    """One clock for all processes: they run on one machine."""
    if batch.num_rows:
        moments = np.full(batch.num_rows, time.time_ns() // 1000)
        with open(file, "ab") as out:
            out.write(np.stack([ints(batch, "window"), ints(batch, name), moments], axis=1).tobytes())


# --------------------------------------------------------------------- snapshots

Scheme = Literal["none", "tracked", "pass on, then save", "save, then pass on"]
SAVED: Final = "saved"
"""The side output of a step that is told by the tracker: the moment at which it begins to save."""
_SAVING: Final = pa.schema([("epoch", pa.int64()), ("kind", pa.int8())])


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


class Told(hr.Stage):
    """A step that is told of the end of an epoch, and saves."""

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def on_ended(self, substream: int) -> Any:
        return {SAVED: pa.record_batch([[substream], [1]], schema=_SAVING)}


@dataclass(frozen=True)
class InPieces(Behaviour):
    """An aligned step whose punctuations leave in frames of their own: it saves between them and what follows."""

    passes: PassOn

    def open(self, shape: Shape) -> Operator:
        return _InPieces(self.passes.open(shape))

    @property
    def is_stateful(self) -> bool:
        return True

    @property
    def counts_tasks(self) -> bool:
        return True

    def __str__(self) -> str:
        return str(self.passes)


class _InPieces(Wrapped):
    def apply(self, batch: pa.RecordBatch) -> Outputs:
        return [part for _, given in self.inner.apply(batch) for part in _pieces(given)]

    def finish(self) -> Outputs:
        return self.inner.finish()


def _pieces(batch: pa.RecordBatch) -> Outputs:
    marks = is_punctuation(batch)
    places = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), batch.num_rows]
    return [(MAIN, batch.slice(start, stop - start)) for start, stop in pairwise(places)]


class SavingCluster(VirtualCluster):
    """Every task has a machine. From when one begins to save, it sends no record of a later epoch for so long.

    It begins when it sends its first row of kind 1: a punctuation, or what a step says that was told by the tracker.
    """

    def __init__(self, graph: Graph, costs: Costs, save_s: float, saves_first: bool):
        super().__init__(graph, len(make_plan(graph).tasks), costs)
        self._save_s, self._saves_first = save_s, saves_first
        self._saving: dict[int, tuple[int, float]] = {}
        """By machine: the last epoch that it saved, and until when."""
        self._held: dict[tuple[int, str], float] = {}

    def send(self, sender: Node, append: fx.Append) -> None:
        place = sender.number, append.queue
        for content in append.frames:
            batch, clock = whole(content).batch, sender.clock
            if batch is not None and "epoch" in batch.schema.names:
                self._held[place] = max(self._held.get(place, 0.0), self._until(sender, batch))
            # Nothing overtakes what is held up.
            sender.clock = max(clock, self._held.get(place, 0.0))
            super().send(sender, fx.Append(append.queue, [content]))
            sender.clock = clock

    def _until(self, sender: Node, batch: pa.RecordBatch) -> float:
        epoch, until = self._saving.get(sender.number, (-1, 0.0))
        first, is_mark = int(ints(batch, "epoch").min()), "kind" in batch.schema.names and is_punctuation(batch)[0]
        if is_mark and first > epoch and not any(task.is_source for task in sender.worker.tasks.values()):
            epoch, until = first, max(sender.clock, until) + self._save_s
            self._saving[sender.number] = epoch, until
        return until if first > epoch or (is_mark and self._saves_first) else 0.0


@dataclass(frozen=True)
class SnapshotRun:
    """Steps with state, so many tasks each, every one on a machine of its own; epochs of so many records."""

    scheme: Scheme
    save_s: float
    steps: int = 3
    width: int = 5
    rate: float = 500.0
    in_epoch: int = 500
    epochs: int = 3
    flush_s: float = FLUSH_S

    @property
    def records(self) -> int:
        return self.in_epoch * self.epochs

    def made(self, numbers: Ints) -> pa.RecordBatch:
        is_last = numbers % self.in_epoch == self.in_epoch - 1
        return pa.record_batch({"n": numbers, "epoch": numbers // self.in_epoch, "last": is_last})

    def flow(self) -> hr.Flow:
        flow = hr.Flow("epochs")
        nothing = self.made(np.zeros(0, np.int64)).schema
        last = flow.source("made", Made(hr.rate(self.rate, self.records), self.made, nothing))
        if self.scheme.endswith(("save", "pass on")):
            last = flow._stage("inject", Inject(self.width), (last,), 1, None, None, {})
        for step in range(1, self.steps + 1):
            last = self._step(flow, last, step)
        # A machine of its own: what the last step sends is held up as well.
        flow.sink(OUT, last, hr.callback(ignored), parallelism=1, route=hr.rebalance())
        return flow

    def _step(self, flow: hr.Flow, last: Stream, step: int) -> Stream:
        name = f"step-{step}"
        if self.scheme == "none":
            return flow.stage(name, same, last, parallelism=self.width, route=hr.rebalance())
        if self.scheme == "tracked":
            epochs = last.tracked(by="epoch", ends=hr.rising(), bound="firm", flush_s=self.flush_s)
            sides = {SAVED: _SAVING}
            given = flow.stage(name, Told, epochs, parallelism=self.width, route=hr.rebalance(), sides=sides)
            flow.sink(f"{SAVED}-{step}", given.side(SAVED), hr.callback(ignored), parallelism=1, route=hr.rebalance())
            return given
        passes = PassOn(1 if step == 1 else self.width, self.width if step < self.steps else 1, aligned=True)
        return flow._stage(name, InPieces(passes), (last,), self.width, hr.custom(to_target), None, {})

    def run_ms(self, costs: Costs) -> Floats:
        """Of each epoch but the first, the latency of the record that was latest: from when it was due."""
        cluster = SavingCluster(self.flow().graph(), costs, self.save_s, self.scheme == "save, then pass on")
        cluster.run()
        latencies = np.full(self.records, np.nan)
        for given in (each for each in cluster.delivered if each.node == OUT):
            rows = ints(given.batch, "n")
            if "kind" in given.batch.schema.names:
                rows = rows[~is_punctuation(given.batch)]
            assert np.isnan(latencies[rows]).all(), "a record came twice"
            latencies[rows] = given.at_s - (rows + 1) / self.rate
        assert not np.isnan(latencies).any(), "records are missing"
        worst: Floats = latencies.reshape(self.epochs, self.in_epoch).max(axis=1)[1:] * 1e3
        return worst
