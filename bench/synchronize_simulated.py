"""The tree of workers on machines that are not here: the real workers on 1 to 32 nodes, in virtual time.

The costs of all steps are measured on this machine in this run; the network takes 100 microseconds one way, which is
assumed (`bench/support/virtual_tree.py` tells how). Every run's results are checked.

Two things of the paper on dependency-guided synchronization: throughput against nodes (Figure 11), and latency against
nodes and against the period of heartbeats (Figure 12). The bytes that smart homes send are in `smart_home.py`.

As in the paper, nodes take events one by one (`update`). With `update_batch` a node is ten to forty times as fast, and
10,000 values last half a millisecond: then the network is what counts, and windows have to be longer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa

from bench.harness import EVENTS_A_SECOND, Bench, Chart, Target
from bench.support.tree_costs import Costs, measured
from bench.support.trees import PER_BARRIER, WORKLOADS, Workload, check_same, shared_out
from bench.support.virtual_latency import BATCH_MS, VALUES_A_SECOND, latencies_ms
from bench.support.virtual_tree import NETWORK_S, Cluster, at_once

SPEED_UP: Final = Chart("Throughput against nodes, one by one (the paper's Fig. 11)", "nodes", "times one node")
COLUMNAR: Final = Chart("The same with update_batch", "nodes", "times one node")
BY_NODES: Final = Chart("Latency of a barrier, median (Fig. 12a)", "nodes", "virtual ms", log_x=True, log_y=True)
BY_BEAT: Final = Chart("By heartbeat, 5 nodes, p90 (Fig. 12b)", "ms between heartbeats", "virtual ms", True, True)
SPENT: Final = Chart("What the root's node does, windows, one by one", "nodes", "share of its time")
OURS: Final = "Headrace"
VIRTUAL_MS: Final = "virtual ms"
ROWS: Final = 1_000
"""Of a batch that comes to a node."""


@dataclass(frozen=True)
class Sizes:
    """What a run does."""

    nodes: Sequence[int]
    windows: int
    latency_nodes: Sequence[int]
    ratios: Sequence[tuple[int, int]]
    """Values of a stream to a barrier, and how many barriers."""
    beats: Sequence[int]
    """Heartbeats to a barrier."""

    @property
    def steps(self) -> int:
        points = len(WORKLOADS) * (1 + len(self.nodes)) + 1
        return points + len(self.ratios) * (len(self.latency_nodes) + len(self.beats))


QUICK: Final = Sizes((1, 2, 12), 4, (2, 8), ((100, 30), (1_000, 6)), (1, 10, 100))
FULL: Final = Sizes(
    (1, 2, 4, 8, 12, 16, 24, 32), 12, (2, 4, 8, 16, 24, 32),
    ((100, 100), (1_000, 20), (10_000, 4)), (1, 3, 10, 30, 100),
)  # fmt: skip


class Load:
    """As much as all nodes can take."""

    def __init__(self, workload: Workload, nodes: int, windows: int, values: int = PER_BARRIER):
        self.workload, self.nodes = workload, nodes
        self.events = workload.generate(nodes, windows, values)
        self.shared = shared_out(workload.program(), self.events, workload.tag, nodes, nodes)
        self.wanted = workload.expected(self.events)

    def run(self, costs: Costs, is_columnar: bool) -> tuple[float, dict[str, float]]:
        """Events a second, and what the root's node did. Raises AssertionError for wrong results."""
        plan = self.shared.plan
        cluster = Cluster(plan, self.shared.schema, costs, is_columnar)
        for task in range(plan.tasks):
            # Columns come as Spark gives them, up to 10,000 rows at once.
            cluster.add(["input"], at_once(self.shared.tasks[task], 10 * ROWS if is_columnar else ROWS))
        seconds = cluster.run()
        given = pa.Table.from_batches(cluster.given, schema=self.wanted.schema)
        check_same(f"{self.workload.name} on {self.nodes} nodes", given, self.wanted)
        return self.events.num_rows / seconds, cluster.shares(plan.members[0].task)


def scaled(bench: Bench, workload: Workload, costs: Costs, sizes: Sizes) -> None:
    """Fig. 11, one by one and with columns."""
    rates: dict[bool, dict[int, float]] = {False: {}, True: {}}
    shares: dict[int, dict[str, float]] = {}
    for nodes in sizes.nodes:
        with bench.step(f"{workload.name}, {nodes} nodes"):
            load = Load(workload, nodes, sizes.windows)
            rates[False][nodes], shares[nodes] = load.run(costs, False)
            rates[True][nodes], _ = load.run(costs, True)
    for is_columnar, found in rates.items():
        form = "columnar" if is_columnar else "one by one"
        for nodes in {1, 12, 32} & set(found):
            what = f"{workload.name}, {form}, {nodes} {'node' if nodes == 1 else 'nodes'}"
            bench.figure(OURS, what, found[nodes], EVENTS_A_SECOND)
        points = [(nodes, rate / found[1]) for nodes, rate in found.items()]
        bench.curve(COLUMNAR if is_columnar else SPEED_UP, f"{OURS}, {workload.name}", points)
        bench.ratio(f"{'columnar_' * is_columnar}speedup_12_{workload.name}", found[12] / found[1])
    if workload.name == "windows":
        for what in ("update", "reading", "messages", "waiting"):
            bench.curve(SPENT, what, [(nodes, share.get(what, 0.0)) for nodes, share in shares.items()])


def longer_windows(bench: Bench, costs: Costs, windows: int) -> None:
    """With columns, how long must windows be?"""
    workload, values = WORKLOADS["windows"], 10 * PER_BARRIER
    with bench.step("windows, columnar, ten times as long"):
        alone, _ = Load(workload, 1, windows, values).run(costs, True)
        rate, _ = Load(workload, 12, windows, values).run(costs, True)
    bench.figure(OURS, f"windows, columnar, {values:,} values a barrier, 12 nodes", rate, EVENTS_A_SECOND)
    bench.ratio("columnar_speedup_12_windows_100k", rate / alone)


def waits(bench: Bench, costs: Costs, sizes: Sizes) -> None:
    """Fig. 12: latency of a barrier from when it comes, against nodes and against heartbeats."""
    for values, barriers in sizes.ratios:
        medians = []
        for nodes in sizes.latency_nodes:
            with bench.step(f"latency, {values} values a barrier, {nodes} nodes"):
                found = latencies_ms(costs, nodes, values, barriers, 100)
            medians.append((nodes, float(np.median(found))))
            if nodes in (sizes.latency_nodes[0], sizes.latency_nodes[-1]):
                for percentile in (10, 50, 90):
                    what = f"{values:,} values a barrier, {nodes} nodes, p{percentile}"
                    bench.figure(OURS, what, float(np.percentile(found, percentile)), VIRTUAL_MS)
        bench.curve(BY_NODES, f"{OURS}, {values:,} values a barrier", medians)
        points = []
        for beats in sizes.beats:
            with bench.step(f"latency, {values} values a barrier, {beats} heartbeats"):
                found = latencies_ms(costs, 5, values, barriers, beats)
            points.append((1000 * values / VALUES_A_SECOND / beats, float(np.percentile(found, 90))))
        bench.curve(BY_BEAT, f"{OURS}, {values:,} values a barrier", points)
        bench.ratio(f"p90_without_heartbeats_{values}", points[0][1] / points[-1][1])


def main() -> None:
    bench = Bench(
        "synchronize_simulated",
        "A tree of workers on 1 to 32 nodes, in virtual time",
        targets=[Target(f"speedup_12_{name}", at_least=8.0) for name in WORKLOADS],
    )
    sizes = QUICK if bench.quick else FULL
    bench.set(
        network_microseconds=NETWORK_S * 1e6, values_a_barrier=PER_BARRIER, windows=sizes.windows, rows_a_batch=ROWS,
        latency_values_a_second_and_stream=VALUES_A_SECOND, latency_batch_ms=BATCH_MS,
    )  # fmt: skip
    with bench.running(steps=sizes.steps):
        costs = {}
        for name, workload in WORKLOADS.items():
            with bench.step(f"the costs of {name}"):
                costs[name] = measured(workload)
            cost = costs[name]
            bench.figure("measured", f"{name}, update, an event", cost.update.of(ROWS) / ROWS * 1e6, "µs")
            bench.figure("measured", f"{name}, update_batch, 10,000 events", cost.columnar.of(10_000) * 1e6, "µs")
            message = cost.encode + cost.say + cost.hear + cost.decode + cost.handle
            bench.figure("measured", f"{name}, a message, both ends", message * 1e6, "µs")
        for name, workload in WORKLOADS.items():
            scaled(bench, workload, costs[name], sizes)
        longer_windows(bench, costs["windows"], sizes.windows // 2)
        waits(bench, costs["windows"], sizes)
    bench.note("Times are reckoned from costs measured in this run; the network of 100 µs one way is an assumption.")
    bench.note("In page views, 10,000 views of each stream come between two updates, as values between barriers.")
    bench.finish()


if __name__ == "__main__":
    main()
