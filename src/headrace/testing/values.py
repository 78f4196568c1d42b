"""Values that break aggregations: for every type of column, the ones that a sum, an order or a hash gets wrong first.

The contract checks and the hypothesis strategies draw from here, so both meet the same corner cases.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

UTC = dt.UTC


@dataclass(frozen=True)
class Kind:
    """A column type under test: its name (also the column's), its Arrow type, values, and whether it is a number."""

    name: str
    type: pa.DataType
    values: tuple[Any, ...]
    number: bool = True


INT8 = Kind("i8", pa.int8(), (-128, -1, 0, 1, 1, 2, 127))
INT16 = Kind("i16", pa.int16(), (-32768, -7, 0, 3, 32767))
INT32 = Kind("i32", pa.int32(), (-(2**31), -5, -1, 0, 1, 2, 2, 3, 2**31 - 1))
INT64 = Kind("i64", pa.int64(), (-9, -2, -1, 0, 1, 2, 3, 3, 1000, 2**53 + 1, -(2**53) - 1))
DOUBLE = Kind(
    "f64", pa.float64(), (0.1, 0.2, -0.3, 1.0, 2.5, 1e16, -1e16, 3.0, 1e-16, 1e100, -1e100, 1e-300, 1e300, 7.0, 1 / 3)
)
SPECIAL_DOUBLE = Kind(
    "special", pa.float64(), (0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -1.5, 5e-324, 2.2250738585072014e-308, 1.0)
)
FLOAT = Kind("f32", pa.float32(), (0.0, -0.0, math.nan, 1.5, -2.25, 16777216.0, 1.0, 2.0**-149, 2.0**120, math.inf))
DECIMAL = Kind(
    "d10", pa.decimal128(10, 2), tuple(map(Decimal, ("0.00", "0.01", "-0.01", "1.10", "19.99", "99999999.99", "-7.25")))
)
WIDE_DECIMAL = Kind(
    "d38",
    pa.decimal128(38, 4),
    tuple(
        map(
            Decimal,
            ("0.0000", "0.0001", "-0.0001", "12345678901234567890123456.7891", "-98765432109876543210.5", "3.1"),
        )
    ),
)
STRING = Kind("text", pa.string(), ("", "a", "A", "aa", "b", "é", "e\u0301", "日本", "😀", "z" * 40, " "), number=False)
BINARY = Kind("raw", pa.binary(), (b"", b"\x00", b"\x00\x00", b"a", b"\xff", b"ab"), number=False)
BOOL = Kind("flag", pa.bool_(), (True, False), number=False)
DATE = Kind(
    "day", pa.date32(), (dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1, 1, 1)), False
)
TIMESTAMP = Kind(
    "moment",
    pa.timestamp("us", "UTC"),
    (
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        dt.datetime(1970, 1, 1, tzinfo=UTC),
        dt.datetime(2024, 5, 6, 7, 8, 9, 123456, UTC),
        dt.datetime(2024, 5, 6, 7, 8, 9, 123457, UTC),
    ),
    number=False,
)
LOCAL_TIMESTAMP = Kind(
    "local",
    pa.timestamp("us"),
    (dt.datetime(1999, 12, 31, 23, 59), dt.datetime(2024, 1, 1), dt.datetime(1, 1, 1)),
    False,
)

KINDS: tuple[Kind, ...] = (
    INT8, INT16, INT32, INT64, DOUBLE, SPECIAL_DOUBLE, FLOAT, DECIMAL, WIDE_DECIMAL,
    STRING, BINARY, BOOL, DATE, TIMESTAMP, LOCAL_TIMESTAMP,
)  # fmt: skip

MAX_INT64, MIN_INT64 = 2**63 - 1, -(2**63)
NEAR_OVERFLOW = Kind("big", pa.int64(), (MAX_INT64, MIN_INT64, 2**62, -(2**62), MAX_INT64 - 1, 1, -1, 0))
FULL_DECIMAL = Kind(
    "full", pa.decimal128(38, 4), (Decimal("9" * 34 + ".9999"), Decimal("-" + "9" * 34 + ".9999"), Decimal("0.0001"))
)
OVERFLOWING: tuple[Kind, ...] = (NEAR_OVERFLOW, FULL_DECIMAL)
"""Columns whose sums may leave their type: the answer is MetricOverflow."""

WINDOWS: tuple[str, ...] = (
    "sliding 5s",
    "sliding 1us",
    "sliding 9s delayed by 3s",
    "tumbling 10s",
    "tumbling 10s delayed by 4s",
    "infinite",
    "infinite delayed by 7s",
    "sliding 1 events",
    "sliding 4 events",
    "sliding 100 events",
)
"""Every kind of window, for events some seconds apart."""
