"""Output in the order of the source: the merge of data paths beside a window sort, on the pipeline of Conflux.

Numbers, a filter of the multiples of 7 (15 tasks), a map (15), a map (2), one sink: 30 data paths. Three systems run
the same functions:

- `last.ordered()`: the merge of data paths;
- a window sort in the same flow, with the same queues: a stage with one task that sorts tumbling windows of 1000
  numbers when a watermark has passed them (`bench/support/order_flows.py`). It is columnar, and sorts all windows that
  are ready at once: it costs hardly more than the pipeline itself, so in throughput there is little to win over it;
- the window sort that a Spark user has: an ordinary Structured Streaming query with a watermark, windows in Spark's
  state and a sort of every micro-batch (`bench/support/order_spark.py`). The targets are against this one.

Every run fails unless just the right records came out, each once, in order.

Time stamps of a record, as in the paper: creation (at the source; with a steady rate when it was due), process (in the
last map), sink (in the queue of its path), consume (read by the merge), emit (in the sink).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import numpy.typing as npt
from pyspark import cloudpickle

from bench.harness import Bench, Chart, Target
from bench.support import order_flows, order_spark
from bench.support.order_flows import LAST, MARK_S, PASSES, WINDOW, Draw, Ints, merged
from bench.support.order_merge import EMIT, MADE, PATHS, PROCESS, ROUNDS, WIDTH, kernels, merger_waits
from headrace.flow.worker import Pace
from headrace.flow.worker_setup import BATCH_RECORDS
from headrace.spark.session import local_session

RECORDS_A_SECOND: Final = "records/s"
MILLISECONDS: Final = "ms"
OURS: Final = "Headrace"
THEIRS: Final = "window sort"
SYSTEMS: Final[dict[str, Draw]] = {OURS: merged, THEIRS: order_flows.window_sorted}
SPARK: Final = "window sort in Spark"
STEADY: Final = 50_000
"""Records a second that both can sustain; the latency of the ratio is the one at this rate."""
SLOW: Final = 1_000
"""Records a second at which paths are empty most of the time, and heartbeats matter."""
CDF: Final = Chart("Latency, full speed", "ms", "share of records", log_x=True)
STEADY_CDF: Final = Chart(f"Latency, {STEADY:,} records/s", "ms", "share of records", log_x=True)
OVER_TIME: Final = Chart("Throughput over time, full speed", "s", RECORDS_A_SECOND)
BY_RATE: Final = Chart("Mean latency by rate", RECORDS_A_SECOND, "ms", log_x=True, log_y=True)
BY_PATHS: Final = Chart("Throughput by data paths", "paths", RECORDS_A_SECOND, log_x=True)
BY_BATCH: Final = Chart("Throughput by batch size", "records the source is asked for", RECORDS_A_SECOND, log_x=True)
BY_BEAT: Final = Chart(f"Latency by heartbeat, {SLOW:,} records/s", "heartbeat every ms", "ms", log_x=True, log_y=True)
_WARM_US: Final = 1_500_000
_HELD_MS: Final = 1_000.0


@dataclass(frozen=True)
class Sizes:
    """What a run does; the steps of its progress bar follow from it."""

    records: int
    rounds: int
    """How often both are run at full speed, in turn; the fastest run of each counts."""
    rates: Sequence[int]
    steady_s: float
    widths: Sequence[int]
    batches: Sequence[int]
    beats_ms: Sequence[int]
    swept: int
    """Records of a point of a sweep at full speed."""
    kernel: int

    @property
    def steps(self) -> int:
        flows = len(SYSTEMS) * (1 + self.rounds + len(self.rates) + len(self.widths) + len(self.batches))
        return flows + len(self.beats_ms) + 4 + 2 * ROUNDS


QUICK: Final = Sizes(400_000, 2, (SLOW, STEADY), 4.0, (1, 4, 32), (), (10, 100), 150_000, 300_000)
FULL: Final = Sizes(
    10_000_000, 1, (SLOW, 10_000, STEADY, 100_000), 7.0, (1, 2, 4, 8, 16, 32), (1_024, 4_096, 16_384, 65_536),
    (10, 30, 100, 1_000), 400_000, 2_000_000,
)  # fmt: skip


# ------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Run:
    """All that a sink got, in its order: a row for each record, with `n` and its three time stamps."""

    records: int
    """How many the source gave."""
    rows: Ints
    waits: Mapping[str, float] = field(default_factory=dict)
    """Of the merge, from its own figures: how long records were in its queues, and in it, in milliseconds."""

    @property
    def rate(self) -> float:
        """Records in a second, from the first one made to the last one emitted."""
        return self.records / (int(self.rows[-1, EMIT] - self.rows[0, MADE]) / 1e6)

    def ms(self, since: int = MADE, until: int = EMIT) -> npt.NDArray[np.float64]:
        return (self.rows[:, until] - self.rows[:, since]) / 1000

    @property
    def mean_ms(self) -> float:
        return float(self.ms().mean())

    @property
    def warm_us(self) -> int:
        return int(self.rows[0, EMIT]) + _WARM_US

    @property
    def warm(self) -> Run:
        """Without what waited while the workers started, and a while after."""
        rows = self.rows[self.rows[:, MADE] > self.warm_us]
        if not len(rows):
            raise RuntimeError("the workers took so long to start that nothing was measured; run it again")
        return Run(len(rows), rows)


def checked(what: str, rows: Ints, records: int) -> Run:
    """Raises RuntimeError unless these are all records but the multiples of 7, each once, in their order."""
    numbers = np.arange(records)
    expected = numbers[numbers % 7 != 0]
    if not np.array_equal(rows[:, 0], expected):
        falls = int((np.diff(rows[:, 0]) <= 0).sum())
        raise RuntimeError(f"{what}: {len(rows):,} of {len(expected):,} records came, and {falls:,} out of order")
    return Run(records, rows)


def has_warmed(file: Path) -> bool:
    """Is it so long since the first record came that it is warm?"""
    rows = np.fromfile(file, np.int64, 4) if file.exists() else np.zeros(0)
    return len(rows) == 4 and time.time_ns() // 1000 - int(rows[EMIT]) > _WARM_US


def order_report(job: Any) -> dict[str, Any]:
    """What the task that merges says, if there is one."""
    found = [report["stages"].get("order") for report in job.reports().values()]
    return next((report for report in found if report is not None and report["in_merge"]["total"]), {})


def waits_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for name in ("in_queue", "in_merge") if after else ():
        first = before.get(name, {"counts": [0], "total": 0.0})
        count = sum(after[name]["counts"]) - sum(first["counts"])
        found[name] = 1000 * (after[name]["total"] - first["total"]) / max(1, count)
    return found


class Place:
    """Where flows run: one session for all of them."""

    def __init__(self, bench: Bench, spark: Any):
        self.bench, self._spark = bench, spark

    def run(
        self, system: str, records: int, rate: float | None = None, *, width: int = WIDTH, batch: int = BATCH_RECORDS,
        beat_s: float | None = None,
    ) -> Run:  # fmt: skip
        """A step of the bench."""
        options = [
            *([f"{width * LAST} paths"] if width != WIDTH else []),
            *([f"batches of {batch:,}"] if batch != BATCH_RECORDS else []),
            *([f"{rate:,.0f} a second"] if rate is not None else []),
            *([f"heartbeat {beat_s * 1000:.0f} ms"] if beat_s is not None else []),
        ]
        what = ", ".join([system, f"{records:,} records", *options])
        with self.bench.step(what), tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows"
            flow = SYSTEMS[system](file, records, rate, width)
            beat = Pace().beat_s if beat_s is None else beat_s
            job = flow.start(self._spark, folder, workers=2, batch_records=batch, heartbeat_s=beat)
            before: dict[str, Any] = {}
            while rate is not None and not job.is_over and not has_warmed(file):
                before = order_report(job)
                job.wait(0.05)
            job.wait()
            run = checked(what, np.fromfile(file, np.int64).reshape(-1, 4), records)
            run = replace(run, waits=waits_between(before, order_report(job)))
        self.bench.timed(what, records / run.rate)
        return run

    def query(self, records: int, rate: float | None = None) -> Run:
        """The same by an ordinary query of Spark. A step of the bench."""
        what = f"{SPARK}, {records:,} records" + (f", {rate:,.0f} a second" if rate is not None else "")
        with self.bench.step(what), tempfile.TemporaryDirectory() as folder:
            rows = order_spark.run_query(self._spark, Path(folder), records, WIDTH, rate)
            return checked(what, rows, int(rows[-1, 0]) + 1)


# --------------------------------------------------------------------- measures


def full_speed(place: Place, sizes: Sizes) -> None:
    """As fast as it goes; what latency is then, is how much the queues hold."""
    bench, runs = place.bench, [(name, place.run(name, sizes.records)) for _ in range(sizes.rounds) for name in SYSTEMS]
    found = {system: max((run for name, run in runs if name == system), key=lambda run: run.rate) for system in SYSTEMS}
    for name, run in runs:
        bench.say(f"{name}: {run.rate:,.0f} records/s")
    for system, run in found.items():
        bench.figure(system, "full speed", run.rate, RECORDS_A_SECOND)
        tell_latency(bench, system, "full speed", run)
        bench.curve(CDF, system, shares(run))
        bench.curve(OVER_TIME, system, over_time(run, 0.3 if bench.quick else 3.0))
    peer = place.query(max(400_000, sizes.records // 10))
    bench.figure(SPARK, "full speed", peer.rate, RECORDS_A_SECOND)
    tell_latency(bench, SPARK, "full speed", peer)
    bench.curve(CDF, SPARK, shares(peer))
    bench.ratio("throughput_over_window_sort", found[OURS].rate / peer.rate)
    bench.ratio("throughput_over_own_window_sort", found[OURS].rate / found[THEIRS].rate)


def steady(place: Place, sizes: Sizes) -> Run:
    """At steady rates; gives our run at the one that the ratio is of."""
    bench, kept = place.bench, {}
    means: dict[str, dict[int, float]] = {system: {} for system in SYSTEMS}
    for rate in sizes.rates:
        for system in SYSTEMS:
            run = place.run(system, int(rate * sizes.steady_s), rate)
            if run.ms()[-1] > _HELD_MS:
                bench.note(f"{system} fell behind at {rate:,} records/s: its latencies there are those of a backlog")
            means[system][rate] = run.warm.mean_ms
            if rate == STEADY:
                tell_latency(bench, system, f"{rate:,} records/s", run.warm)
                bench.curve(STEADY_CDF, system, shares(run.warm))
                kept[system] = run
    for name, what in (("in_queue", "in the queue of its path"), ("in_merge", "in the merge")):
        bench.figure(OURS, f"{STEADY:,} records/s, {what}, mean", kept[OURS].waits[name], MILLISECONDS)
    for system in SYSTEMS:
        bench.curve(BY_RATE, system, list(means[system].items()))
        bench.figure(system, f"{SLOW:,} records/s, mean", means[system][SLOW], MILLISECONDS)
    peer = place.query(int(STEADY * sizes.steady_s), STEADY).warm
    tell_latency(bench, SPARK, f"{STEADY:,} records/s", peer)
    bench.curve(STEADY_CDF, SPARK, shares(peer))
    bench.ratio("latency_over_window_sort", means[OURS][STEADY] / peer.mean_ms)
    bench.ratio("latency_over_own_window_sort", means[OURS][STEADY] / means[THEIRS][STEADY])
    return kept[OURS]


def tell_latency(bench: Bench, system: str, when: str, run: Run) -> None:
    bench.figure(system, f"{when}, mean", run.mean_ms, MILLISECONDS)
    bench.figure(system, f"{when}, p99", float(np.percentile(run.ms(), 99)), MILLISECONDS)
    bench.figure(system, f"{when}, creation to process, mean", float(run.ms(MADE, PROCESS).mean()), MILLISECONDS)
    bench.figure(system, f"{when}, process to emit, mean", float(run.ms(PROCESS, EMIT).mean()), MILLISECONDS)


def shares(run: Run) -> list[tuple[float, float]]:
    percents = np.arange(0.5, 100, 0.5)
    return [(max(ms, 0.01), share / 100) for ms, share in zip(np.percentile(run.ms(), percents), percents, strict=True)]


def over_time(run: Run, window_s: float) -> list[tuple[float, float]]:
    """Records emitted in a second, over the window that ends at each time."""
    emitted = (run.rows[:, EMIT] - run.rows[0, MADE]) / 1e6
    ends = np.arange(window_s, emitted[-1], window_s / 6)
    counts = np.searchsorted(emitted, ends, "right") - np.searchsorted(emitted, ends - window_s, "right")
    return list(zip(ends.tolist(), (counts / window_s).tolist(), strict=True))


def sweeps(place: Place, sizes: Sizes) -> None:
    """What throughput depends on, and what latency does where there are few records."""
    bench, swept = place.bench, sizes.swept
    paths: dict[str, list[tuple[float, float]]] = {system: [] for system in SYSTEMS}
    batches: dict[str, list[tuple[float, float]]] = {system: [] for system in SYSTEMS}
    for system in SYSTEMS:
        for width in sizes.widths:
            paths[system].append((width * LAST, place.run(system, swept, width=width).rate))
        for batch in sizes.batches:
            batches[system].append((batch, place.run(system, swept, batch=batch).rate))
        bench.curve(BY_PATHS, system, paths[system])
        if batches[system]:
            bench.curve(BY_BATCH, system, batches[system])
    means, worst = [], []
    for beat in sizes.beats_ms:
        ms = place.run(OURS, int(SLOW * sizes.steady_s), SLOW, beat_s=beat / 1000).warm.ms()
        means.append((beat, float(ms.mean())))
        worst.append((beat, float(np.percentile(ms, 99))))
    bench.curve(BY_BEAT, f"{OURS}, mean", means)
    bench.curve(BY_BEAT, "p99", worst)


def main() -> None:
    bench = Bench(
        "order",
        "Output in source order",
        targets=[
            Target("throughput_over_window_sort", at_least=3.0),
            Target("latency_over_window_sort", at_most=0.3),
            Target("merger_mean_ms", at_most=10.0),
        ],
    )
    sizes = QUICK if bench.quick else FULL
    bench.set(
        records=sizes.records, paths=PATHS, workers=2, passes_of_sine=PASSES, window=WINDOW, watermark_s=MARK_S,
        heartbeat_s=Pace().beat_s, batch_records=BATCH_RECORDS, steady_rate=STEADY,
    )  # fmt: skip
    # The workers know no package bench.
    for module in (order_flows, order_spark):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    with bench.running(steps=sizes.steps):
        spark = local_session(cores=2)
        place = Place(bench, spark)
        for system in SYSTEMS:
            place.run(system, 50_000)
        full_speed(place, sizes)
        ours = steady(place, sizes)
        sweeps(place, sizes)
        spark.stop()
        with bench.step("the merge by the clock of the flow"):
            waits = merger_waits(ours.rows, ours.warm_us)
        bench.figure(OURS, "the merge alone, mean", float(waits.mean()), MILLISECONDS)
        bench.figure(OURS, "the merge alone, p99", float(np.percentile(waits, 99)), MILLISECONDS)
        bench.ratio("merger_mean_ms", float(waits.mean()))
        kernels(bench, sizes.kernel)
    bench.note(
        "Between process and emit a record reaches the queue of its path (SinkTs of the paper) and is read by the "
        "merge (ConsumeTs): how long it is in the queue and in the merge are figures of the flow, by frames. The merge "
        "alone gives the same frames to a merge again, by the time stamps of the last map."
    )
    bench.finish()


if __name__ == "__main__":
    main()
