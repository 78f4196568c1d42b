"""Power of smart plugs, predicted for plugs, households, houses and all of them (DEBS Grand Challenge 2014, query 1).

Loads are independent of each other, so each house can add up its own, at the edge; the end of a slice needs all.
For everything that was measured in the slice that ends, it gives the load of the slice after the next: the mean of the
average of this slice and of the average so far at that hour of the day; where there is none so far, the first alone.

Where the paper leaves it open: averages are over measurements, of all plugs of a house alike. They are of integers, so
no order of additions shows: a prediction is the exact fraction, rounded down to milliwatts. The challenge asks for a
median of past days; the paper takes averages. The state has sums for plugs only: those of the others follow from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.demo.programs.arrays import Ints, Stream, fits_64_bits, in_time_order, int_column, interleaved, is_kind
from headrace.synchronize.program import Program, Tag, Tags, Update

ALL: Final = -1
"""The house of an event that is for all houses."""
LEVELS: Final = ("all", "house", "household", "plug")
HOUR_S: Final = 3600
HOURS: Final = 24

Plug = tuple[int, int, int]
"""house, household, plug"""
Hour = tuple[int, int, int, int]
"""house, household, plug, hour of the day"""
Place = tuple[int, ...]
"""The first so many numbers of a plug: all, a house, a household, a plug."""
Load = tuple[int, int]
"""The sum of measurements in watts, and how many."""

EVENTS = pa.schema(
    [
        ("time", pa.int64()),  # microseconds
        ("kind", pa.string()),
        ("house", pa.int64()),  # ALL at the end of a slice
        ("household", pa.int64()),
        ("plug", pa.int64()),
        ("value", pa.int64()),  # watts; at the end of a slice, its number
        ("stream", pa.string()),
    ]
)


@dataclass(frozen=True)
class Loads:
    """Of the slice that is open, and of those before by the hour of the day."""

    now: dict[Plug, Load]
    past: dict[Hour, Load]


class SmartHome(Program):
    """Gives predictions at the end of each slice. `slice_s` is the length of one, in seconds."""

    tag = ("kind", "house")
    time = "time"
    outputs = pa.schema(
        [
            ("time", pa.int64()),
            ("slice", pa.int64()),
            ("level", pa.string()),
            ("house", pa.int64()),
            ("household", pa.int64()),
            ("plug", pa.int64()),
            ("milliwatts", pa.int64()),
        ]
    )

    def __init__(self, slice_s: int = HOUR_S):
        self.slice_s = slice_s

    def depends(self, a: Tag, b: Tag) -> bool:
        """The end of a slice depends on everything, whatever the house."""
        return "end" in (a[0], b[0])

    def init(self) -> Loads:
        return Loads({}, {})

    def update(self, state: Loads, event: Any) -> Update:
        if event.kind == "end":
            return self._end(state, event.time, event.value)
        plug = (event.house, event.household, event.plug)
        total, count = state.now.get(plug, (0, 0))
        return replace(state, now={**state.now, plug: (total + event.value, count + 1)}), []

    def _end(self, state: Loads, time: int, number: int) -> Update:
        hour = hour_of(number + 2, self.slice_s)
        now = _by_place(state.now)
        past = _by_place({plug[:3]: load for plug, load in state.past.items() if plug[3] == hour})
        given = []
        for place in sorted(now, key=lambda place: (len(place), place)):
            house, household, plug = (*place, None, None, None)[:3]
            milliwatts = predicted(now[place], past.get(place))
            given.append((time, number + 2, LEVELS[len(place)], house, household, plug, milliwatts))
        own_hour = hour_of(number, self.slice_s)
        closed = {(*plug, own_hour): load for plug, load in state.now.items()}
        return Loads({}, _added(state.past, closed)), given

    def fork(self, state: Loads, left: Tags, right: Tags) -> tuple[Loads, Loads]:
        """Each house goes to the side it is measured on, and all of them to the side that ends slices."""

        def is_left(house: int) -> bool:
            return left(("end", ALL)) or (not right(("end", ALL)) and left(("load", house)))

        now, past = state.now.items(), state.past.items()
        lefts = {house for house in {place[0] for place in (*state.now, *state.past)} if is_left(house)}
        ours = Loads({k: v for k, v in now if k[0] in lefts}, {k: v for k, v in past if k[0] in lefts})
        theirs = Loads({k: v for k, v in now if k[0] not in lefts}, {k: v for k, v in past if k[0] not in lefts})
        return ours, theirs

    def join(self, left: Loads, right: Loads) -> Loads:
        return Loads(_added(left.now, right.now), _added(left.past, right.past))

    def update_batch(self, state: Loads, events: pa.RecordBatch) -> tuple[Loads, pa.RecordBatch | None]:
        """The loads between two ends are added up by plug at once."""
        ends = np.flatnonzero(is_kind(events, "end")).tolist()
        rows: list[Any] = []
        start = 0
        for stop in [*ends, events.num_rows]:
            if stop > start:
                now = _added(state.now, _by_plug(events.slice(start, stop - start)))
                state = replace(state, now=now)
            if stop < events.num_rows:
                end = events.slice(stop, 1)
                state, given = self._end(state, end["time"][0].as_py(), end["value"][0].as_py())
                rows += given
            start = stop + 1
        if not rows:
            return state, None
        columns = zip(zip(*rows, strict=True), self.outputs, strict=True)
        return state, pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in columns], schema=self.outputs
        )

    def examples(self) -> list[dict[str, Any]]:
        """Two houses with four plugs over four slices; the third and the fourth find a past at their hour."""
        rows: list[dict[str, Any]] = []
        for time in range(40):
            house, household, plug, value = time % 3 % 2, time % 2, time % 5 % 2, 3 * time * time % 101
            row = {"time": time, "kind": "load", "house": house, "household": household, "plug": plug, "value": value}
            if time % 10 == 9:
                row |= {"kind": "end", "house": ALL, "household": ALL, "plug": ALL, "value": (0, 1, 22, 46)[time // 10]}
            rows.append(row | {"stream": "clock" if time % 10 == 9 else f"house-{house}"})
        return rows


def hour_of(number: int, slice_s: int) -> int:
    """The hour of the day in which a slice begins."""
    return number * slice_s // HOUR_S % HOURS


def predicted(now: Load, past: Load | None) -> int:
    """In milliwatts, rounded down."""
    total, count = now
    if past is None:
        return 1000 * total // count
    return 1000 * (total * past[1] + past[0] * count) // (2 * count * past[1])


def _added(one: Mapping[Any, Load], other: Mapping[Any, Load]) -> dict[Any, Load]:
    small, large = sorted((one, other), key=len)
    joined = dict(large)
    for place, (total, count) in small.items():
        known = joined.get(place, (0, 0))
        joined[place] = (known[0] + total, known[1] + count)
    return joined


def _by_place(plugs: Mapping[Any, Load]) -> dict[Place, Load]:
    """Of plugs, and of all that they are in."""
    found: dict[Place, Load] = {}
    for plug, (total, count) in plugs.items():
        for level in range(len(LEVELS)):
            known = found.get(plug[:level], (0, 0))
            found[plug[:level]] = (known[0] + total, known[1] + count)
    return found


def _by_plug(events: pa.RecordBatch) -> dict[Plug, Load]:
    names = ["house", "household", "plug"]
    values = events.column("value")
    if not fits_64_bits(int_column(events, "value")):
        values = values.cast(pa.decimal128(38))
    table = pa.table([*(events.column(name) for name in names), values], [*names, "value"])
    sums = table.group_by(names, use_threads=False).aggregate([("value", "sum"), ("value", "count")])
    plugs = zip(*(sums.column(name).to_pylist() for name in names), strict=True)
    loads = zip(map(int, sums.column("value_sum").to_pylist()), sums.column("value_count").to_pylist(), strict=True)
    return dict(zip(plugs, loads, strict=True))


# ------------------------------------------------------------------------- data


def generate(
    houses: int = 4,
    households: int = 2,
    plugs: int = 5,
    slices: int = 50,
    loads_per_slice: int = 10,
    slice_s: int = HOUR_S,
    seed: int = 1,
    ties: bool = False,
) -> pa.Table:
    """A stream of each house, with so many loads of every plug in each slice, and one of the ends of slices.

    A plug has its own level, and all of them use more in the evening. The paper has 20 houses, 2125 plugs.
    """
    rng = np.random.default_rng(seed)
    span = slice_s * 1_000_000
    per_slice = households * plugs * loads_per_slice
    step = span // (per_slice + 2)
    number = np.repeat(np.arange(slices, dtype=np.int64), per_slice)
    evening = 1 + (HOURS - np.abs(2 * hours_of(number, slice_s) - 38) % HOURS) / HOURS
    made = []
    for house in range(houses):
        slot = np.tile(np.arange(per_slice, dtype=np.int64), slices)
        plug = np.concatenate([rng.permutation(per_slice) % (households * plugs) for _ in range(slices)])
        base = rng.integers(5, 500, households * plugs)
        value = (base[plug] * evening + rng.integers(0, 50, len(plug))).astype(np.int64)
        times = number * span + (slot + 1) * step + rng.integers(0, max(1, step), len(plug))
        columns = {"kind": "load", "house": house, "household": plug // plugs, "plug": plug % plugs, "value": value}
        made.append(Stream(f"house-{house:02d}", times, columns))
    ends = (np.arange(slices, dtype=np.int64) + 1) * span - 1
    columns = {"kind": "end", "house": ALL, "household": ALL, "plug": ALL, "value": np.arange(slices)}
    made.append(Stream("clock", ends, columns))
    return interleaved(made, EVENTS, tie=4 * step if ties else 1)


def hours_of(numbers: Ints, slice_s: int) -> Ints:
    return numbers * slice_s // HOUR_S % HOURS


def expected(events: pa.Table, slice_s: int = HOUR_S) -> pa.Table:
    """One level at a time: a table of sums by slice and place, and for each slice the earlier ones of its hour."""
    events = in_time_order(events)
    is_end = is_kind(events, "end")
    ends, loads = events.filter(pa.array(is_end)), events.filter(pa.array(~is_end))
    times, numbers = ends.column("time").to_pylist(), int_column(ends, "value")
    slot, values = np.cumsum(is_end)[~is_end], int_column(loads, "value")
    columns = [int_column(loads, name) for name in ("house", "household", "plug")]
    found: list[tuple[Any, ...]] = []
    for level, title in enumerate(LEVELS):
        places, codes = _places(columns[:level], len(slot))
        sums, counts = np.zeros((2, len(numbers) + 1, len(places)), np.int64)
        np.add.at(sums, (slot, codes), values)
        np.add.at(counts, (slot, codes), 1)
        for at, (time, number) in enumerate(zip(times, numbers.tolist(), strict=True)):
            is_hour = hours_of(numbers[:at], slice_s) == hour_of(number + 2, slice_s)
            past, past_count = sums[:at][is_hour].sum(axis=0), counts[:at][is_hour].sum(axis=0)
            for place in np.flatnonzero(counts[at]).tolist():
                load = Fraction(int(sums[at, place]), int(counts[at, place]))
                if past_count[place]:
                    load = (load + Fraction(int(past[place]), int(past_count[place]))) / 2
                found.append((time, number + 2, title, *places[place], load * 1000 // 1))
    rows = [dict(zip(SmartHome.outputs.names, row, strict=True)) for row in found]
    return pa.Table.from_pylist(rows, SmartHome.outputs)


def _places(columns: list[Ints], count: int) -> tuple[list[tuple[Any, ...]], Ints]:
    """The different places, padded to three numbers, and for each row which it is."""
    codes = np.zeros(count, np.int64)
    for column in columns:
        words, own = np.unique(column, return_inverse=True)
        codes = codes * len(words) + own
    _, firsts, codes = np.unique(codes, return_index=True, return_inverse=True)
    places = [tuple(int(column[row]) for column in columns) for row in firsts.tolist()]
    return [(*place, None, None, None)[:3] for place in places], codes
