"""Casts between all plain types; what cannot be cast is null."""

from __future__ import annotations

import datetime as dt
import math
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest

from headrace.language.casts import round_doubles, try_cast
from headrace.language.type_names import arrow_type

D, UTC = Decimal, dt.UTC
NAN, INF = math.nan, math.inf
TS, NTZ = pa.timestamp("us", "UTC"), pa.timestamp("us")


def at(*parts: int, micros: int = 0, zone: dt.tzinfo | None = UTC) -> dt.datetime:
    return dt.datetime(*parts, microsecond=micros, tzinfo=zone)  # type: ignore[misc, arg-type]


CASES: list[tuple[list[Any], pa.DataType, str, list[Any]]] = [
    # to boolean
    ([0, 5, None], pa.int32(), "boolean", [False, True, None]),
    ([0.0, NAN], pa.float64(), "boolean", [False, True]),
    ([D("0.0"), D("0.1")], pa.decimal128(2, 1), "boolean", [False, True]),
    (["true", " T ", "NO", "0", "1", "maybe", ""], pa.string(), "boolean",
     [True, True, False, False, True, None, None]),
    # to integers
    ([True, False, None], pa.bool_(), "int", [1, 0, None]),
    ([127, 128, -128, -129], pa.int64(), "tinyint", [127, None, -128, None]),
    ([2**63 - 1], pa.int64(), "int", [None]),
    ([1.9, -1.9, NAN, INF, 2.0**63, -(2.0**63)], pa.float64(), "bigint", [1, -1, None, None, None, -(2**63)]),
    ([127.9, 128.0, -128.9, -129.0], pa.float32(), "tinyint", [127, None, -128, None]),
    ([D("1.99"), D("-1.99")], pa.decimal128(3, 2), "int", [1, -1]),
    ([D("0.99"), D("-0.50")], pa.decimal128(2, 2), "int", [0, 0]),
    ([D(2**63), D(-(2**63))], pa.decimal128(38, 0), "bigint", [None, -(2**63)]),
    (["12", " -7 ", "+5", "abc", "", "1.5", "9" * 19, "9" * 50], pa.string(), "bigint",
     [12, -7, 5, None, None, None, None, None]),
    (["300", "-128"], pa.string(), "tinyint", [None, -128]),
    ([at(1970, 1, 1, 0, 0, 1, micros=999_999), at(1969, 12, 31, 23, 59, 59, micros=1)], TS, "bigint", [1, -1]),
    # to floats
    ([True, None], pa.bool_(), "double", [1.0, None]),
    ([2**53 + 1], pa.int64(), "double", [2.0**53]),
    ([D("0.07"), D("-9999999999.07")], pa.decimal128(12, 2), "double", [0.07, -9999999999.07]),
    ([D("0.1000000000000000055511151231257827")], pa.decimal128(35, 34), "double", [0.1]),
    (["1.5", " 1e3 ", "NaN", "-Infinity", "+inf", ".5", "1e999", "x", "", "1_0"], pa.string(), "double",
     [1.5, 1000.0, NAN, -INF, INF, 0.5, INF, None, None, None]),
    ([1e300, 0.1], pa.float64(), "float", [INF, 0.10000000149011612]),
    ([at(1970, 1, 1, 0, 0, 1, micros=500_000)], TS, "double", [1.5]),
    # to decimals
    ([True], pa.bool_(), "decimal(3,1)", [D("1.0")]),
    ([5, 100, -99], pa.int64(), "decimal(3,1)", [D("5.0"), None, D("-99.0")]),
    ([1.005, -1.005, 0.004999, 99.995, NAN, INF, 1e-300, 99.994], pa.float64(), "decimal(4,2)",
     [D("1.01"), D("-1.01"), D("0.00"), None, None, None, D("0.00"), D("99.99")]),
    ([1e37, 123456789.123], pa.float64(), "decimal(38,0)", [D(10**37), D(123456789)]),
    ([0.1, 1e-38], pa.float64(), "decimal(38,38)", [D("0.1"), D("1E-38")]),
    ([D("1.25"), D("-1.25"), D("9.99")], pa.decimal128(3, 2), "decimal(2,1)", [D("1.3"), D("-1.3"), None]),
    (["1.255", " -2 ", "1e1", "1.5E-1", "1000", "x", ""], pa.string(), "decimal(5,2)",
     [D("1.26"), D("-2.00"), D("10.00"), D("0.15"), None, None, None]),
    (["9" * 38, "0." + "1" * 38], pa.string(), "decimal(38,0)", [D("9" * 38), D(0)]),
    # to strings
    ([True, False, None], pa.bool_(), "string", ["true", "false", None]),
    ([-5], pa.int8(), "string", ["-5"]),
    ([1.0, 0.1, 1e22, NAN, INF, -INF, -0.0], pa.float64(), "string",
     ["1.0", "0.1", "1e+22", "NaN", "Infinity", "-Infinity", "-0.0"]),
    ([D("0"), D("1E-10"), D("-12.5"), None], pa.decimal128(20, 10), "string",
     ["0.0000000000", "0.0000000001", "-12.5000000000", None]),
    ([D("-0.5")], pa.decimal128(38, 38), "string", ["-0.5" + "0" * 37]),
    ([D(-5)], pa.decimal128(3, 0), "string", ["-5"]),
    ([dt.date(2024, 2, 29)], pa.date32(), "string", ["2024-02-29"]),
    ([at(2024, 1, 1), at(2024, 1, 1, 10, 20, 30, micros=120_000), at(2024, 1, 1, 10, 0, 0, micros=1)], TS, "string",
     ["2024-01-01 00:00:00", "2024-01-01 10:20:30.12", "2024-01-01 10:00:00.000001"]),
    ([2**62], NTZ, "string", [None]),
    # to binary, dates, timestamps
    (["é"], pa.string(), "binary", ["é".encode()]),
    (["2024-02-29", " 2024-12-31 ", "2024-12-31T10:00", "2023-02-29", "1900-02-29", "2000-02-29",
      "2024-13-01", "0000-01-01", "x"], pa.string(), "date",
     [dt.date(2024, 2, 29), dt.date(2024, 12, 31), dt.date(2024, 12, 31), None, None, dt.date(2000, 2, 29),
      None, None, None]),
    ([at(1970, 1, 1), at(1969, 12, 31, 23, 59, 59)], TS, "date", [dt.date(1970, 1, 1), dt.date(1969, 12, 31)]),
    (["2024-01-01", "2024-01-01 10:20", "2024-01-01T10:20:30.5Z", "2024-01-01 10:20:30+02:00",
      "2024-01-01 10:20-0130", "2024-01-01 24:00", "2024-01-01 ", "x"], pa.string(), "timestamp",
     [at(2024, 1, 1), at(2024, 1, 1, 10, 20), at(2024, 1, 1, 10, 20, 30, micros=500_000),
      at(2024, 1, 1, 8, 20, 30), at(2024, 1, 1, 11, 50), None, at(2024, 1, 1), None]),
    (["2024-01-01 10:20:30+02:00"], pa.string(), "timestamp_ntz", [at(2024, 1, 1, 8, 20, 30, zone=None)]),
    ([dt.date(1969, 12, 31)], pa.date32(), "timestamp", [at(1969, 12, 31)]),
    ([2**31 - 1], pa.date32(), "timestamp", [None]),
    ([1, -1, 2**62], pa.int64(), "timestamp", [at(1970, 1, 1, 0, 0, 1), at(1969, 12, 31, 23, 59, 59), None]),
    ([1.5, NAN, 1e300], pa.float64(), "timestamp", [at(1970, 1, 1, 0, 0, 1, micros=500_000), None, None]),
    ([at(2024, 1, 1)], TS, "timestamp_ntz", [at(2024, 1, 1, zone=None)]),
    # null
    ([None, None], pa.null(), "decimal(5,2)", [None, None]),
]  # fmt: skip


@pytest.mark.parametrize(("values", "given", "target", "wanted"), CASES)
def test_casts(values: list[Any], given: pa.DataType, target: str, wanted: list[Any]) -> None:
    result = try_cast(pa.array(values, given), arrow_type(target))
    result.validate(full=True)
    assert result.type == arrow_type(target)
    found = result.to_pylist()
    assert [NAN_TEXT if is_nan(value) else value for value in found] == [
        NAN_TEXT if is_nan(value) else value for value in wanted
    ]


NAN_TEXT = "NaN"


def is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


@pytest.mark.parametrize("scale", [0, 1, 2, 6, 15, 30])
def test_a_double_is_rounded_by_its_shortest_text(scale: int) -> None:
    sizes = (1e-12, 1e-3, 0.5, 1.005, 2.675, 12345.678, 99999.99999, 1e9 / 3, 1e12 / 7, 1.5)
    values = [sign * (size + step / 8) for sign in (1, -1) for size in sizes for step in range(40)]
    with localcontext(prec=80):
        texts = [D(repr(value)).quantize(D(1).scaleb(-scale), ROUND_HALF_UP) for value in values]
    target = pa.decimal128(38, scale)
    wanted = [text if abs(text) < D(10) ** (38 - scale) else None for text in texts]
    assert try_cast(pa.array(values), target).to_pylist() == wanted
    if scale <= 15:
        assert round_doubles(pa.array(values), scale).to_pylist() == [float(text) for text in texts]


def test_a_decimal_becomes_the_nearest_double() -> None:
    values = [D(n).scaleb(-2) for n in range(-9_999_999_999, 9_999_999_999, 7_777_777)]
    result = try_cast(pa.array(values, pa.decimal128(12, 2)), pa.float64())
    assert result.to_pylist() == [float(value) for value in values]
