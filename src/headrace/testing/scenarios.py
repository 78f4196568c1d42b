"""Fixed event tables for the contract checks: small, and full of what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.testing.values import FULL_DECIMAL, KINDS, MAX_INT64, MIN_INT64, NEAR_OVERFLOW, Kind

SECOND = 1_000_000


@dataclass(frozen=True)
class Scenario:
    """A table of events and the columns that give time, identity and order of arrival."""

    table: pa.Table
    time: str = "ts"
    id: str | None = "id"
    arrival: str | None = None


def scenario(kind: Kind, *, seed: int, rows: int = 60, arrival: str | None = None) -> Scenario:
    """Events with an argument `x` of a kind: ties, gaps, nulls, late arrivals, a group of nulls and an empty group.

    Columns: id, ts, arrival, key (two busy groups; `quiet`, where every x is null; `out`, where no row passes; null),
    ok (true, false or null; the filter) and x.
    """
    dice = random.Random(seed)
    keys = [dice.choice(("a", "a", "a", "b", "b", "quiet", "out", None)) for _ in range(rows)]
    passes = [dice.choice((True, True, True, False, None)) if key != "out" else False for key in keys]
    x = [None if key == "quiet" or dice.random() < 0.15 else dice.choice(kind.values) for key in keys]
    times = [_time(dice) for _ in range(rows)]
    columns = {
        "id": pa.array(dice.sample(range(1000), rows), pa.int64()),
        "ts": pa.array(times, pa.timestamp("us", "UTC")),
        "arrival": pa.array(_late(dice, times), pa.int64()),
        "key": pa.array(keys, pa.string()),
        "ok": pa.array(passes, pa.bool_()),
        "x": pa.array(x, kind.type),
    }
    return Scenario(pa.table(columns), arrival=arrival)


def every_kind(rows: int = 60) -> pa.Table:
    """The events of a scenario with one column for every type, named as the kind, instead of `x`."""
    table = scenario(KINDS[0], seed=21, rows=rows).table.drop_columns(["x"])
    dice = random.Random(22)
    for kind in KINDS:
        values = [dice.choice((None, *kind.values)) for _ in range(rows)]
        table = table.append_column(kind.name, pa.array(values, kind.type))
    return table


def near_the_limits() -> Iterator[Scenario]:
    """Sequences of values at the end of a type's range, one a second, in order and late."""
    for values in _INT64:
        yield from _sequences(values, NEAR_OVERFLOW.type)
    for values in _DECIMAL:
        yield from _sequences(values, FULL_DECIMAL.type)


_MOST, _LEAST, _TINY = FULL_DECIMAL.values
_NEARLY = Decimal("9" * 34 + ".9998")

_INT64: tuple[tuple[Any, ...], ...] = (
    (MAX_INT64 - 1, 1),
    (MIN_INT64 + 1, -1),
    (MAX_INT64, 1),
    (MIN_INT64, -1),
    (MAX_INT64, MIN_INT64, MAX_INT64),
    # Each fits a window of its own; no state may hold the sum of three.
    (MAX_INT64, -MAX_INT64, MAX_INT64, None, -MAX_INT64, MIN_INT64 + 1, MAX_INT64),
    (MAX_INT64, 0, 0, MAX_INT64, 0, 0, MIN_INT64),
    # In order of time the running sum leaves the range before it comes back.
    (MAX_INT64, 5, -10, 1),
)
_DECIMAL: tuple[tuple[Any, ...], ...] = (
    (_NEARLY, _TINY),
    (_LEAST, -_TINY),
    (_MOST, _TINY),
    # The sum of two does not fit 128 bits.
    (_MOST, _LEAST, _MOST, None, _LEAST),
    (_MOST, Decimal(0), Decimal(0), _MOST, Decimal(0), Decimal(0), _LEAST),
    (_MOST, Decimal(5), Decimal(-10), Decimal(1)),
    # An average of eight places still fits these.
    (Decimal("9" * 29 + ".0001"), Decimal("1.0001"), Decimal("-" + "9" * 29 + ".0003")),
)


def _sequences(values: Sequence[Any], type: pa.DataType) -> Iterator[Scenario]:
    """The values in order of time; arriving backwards, but for the newest; and two at a time."""
    rows = len(values)
    for arrival, gap in ((None, 1), ("arrival", 1), (None, 2)):
        columns = {
            "id": pa.array(range(rows), pa.int64()),
            "ts": pa.array([row // gap * SECOND for row in range(rows)], pa.timestamp("us", "UTC")),
            "arrival": pa.array([*range(rows - 1, 0, -1), rows], pa.int64()),
            "x": pa.array(values, type),
        }
        yield Scenario(pa.table(columns), arrival=arrival)


def _time(dice: random.Random) -> int:
    """Seconds around the epoch, now and then a microsecond off, so that windows open and close exactly on events."""
    return dice.randrange(-8, 32) * SECOND + dice.choice((0, 0, 0, 0, 1, -1))


def _late(dice: random.Random, times: list[int]) -> list[int]:
    """Places in the order of arrival: mostly by time, some much later, some in bunches that tie."""
    delayed = [time + dice.choice((0, 0, 0, 3, 20)) * SECOND for time in times]
    places = sorted(range(len(times)), key=lambda row: delayed[row])
    return [places.index(row) // 2 for row in range(len(times))]
