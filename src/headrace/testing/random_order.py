"""Flows drawn at random whose output is ordered: a sink gets, record by record, what the sequential run gives."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.flow.builder import Flow, Stream
from headrace.flow.graph import Graph
from headrace.flow.operators import Stage
from headrace.flow.record_stages import side
from headrace.flow.routing import Route, key, rebalance, rescale, shuffle
from headrace.flow.sequential import run_sequentially
from headrace.flow.sinks import callback
from headrace.flow.sources import generate
from headrace.simulate.check import Failure, Simulation

SCHEMA = pa.schema([("n", pa.int64()), ("k", pa.int64())])


def make(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        [pa.array(numbers, pa.int64()), pa.array([n * 7 % 5 for n in numbers], pa.int64())], schema=SCHEMA
    )


def filtered(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.not_equal(batch.column("k"), 2))


def anew(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Batches that know nothing of other columns."""
    return pa.record_batch([pc.add(batch.column("n"), 1), batch.column("k")], schema=SCHEMA)


def repeated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A record as often as its key says."""
    rows = [row for row, times in enumerate(batch.column("k").to_pylist()) for _ in range(times % 3)]
    return batch.take(pa.array(rows, pa.int64()))


def children(record: dict[str, Any]) -> Any:
    return [{**record, "n": record["n"] * 10 + child} for child in range(record["n"] % 4)]


def aside(record: dict[str, Any]) -> Any:
    return side("aside", record) if record["n"] % 3 == 0 else [record, record]


def raises(record: dict[str, Any]) -> Any:
    return {"n": record["n"], "k": 6 // record["k"]}


def counted(state: int | None, record: dict[str, Any]) -> Any:
    """What it gives depends on the order in which it is given records."""
    seen = (state or 0) * 31 % 1009 + record["n"] % 1009 + 1
    return seen, {"n": record["n"], "k": seen % 5}


class InPairs(Stage):
    """Keeps a record back until the next one comes: then both leave."""

    order = "each"

    def __init__(self) -> None:
        self.kept: list[int] = []

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        found: list[tuple[int, int]] = []
        for n, k in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if self.kept:
                found += [(self.kept[0], self.kept[1]), (n, k)]
                self.kept = []
            else:
                self.kept = [n, k]
        columns = list(zip(*found, strict=True)) or [(), ()]
        return pa.record_batch([pa.array(column, pa.int64()) for column in columns], schema=SCHEMA)

    def on_end(self) -> Any:
        if not self.kept:
            return None
        return pa.record_batch([pa.array([each], pa.int64()) for each in self.kept], schema=SCHEMA)

    def snapshot(self) -> Any:
        return self.kept

    def restore(self, state: Any) -> None:
        self.kept = state


def ignored(batch: pa.RecordBatch) -> None:
    return None


_ROUTES: tuple[Route | None, ...] = (None, rebalance(), rescale(), shuffle(3), key("k"), key("n", "k"))
KINDS = ("filtered", "anew", "repeated", "children", "aside", "raises", "counted", "pairs")


def ordered_flow(seed: int, wait_s: float | None = None) -> Graph:
    """One to four stages, each of some kind, route and parallelism, and a sink that is ordered.

    With `wait_s`, all stages give what they give whatever the order is.
    """
    rng = random.Random(f"ordered {seed}")
    flow = Flow(f"ordered-{seed}")
    stream = flow.source("s", generate(make, rng.randint(0, 60)))
    for number in range(rng.randint(1, 4)):
        kind = rng.choice(KINDS if wait_s is None else KINDS[:-2])
        stream = _with_stage(flow, rng, kind, number, stream)
    flow.sink("out", stream.ordered(wait_s=wait_s), callback(ignored))
    return flow.graph()


def _with_stage(flow: Flow, rng: random.Random, kind: str, number: int, stream: Stream) -> Stream:
    name, tasks, route = f"{kind}-{number}", rng.randint(1, 4), rng.choice(_ROUTES)
    how: dict[str, Any] = {"parallelism": tasks, "route": route}
    if kind == "filtered":
        return flow.stage(name, filtered, stream, **how)
    if kind == "anew":
        return flow.stage(name, anew, stream, one_to_one=True, **how)
    if kind == "repeated":
        return flow.stage(name, repeated, stream, **how)
    if kind == "children":
        return flow.stage(name, children, stream, each="record", **how)
    if kind == "aside":
        given = flow.stage(name, aside, stream, each="record", sides={"aside": SCHEMA}, **how)
        flow.sink(f"{name}-out", given.side("aside"), callback(ignored))
        return given
    if kind == "raises":
        given = flow.stage(name, raises, stream, each="record", on_error="side", **how)
        flow.sink(f"{name}-out", given.side("errors"), callback(ignored))
        return given
    if kind == "counted":
        return flow.keyed(name, counted, stream.ordered(), by="k", parallelism=tasks)
    return flow.stage(name, InPairs, stream.ordered(), parallelism=1)


def check_relaxed_flow(seed: int) -> Failure | None:
    """Nothing is lost or there twice, and who starts again does again what he did, whatever the order is."""
    simulation = Simulation(ordered_flow(seed, wait_s=0.03))
    return simulation.run(simulation.setup(seed))


def check_ordered_flow(seed: int) -> Failure | None:
    """In a simulated world, with the faults of the seed."""
    graph = ordered_flow(seed)
    expected = run_sequentially(graph)["out"].to_pylist()

    def in_order(found: dict[str, list[Any]]) -> None:
        got = found["out"]
        at = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), None)
        assert at is None, f"record {at} is {got[at]}, not {expected[at]}"

    simulation = Simulation(graph, [in_order])
    return simulation.run(simulation.setup(seed))
