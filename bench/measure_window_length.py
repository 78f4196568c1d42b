"""Windows of 5 minutes, an hour, a day and 7 days over the same loaded reservoir: they must cost the same.

A week of payments is in the state of one shard; a new process goes on from it, as a worker does after a restart, and
answers more payments in frames. Only the length of the window differs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness import EVENTS_A_SECOND, MEGABYTES, Bench, Target
from bench.support.shard import Shard, frames, measured, payments, resident_megabytes, timed

WINDOWS: Final = ("5 minutes", "1 hour", "1 day", "7 days")
TARGETS: Final = (
    Target("throughput_7d_over_5m", at_least=0.9),
    Target("memory_7d_over_5m", at_most=1.1),
)
TEXT: Final = "SELECT sum(amount) AS spent, count(*) AS n FROM payments GROUP BY card OVER sliding {window}"
CARDS: Final = 100_000
A_FRAME: Final = 20_000


def load(folder: str, window: str, days: float, a_second: float) -> dict[str, Any]:
    """A week of payments, committed."""
    shard = Shard(Path(folder), TEXT.format(window=window))
    rows = int(days * 86_400 * a_second)
    for number, frame in enumerate(frames(0, rows, 4 * A_FRAME, a_second, CARDS)):
        shard.task.push(frame)
        if number % 8 == 7:
            shard.commit()
    shard.commit()
    return {"rows": rows, "events": len(shard.task.reservoir)}


def run(folder: str, window: str, first: int, rows: int, a_second: float) -> dict[str, Any]:
    """Go on from there: answers a second and memory."""
    found: dict[str, Any] = {}
    restart = timed(lambda: found.update(shard=Shard(Path(folder), TEXT.format(window=window))))
    shard: Shard = found["shard"]
    warm = 4 * A_FRAME
    for frame in frames(first, warm, A_FRAME, a_second, CARDS):
        shard.task.push(frame)
    batches = list(frames(first + warm, rows, A_FRAME, a_second, CARDS))
    before, peak = shard.task.reservoir.misses, 0.0
    seconds = 0.0
    for batch in batches:
        seconds += timed(lambda batch=batch: shard.task.push(batch))  # type: ignore[misc]
        peak = max(peak, resident_megabytes())
    misses = shard.task.reservoir.misses - before
    return {
        "rate": rows / seconds,
        "memory": peak,
        "restart_ms": restart * 1000,
        "misses": misses,
        "resident_chunks": shard.task.reservoir.resident_chunks,
    }


def main() -> None:
    bench = Bench("measure_window_length", "Windows of 5 minutes to 7 days, one shard", targets=TARGETS)
    days, a_second, rows, rounds = (7, 2, 200_000, 2) if bench.quick else (7, 20, 2_000_000, 3)
    bench.set(days=days, events_a_second=a_second, rows=rows, rounds=rounds, cards=CARDS, events_a_frame=A_FRAME)
    payments(0, 1, a_second, CARDS)
    results: dict[str, list[dict[str, Any]]] = {window: [] for window in WINDOWS}
    with tempfile.TemporaryDirectory() as folder, bench.running(steps=len(WINDOWS) * (1 + rounds)):
        loaded = {}
        for window in WINDOWS:
            with bench.step(f"loading {days} days for {window}"):
                place = f"{folder}/{window.replace(' ', '-')}"
                loaded[window] = measured(
                    "measure_window_length", "load", folder=place, window=window, days=days, a_second=a_second
                )
        for number in range(rounds):
            for window in WINDOWS:
                with bench.step(f"{window}, run {number + 1} of {rounds}"):
                    place = f"{folder}/{window.replace(' ', '-')}"
                    arguments = {"folder": place, "window": window, "rows": rows, "a_second": a_second}
                    first = loaded[window]["rows"]
                    results[window].append(measured("measure_window_length", "run", first=first, **arguments))
    for window in WINDOWS:
        best = max(results[window], key=lambda found: found["rate"])
        bench.figure(window, "answers", best["rate"], EVENTS_A_SECOND)
        bench.figure(window, "resident memory", min(found["memory"] for found in results[window]), MEGABYTES)
        bench.figure(window, "restart", min(found["restart_ms"] for found in results[window]), "ms")
        bench.figure(window, "chunks read while waiting", best["misses"], "chunks")
    rates = {window: max(found["rate"] for found in results[window]) for window in WINDOWS}
    memory = {window: min(found["memory"] for found in results[window]) for window in WINDOWS}
    bench.ratio("throughput_7d_over_5m", rates["7 days"] / rates["5 minutes"])
    bench.ratio("memory_7d_over_5m", memory["7 days"] / memory["5 minutes"])
    bench.finish()


if __name__ == "__main__":
    main()
