"""Hypothesis strategies: random events, random metrics over them, random cuts into frames.

```python
@given(event_cases(), st.data())
def test_mine(case, data):
    expected = oracle_table(case.text, case.table, time=case.time, id=case.id, arrival=case.arrival)
    frames = data.draw(frame_sizes(case.table.num_rows))
```
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from headrace.testing.texts import metric_texts
from headrace.testing.values import KINDS, OVERFLOWING, UTC, Kind

Draw = Callable[[st.SearchStrategy[Any]], Any]

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
_BASES = (_EPOCH, _EPOCH - dt.timedelta(seconds=31), dt.datetime(2024, 2, 29, 23, 59, 45, tzinfo=UTC))

KEYS: tuple[Kind, ...] = (
    Kind("card", pa.string(), ("a", "b", ""), number=False),
    Kind("shop", pa.int32(), (0, 1, -1)),
    Kind("rate", pa.float64(), (0.0, -0.0, math.nan, 1.0)),
    Kind("region", pa.bool_(), (True, False), number=False),
)
"""Columns to group by: few values, so that windows fill."""


@dataclass(frozen=True)
class EventCase:
    """A table, a text over it, and the columns that give time, identity and order of arrival."""

    table: pa.Table
    text: str
    time: str = "ts"
    id: str | None = "id"
    arrival: str | None = None


@st.composite
def event_cases(draw: Draw, max_rows: int = 40, overflow: bool = False) -> EventCase:
    """A random table with a random text over it; with `overflow`, integers and decimals near the end of their range."""
    table = draw(event_tables(max_rows=max_rows, overflow=overflow))
    arrival = "arrival" if draw(st.booleans()) else None
    return EventCase(table, draw(metric_texts(table.schema)), arrival=arrival)


@st.composite
def event_tables(draw: Draw, max_rows: int = 40, overflow: bool = False) -> pa.Table:
    """Events in any order: ties and gaps in time, nulls everywhere, few groups, late arrival, unique ids.

    Columns: `id` (unique), `ts` (sometimes null), `arrival` (a permutation, with ties; sometimes null), one to three
    key columns and one to four value columns of random types. Times are seconds apart, now and then one microsecond.
    """
    rows = draw(st.integers(0, max_rows))
    kinds = [*_some(draw, KEYS, 1, 3), *_some(draw, KINDS, 1, 4), *(_some(draw, OVERFLOWING, 1, 2) if overflow else [])]
    ids = draw(st.permutations(range(rows)))
    columns = {"id": pa.array(ids, pa.int64()), "ts": _times(draw, rows), "arrival": _arrivals(draw, rows)}
    for kind in kinds:
        columns[kind.name] = _column(draw, kind, rows)
    return pa.table(columns)


def frame_sizes(rows: int) -> st.SearchStrategy[list[int]]:
    """Sizes of the pieces that `rows` rows are cut into: one by one, all at once, anything between, empty ones too."""
    anywhere = st.lists(st.integers(0, max(1, rows // 2)), max_size=8)
    return st.one_of(st.just([]), st.just([1] * rows), anywhere)


def values(kind: Kind) -> st.SearchStrategy[Any]:
    """Values of a kind: the ones that are known to hurt, and any others of its type."""
    known = st.sampled_from(kind.values)
    return st.one_of(known, known, _any_of(kind.type)) if kind not in OVERFLOWING else known


def _any_of(type: pa.DataType) -> st.SearchStrategy[Any]:
    """Any value of a type, small enough that forty of them do not overflow a sum."""
    if pa.types.is_integer(type):
        bits = min(type.bit_width, 58) - 1
        return st.integers(-(2**bits), 2**bits - 1)
    if pa.types.is_floating(type):
        return st.floats(width=type.bit_width)
    if pa.types.is_decimal(type):
        # Two digits are kept free: a sum of forty grows by two, and an average needs four more behind the point.
        digits = 10 ** (min(type.precision, 32) - 2)
        return st.integers(-digits, digits).map(lambda unscaled: Decimal(unscaled).scaleb(-type.scale))
    if pa.types.is_timestamp(type):
        return st.datetimes(timezones=st.just(UTC)) if type.tz else st.datetimes()
    simple: dict[pa.DataType, st.SearchStrategy[Any]] = {
        pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        pa.binary(): st.binary(max_size=4),
        pa.bool_(): st.booleans(),
        pa.date32(): st.dates(),
    }
    return simple[type]


def _some(draw: Draw, kinds: Sequence[Kind], least: int, most: int) -> list[Kind]:
    return draw(st.lists(st.sampled_from(kinds), min_size=least, max_size=most, unique_by=lambda kind: kind.name))  # type: ignore[no-any-return]


def _column(draw: Draw, kind: Kind, rows: int) -> pa.Array:
    """A small pool of values and a choice from it for every row: so values repeat, and failures shrink well."""
    pool = [None, *draw(st.lists(values(kind), min_size=1, max_size=6))]
    choices = draw(st.lists(st.integers(0, len(pool) - 1), min_size=rows, max_size=rows))
    return pa.array([pool[choice] for choice in choices], kind.type)


def _times(draw: Draw, rows: int) -> pa.Array:
    base = draw(st.sampled_from(_BASES))
    seconds = draw(st.lists(st.integers(-1, 40), min_size=rows, max_size=rows))
    micros = draw(st.lists(st.sampled_from((0, 0, 0, 0, 1, -1)), min_size=rows, max_size=rows))
    moments = [
        None if second < 0 else base + dt.timedelta(seconds=second, microseconds=micro)
        for second, micro in zip(seconds, micros, strict=True)
    ]
    return pa.array(moments, pa.timestamp("us", "UTC"))


def _arrivals(draw: Draw, rows: int) -> pa.Array:
    """Any order, in bunches of one to three that the time and the id must put in order."""
    bunch = draw(st.integers(1, 3))
    places = [place // bunch for place in draw(st.permutations(range(rows)))]
    missing = draw(st.sets(st.integers(0, max(0, rows - 1)), max_size=1)) if rows > 5 else set()
    return pa.array([None if row in missing else place for row, place in enumerate(places)], pa.int64())
