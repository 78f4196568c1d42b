"""Bytes that travel when workers come and go: the sticky assignment of copies, against one by position.

300 tasks in 2 copies, 12 workers, states from less than a megabyte to hundreds. One worker after the other goes down or
comes up. Both strategies are counted with whole states, and with the files that are not there yet (delta). No Spark,
and nothing really travels: the bytes are sums of sizes, and the same on every machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness import Bench, Chart
from bench.support.assignment_moves import (
    COPIES,
    DISK_LOST,
    REPLACED,
    ByPosition,
    Moved,
    Sticky,
    random_history,
    replayed,
)
from headrace.replicate.assignment import TaskLoad, WorkerSeen, assign

TASKS: Final = 300
WORKERS: Final = 12
STICKY, PLAIN = "Headrace, sticky", "by position"
GIGABYTES: Final = "GB an event"
CHART: Final = Chart("Bytes that travelled, with delta", "events", "GB")


def main() -> None:
    bench = Bench("assignment", "Copies of tasks when workers come and go")
    events, seeds = (40, 1) if bench.quick else (200, 3)
    bench.set(
        tasks=TASKS, copies=COPIES, workers=WORKERS, events=events, histories=seeds, files_replaced=REPLACED,
        disks_lost=DISK_LOST,
    )  # fmt: skip
    found: dict[str, list[Moved]] = {STICKY: [], PLAIN: []}
    with bench.running(steps=2 * seeds + 1):
        for seed in range(seeds):
            history = random_history(seed, TASKS, WORKERS, events)
            names = [*history.states[0]]
            for name, strategy in ((STICKY, Sticky(names)), (PLAIN, ByPosition(names))):
                with bench.step(f"{name}, history {seed + 1} of {seeds}"):
                    found[name].append(replayed(history, strategy))
        many = [TaskLoad(f"t{at}") for at in range(10_000)]
        crowd = [WorkerSeen(at, f"host-{at % 50}") for at in range(200)]
        first = assign(many, crowd, COPIES)
        took = bench.time("10,000 tasks assigned to 199 of 200 workers", lambda: assign(many, crowd[1:], COPIES, first))
    report(bench, found, events * seeds)
    bench.figure(STICKY, "10,000 tasks, one of 200 workers lost: assigned in", took, "s")
    bench.finish()


def report(bench: Bench, found: dict[str, list[Moved]], events: int) -> None:
    whole, fewer = {}, {}
    for name, moved in found.items():
        whole[name] = sum(each.state_bytes for each in moved)
        fewer[name] = sum(each.delta_bytes for each in moved)
        bench.figure(name, "copies that begin elsewhere", sum(each.copies for each in moved) / events, "an event")
        bench.figure(name, "their state", whole[name] / 1e9 / events, GIGABYTES)
        bench.figure(name, "of it, not there already", fewer[name] / 1e9 / events, GIGABYTES)
        bench.figure(name, "most copies on a worker", max(each.heaviest for each in moved), "of an even share")
        bench.curve(CHART, name, [(at, size / 1e9) for at, size in enumerate(moved[0].by_event, 1)])
    lost = sum(each.lost_bytes for each in found[STICKY])
    bench.figure("what was lost", "state of copies on workers that went down", lost / 1e9 / events, GIGABYTES)
    bench.ratio("plain_over_sticky_delta", fewer[PLAIN] / fewer[STICKY])
    bench.ratio("plain_over_sticky_whole_states", whole[PLAIN] / whole[STICKY])
    bench.ratio("plain_whole_states_over_sticky_delta", whole[PLAIN] / fewer[STICKY])
    bench.ratio("sticky_delta_over_whole_states", fewer[STICKY] / whole[STICKY])


if __name__ == "__main__":
    main()
