"""What the programs share: streams put into one table, exact sums of runs, rows grouped by a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_SAFE: Final = 1 << 62


# ------------------------------------------------------------------ making events


@dataclass(frozen=True)
class Stream:
    """Events of one source: their times, which rise, and the other columns. A column may be one value for all."""

    name: str
    times: Ints
    columns: Mapping[str, Any]


def slotted_times(windows: int, per_window: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Times of `per_window` events in each window, and the time of the end of each: all different, and rising."""
    span = 2 * per_window + 2
    starts = span * np.arange(windows, dtype=np.int64)
    slots = 1 + 2 * np.arange(per_window, dtype=np.int64)
    jitter = rng.integers(0, 2, (windows, per_window))
    return (starts[:, None] + slots + jitter).ravel(), starts + span - 1


def interleaved(streams: Sequence[Stream], schema: pa.Schema, tie: int = 1) -> pa.Table:
    """All streams in one table, by (time, stream, row). Times are cut to multiples of `tie`, which makes equal ones."""
    streams = sorted(streams, key=lambda stream: stream.name)
    times = np.concatenate([stream.times for stream in streams]) // tie * tie
    # Streams are in the order of their names, so a stable sort by time puts ties into the order of streams and rows.
    order = pa.array(np.argsort(times, kind="stable"))
    columns = []
    for field in schema:
        parts = [_column(stream, field) for stream in streams]
        whole = pa.array(times) if field.name == "time" else pa.concat_arrays(parts)
        columns.append(whole.take(order))
    return pa.table(columns, schema=schema)


def _column(stream: Stream, field: pa.Field) -> pa.Array:
    if field.name in ("time", "stream"):
        value: Any = stream.name if field.name == "stream" else 0
    else:
        value = stream.columns.get(field.name)
    if isinstance(value, pa.Array):
        return value
    if isinstance(value, np.ndarray):
        return pa.array(value, field.type)
    return pa.repeat(pa.scalar(value, field.type), len(stream.times))


def in_time_order(events: pa.Table) -> pa.Table:
    """Events by time, then by stream, then as they are."""
    keys = [("time", "ascending"), ("stream", "ascending")]
    return events.take(pc.sort_indices(events, sort_keys=keys)).combine_chunks()


# ----------------------------------------------------------------- columns of a run


def is_kind(events: pa.RecordBatch | pa.Table, kind: str) -> Bools:
    """Which rows are of a kind."""
    found: Bools = pc.equal(events.column("kind"), kind).to_numpy(zero_copy_only=False)
    return found


def int_column(events: pa.RecordBatch | pa.Table, name: str) -> Ints:
    """A column of whole numbers. Raises ValueError where one is missing."""
    column = events.column(name)
    if column.null_count:
        raise ValueError(f"column {name} has {column.null_count} rows without a value")
    found: Ints = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return found


def totals_between(values: Ints, cuts: Ints, first: int) -> npt.NDArray[Any]:
    """The sums of `values` up to each cut, and behind the last; `first` is added to the first of them.

    Exact for all 64-bit values: where a sum might not fit into 64 bits, they are Python's integers.
    """
    if fits_64_bits(values, first):
        sums = _between(values, cuts)
        sums[0] += first
        return sums
    high, low = _between(values >> 32, cuts), _between(values & 0xFFFFFFFF, cuts)
    whole: npt.NDArray[Any] = high.astype(object) * (1 << 32) + low.astype(object)
    whole[0] += first
    return whole


def fits_64_bits(values: Ints, first: int = 0) -> bool:
    """Does every sum of some of these values?"""
    if not len(values):
        return abs(first) < _SAFE
    most = max(abs(int(values.min())), abs(int(values.max())))
    return most * len(values) + abs(first) < _SAFE


def _between(values: Ints, cuts: Ints) -> Ints:
    if not len(cuts):
        return np.array([values.sum()], np.int64)
    until = np.concatenate((np.zeros(1, np.int64), np.cumsum(values)))
    return np.diff(until[np.concatenate(([0], cuts, [len(values)]))])


@dataclass(frozen=True)
class Groups:
    """Rows by key. `order` has the rows of the first key in their order, then those of the second, and so on."""

    keys: pa.Array
    codes: Ints
    """For each row, the number of its key."""
    order: Ints
    is_first: Bools
    """In that order: is it the first of its key?"""


def group_rows(column: pa.Array) -> Groups:
    encoded = column.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    # NumPy sorts 16-bit numbers by radix, many times faster than others.
    small = codes.astype(np.uint16) if len(encoded.dictionary) <= 1 << 16 else codes
    order = np.argsort(small, kind="stable")
    is_first = np.ones(len(codes), np.bool_)
    is_first[1:] = np.diff(codes[order]) != 0
    return Groups(encoded.dictionary, codes, order, is_first)
