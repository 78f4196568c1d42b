"""A map of counters: an increment adds one to the counter of its key, a reset gives it and sets it to zero.

Increments of one key are independent of each other, so they can be counted anywhere; a reset needs all of them.

As in the paper (Figure 3). Its state keeps counters that are zero; here they are dropped, so that equal maps are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.demo.programs.arrays import (
    Stream,
    group_rows,
    in_time_order,
    int_column,
    interleaved,
    is_kind,
    slotted_times,
)
from headrace.synchronize.program import Program, Tags, Update

Counts = dict[int, int]

EVENTS = pa.schema([("time", pa.int64()), ("kind", pa.string()), ("key", pa.int64()), ("stream", pa.string())])


class KeyCounters(Program):
    """State: the counters that are not zero, by their keys."""

    tag = ("kind", "key")
    time = "time"
    outputs = pa.schema([("time", pa.int64()), ("key", pa.int64()), ("count", pa.int64())])
    depends: Mapping[str, tuple[str, ...]] = {"reset": ("reset", "increment")}

    def init(self) -> Counts:
        return {}

    def update(self, state: Counts, event: Any) -> Update:
        if event.kind == "increment":
            return {**state, event.key: state.get(event.key, 0) + 1}, []
        left = {key: count for key, count in state.items() if key != event.key}
        return left, [(event.time, event.key, state.get(event.key, 0))]

    def fork(self, state: Counts, left: Tags, right: Tags) -> tuple[Counts, Counts]:
        """A counter goes to the side that resets it. If none does, either will do: join adds them up."""
        ours = {key: count for key, count in state.items() if left(("reset", key))}
        theirs = {key: count for key, count in state.items() if key not in ours}
        return ours, theirs

    def join(self, left: Counts, right: Counts) -> Counts:
        return {key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}}

    def update_batch(self, state: Counts, events: pa.RecordBatch) -> tuple[Counts, pa.RecordBatch | None]:
        """The rows by key are cut behind every reset: the increments of each piece are one sum."""
        if not events.num_rows:
            return state, None
        groups = group_rows(events.column("key"))
        is_increment = is_kind(events, "increment")[groups.order]
        is_start = groups.is_first.copy()
        is_start[1:] |= ~is_increment[:-1]
        starts = np.flatnonzero(is_start)
        sums = np.add.reduceat(is_increment.astype(np.int64), starts)
        keys = groups.keys.to_pylist()
        sums[groups.is_first[starts]] += np.array([state.get(key, 0) for key in keys], np.int64)
        ends = np.append(starts[1:], len(is_increment)) - 1
        is_reset = ~is_increment[ends]
        is_last = np.append(groups.is_first[starts][1:], True)
        counts = dict(state)
        for key, count, reset in zip(keys, sums[is_last].tolist(), is_reset[is_last].tolist(), strict=True):
            counts[key] = 0 if reset else count
        rows = groups.order[ends[is_reset]]
        by_row = np.argsort(rows)
        given = events.select(["time", "key"]).take(pa.array(rows[by_row]))
        columns = [*given.columns, pa.array(sums[is_reset][by_row])]
        counts = {key: count for key, count in counts.items() if count}
        return counts, pa.RecordBatch.from_arrays(columns, schema=self.outputs)

    def examples(self) -> list[dict[str, Any]]:
        """Three keys with increments and resets, of which some follow each other at once."""
        kinds = ["increment"] * 3 + ["reset"] + ["increment"] * 2 + ["reset"] * 2
        return [
            {"time": 3 * number + key, "kind": kind, "key": key, "stream": f"{kind}s"}
            for number, kind in enumerate(kinds)
            for key in (1, 2, 3)
        ]


def generate(
    increments: int = 100_000,
    keys: int = 10,
    streams: int = 4,
    increments_per_reset: int = 1_000,
    seed: int = 1,
    ties: bool = False,
) -> pa.Table:
    """Streams of increments with random keys, and one of resets: one reset for so many increments of all streams."""
    rng = np.random.default_rng(seed)
    per_window = max(1, increments_per_reset // streams)
    windows = max(1, increments // (per_window * streams))
    made = []
    for number in range(streams):
        times, ends = slotted_times(windows, per_window, rng)
        key = rng.integers(0, keys, len(times))
        made.append(Stream(f"increments-{number}", times, {"kind": "increment", "key": key}))
    made.append(Stream("resets", ends, {"kind": "reset", "key": rng.integers(0, keys, windows)}))
    return interleaved(made, EVENTS, tie=8 if ties else 1)


def expected(events: pa.Table) -> pa.Table:
    """For each reset: the increments of its key before it, less those before the reset of that key before it."""
    events = in_time_order(events)
    keys, is_reset = int_column(events, "key"), is_kind(events, "reset")
    codes = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    places = codes * (len(keys) + 1) + np.arange(len(keys))
    increments, resets = np.sort(places[~is_reset]), np.sort(places[is_reset])
    firsts = resets // (len(keys) + 1) * (len(keys) + 1)
    since = np.maximum(firsts, np.concatenate(([0], resets[:-1])))
    counts = np.searchsorted(increments, resets) - np.searchsorted(increments, since)
    rows = resets - firsts
    order = np.argsort(rows)
    found = events.select(["time", "key"]).take(pa.array(rows[order]))
    return found.append_column("count", pa.array(counts[order].astype(np.int64)))
