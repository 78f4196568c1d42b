"""Windows between events: the sum of the values of all streams between every two barriers.

Values are independent of each other, so each stream can be summed where it comes; a barrier needs all of the sums.

The paper's prose wants the aggregate "between every two consecutive barriers"; its code (Figure 13) never sets the sum
back. Here a barrier sets it back. Its fork gives the sum to the left always; here to the right, if that has barriers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.demo.programs.arrays import (
    Stream,
    in_time_order,
    int_column,
    interleaved,
    is_kind,
    slotted_times,
    totals_between,
)
from headrace.synchronize.program import Program, Tags, Update

EVENTS = pa.schema([("time", pa.int64()), ("kind", pa.string()), ("value", pa.int64()), ("stream", pa.string())])


class EventWindows(Program):
    """State: the sum since the last barrier."""

    tag = "kind"
    time = "time"
    tags = ("value", "barrier")
    outputs = pa.schema([("time", pa.int64()), ("total", pa.int64())])
    depends: Mapping[str, tuple[str, ...]] = {"barrier": ("barrier", "value")}

    def init(self) -> int:
        return 0

    def update(self, state: int, event: Any) -> Update:
        if event.kind == "value":
            return state + event.value, []
        return 0, [(event.time, state)]

    def fork(self, state: int, left: Tags, right: Tags) -> tuple[int, int]:
        """The sum goes to the side that has the barriers. If none has, either will do: join adds them up."""
        return (0, state) if right("barrier") else (state, 0)

    def join(self, left: int, right: int) -> int:
        return left + right

    def update_batch(self, state: int, events: pa.RecordBatch) -> tuple[int, pa.RecordBatch | None]:
        is_value = is_kind(events, "value")
        if is_value.all():
            return int(totals_between(int_column(events, "value"), np.empty(0, np.int64), state)[0]), None
        barriers = np.flatnonzero(~is_value)
        values = np.zeros(len(is_value), np.int64)
        values[is_value] = int_column(events.filter(pa.array(is_value)), "value")
        totals = totals_between(values, barriers, state)
        times = events.column("time").take(pa.array(barriers))
        given = pa.RecordBatch.from_arrays([times, pa.array(totals[:-1], pa.int64())], schema=self.outputs)
        return int(totals[-1]), given

    def examples(self) -> list[dict[str, Any]]:
        """Values of two streams, also below zero, and barriers, of which two follow each other."""
        rows: list[dict[str, Any]] = []
        for time in range(30):
            kind = "barrier" if time % 7 == 6 or time == 14 else "value"
            stream = "barriers" if kind == "barrier" else f"values-{time % 2}"
            value = 0 if kind == "barrier" else time * time % 11 - 3
            rows.append({"time": time, "kind": kind, "value": value, "stream": stream})
        return rows


def generate(
    streams: int = 4, windows: int = 5, values_per_window: int = 10_000, seed: int = 1, ties: bool = False
) -> pa.Table:
    """Streams of values from 0 to 999, so many a window and stream, and one stream of barriers."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(streams):
        times, _ = slotted_times(windows, values_per_window, rng)
        made.append(Stream(f"values-{number}", times, {"kind": "value", "value": rng.integers(0, 1000, len(times))}))
    _, ends = slotted_times(windows, values_per_window, rng)
    made.append(Stream("barriers", ends, {"kind": "barrier", "value": 0}))
    return interleaved(made, EVENTS, tie=8 if ties else 1)


def expected(events: pa.Table) -> pa.Table:
    """Every value is put into the window of the first barrier behind it."""
    events = in_time_order(events)
    is_barrier = is_kind(events, "barrier")
    barriers = np.flatnonzero(is_barrier)
    rows = np.flatnonzero(~is_barrier)
    totals = np.zeros(len(barriers) + 1, np.int64)
    np.add.at(totals, np.searchsorted(barriers, rows), int_column(events.take(pa.array(rows)), "value"))
    times = events.column("time").take(pa.array(barriers))
    return pa.table([times, pa.array(totals[:-1])], schema=EventWindows.outputs)
