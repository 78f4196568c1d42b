"""Ten to 120 windows of different lengths and delays in one query: what does one more cost?

Three metrics each (sum, avg, count by card), every window with a head and a tail of its own: 20 to 240 iterators over
one reservoir, whose chunks they share.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness import EVENTS_A_SECOND, MEGABYTES, Bench
from bench.support.shard import Shard, frames, measured, resident_megabytes, timed

COUNTS: Final = (10, 30, 60, 120)
CARDS: Final = 10_000
A_FRAME: Final = 10_000
A_SECOND: Final = 100


def text(windows: int) -> str:
    """Windows of 61 s, 122 s, … with delays of 0, 7 s, 14 s, …: no two edges are the same."""
    return ";\n".join(
        f"SELECT sum(amount) AS s{i}, avg(amount) AS a{i}, count(*) AS n{i} FROM payments GROUP BY card "
        f"OVER sliding {61 * (i + 1)} s delayed by {7 * i} s"
        for i in range(windows)
    )


def run(windows: int, rows: int) -> dict[str, Any]:
    """All windows full first, then timed."""
    with tempfile.TemporaryDirectory() as folder:
        shard = Shard(Path(folder), text(windows))
        full = (61 * windows + 7 * windows) * A_SECOND
        for number, frame in enumerate(frames(0, full, A_FRAME, A_SECOND, CARDS)):
            shard.task.push(frame)
            if number % 16 == 15:
                shard.commit()
        shard.commit()
        reservoir = shard.task.reservoir
        misses, reads, seconds, peak = reservoir.misses, reservoir.reads, 0.0, 0.0
        for frame in frames(full, rows, A_FRAME, A_SECOND, CARDS):
            seconds += timed(lambda frame=frame: shard.task.push(frame))  # type: ignore[misc]
            peak = max(peak, resident_megabytes())
        return {
            "rate": rows / seconds,
            "microseconds": seconds / rows / windows * 1e6,
            "misses": reservoir.misses - misses,
            "reads": reservoir.reads - reads,
            "resident_chunks": reservoir.resident_chunks,
            "memory": peak,
        }


def main() -> None:
    bench = Bench("measure_many_windows", "10 to 120 misaligned windows in one query, one shard")
    counts, rows, rounds = ((10, 30), 50_000, 1) if bench.quick else (COUNTS, 200_000, 1)
    bench.set(rows=rows, rounds=rounds, cards=CARDS, events_a_second=A_SECOND, events_a_frame=A_FRAME)
    best: dict[int, dict[str, Any]] = {}
    with bench.running(steps=rounds * len(counts)):
        for _ in range(rounds):
            for windows in counts:
                with bench.step(f"{windows} windows, {2 * windows} iterators"):
                    found = measured("measure_many_windows", "run", windows=windows, rows=rows)
                if windows not in best or found["rate"] > best[windows]["rate"]:
                    best[windows] = found
    for windows, found in best.items():
        name = f"{windows} windows"
        bench.figure(name, "answers", found["rate"], EVENTS_A_SECOND)
        bench.figure(name, "an event and window", found["microseconds"], "µs")
        bench.figure(name, "cache misses", found["misses"], f"of {found['reads']:,} chunk reads")
        bench.figure(name, "resident memory", found["memory"], MEGABYTES)
    last = counts[-1]
    bench.ratio(f"cost_a_window_{last}_over_10", best[last]["microseconds"] / best[10]["microseconds"])
    bench.finish()


if __name__ == "__main__":
    main()
