"""Flows drawn at random that are tracked: loops, holds, several sources, readers one after the other.

The stages themselves check that nothing of a substream comes after its end was told; what they give at an end depends
on all that has come, so that a notice that is too early gives something else than the sequential run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.flow.builder import Flow, Stream
from headrace.flow.effects import Deliver
from headrace.flow.graph import Graph
from headrace.flow.io import Feed, Opening, Source, SplitReader
from headrace.flow.operators import Stage
from headrace.flow.record_stages import side
from headrace.flow.routing import Route, key, rebalance, rescale, shuffle
from headrace.flow.sequential import run_sequentially
from headrace.flow.sinks import callback, parquet
from headrace.flow.substreams import Ends, marker, rising
from headrace.simulate.check import Failure, Simulation
from headrace.simulate.world import World
from headrace.testing.low_limits import low_limits

SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.int64()), ("last", pa.bool_()), ("hops", pa.int64())])
BARE = pa.schema([("n", pa.int64()), ("of", pa.int64()), ("last", pa.bool_()), ("hops", pa.int64())])
"""Records that are told apart only by a stage that runs with their source."""
SUMS = pa.schema([("x", pa.int64()), ("n", pa.int64())])
MODES = ("marker", "each", "end", "rising")


@dataclass(frozen=True)
class Parts(Source):
    """Records, some for each task."""

    parts: tuple[tuple[tuple[Any, ...], ...], ...]
    schema: pa.Schema = SCHEMA

    def splits(self) -> int:
        return len(self.parts)

    def open(self, opening: Opening, position: Any) -> SplitReader:
        return _PartReader(self, opening.split, position or 0)


class _PartReader(SplitReader):
    def __init__(self, source: Parts, split: int, taken: int):
        self._rows, self._schema, self._taken = source.parts[split], source.schema, taken

    def poll(self, most_records: int) -> Feed | None:
        rows = self._rows[self._taken : self._taken + most_records]
        if not rows:
            return Feed(None, self._taken, ended=True)
        self._taken += len(rows)
        columns = [pa.array(column, of.type) for column, of in zip(zip(*rows, strict=True), self._schema, strict=True)]
        return Feed(pa.record_batch(columns, schema=self._schema), self._taken)


# ----------------------------------------------------------------------- stages


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def labelled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Of bare records: their labels."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=SCHEMA)


def filtered(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.not_equal(pc.bit_wise_and(batch.column("n"), 3), 1))


def children(record: dict[str, Any]) -> Any:
    return [{**record, "n": record["n"] * 10 + child} for child in range(record["n"] % 3)]


def aside(record: dict[str, Any]) -> Any:
    return side("aside", record) if record["n"] % 3 == 0 else record


def counted(state: int | None, record: dict[str, Any]) -> Any:
    return (state or 0) + 1, record


def round_again(record: dict[str, Any]) -> Any:
    if not record["hops"]:
        return record
    return side("back", {**record, "hops": record["hops"] - 1, "n": record["n"] + 1})


class InPairs(Stage):
    """Keeps a record back until another one of its substream comes; in the end it gives what is left."""

    order = "each"

    def __init__(self) -> None:
        self.kept: dict[int, dict[str, Any]] = {}

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        found = []
        for record in batch.to_pylist():
            if record["x"] is None:
                found.append(record)
                continue
            other = self.kept.pop(record["x"], None)
            if other is None:
                self.kept[record["x"]] = record
                self.hold(record["x"])
            else:
                found += [other, record]
                self.release(record["x"])
        return pa.RecordBatch.from_pylist(found, SCHEMA)

    def on_end(self) -> Any:
        rest = [self.kept[x] for x in sorted(self.kept)]
        return pa.RecordBatch.from_pylist(rest, SCHEMA)

    def snapshot(self) -> Any:
        return [self.kept[x] for x in sorted(self.kept)]

    def restore(self, state: Any) -> None:
        self.kept = {record["x"]: record for record in state}


class Gather(Stage):
    """The sum of a substream, when it has ended."""

    is_firm = False

    def __init__(self) -> None:
        self.sums: dict[int, int] = {}
        self.ended: set[int] = set()

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        for n, x in zip(batch.column("n").to_pylist(), batch.column("x").to_pylist(), strict=True):
            if x is None:
                continue
            assert x not in self.ended, f"a record of {x} came after its end"
            if self.is_firm:
                before = [each for each in self.sums if each < x]
                assert not before, f"a record of {x} came, and {before[0]} has not ended"
            self.sums[x] = self.sums.get(x, 0) + n + 1000
        return None

    def on_ended(self, substream: int) -> Any:
        assert substream not in self.ended, f"the end of {substream} came twice"
        self.ended.add(substream)
        found = self.sums.pop(substream, None)
        return None if found is None else pa.record_batch([[substream], [found]], schema=SUMS)

    def snapshot(self) -> Any:
        return [sorted(self.sums.items()), sorted(self.ended)]

    def restore(self, state: Any) -> None:
        self.sums, self.ended = dict(state[0]), set(state[1])


class FirmGather(Gather):
    is_firm = True


def ignored(batch: pa.RecordBatch) -> None:
    return None


# ------------------------------------------------------------------------- draw


def _labels(rng: random.Random, mode: str) -> list[int | None]:
    count = rng.randint(1, 8)
    sizes = [rng.randint(1, rng.choice((1, 3, 12))) for _ in range(count)]
    found: list[int | None] = [label * 3 for label, size in enumerate(sizes) for _ in range(size)]
    if mode != "rising":
        window = rng.choice((1, 4, 100))
        order = sorted(range(len(found)), key=lambda at: at + rng.random() * window)
        found = [found[at] for at in order]
    if rng.random() < 0.3:
        found = [None if rng.random() < 0.1 else label for label in found]
    return found


def _parts(rng: random.Random, mode: str, first: int) -> Parts:
    """Of a source with one to three tasks."""
    tasks = rng.choice((1, 1, 2, 3))
    hops = rng.choice((0, 0, 2))
    parts = []
    shared = _labels(rng, mode)
    for task in range(tasks):
        labels = (
            [x for x in shared if x is None or (x // 3 + first) % tasks == task]
            if mode == "marker"
            else (_labels(rng, mode))
        )
        closing = {x: at for at, x in enumerate(labels)}
        rows = [
            (first * 10_000 + task * 1000 + at, x, closing[x] == at and x is not None, rng.randint(0, hops))
            for at, x in enumerate(labels)
        ]
        parts.append(tuple(rows))
    return Parts(tuple(parts))


_ROUTES: tuple[Route | None, ...] = (None, rebalance(), rescale(), shuffle(3), key("x"))
KINDS = ("same", "same", "filtered", "children", "aside", "counted", "pairs", "loop")


def tracked_flow(seed: int) -> Graph:
    """One or two sources, or bare ones and stages that label them; some stages, readers, and the ends as records."""
    rng = random.Random(f"tracked {seed}")
    flow, mode = Flow(f"tracked-{seed}"), rng.choice(MODES)
    # Where a record of any source closes a substream, there is one source.
    sources = 1 if mode == "marker" else rng.choice((1, 1, 2))
    is_bare = random.Random(f"bare {seed}").random() < 0.4
    streams = [_source(flow, f"s{number}", _parts(rng, mode, number), is_bare) for number in range(sources)]
    passing = random.Random(f"passing {seed}").choice((0, 0, 1, 2))
    for step in range(passing):
        how_passed: dict[str, Any] = {"one_to_one": True, "route": rebalance(), "parallelism": 3 - step}
        streams = [flow.stage(f"passed-{n}-{step}", same, each, **how_passed) for n, each in enumerate(streams)]
    stream = streams[0] if sources == 1 else flow.stage("union", same, *streams, route=rebalance(), parallelism=2)
    kinds = [rng.choice(KINDS) for _ in range(rng.randint(0, 3))]
    for number, kind in enumerate(kinds):
        stream = _with_stage(flow, rng, kind, number, stream)
    is_ordered = rng.random() < 0.4 and sources == 1 and flow.drawn("s0").parallelism == 1
    inputs = _in_order(flow, stream) if is_ordered and "loop" not in kinds else [stream]
    ends = {"marker": marker("last"), "each": marker("last", each_source=True), "end": Ends(), "rising": rising()}[mode]
    how: dict[str, Any] = {"by": "x", "ends": ends, "consistent": rng.random() < 0.3, "slack_s": 0.5}
    bound = "firm" if mode == "rising" and rng.random() < 0.5 else "soft"
    how["agents"] = 1 if how["consistent"] or bound == "firm" else rng.randint(1, 3)
    starts = rng.random() < 0.3
    tracked, *others = [each.tracked(**how, bound=bound, starts=starts) for each in inputs]  # type: ignore[arg-type]
    gather = FirmGather if bound == "firm" else Gather
    route = None if tracked.ordering is not None else key("x")
    tasks = 1 if tracked.ordering is not None else rng.randint(1, 3)
    gathered = flow.stage("gather", gather, tracked, *others, parallelism=tasks, route=route, schema=SUMS)
    flow.sink("ends", flow.ends("told", tracked), callback(ignored))
    shows = random.Random(f"shows {seed}")
    if shows.random() < 0.7:
        flow.sink("direct", tracked, shows.choice((parquet("not written"), callback(ignored))))
    if shows.random() < 0.7:
        flow.sink("gathered", gathered, shows.choice((parquet("not written"), callback(ignored))))
    if rng.random() < 0.5:
        again = gathered.tracked(**how)
        gathered = flow.stage("after", Gather, again, parallelism=2, route=key("x"), schema=SUMS)
        flow.sink("later", flow.ends("told-later", again), callback(ignored))
    flow.sink("out", gathered, callback(ignored))
    return flow.graph()


def _in_order(flow: Flow, stream: Stream) -> list[Stream]:
    """A stream in its order; or two, of branches that meet before it is put in order, or in it."""
    rng = random.Random(f"in order {flow.name}")
    wait_s = rng.choice((None, None, 0.05))
    shape = rng.choice(("one", "one", "union", "two"))
    if shape == "one":
        return [stream.ordered(wait_s=wait_s)]
    branches = [
        flow.stage(f"branch-{n}", does, stream, route=rebalance(), parallelism=rng.randint(1, 3))
        for n, does in enumerate((same, rng.choice((same, filtered))))
    ]
    if shape == "two":
        return [branch.ordered(wait_s=wait_s) for branch in branches]
    met = flow.stage("met", same, *branches, route=rng.choice((key("x"), rebalance())), parallelism=rng.randint(1, 3))
    return [met.ordered(wait_s=wait_s)]


def _source(flow: Flow, name: str, parts: Parts, is_bare: bool) -> Stream:
    # Where the sequential run has fewer tasks than the source, the stage would not run with it.
    if not is_bare or len(parts.parts) > 1:
        return flow.source(name, parts)
    bare = flow.source(name, replace(parts, schema=BARE))
    stream = flow.stage(f"{name}-labelled", labelled, bare, one_to_one=True)
    if random.Random(f"dropped {flow.name}").random() < 0.3:
        stream = flow.stage(f"{name}-dropped", filtered, stream)
    keeps = random.Random(f"kept {flow.name}").random() < 0.3
    return flow.stage(f"{name}-kept", InPairs, stream) if keeps else stream


def _with_stage(flow: Flow, rng: random.Random, kind: str, number: int, stream: Stream) -> Stream:
    name, tasks, route = f"{kind}-{number}", rng.randint(1, 3), rng.choice(_ROUTES)
    how: dict[str, Any] = {"parallelism": tasks, "route": route}
    if route is None:
        how["parallelism"] = flow.drawn(stream.node).parallelism
    if kind in ("same", "filtered"):
        how["one_to_one"] = kind == "same" and rng.random() < 0.7
        return flow.stage(name, same if kind == "same" else filtered, stream, **how)
    if kind == "children":
        return flow.stage(name, children, stream, each="record", **how)
    if kind == "aside":
        given = flow.stage(name, aside, stream, each="record", sides={"aside": SCHEMA}, **how)
        flow.sink(f"{name}-out", given.side("aside"), callback(ignored))
        return given
    if kind == "counted":
        return flow.keyed(name, counted, stream, by="x", parallelism=tasks)
    if kind == "pairs":
        return flow.stage(name, InPairs, stream, parallelism=tasks, route=key("x"))
    loop = flow.loop(f"{name}-start", stream, **how)
    step = flow.stage(name, round_again, loop, each="record", sides={"back": SCHEMA}, route=rebalance(), parallelism=2)
    loop.back(step.side("back"), route=rng.choice((rebalance(), key("x"))))
    return step


def check_one_order(seed: int) -> Failure | None:
    """Substreams that do not overlap, of one source: all who are told hear of their ends in the order of the source."""
    rng = random.Random(f"order {seed}")
    labels = rng.sample(range(100), rng.randint(1, 12))
    sizes = [rng.randint(1, 6) for _ in labels]
    rows = [
        (at, label, number == size - 1, 0)
        for at, (label, number, size) in enumerate(
            (label, number, size) for label, size in zip(labels, sizes, strict=True) for number in range(size)
        )
    ]
    flow = Flow(f"order-{seed}")
    stream = flow.source("s0", Parts((tuple(rows),)))
    for number in range(rng.randint(0, 3)):
        stream = _with_stage(flow, rng, rng.choice(("same", "filtered", "loop", "pairs")), number, stream)
    tracked = stream.tracked(by="x", ends=marker("last"), consistent=True, slack_s=rng.choice((0.5, 5.0)))
    gathered = flow.stage("gather", Gather, tracked, parallelism=2, route=key("x"), schema=SUMS)
    later = gathered.tracked(by="x", ends=marker("last"), consistent=True, slack_s=tracked.tracking.slack_s)  # type: ignore[union-attr]
    flow.sink("first", flow.ends("told", tracked), callback(ignored))
    flow.sink("later", flow.ends("told-later", later), callback(ignored))
    flow.sink("out", later, callback(ignored))

    def in_order(found: dict[str, list[Any]]) -> None:
        for name in ("first", "later"):
            told = [record["substream"] for record in found[name]]
            assert told == labels, f"{name}: told of {told}, and the source gave {labels}"

    simulation = Simulation(flow.graph(), [in_order])
    with low_limits(seed):
        return simulation.run(simulation.setup(seed))


def shown_before_told(graph: Graph) -> Callable[[Deliver, World], None]:
    """Who is told that a substream has ended finds all of it in its sinks: what they were given, or, of those that
    show what they have got at commits, what they show."""
    sinks = {node.name: node.sink for node in graph.nodes if node.sink is not None}
    # What is gathered is given when the end is known: it has ended later.
    pairs = {told: sink for told, sink in (("ends", "direct"), ("later", "gathered")) if {told, sink} <= sinks.keys()}
    found = {name: table.to_pylist() for name, table in run_sequentially(graph).items()}
    rows = {sink: {row["x"]: Counter[str]() for row in found[sink]} for sink in pairs.values()}
    for sink, wanted in rows.items():
        for row in found[sink]:
            wanted[row["x"]][repr(row)] += 1

    def watch(given: Deliver, world: World) -> None:
        sink = pairs.get(given.node)
        if sink is None:
            return
        shown = [
            each for (node, _), records in world.received.records.items() if node == sink for each in records.values()
        ]
        got = Counter(map(repr, shown if sinks[sink].shows_at_commit else world.given.get(sink, [])))
        for record in given.batch.to_pylist():
            if record["event"] == "end":
                missing = rows[sink].get(record["substream"], Counter()) - got
                assert not missing, f"{record['substream']} has ended, and {sink} has nothing of {next(iter(missing))}"

    return watch


def check_tracked_flow(seed: int, lowers: bool = True) -> Failure | None:
    """In a simulated world, with the faults of the seed. `lowers`: with its limits, too."""
    graph = tracked_flow(seed)
    is_consistent = any(arrow.tracked and arrow.tracked.consistent for node in graph.nodes for arrow in node.inputs)

    def one_order(found: dict[str, list[Any]]) -> None:
        if is_consistent and "later" in found:
            first, later = ([r for r in found[name] if r["event"] == "end"] for name in ("ends", "later"))
            assert first == later, f"ends were told in the order {first} and in the order {later}"

    simulation = Simulation(graph, [one_order], watch=shown_before_told(graph))
    with low_limits(seed) if lowers else nullcontext():
        return simulation.run(simulation.setup(seed))
