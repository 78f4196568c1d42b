"""When substreams have ended: the tracker beside punctuations, on RR-N, the workload of the trAcker paper.

RR-N: N steps that do nothing, one task of each on every worker, each step shares records out in turn. The last record
of a substream says so. Who has to know of its end:

- *punctuations*: every task sends one to all tasks of the next step when it has it from all before it;
- *reports of every step*: `.tracked()`, where all tasks report what they sent and received, as in the paper, and each
  worker sends what its tasks say in one frame (the paper's local agent; `flush_s` is 5 ms);
- *counted*: the same with steps that are `one_to_one`: records carry nothing, steps tell nothing, and all has come when
  as many have come as the source gave.

Messages and latencies are of clusters that are not here: the real workers in virtual time
(`bench/support/virtual_cluster.py`), where each thing costs the time of the processor that it just took. Every run
fails unless all records came and each task of the last step was told of each end once.

Throughput is where the median latency of records starts to grow with the rate: again in virtual time, at the paper's
place, RR-30 on 20 machines, where each record goes from machine to machine alone or with few others. And on Spark, on
this machine, as fast as it goes: there records travel by thousands, steps that do nothing cost next to nothing, and
what is reckoned for each record and each substream is what remains.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
from pyspark import cloudpickle

from bench.harness import Bench, Chart, Target
from bench.support import punctuations, round_robin
from bench.support.round_robin import Bulk, RoundRobin, System
from bench.support.virtual_costs import Costs, calibrated
from headrace.spark.session import local_session
from headrace.track.agent import drop_every

NAMES: Final[dict[System, str]] = {
    "none": "untracked",
    "punctuations": "punctuations",
    "tracked": "Headrace, reports of every step",
    "counted": "Headrace, counted",
}
SUFFIXES: Final[dict[System, str]] = {"punctuations": "_punctuations", "tracked": "", "counted": "_counted"}
RECORDS_A_SECOND: Final = "records/s"
MESSAGES: Final = "messages"
ITEMS: Final = 50_000
"""Of the paper's runs: messages are counted in fewer, and given for so many."""
NOTES: Final = (
    "Counting rule: a frame to a task that exists only for tracking is a message. Those are frames of punctuations "
    "(a frame with punctuations of several substreams is one), frames of reports, and frames of notices, with those "
    "that tell tasks to forget: one for each task that reports, every 256 substreams or four a task, reckoned here. "
    "What goes with the end of the flow is left out for all alike: END frames, last reports, probes. Notices once a "
    "worker: the last step has one task on each, so only those to forget get fewer.",
    "Only the last step wants to know. Punctuations have to go through all tasks for that; "
    "messages_saved_if_all_tasks_were_told has a notice for every task of every step instead.",
    f"Scaled: messages and notifications are of 2 to 100 substreams of each run, not of {ITEMS:,} items; one run for "
    "each point. Latencies are from when the source had sent the last record of a substream on, until a task of the "
    "last step had been told; the way of that record is in it, step by step.",
)
DEFAULTS: Final = {"steps": 30, "workers": 15, "granularity": 10}
TRAFFIC: Final = {
    axis: Chart(f"Messages for {ITEMS:,} items, by {axis}", axis, MESSAGES, axis != "workers", True)
    for axis in DEFAULTS
}
LATENCY: Final = {
    axis: Chart(f"From promise to notice, median, by {axis}", axis, "virtual ms", axis != "workers", axis != "workers")
    for axis in DEFAULTS
}
BY_RATE: Final = Chart("Median latency of records by rate, RR-30 on 20 machines", "items/s", "virtual ms", True, True)
BY_GRAIN: Final = Chart("On Spark: throughput by granularity", "granularity", RECORDS_A_SECOND, True)
RATED: Final = (30, 20)
"""Steps and workers of what is run at rising rates, as in the paper."""
AT_EASE: Final = 2_000
"""At this rate nobody is busy, and latency is that of the pace: a worker that took few records looks for more only a
millisecond later. Below it a record may find all workers waiting for it, and takes less: that is no measure."""
KNEE: Final = 2.0
"""Latency has started to grow where its median is so many times that of the untracked flow at ease."""
ENOUGH: Final = 2 * KNEE
"""So many times, and higher rates need not be seen."""
STEPS: Final = 6
"""On Spark."""
WARM: Final = 2
SINES: Final = 30
"""Of each record, in each step: the work of the paper of Conflux, about 1000 cycles."""


@dataclass(frozen=True)
class Sizes:
    """What a run does; the steps of its progress bar follow from it."""

    sweeps: dict[str, Sequence[int]]
    told: dict[System, int]
    """How many substreams are run at the defaults; fewer where they take longer."""
    rates: Sequence[int]
    rate_s: float
    """Virtual seconds of each rate."""
    raced: Sequence[tuple[System, int, int]]
    """What is run at rising rates: system, granularity, how often."""
    records: int
    """On Spark; a quarter of them where each is a substream."""
    grains: Sequence[int]
    rounds: int

    @property
    def runs(self) -> list[tuple[System, int, int]]:
        """What is run on Spark: system, granularity, work of a step."""
        tracking: tuple[System, ...] = ("counted", "tracked")
        found = [(system, grain, 0) for system in tracking for grain in self.grains]
        return [("none", 0, 0), *found, ("none", 0, SINES), ("counted", 10, SINES), ("tracked", 10, SINES)]

    @property
    def steps(self) -> int:
        """Of the progress bar."""
        virtual = 1 + len(NAMES) + 3 * (len(self.places) + 1)
        return virtual + sum(times for _, _, times in self.raced) + len(self.runs) * (WARM + self.rounds)

    @property
    def places(self) -> list[dict[str, int]]:
        """The defaults, and what differs from them in one thing."""
        swept = [DEFAULTS | {axis: value} for axis, values in self.sweeps.items() for value in values]
        return [DEFAULTS, *(place for place in swept if place != DEFAULTS)]


FULL: Final = Sizes(
    {"steps": (10, 30, 100), "workers": (10, 15, 20), "granularity": (1, 10, 100)},
    {"punctuations": 4, "tracked": 12, "counted": 12},
    (200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 6_000, 7_000, 8_000, 10_000, 12_000, 14_000, 17_000, 20_000), 0.3,
    (
        ("none", 1, 5), ("counted", 1, 5), ("counted", 10, 1), ("tracked", 1, 1), ("tracked", 10, 1),
        ("punctuations", 1, 1), ("punctuations", 10, 1), ("punctuations", 50, 1),
    ), 4_000_000, (1, 10, 100, 1000), 3,
)  # fmt: skip
QUICK: Final = Sizes(
    {"steps": (10, 30), "workers": (10, 15), "granularity": (1, 10)},
    {"punctuations": 2, "tracked": 4, "counted": 4},
    (2_000, 6_000), 0.05, (("none", 1, 1), ("counted", 1, 1)), 200_000, (10, 100), 1,
)  # fmt: skip


def substreams(sizes: Sizes, system: System, place: dict[str, int]) -> int:
    """So that no run takes much longer than that of the defaults."""
    by_steps = {10: 1.0, 30: 1.0, 100: 0.5}[place["steps"]]
    by_grain = {1: 3.0 if system == "punctuations" else 8.0, 10: 1.0, 100: 0.25 if system != "punctuations" else 0.5}
    return max(2, round(sizes.told[system] * by_steps * by_grain[place["granularity"]]))


# ----------------------------------------------------- messages, and notifications


@dataclass(frozen=True)
class Seen:
    """Of one system at one place, for each substream."""

    reports: float
    """Frames to the tracker; of punctuations, all there are."""
    notices: float
    forgotten: float
    ms: Sequence[float]
    """From promise to notice: p50 and p99."""
    after_ms: float
    """From the last record to the notice: p50."""
    busy: float
    """The share of its time that the busiest worker was busy."""

    @property
    def messages(self) -> float:
        return self.reports + self.notices + self.forgotten


def look(system: System, place: dict[str, int], count: int, costs: Costs, is_real: bool = True) -> Seen:
    grain = place["granularity"]
    rr = RoundRobin(system, place["steps"], place["workers"], grain, count * grain)
    cluster = rr.run(costs, is_real=is_real)
    frames, ms = cluster.tally.service_frames, rr.notification_ms(cluster)
    # Runs are too short for it: a frame to each task of a step that reports, every so often.
    told = {"tracked": rr.steps * rr.workers, "counted": rr.workers}.get(system, 0)
    forgotten = told / drop_every(rr.steps * rr.workers + 1)
    return Seen(
        (frames["reports"] + frames["punctuations"]) / count,
        frames["notices"] / count,
        forgotten,
        [float(np.percentile(ms, share)) for share in (50, 99)],
        float(np.median(rr.after_records_ms(cluster))),
        max(cluster.busy),
    )


def virtual(bench: Bench, sizes: Sizes, costs: Costs) -> None:
    found: dict[System, list[Seen]] = {system: [] for system in SUFFIXES}
    for place in sizes.places:
        for system in SUFFIXES:
            count = substreams(sizes, system, place)
            what = ", ".join(f"{axis} {value}" for axis, value in place.items())
            with bench.step(f"{NAMES[system]}, {what}, {count} substreams"):
                seen = look(system, place, count, costs)
            found[system].append(seen)
            tell(bench, system, place, seen)
            if seen.busy > 0.9:
                bench.note(f"{NAMES[system]}, {what}: a worker was busy {seen.busy:.0%} of the time, and falls behind")
    for axis, values in sizes.sweeps.items():
        for system, seens in found.items():
            along = [seens[sizes.places.index(DEFAULTS | {axis: value})] for value in values]
            grains = [value if axis == "granularity" else DEFAULTS["granularity"] for value in values]
            points = [ITEMS / grain * seen.messages for grain, seen in zip(grains, along, strict=True)]
            bench.curve(TRAFFIC[axis], NAMES[system], list(zip(values, points, strict=True)))
            medians = [seen.ms[0] for seen in along]
            bench.curve(LATENCY[axis], NAMES[system], list(zip(values, medians, strict=True)))
            bench.ratio(f"latency_over_{axis}{SUFFIXES[system]}", max(medians) / min(medians))
            if system == "tracked" and axis == "steps":
                after = [seen.after_ms for seen in along]
                bench.ratio("latency_after_last_record_over_steps", max(after) / min(after))
    at_defaults(bench, {system: seens[0] for system, seens in found.items()}, sizes, costs)


def tell(bench: Bench, system: System, place: dict[str, int], seen: Seen) -> None:
    changed = [f"{axis} {value}" for axis, value in place.items() if value != DEFAULTS[axis]]
    what, name = ", ".join(changed) or "defaults", NAMES[system]
    bench.figure(name, what, ITEMS / place["granularity"] * seen.messages, f"{MESSAGES} for {ITEMS:,} items")
    if system != "punctuations":
        once = seen.messages - seen.forgotten * (1 - 1 / place["steps"])
        bench.figure(name, what, ITEMS / place["granularity"] * once, f"{MESSAGES}, notices once a worker")
    bench.figure(name, what, seen.ms[0], "virtual ms, p50")
    bench.figure(name, what, seen.ms[1], "virtual ms, p99")
    bench.figure(name, what, seen.after_ms, "virtual ms after the last record, p50")


def at_defaults(bench: Bench, seen: dict[System, Seen], sizes: Sizes, costs: Costs) -> None:
    theirs, ours = seen["punctuations"], seen["tracked"]
    for system in ("tracked", "counted"):
        bench.ratio(f"messages_saved{SUFFIXES[system]}", theirs.messages / seen[system].messages)
    tasks = DEFAULTS["steps"] * DEFAULTS["workers"]
    bench.ratio("messages_saved_if_all_tasks_were_told", theirs.messages / (ours.reports + tasks + ours.forgotten))
    bench.ratio("latency_over_punctuations", ours.ms[0] / theirs.ms[0])
    bench.say(
        f"For each substream: punctuations {theirs.messages:,.0f}; reports {ours.reports:.1f} + notices "
        f"{ours.notices:.1f} + to forget {ours.forgotten:.2f}, and where records are counted reports "
        f"{seen['counted'].reports:.1f}"
    )
    free = {}
    for system in SUFFIXES:
        with bench.step(f"{NAMES[system]}, where only frames cost"):
            free[system] = look(system, DEFAULTS, substreams(sizes, system, DEFAULTS), costs, is_real=False)
        bench.figure(NAMES[system], "defaults", free[system].ms[0], "virtual ms, p50, if only frames cost")
    bench.ratio("latency_over_punctuations_if_only_frames_cost", free["tracked"].ms[0] / free["punctuations"].ms[0])


# --------------------------------------------------------------- latency by rate


def by_rate(bench: Bench, sizes: Sizes, costs: Costs) -> None:
    """At rising rates, until one is too much: the knee is where latency starts to grow.

    Who else is on this machine's host can make a run slower by a fifth, and none faster: systems take turns, and the
    best run of each counts.
    """
    found: dict[tuple[System, int], list[dict[int, float]]] = {(s, g): [] for s, g, _ in sizes.raced}
    for number in range(max(times for _, _, times in sizes.raced)):
        for system, grain, times in sizes.raced:
            if number < times:
                with bench.step(f"{raced_name(system, grain)}, at rising rates, run {number + 1} of {times}"):
                    rates = [rate for rate in sizes.rates if number == 0 or rate >= AT_EASE]
                    found[system, grain].append(risen(system, grain, rates, sizes.rate_s, costs, _at_ease(found)))
    most_ms, knees = KNEE * _at_ease(found), {}
    for (system, grain), runs in found.items():
        best = {rate: min(run[rate] for run in runs if rate in run) for rate in {r: 0 for run in runs for r in run}}
        points = [(float(rate), best[rate]) for rate in sorted(best)]
        knees[system, grain] = knee_of(points, most_ms)
        bench.figure(raced_name(system, grain), "knee of the median latency", knees[system, grain], "items/s, virtual")
        each = ", ".join(f"{knee_of([(float(r), ms) for r, ms in run.items()], most_ms):,.0f}" for run in runs)
        bench.say(f"{raced_name(system, grain)}: knee {knees[system, grain]:,.0f} items/s, of single runs {each}")
        bench.curve(BY_RATE, raced_name(system, grain), points)
        if points[-1][1] <= most_ms:
            bench.note(f"{raced_name(system, grain)}: latency had not started to grow at {points[-1][0]:,.0f} items/s")
    for system, grain in knees:
        if system != "none":
            bench.ratio(kept_name(system, grain), knees[system, grain] / knees["none", 1])


def _at_ease(found: dict[tuple[System, int], list[dict[int, float]]]) -> float:
    return min((run[AT_EASE] for run in found["none", 1]), default=np.inf)


def raced_name(system: System, grain: int) -> str:
    return NAMES[system] + (f", {grain}" if system != "none" else "")


def kept_name(system: System, grain: int) -> str:
    """The one with a target is `throughput_kept`."""
    what = {"counted": "", "tracked": "_every_step_reports", "punctuations": "_punctuations"}[system]
    return f"throughput_kept{what}" + (f"_{grain}" if grain > 1 else "")


def risen(
    system: System, grain: int, rates: Sequence[int], seconds: float, costs: Costs, at_ease_ms: float
) -> dict[int, float]:
    """The median latency of each rate, as far as it is of interest."""
    found: dict[int, float] = {}
    for rate in rates:
        rr = RoundRobin(system, *RATED, grain, int(rate * seconds), rate, as_records=True)
        found[rate] = float(np.median(rr.record_ms(rr.run(costs, is_real=True))))
        if found[rate] > ENOUGH * min(at_ease_ms, found.get(AT_EASE, np.inf)):
            break
    return found


def knee_of(points: list[tuple[float, float]], most_ms: float) -> float:
    """The rate at which the curve crosses a latency; the lowest or highest rate where it does not."""
    for (rate, ms), (next_rate, next_ms) in pairwise(points):
        if ms <= most_ms < next_ms:
            return float(rate * (next_rate / rate) ** (np.log(most_ms / ms) / np.log(next_ms / ms)))
    return float(points[-1][0] if points[-1][1] <= most_ms else points[0][0])


# ---------------------------------------------------------------------- on Spark


def on_spark(bench: Bench, sizes: Sizes) -> None:
    spark = local_session(cores=3)
    found: dict[tuple[System, int, int], list[float]] = {run: [] for run in sizes.runs}
    for number in range(-WARM, sizes.rounds):
        for system, grain, sines in sizes.runs:
            records = sizes.records // (10 if number < 0 else 4 if grain == 1 else 1)
            name = NAMES[system] + (f", granularity {grain}" if grain else "") + (", with work" if sines else "")
            which = "to warm up" if number < 0 else f"run {number + 1} of {sizes.rounds}"
            with bench.step(f"Spark: {name}, {which}"), tempfile.TemporaryDirectory() as folder:
                bulk = Bulk(system, STEPS, 2, grain or 1, records, as_records=True, folder=folder, sines=sines)
                rate = bulk.records_a_second(spark)
            if number >= 0:
                found[system, grain, sines].append(rate)
                bench.timed(f"{name}, {which}, {records:,} records", records / rate)
    spark.stop()
    rates = {run: float(np.median(each)) for run, each in found.items()}
    for (system, grain, sines), rate in rates.items():
        what = (f", granularity {grain}" if grain else "") + (", with work" if sines else "")
        bench.figure(NAMES[system], f"Spark{what}", rate, RECORDS_A_SECOND)
    bench.curve(BY_GRAIN, NAMES["none"], [(grain, rates["none", 0, 0]) for grain in sizes.grains])
    for system in ("tracked", "counted"):
        bench.curve(BY_GRAIN, NAMES[system], [(grain, rates[system, grain, 0]) for grain in sizes.grains])
    for (system, grain, sines), rate in rates.items():
        if system != "none":
            bench.ratio(spark_name(system, grain, sines), rate / rates["none", 0, sines])


def spark_name(system: System, grain: int, sines: int) -> str:
    every = "_every_step_reports" if system == "tracked" else ""
    return f"kept_on_spark{every}_{grain}" + ("_with_work" if sines else "")


# -------------------------------------------------------------------------- main


def main() -> None:
    bench = Bench(
        "track",
        "Ends of substreams: the tracker beside punctuations",
        targets=[Target("messages_saved", at_least=30.0), Target("throughput_kept", at_least=0.95)],
    )
    sizes, before = QUICK if bench.quick else FULL, f"{psutil.getloadavg()[0]:.1f}"
    bench.set(
        **DEFAULTS, items_a_second=100, flush_ms=5, substreams=sizes.told, rate_steps=RATED[0], rate_workers=RATED[1],
        rate_seconds=sizes.rate_s, spark_steps=STEPS, spark_workers=2, spark_records=sizes.records,
        spark_rounds=sizes.rounds,
    )  # fmt: skip
    # The workers know no package bench.
    for module in (punctuations, round_robin):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    with bench.running(steps=sizes.steps):
        for text in NOTES:
            bench.note(text)
        with bench.step("what frames cost here"):
            costs = calibrated()
        for system in NAMES:
            with bench.step(f"{NAMES[system]}, to warm up"):
                RoundRobin(system, 3, 2, records=40).run(costs, is_real=True)
        virtual(bench, sizes, costs)
        by_rate(bench, sizes, costs)
        on_spark(bench, sizes)
    after = f"{psutil.getloadavg()[0]:.1f}"
    bench.note(f"Processes that wanted one of {psutil.cpu_count()} cores: {before} before the run, {after} after it.")
    bench.finish()


if __name__ == "__main__":
    main()
