"""Random flows whose tasks have copies, in simulated worlds: what leaves is what the sequential run gives, once.

A stage counts what it takes, so that what it gives depends on the order of its inputs: copies that do not agree on it,
or a task that does not do again what it did, give something else under the same number, which no sink accepts.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.flow.builder import Flow
from headrace.flow.copies import AGREEMENTS, Replication, agreed, replication
from headrace.flow.graph import Graph
from headrace.flow.operators import Stage
from headrace.flow.plan import make_plan
from headrace.flow.routing import rebalance, rescale, shuffle
from headrace.flow.sinks import callback, parquet
from headrace.flow.sources import generate
from headrace.simulate.check import Failure, Simulation
from headrace.simulate.faults import KINDS, MORE_KINDS
from headrace.testing.flows import as_it_is, numbers, without_sevens
from headrace.testing.low_limits import low_limits
from headrace.testing.random_order import ordered_flow
from headrace.testing.random_tracking import shown_before_told, tracked_flow

ORDERS: Final = AGREEMENTS[:3]
_ROUTES: Final = (rebalance(), shuffle(), rescale())


class Seen(Stage):
    """Numbers records as they come, in `k`."""

    def __init__(self) -> None:
        self._count = 0

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        first, self._count = self._count, self._count + batch.num_rows
        return pa.record_batch({"n": batch.column("n"), "k": pa.array(np.arange(first, self._count))})

    def snapshot(self) -> int:
        return self._count

    def restore(self, state: Any) -> None:
        self._count = state


def ignored(batch: pa.RecordBatch) -> None:
    """A sink that does not keep the first copy: one copy of its task speaks."""


def copied_flow(seed: int) -> Graph:
    """One or two sources, stages with several tasks, one that depends on the order, and two sinks."""
    rng = random.Random(f"copies {seed}")
    flow = Flow(f"copies-{seed}")
    streams = [
        flow.source(f"s{number}", generate(numbers, rng.randint(0, 60)), parallelism=rng.randint(1, 2))
        for number in range(rng.randint(1, 2))
    ]
    stream = flow.stage("in", as_it_is, *streams, parallelism=rng.randint(1, 3), route=rebalance())
    for number in range(rng.randint(1, 3)):
        function, route = rng.choice((as_it_is, without_sevens)), rng.choice(_ROUTES)
        stream = flow.stage(f"m{number}", function, stream, parallelism=rng.randint(1, 3), route=route)
    if rng.random() < 0.3:
        stream = flow.stage("both", as_it_is, stream, streams[0], parallelism=2, route=rebalance())
    seen = flow.stage("seen", Seen, stream, parallelism=2, route=rebalance())
    flow.sink("trace", seen, parquet("trace"))
    sink = rng.choice((callback(ignored), parquet("out")))
    flow.sink("out", stream, sink, route=rng.choice((None, rebalance())))
    return flow.graph()


def check_copied_flow(
    seed: int, kinds: tuple[str, ...] = (*KINDS, *MORE_KINDS), order: str | None = None, mode: str | None = None
) -> Failure | None:
    """With the faults of the seed, two or three copies, active or standby, in each of the three orders."""
    chosen = ORDERS[seed % 3] if order is None else order
    simulation = Simulation(agreed(chosen, copied_flow(seed)), but=("trace",))
    copies = Replication(mode or ("active", "active", "standby")[seed // 3 % 3], 2 + (seed % 7 == 0))
    setup = simulation.setup(seed, kinds, replication=copies)
    return simulation.run(replace(setup, hosts=1 + seed % 3))


def check_other_flow(seed: int, lowers: bool = True) -> Failure | None:
    """Flows that are ordered or tracked, whose copies are active and read one queue. `lowers`: with low limits, too."""
    graph = ordered_flow(seed) if seed % 2 else tracked_flow(seed)
    simulation = Simulation(graph, watch=None if seed % 2 else shown_before_told(graph))
    with low_limits(seed) if lowers else nullcontext():
        return simulation.run(simulation.setup(seed, replication=_as_allowed(graph)))


def _as_allowed(graph: Graph) -> Replication:
    """Two copies, but for what a user is not given two of: what is tracked, where one copy would speak alone."""
    plan, two = make_plan(graph), Replication("active", 2)
    tracked = {} if plan.region is None else plan.region.group_of
    counts = dict.fromkeys((node.name for node in graph.nodes), 2)
    for name, task in plan.tasks.items():
        if task.vertex.name in tracked and two.one_speaks(plan, name):
            counts.update(dict.fromkeys(task.vertex.nodes, 1))
    return replication("active", counts, plan)
