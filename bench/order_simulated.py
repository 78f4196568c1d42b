"""Source order on clusters that are not here: the real workers in simulated worlds of 20 and of 200 nodes.

The pipeline of the Conflux paper, a source, 15 tasks, 2 tasks, 30 paths, on 20 nodes; and ten times as wide, 3,000
paths, on 200. Time is virtual: nodes are slow or fast by chance (2 to 50 ms between two looks at their queues), as in
the tests of crashes. So latencies have the shape of the paper's figures and not its milliseconds. What is counted is
real: the frames that the workers sent, data and heartbeats.

Such nodes look at few frames a second, so the load is light, and heartbeats and marks come every 200 ms. The baseline
is the window sort of `bench/support/order_flows.py`, with windows of a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa

import headrace as hr
from bench.harness import Bench, Chart
from bench.support.order_flows import Ints, Marks, WindowSort, column, due, to_first, to_last
from headrace.model.frames import Kind
from headrace.simulate import process
from headrace.simulate.world import Setup, World
from headrace.testing.order import assert_in_source_order

RATE: Final = 60.0
WINDOW: Final = 60
BEAT_S: Final = 0.2
CDF: Final = Chart("Latency in virtual time", "virtual ms", "share of records", log_x=True)
TRAFFIC: Final = Chart("Frames a second of virtual time", "nodes", "frames/s", log_x=True, log_y=True)
_KIND_AT: Final = 4


class Clock:
    """Of the world that runs now, and what came out of it."""

    world: World | None = None
    numbers: list[Ints] = []  # noqa: RUF012
    latencies: list[Ints] = []  # noqa: RUF012

    @classmethod
    def now_s(cls) -> float:
        assert cls.world is not None
        return cls.world.now


def without_sevens(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array((column(batch, "n") % 7 != 0) | (column(batch, "made_us") < 0)))


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def looked_at(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Behind what puts in order: when each record came, by the clock of its world."""
    if not batch.num_rows:
        return batch
    Clock.numbers.append(column(batch, "n").copy())
    Clock.latencies.append(int(Clock.now_s() * 1e6) - column(batch, "made_us"))
    return batch


def ignored(batch: pa.RecordBatch) -> None:
    """A sink that does nothing."""


class VirtualMarks(Marks):
    """By the clock of its world."""

    every_s = BEAT_S

    def now_s(self) -> float:
        return Clock.now_s()


def merged(records: int, width: int, last: int) -> hr.Flow:
    flow = hr.Flow("merged")
    begun = flow.stage("due", due, flow.source("numbers", hr.rate(RATE, records)))
    kept = flow.stage("filter", without_sevens, begun, parallelism=width, route=hr.rebalance())
    mapped = flow.stage("map", same, kept, parallelism=last, route=hr.rebalance())
    seen = flow.stage("look", looked_at, mapped.ordered(), one_to_one=True)
    flow.sink("out", seen, hr.callback(ignored))
    return flow


def window_sorted(records: int, width: int, last: int) -> hr.Flow:
    sized = {"paths": width * last, "window": WINDOW}
    flow = hr.Flow("sorted")
    begun = flow.stage("due", due, flow.source("numbers", hr.rate(RATE, records)))
    marked = flow.stage("mark", type("Marks", (VirtualMarks,), sized), begun)
    kept = flow.stage(
        "filter", without_sevens, marked, parallelism=width, route=hr.custom(partial(to_first, last=last))
    )
    route = hr.custom(partial(to_last, width=width))
    mapped = flow.stage("map", same, kept, parallelism=last, route=route)
    whole = flow.stage("sort", type("WindowSort", (WindowSort,), sized), mapped, parallelism=1, route=hr.rebalance())
    flow.sink("out", flow.stage("look", looked_at, whole), hr.callback(ignored))
    return flow


# ------------------------------------------------------------------------- main


class Run:
    """One system on one cluster."""

    def __init__(self, draw: Callable[[int, int, int], hr.Flow], nodes: int, width: int, last: int, seconds: float):
        records = int(RATE * seconds)
        Clock.numbers, Clock.latencies = [], []
        process.PACE = replace(process.PACE, beat_s=BEAT_S)
        Clock.world = World(draw(records, width, last).graph(), Setup(7, (), nodes, 1_000_000))
        Clock.world.run()
        wanted = np.arange(records)
        assert_in_source_order(np.concatenate(Clock.numbers), wanted[wanted % 7 != 0])
        self.ms = np.sort(np.concatenate(Clock.latencies)) / 1000
        kinds = [frame[_KIND_AT] for queue in Clock.world.plan.queues for frame in Clock.world.disk.queue(queue).frames]
        self.data_a_second = kinds.count(Kind.DATA) / seconds
        self.beats_a_second = kinds.count(Kind.HEARTBEAT) / seconds

    def points(self) -> list[tuple[float, float]]:
        shares = np.linspace(0.01, 0.999, 60)
        return [(float(np.quantile(self.ms, share)), float(share)) for share in shares]


def main() -> None:
    bench = Bench("order_simulated", "Source order on 20 and on 200 nodes, in virtual time")
    seconds = 4.0 if bench.quick else 12.0
    sizes = [(20, 15, 2)] if bench.quick else [(20, 15, 2), (60, 45, 6), (200, 150, 20)]
    bench.set(records_a_second=RATE, virtual_seconds=seconds, window=WINDOW, clusters=[list(size) for size in sizes])
    traffic: dict[str, list[tuple[float, float]]] = {}
    with bench.running(steps=2 * len(sizes)):
        for nodes, width, last in sizes:
            means = {}
            for system, draw in (("Headrace", merged), ("window sort", window_sorted)):
                with bench.step(f"{system}, {nodes} nodes"):
                    run = Run(draw, nodes, width, last, seconds)
                what = f"{nodes} nodes, {width * last:,} paths"
                means[system] = float(run.ms.mean())
                bench.figure(system, f"{what}, mean", means[system], "virtual ms")
                bench.figure(system, f"{what}, p99", float(np.quantile(run.ms, 0.99)), "virtual ms")
                bench.figure(system, f"{what}, data", run.data_a_second, "frames/s")
                bench.figure(system, f"{what}, heartbeats", run.beats_a_second, "frames/s")
                bench.curve(CDF, f"{system}, {nodes} nodes", run.points())
                traffic.setdefault(f"{system}, data", []).append((nodes, run.data_a_second))
                if run.beats_a_second:
                    traffic.setdefault(f"{system}, heartbeats", []).append((nodes, run.beats_a_second))
            bench.ratio(f"mean_over_window_sort_{nodes}", means["Headrace"] / means["window sort"])
    for line, points in traffic.items():
        bench.curve(TRAFFIC, line, points)
    bench.finish()


if __name__ == "__main__":
    main()
