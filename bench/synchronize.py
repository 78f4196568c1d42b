"""A sequential program run by a tree of workers on Spark, beside the same program run in other ways.

Three programs of the paper on dependency-guided synchronization: event windows, page views (two hot pages) and fraud,
with 10,000 values of each stream to a barrier. Every run fails unless its results are those of the sequential program.

*Inside the gang* is from the first event to the last output in the tasks of Spark, with all events in memory: the tree
of workers and its talk over TCP. *End to end* is Parquet in, and nothing out: with Spark's start, a count of the tags,
shuffle and sort. The programs are columnar (`update_batch`) unless it says one by one (`update`).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

import headrace as hr
from bench.harness import EVENTS_A_SECOND, Bench, Chart, Target
from bench.support import by_hand, gang_timing, trees
from bench.support.gang_timing import Round, rounds_of, timed
from bench.support.trees import PER_BARRIER, WORKLOADS, Workload, check_same, row_by_row
from bench.support.tws import STATE_STORE
from headrace.spark.session import local_session
from headrace.synchronize.running import Running
from headrace.synchronize.sequential import run_sequentially

OURS: Final = "Headrace"
BY_TASKS: Final = Chart("Inside the gang, columnar", "leaves of the tree", EVENTS_A_SECOND, log_x=True)
WAITS: Final = Chart("Synchronization of two tasks over TCP", "ms", "share of barriers", log_x=True)
SHAPES: Final = ((1, 1), (2, 2), (2, 1), (4, 1), (4, 2), (8, 1), (8, 2))
"""Leaves and tasks. The first two are what the efficiency is about."""
_BATCH: Final = 10_000
_HALF_A_SECOND: Final = {"windows": 1_400_000, "views": 400_000, "fraud": 280_000}


@dataclass(frozen=True)
class Sizes:
    """What a run does."""

    events: int
    turns: int
    """How often one task and two take turns; the fastest round of each counts."""
    rounds: int
    """Of a job: how often its gang runs."""
    slow_events: int
    """For the sequential loop, and for transformWithState."""
    updated_events: dict[str, int]
    """For what goes one by one inside the gang: half a second of one core."""
    updated_rounds: int
    """Of those, in each of `updated_turns`: short and many, since the cores are not always as fast."""
    updated_turns: int
    shapes: Sequence[tuple[int, int]]
    stateful: Sequence[str]
    """Programs that run with transformWithState as well."""
    barriers: int
    """Of which the synchronization is timed."""

    @property
    def steps(self) -> int:
        inside, others = 2 * self.turns + len(self.shapes) - 2, 3 + 3 * self.turns
        return len(WORKLOADS) * (inside + others) + len(self.stateful) + 6 * self.updated_turns + 1


QUICK: Final = Sizes(1_000_000, 1, 2, 100_000, dict.fromkeys(WORKLOADS, 100_000), 2, 1, SHAPES[:2], ("windows",), 300)
FULL: Final = Sizes(2_000_000, 2, 3, 400_000, _HALF_A_SECOND, 16, 3, SHAPES, tuple(WORKLOADS), 2_000)


class Place:
    """A Spark session, a folder, and the events that were written to it."""

    def __init__(self, bench: Bench, spark: Any, folder: str):
        self.bench, self.spark, self.folder = bench, spark, folder
        self._written: dict[str, pa.Table] = {}
        Path(folder, "watch").mkdir()

    def events(self, workload: Workload, leaves: int, count: int, values: int = PER_BARRIER) -> tuple[pa.Table, str]:
        """A stream for each leaf; about so many events in all. In memory, and as Parquet."""
        windows = max(1, count // (leaves * values))
        path = f"{self.folder}/{workload.name}-{leaves}-{windows}-{values}"
        if path not in self._written:
            self._written[path] = workload.generate(leaves, windows, values)
            by_hand.write(self._written[path], path)
        return self._written[path], path

    def inside(
        self, what: str, program: hr.Program, table: pa.Table, path: str, wanted: pa.Table, **how: Any
    ) -> list[Round]:
        """The rounds of a job of so many tasks and leaves, the best first."""
        rounds, is_stretch, is_paired = how.pop("rounds"), how.pop("is_stretch", False), how.pop("is_paired", False)
        made = timed(hr.synchronize(program, **how), f"{self.folder}/watch", rounds, is_stretch, is_paired)
        with self.bench.step(what):
            given = self.spark.read.parquet(path).transform(made).toArrow()
        check_same(what, given, wanted)
        found = sorted(rounds_of(f"{self.folder}/watch"), key=lambda each: each.seconds)
        self.bench.timed(f"{what}, {table.num_rows:,} events", found[0].seconds)
        return found


# ----------------------------------------------------------------------- inside


def in_gangs(place: Place, workload: Workload, sizes: Sizes) -> None:
    """Events a second of the tree against leaves and tasks."""
    bench = place.bench
    rates: dict[tuple[int, int], float] = {}
    turns = [shape for _ in range(sizes.turns) for shape in sizes.shapes[:2]]
    for leaves, tasks in [*turns, *sizes.shapes[2:]]:
        table, path = place.events(workload, leaves, sizes.events)
        what = f"{workload.name}, inside the gang, {_shape(leaves, tasks)}"
        best, *_ = place.inside(
            what, workload.program(), table, path, workload.expected(table),
            parallelism=leaves, tasks=tasks, rounds=sizes.rounds,
        )  # fmt: skip
        rates[leaves, tasks] = max(rates.get((leaves, tasks), 0.0), table.num_rows / best.seconds)
    for (leaves, tasks), rate in rates.items():
        bench.figure(OURS, f"{workload.name}, inside the gang, {_shape(leaves, tasks)}", rate, EVENTS_A_SECOND)
    for tasks in (1, 2):
        points = sorted((leaves, rate) for (leaves, count), rate in rates.items() if count == tasks)
        bench.curve(BY_TASKS, f"{OURS}, {workload.name}, {_counted(tasks, 'task')}", points)
    bench.ratio(f"efficiency_2_columnar_{workload.name}", rates[2, 2] / (2 * rates[1, 1]))
    if workload.name == "windows":
        bench.ratio("columnar_events_per_core", rates.get((2, 1), rates[1, 1]))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {'leaves' if what == 'leaf' else what + 's'}"


def _shape(leaves: int, tasks: int) -> str:
    return f"{_counted(leaves, 'leaf')} in {_counted(tasks, 'task')}"


def one_by_one(place: Place, workload: Workload, sizes: Sizes) -> None:
    """A call of `update` for each event, as the paper has it: what a second task adds to the first."""
    rates, kept, program = dict[int, float](), list[float](), row_by_row(workload.program())
    for tasks in (1, 2) * sizes.updated_turns:
        table, path = place.events(workload, tasks, sizes.updated_events[workload.name])
        rounds = place.inside(
            f"{workload.name}, one by one, inside the gang, {_shape(tasks, tasks)}", program, table, path,
            workload.expected(table), parallelism=tasks, tasks=tasks, rounds=sizes.updated_rounds, is_paired=tasks == 2,
        )  # fmt: skip
        rates[tasks] = max(rates.get(tasks, 0.0), table.num_rows / rounds[0].seconds)
        kept += [each.kept for each in rounds if tasks == 2]
    for tasks, rate in rates.items():
        what = f"{workload.name}, one by one, inside the gang, {_shape(tasks, tasks)}"
        place.bench.figure(OURS, what, rate, EVENTS_A_SECOND)
    suffix = "" if workload.name == "windows" else f"_{workload.name}"
    place.bench.ratio(f"efficiency_2{suffix}", float(np.median(kept)))
    place.bench.ratio(f"two_tasks_over_one_{workload.name}", rates[2] / rates[1])


def synchronization(place: Place, sizes: Sizes) -> None:
    """From when the last leaf is ready for a barrier until both have their new states, in two tasks."""
    bench, workload, values = place.bench, WORKLOADS["windows"], 100
    table, path = place.events(workload, 2, sizes.barriers * 2 * values, values)
    best, *_ = place.inside(
        "synchronization of two tasks", workload.program(), table, path, workload.expected(table),
        parallelism=2, tasks=2, rounds=sizes.rounds, is_stretch=True,
    )  # fmt: skip
    # The first few find nothing in the caches.
    waits = np.sort(best.waits_ms()[10:])
    for percentile in (50, 99):
        what = f"synchronization of two tasks over TCP, p{percentile}"
        bench.figure(OURS, what, float(np.percentile(waits, percentile)), "ms")
    shares = np.linspace(0.01, 0.999, 60)
    bench.curve(WAITS, OURS, [(float(np.quantile(waits, share)), float(share)) for share in shares])
    bench.ratio("synchronization_ms_median", float(np.median(waits)))


# ----------------------------------------------------------------------- others


def alone(place: Place, workload: Workload, sizes: Sizes) -> None:
    """In one process, without Spark."""
    bench = place.bench
    few, _ = place.events(workload, 1, sizes.slow_events)
    start = time.perf_counter()
    with bench.step(f"{workload.name}, sequential, one by one"):
        _, given = run_sequentially(workload.program(), few)
    rate = few.num_rows / (time.perf_counter() - start)
    check_same(f"{workload.name}, sequential", given, workload.expected(few))
    bench.figure("sequential Python", f"{workload.name}, one by one", rate, EVENTS_A_SECOND)
    table, _ = place.events(workload, 1, sizes.events)
    batches, best = table.combine_chunks().to_batches(_BATCH), float("inf")
    with bench.step(f"{workload.name}, sequential, columnar"):
        for _ in range(sizes.rounds):
            running, state = Running(workload.program(), table.schema), workload.program().init()
            start = time.perf_counter()
            for batch in batches:
                state = running.run(state, batch)
            best = min(best, time.perf_counter() - start)
            check_same(f"{workload.name}, sequential", pa.Table.from_batches(running.fetch()), workload.expected(table))
    bench.figure("sequential Python", f"{workload.name}, columnar", table.num_rows / best, EVENTS_A_SECOND)


def end_to_end(place: Place, workload: Workload, sizes: Sizes) -> None:
    """Parquet in, nothing out: the tree with one task and two, and all in one partition."""
    bench, spark = place.bench, place.spark
    table, path = place.events(workload, 2, sizes.events)
    wanted = workload.expected(table)

    def tree(tasks: int) -> Any:
        made = hr.synchronize(workload.program(), parallelism=2 if tasks > 1 else 1, tasks=tasks)
        return spark.read.parquet(path).transform(made)

    ways: dict[str, Callable[[], Any]] = {
        f"{OURS}, 2 tasks": lambda: tree(2),
        f"{OURS}, 1 task": lambda: tree(1),
        "mapInArrow on one partition": lambda: by_hand.one_partition(spark.read.parquet(path), workload.program),
    }
    with bench.step(f"{workload.name}, results of all"):
        for name, make in ways.items():
            check_same(f"{workload.name}, {name}", make().toArrow(), wanted)

    def racer(make: Callable[[], Any]) -> Callable[[], object]:
        return lambda: make().write.format("noop").mode("overwrite").save()

    best = bench.race(f"{workload.name}, end to end", sizes.turns, {name: racer(make) for name, make in ways.items()})
    for name, seconds in best.items():
        bench.figure(name, f"{workload.name}, end to end", table.num_rows / seconds, EVENTS_A_SECOND)
    ours = min(best[f"{OURS}, 2 tasks"], best[f"{OURS}, 1 task"])
    bench.ratio(f"over_one_partition_{workload.name}", best["mapInArrow on one partition"] / ours)


def with_state(place: Place, workload: Workload, sizes: Sizes) -> None:
    bench = place.bench
    table, path = place.events(workload, 1, sizes.slow_events)
    folder = f"{place.folder}/state-{workload.name}"
    found: list[pa.Table] = []
    seconds = bench.time(
        f"{workload.name}, transformWithStateInPandas",
        lambda: found.append(by_hand.with_state(place.spark, workload.program, path, folder)),
    )
    check_same(f"{workload.name}, transformWithStateInPandas", found[0], workload.expected(table))
    rate = table.num_rows / seconds
    bench.figure("transformWithStateInPandas", f"{workload.name}, end to end", rate, EVENTS_A_SECOND)


def main() -> None:
    names = [name if name != "windows" else "" for name in WORKLOADS]
    bench = Bench(
        "synchronize",
        "A sequential program in parallel on Spark, with its results",
        targets=[
            *[Target(f"efficiency_2{'_' * bool(name)}{name}", at_least=0.9) for name in names],
            Target("columnar_events_per_core", at_least=1e6),
            Target("synchronization_ms_median", at_most=1.0),
        ],
    )
    sizes = QUICK if bench.quick else FULL
    bench.set(events=sizes.events, values_a_barrier=PER_BARRIER, rounds=sizes.rounds, turns=sizes.turns)
    # The workers know no package bench.
    for module in (gang_timing, by_hand, trees):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    with bench.running(steps=sizes.steps), tempfile.TemporaryDirectory() as folder:
        spark = local_session(
            cores=2, spark__sql__shuffle__partitions="2",
            spark__sql__streaming__stateStore__providerClass=STATE_STORE,
        )  # fmt: skip
        try:
            place = Place(bench, spark, folder)
            for workload in WORKLOADS.values():
                in_gangs(place, workload, sizes)
                one_by_one(place, workload, sizes)
                alone(place, workload, sizes)
                end_to_end(place, workload, sizes)
                if workload.name in sizes.stateful:
                    with_state(place, workload, sizes)
            synchronization(place, sizes)
        finally:
            spark.stop()
    bench.note(
        "efficiency_2 is inside the gang, with a call of update for each event: the rate of two tasks with a leaf each "
        "over that of the same two when each runs a single worker on its own events and hears of no other, just "
        "before, at the same time; the median of all rounds. Two cores of a shared machine do not always do twice "
        "what one does alone: two_tasks_over_one, the fastest round of each, has that in it."
    )
    bench.note(
        "Columnar, 10,000 values take about 0.3 ms, and to synchronize takes 0.2: there a second task adds less."
    )
    bench.note("transformWithStateInPandas has a smaller input, of which Spark's start of batches is a larger part.")
    bench.finish()


if __name__ == "__main__":
    main()
