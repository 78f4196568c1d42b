"""Source order on clusters that are not here: the real workers on 20, 60 and 200 virtual machines.

The pipeline of the Conflux paper, a source, 15 tasks, 2 tasks, 30 paths, on 20 machines; and three and ten times as
wide, with 270 and 3,000 paths. What workers do is done; each thing costs its machine the time that it took just now on
this one, what is sent takes the latency of a network, and machines work side by side
(`bench/support/virtual_cluster.py`). So latencies are those of machines like this one with a core for each worker, and
frames are counted, not reckoned.

The baseline is the window sort of `bench/support/order_flows.py` with the same flow, windows of a second, and marks as
often as heartbeats. Each path has its own heartbeats, or marks: that is the price of so many paths, and printed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa

import headrace as hr
from bench.harness import Bench, Chart
from bench.support.order_flows import Marks, WindowSort, column, due, to_first, to_last
from bench.support.virtual_cluster import VirtualCluster
from bench.support.virtual_costs import Costs, calibrated
from headrace.flow.worker import Pace
from headrace.testing.order import assert_in_source_order

RATE: Final = 1_000
WINDOW: Final = RATE
"""Of numbers: a second of them."""
WARM_S: Final = 2.0
BEAT_S: Final = 0.1
SIZES: Final = ((20, 15, 2, BEAT_S), (60, 45, 6, BEAT_S), (200, 150, 20, BEAT_S), (200, 150, 20, 0.5))
"""Machines, tasks of the first and of the second stage, seconds between two heartbeats."""
CDF: Final = Chart("Latency, virtual machines", "ms", "share of records", log_x=True)
TRAFFIC: Final = Chart("Frames a second", "machines", "frames/s", log_x=True, log_y=True)


def without_sevens(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array((column(batch, "n") % 7 != 0) | (column(batch, "made_us") < 0)))


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def ignored(batch: pa.RecordBatch) -> None:
    """A sink that does nothing."""


class Clock:
    """Of the cluster that runs now."""

    cluster: VirtualCluster | None = None


class VirtualMarks(Marks):
    """By the clock of its cluster."""

    def now_s(self) -> float:
        assert Clock.cluster is not None
        return Clock.cluster.now


def merged(records: int, width: int, last: int, beat_s: float) -> hr.Flow:
    flow = hr.Flow("merged")
    begun = flow.stage("due", due, flow.source("numbers", hr.rate(RATE, records)))
    kept = flow.stage("filter", without_sevens, begun, parallelism=width, route=hr.rebalance())
    mapped = flow.stage("map", same, kept, parallelism=last, route=hr.rebalance())
    flow.sink("out", mapped.ordered(), hr.callback(ignored))
    return flow


def window_sorted(records: int, width: int, last: int, beat_s: float) -> hr.Flow:
    sized = {"paths": width * last, "window": WINDOW, "every_s": beat_s}
    flow = hr.Flow("sorted")
    begun = flow.stage("due", due, flow.source("numbers", hr.rate(RATE, records)))
    marked = flow.stage("mark", type("Marks", (VirtualMarks,), sized), begun)
    kept = flow.stage(
        "filter", without_sevens, marked, parallelism=width, route=hr.custom(partial(to_first, last=last))
    )
    route = hr.custom(partial(to_last, width=width))
    mapped = flow.stage("map", same, kept, parallelism=last, route=route)
    whole = flow.stage("sort", type("WindowSort", (WindowSort,), sized), mapped, parallelism=1, route=hr.rebalance())
    flow.sink("out", whole, hr.callback(ignored))
    return flow


Draw = Callable[[int, int, int, float], hr.Flow]
SYSTEMS: Final[dict[str, Draw]] = {"Headrace": merged, "window sort": window_sorted}


class Run:
    """One system on one cluster."""

    def __init__(self, draw: Draw, size: tuple[int, int, int, float], seconds: float, costs: Costs):
        machines, width, last, beat_s = size
        records = int(RATE * seconds)
        graph = draw(records, width, last, beat_s).graph()
        Clock.cluster = cluster = VirtualCluster(graph, machines, costs, pace=Pace(beat_s=beat_s), is_real=True)
        cluster.run()
        numbers = np.concatenate([column(given.batch, "n") for given in cluster.delivered])
        wanted = np.arange(records)
        assert_in_source_order(numbers, wanted[wanted % 7 != 0])
        latencies = [given.at_s * 1000 - column(given.batch, "made_us") / 1000 for given in cluster.delivered]
        # What the end of the source lets go, and what came while nothing was warm, says nothing of a stream.
        is_steady = (numbers > RATE * WARM_S) & (numbers < records - 2 * WINDOW)
        self.ms = np.sort(np.concatenate(latencies)[is_steady])
        self.data_a_second = cluster.tally.of_kind("DATA") / seconds
        self.beats_a_second = cluster.tally.of_kind("HEARTBEAT") / seconds
        self.busiest = max(cluster.busy)

    def points(self) -> list[tuple[float, float]]:
        shares = np.linspace(0.01, 0.999, 60)
        return [(float(np.quantile(self.ms, share)), float(share)) for share in shares]


# ------------------------------------------------------------------------- main


def main() -> None:
    bench = Bench("order_simulated", "Source order on 20, 60 and 200 virtual machines")
    seconds = 6.0 if bench.quick else 16.0
    sizes = SIZES[:1] if bench.quick else SIZES
    bench.set(records_a_second=RATE, virtual_seconds=seconds, window=WINDOW, clusters=[list(size) for size in sizes])
    traffic: dict[str, list[tuple[float, float]]] = {}
    with bench.running(steps=1 + 2 * len(sizes)):
        with bench.step("what things cost here"):
            costs = calibrated()
        for size in sizes:
            machines, width, last, beat_s = size
            means = {}
            for system, draw in SYSTEMS.items():
                with bench.step(f"{system}, {machines} machines"):
                    run = Run(draw, size, seconds, costs)
                what = f"{machines} machines, {width * last:,} paths, heartbeat {beat_s * 1000:.0f} ms"
                means[system] = float(run.ms.mean())
                bench.figure(system, f"{what}, mean", means[system], "ms")
                bench.figure(system, f"{what}, p99", float(np.quantile(run.ms, 0.99)), "ms")
                bench.figure(system, f"{what}, data", run.data_a_second, "frames/s")
                bench.figure(system, f"{what}, heartbeats", run.beats_a_second, "frames/s")
                bench.figure(system, f"{what}, busiest machine", 100 * run.busiest, "% busy")
                bench.curve(CDF, f"{system}, {machines} machines, {beat_s * 1000:.0f} ms", run.points())
                if beat_s == BEAT_S:
                    traffic.setdefault(f"{system}, data", []).append((machines, run.data_a_second))
                    traffic.setdefault(f"{system}, heartbeats", []).append((machines, run.beats_a_second))
            other = "" if beat_s == BEAT_S else f"_at_{beat_s * 1000:.0f}_ms"
            bench.ratio(f"mean_over_window_sort_{machines}{other}", means["Headrace"] / means["window sort"])
    for line, points in traffic.items():
        if any(frames for _, frames in points):
            bench.curve(TRAFFIC, line, points)
    bench.finish()


if __name__ == "__main__":
    main()
