"""Copies of tasks, and a crash: how long records take before it, over it and after it.

After the paper on active replication (its figures 10, 11, 14 and 16), on the embedded log; QUEUES=kafka takes a
real broker, which shares the two cores too. Side by side in one run:

- no replication: the worker that died is started again from its last commit (passive);
- standby: the second copy does the work in silence, and takes over;
- no ordering: copies take records as they come, and disagree. It is wrong, and there for its latency: what is lost and
  doubled is printed. All others must give each record once, or the bench fails;
- one queue: copies read the same queue, which has the order;
- KaZoo: one copy leads and writes the order into a log. First a worker that leads is killed, then one that follows;
- LiveRobin: in turns, between heartbeats.

A latency counts from when a record was due until the first copy of it is with the reader, so a stall counts for all
that was due in it. Nothing counts before latency is flat: what piled up while workers started is no result.

Broker, source, reader and all workers share the cores of one machine. So this measures whether a crash is masked, not
how it scales: the copies of a task are in different processes, but they compete, and the start of a worker takes time
from those that are left. `just before` is the longest latency in as many seconds without a crash. Bytes depend on how
many records there are in a frame, and that on how busy the machine is; reading is not counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench.harness import Bench, Chart, Target
from bench.support.replicate import AFTER_S, WORKERS, Floats, Place, Run, System
from bench.support.replicate_crashes import Choice, Crash, holder_of, leader_of, least_leading, most_leading
from bench.support.replicate_flows import Maps, Monitoring
from bench.support.replicate_measure import Answered, answered
from headrace.queues.log import LogQueues
from headrace.spark.broker import Broker
from headrace.spark.session import local_session
from headrace.testing.cluster import free_port

MILLISECONDS: Final = "ms"
SECONDS: Final = "s"
CPU: Final = "CPU s per 1,000 events"
BYTES: Final = "bytes/event"

NONE: Final = System("no replication", mode="none")
STANDBY: Final = System("standby", mode="standby")
ARRIVAL: Final = System("no ordering", order="arrival", is_exact=False)
QUEUE: Final = System("Headrace, one queue")
KAZOO: Final = System("KaZoo", order="leader")
LIVE_ROBIN: Final = System("LiveRobin", order="round-robin")
RATE: Final = 5_000
LIMIT_S: Final = 2.0
"""Within it a notification is in time."""

OVER_TIME: Final = Chart(
    f"{RATE:,} events/s through 3 maps: p99 by second, crash at 0", "s since the crash", "ms", log_y=True
)
BY_MAPS: Final = Chart("LiveRobin by length, heartbeat 10 ms", "maps", "ms", log_y=True)
BY_BEAT: Final = Chart("LiveRobin by heartbeat, 3 maps", "heartbeat, ms", "ms", log_x=True, log_y=True)
MONITORED: Final = Chart("Monitoring: p99 by second, crash at 0", "s since the crash", "ms", log_y=True)


@dataclass(frozen=True)
class Sizes:
    """What a run does."""

    systems: Sequence[System]
    led: Mapping[str, Choice]
    """Who is killed under KaZoo, one after the other."""
    before_s: float
    after_s: float
    maps: Sequence[int]
    beats_ms: Sequence[int]
    swept_s: float
    rates: Sequence[int]
    monitored: Sequence[System]
    monitored_s: float

    @property
    def steps(self) -> int:
        swept = len({*((maps, 10) for maps in self.maps), *((3, beat) for beat in self.beats_ms)})
        return 4 + len(self.systems) + swept + len(self.rates) * len(self.monitored)


LEADER: Final[Mapping[str, Choice]] = {"leader": most_leading}
QUICK: Final = Sizes((NONE, QUEUE, KAZOO, LIVE_ROBIN), LEADER, 3.0, 3.0, (1,), (), 2.0, (1_000,), (LIVE_ROBIN,), 2.0)
FULL: Final = Sizes(
    (NONE, STANDBY, ARRIVAL, QUEUE, KAZOO, LIVE_ROBIN), {**LEADER, "follower": least_leading}, 15.0, 10.0,
    (1, 2, 3, 4), (5, 10, 20, 50, 100), 6.0, (1_000, 5_000), (NONE, QUEUE, KAZOO, LIVE_ROBIN), 6.0,
)  # fmt: skip


class Runs:
    """Steps of the bench that are runs; what is odd about one becomes a note."""

    def __init__(self, bench: Bench, place: Place):
        self.bench, self._place = bench, place

    def run(
        self, what: str, load: Maps | Monitoring, system: System, choices: Sequence[Choice], before: float, after: float
    ) -> Run:
        began = time.monotonic()
        with self.bench.step(what):
            run = self._place.run(what, load, system, choices, before, after)
        self.bench.timed(what, time.monotonic() - began)
        if run.restarts != len(choices):
            self.bench.note(f"{what}: {run.restarts} workers were started again, and {len(choices)} were killed")
        if not run.was_flat:
            self.bench.note(f"{what}: latency was not flat yet when it was measured")
        if not system.is_exact:
            lost, doubled = run.faults
            self.bench.note(
                f"{what}: {lost:,} records lost and {doubled:,} doubled of {len(run.n):,}, as is to be expected"
            )
        return run

    def answered(self, per_second: int, seconds: float, replicas: int) -> Answered:
        folder = self._place.folder / f"measured{replicas}"
        return answered(self._place.spark, LogQueues(folder / "queues"), folder, per_second, seconds, replicas)


# ------------------------------------------------------------------ figure 14


def crashes(runs: Runs, sizes: Sizes) -> None:
    """A worker is killed under each system: the one with the first copy of the source, or by who leads."""
    bench, load = runs.bench, Maps(RATE)
    found: dict[str, tuple[Run, Crash]] = {}
    for system in sizes.systems:
        choices = list(sizes.led.values()) if system is KAZOO else [holder_of(load.source)]
        run = runs.run(f"{system.name}, 3 maps", load, system, choices, sizes.before_s, sizes.after_s)
        tell_steady(bench, run)
        names = [f"{KAZOO.name}, {who} killed" for who in sizes.led] if system is KAZOO else [system.name]
        for name, crash in zip(names, run.crashes, strict=True):
            found[name] = run, crash
            tell_crash(bench, name, run, crash)
            bench.curve(OVER_TIME, name, run.p99_by_second(crash, (-8, int(sizes.after_s))))
    mark_crash(bench, OVER_TIME, [run.p99_by_second(crash, (-8, 10)) for run, crash in found.values()])
    for ratio, system in (("live_robin_gap_over_p999", LIVE_ROBIN), ("queue_gap_over_p999", QUEUE)):
        bench.ratio(ratio, gap_over_p999(*found[system.name]))
    run, crash = found[f"{KAZOO.name}, leader killed"]
    bench.ratio("leader_loss_s", float(run.after(crash).max()) / 1000)
    copied = [crash for run, crash in found.values() if run.system.mode != "none" and run.system.is_exact]
    bench.ratio("rebuilt_s", max(crash.rebuilt_s for crash in copied))
    tell_overheads(bench, [run for run, _ in found.values()])


def gap_over_p999(run: Run, crash: Crash) -> float:
    """The longest latency after a crash, against what one of a thousand takes without, and two heartbeats."""
    beats_ms = 2 * run.system.heartbeat_s * 1000
    return float(run.after(crash).max() / (np.percentile(run.steady(), 99.9) + beats_ms))


def tell_steady(bench: Bench, run: Run) -> None:
    for name, percent in (("p50", 50), ("p99", 99), ("p99.9", 99.9)):
        bench.figure(run.system.name, name, float(np.percentile(run.steady(), percent)), MILLISECONDS)


def tell_crash(bench: Bench, name: str, run: Run, crash: Crash) -> None:
    longest, before = float(run.after(crash).max()), float(run.just_before(crash).max())
    bench.figure(name, "longest just before the crash", before, MILLISECONDS)
    bench.figure(name, f"longest in {AFTER_S:.0f} s after it", longest, MILLISECONDS)
    bench.figure(name, "until as before", run.back_after_s(crash), SECONDS)
    level = "up again" if run.system.mode == "none" else "copies rebuilt"
    bench.figure(name, f"until {level}", crash.rebuilt_s, SECONDS)
    led = f", leading {crash.led}" if run.system.order == "leader" else ""
    bench.say(
        f"{name}: worker {crash.worker} killed (it held {', '.join(crash.held)}{led}): longest {longest:,.0f} ms "
        f"({before:,.0f} ms before), slow for {run.back_after_s(crash):.2f} s, {level} after {crash.rebuilt_s:.1f} s"
    )


def tell_overheads(bench: Bench, found: Sequence[Run]) -> None:
    """What each uses without a crash, and the factors against no replication."""
    used = {run.system.name: run.used_by_event() for run in found}
    alone = used[NONE.name]
    for system, (workers, broker, size) in used.items():
        bench.figure(system, "workers", workers, CPU)
        bench.figure(system, "broker", broker, CPU)
        bench.figure(system, "into queues", size, BYTES)
        if system != NONE.name:
            short = system.removeprefix("Headrace, ").replace(" ", "_").lower()
            bench.ratio(f"cpu_{short}_over_none", workers / alone[0])
            bench.ratio(f"bytes_{short}_over_none", size / alone[2])


def mark_crash(bench: Bench, chart: Chart, lines: Sequence[Sequence[tuple[float, float]]]) -> None:
    values = [ms for line in lines for _, ms in line]
    bench.curve(chart, "crash", [(0.0, min(values)), (0.0, max(values))])


# ------------------------------------------------------------- figures 10 and 11


def sweeps(runs: Runs, sizes: Sizes) -> None:
    """LiveRobin without a crash: by the number of maps, and by the heartbeat."""
    bench, found = runs.bench, dict[tuple[int, int], Floats]()

    def steady(maps: int, beat_ms: int) -> Floats:
        if (maps, beat_ms) not in found:
            what = f"{LIVE_ROBIN.name}, {maps} maps, heartbeat {beat_ms} ms"
            system = replace(LIVE_ROBIN, heartbeat_s=beat_ms / 1000)
            run = runs.run(what, Maps(RATE, maps), system, [], sizes.swept_s, 0.0)
            found[maps, beat_ms] = run.steady()
            for name, percent in (("p50", 50), ("p99", 99)):
                figure = f"{maps} maps, heartbeat {beat_ms} ms, {name}"
                bench.figure(LIVE_ROBIN.name, figure, float(np.percentile(run.steady(), percent)), MILLISECONDS)
        return found[maps, beat_ms]

    for name, percent in (("median", 50), ("p99", 99)):
        by_maps = [(maps, float(np.percentile(steady(maps, 10), percent))) for maps in sizes.maps]
        by_beat = [(beat, float(np.percentile(steady(3, beat), percent))) for beat in sizes.beats_ms]
        for chart, points in ((BY_MAPS, by_maps), (BY_BEAT, by_beat)):
            if points:
                bench.curve(chart, name, points)


# ------------------------------------------------------------------ figure 16


def monitored(runs: Runs, sizes: Sizes) -> None:
    """The application of the paper; a worker with one of the two tasks that make notifications is killed."""
    bench, worst, lines = runs.bench, [0.0], []
    for rate in sizes.rates:
        for system in sizes.monitored:
            what = f"{system.name}, monitoring at {rate:,} events/s"
            choices = [leader_of("notified.0")]
            run = runs.run(what, Monitoring(rate), system, choices, sizes.monitored_s, max(AFTER_S, sizes.monitored_s))
            crash, warm = run.crashes[0], run.warm() / 1000
            in_time = float((warm <= LIMIT_S).mean())
            bench.figure(system.name, f"monitoring at {rate:,}/s, within {LIMIT_S:.0f} s", 100 * in_time, "%")
            bench.figure(system.name, f"monitoring at {rate:,}/s, longest", 1000 * float(warm.max()), MILLISECONDS)
            bench.say(
                f"{what}: {100 * in_time:.2f} % of {len(warm):,} within {LIMIT_S:.0f} s, longest {warm.max():.2f} s"
            )
            line = run.p99_by_second(crash, (-6, 6))
            bench.curve(MONITORED, f"{system.name}, {rate:,}/s", line)
            lines.append(line)
            if system is not NONE:
                worst.append(float(warm.max()))
    mark_crash(bench, MONITORED, lines)
    bench.ratio("monitoring_worst_s", max(worst))


# ------------------------------------------------------------------------- main


def main() -> None:
    on_kafka = os.environ.get("QUEUES") == "kafka"
    bench = Bench(
        "replicate_kafka" if on_kafka else "replicate",
        "Copies of tasks, and a crash",
        targets=[
            Target("live_robin_gap_over_p999", at_most=1.0),
            Target("queue_gap_over_p999", at_most=1.0),
            Target("leader_loss_s", at_most=1.0),
            Target("rebuilt_s", at_most=10.0),
            Target("monitoring_worst_s", at_most=LIMIT_S),
            Target("measured_p999_ms", at_most=45.0),
        ],
    )
    began, sizes = time.monotonic(), QUICK if bench.quick else FULL
    bench.set(
        queues="Kafka" if on_kafka else "log",
        workers=WORKERS,
        rate=RATE,
        seconds_before=sizes.before_s,
        seconds_after=sizes.after_s,
    )
    with bench.running(steps=sizes.steps), tempfile.TemporaryDirectory() as folder:
        broker = Broker(folder=Path(folder) / "kafka", port=free_port()) if on_kafka else None
        if broker is not None:
            broker.start()
        spark = local_session(cores=WORKERS + 1)
        place = Place(spark, Path(folder), broker)
        try:
            # A broker that has just been started compiles itself for a while, on the cores that are measured.
            measure(Runs(bench, place), sizes, warm_s=15.0 if on_kafka else 1.0)
        finally:
            place.close()
            spark.stop()
            if broker is not None:
                broker.stop()
    bench.timed("all of it", time.monotonic() - began)
    bench.finish()


def measure(runs: Runs, sizes: Sizes, warm_s: float) -> None:
    # A new Spark takes seconds for what it does the first time.
    runs.run("warm-up", Maps(RATE), NONE, [], warm_s, 0.0)
    crashes(runs, sizes)
    sweeps(runs, sizes)
    monitored(runs, sizes)
    measured(runs, 4.0 if runs.bench.quick else 20.0)


def measured(runs: Runs, seconds: float) -> None:
    """Metrics at 500 events a second with two copies of their task, and with one; a worker is killed half-way."""
    bench = runs.bench
    for replicas in (1, 2):
        with bench.step(f"metrics at 500 events/s, {replicas} copies"):
            found = runs.answered(500, seconds, replicas)
        if found.wrong:
            raise RuntimeError(f"{found.wrong} answers with {replicas} copies are wrong or missing")
        for name, percent in (("p50", 50), ("p99.9", 99.9), ("longest", 100)):
            bench.figure(
                f"metrics, {replicas} copies", f"{name} of the whole run", found.percentile(percent), MILLISECONDS
            )
    bench.ratio("measured_p999_ms", found.percentile(99.9))


if __name__ == "__main__":
    main()
