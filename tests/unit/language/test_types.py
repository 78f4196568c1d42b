"""Which type an expression has."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import BindError
from headrace.language import parse, type_of
from headrace.language.nodes import Column
from headrace.language.plain_types import plain_type

SCHEMA = pa.schema(
    {
        "i8": pa.int8(),
        "i32": pa.int32(),
        "i64": pa.int64(),
        "f32": pa.float32(),
        "f64": pa.float64(),
        "d": pa.decimal128(10, 2),
        "wide": pa.decimal128(38, 10),
        "s": pa.string(),
        "b": pa.bool_(),
        "day": pa.date32(),
        "ts": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
    }
)
DEC = pa.decimal128


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1", pa.int32()),
        ("3000000000", pa.int64()),
        ("9223372036854775808", DEC(19, 0)),
        ("1.50", DEC(3, 2)),
        ("0.05", DEC(2, 2)),
        ("1e0", pa.float64()),
        ("'a'", pa.string()),
        ("TRUE", pa.bool_()),
        ("NULL", pa.null()),
        ("i8 + i8", pa.int64()),
        ("i8 - i64", pa.int64()),
        ("i32 / i32", pa.float64()),
        ("i32 % 2", pa.int64()),
        ("f32 * f32", pa.float64()),
        ("-f32", pa.float64()),
        ("-i8", pa.int64()),
        ("-d", DEC(10, 2)),
        ("f64 * 1.5", pa.float64()),
        ("d * f32", pa.float64()),
        ("i32 + NULL", pa.int64()),
        ("d + NULL", DEC(11, 2)),
        # Spark's own answers for decimals.
        ("d + d", DEC(11, 2)),
        ("d * d", DEC(21, 4)),
        ("d / d", DEC(23, 13)),
        ("d % d", DEC(10, 2)),
        ("d + 1", DEC(11, 2)),
        ("d * 2", DEC(12, 2)),
        ("d * 1.5", DEC(13, 3)),
        ("i32 * 1.5", DEC(13, 1)),
        ("d + i64", DEC(23, 2)),
        ("wide + wide", DEC(38, 9)),
        ("wide * d", DEC(38, 6)),
        ("s || 'x'", pa.string()),
        ("i8 > f64", pa.bool_()),
        ("day = ts", pa.bool_()),
        ("ts > '2024-01-01'", pa.bool_()),
        ("i32 IN (1, NULL)", pa.bool_()),
        ("CASE WHEN b THEN i8 ELSE i32 END", pa.int32()),
        ("CASE WHEN b THEN i32 ELSE 1.5 END", DEC(11, 1)),
        ("CASE WHEN b THEN d ELSE f32 END", pa.float64()),
        ("CASE WHEN b THEN NULL ELSE s END", pa.string()),
        ("CASE WHEN b THEN NULL END", pa.null()),
        ("coalesce(d, 0)", DEC(12, 2)),
        ("coalesce(day, ts)", pa.timestamp("us", "UTC")),
        ("coalesce(day, local)", pa.timestamp("us")),
        ("greatest(i8, i64)", pa.int64()),
        ("abs(i8)", pa.int64()),
        ("abs(d)", DEC(10, 2)),
        ("length(s)", pa.int32()),
        ("round(f32)", pa.float64()),
        ("round(d, 1)", DEC(10, 1)),
        ("round(d, 5)", DEC(11, 2)),
        ("round(i8)", pa.int64()),
        ("floor(f64)", pa.int64()),
        ("ceil(d)", DEC(9, 0)),
        ("sqrt(i8)", pa.float64()),
        ("nullif(i8, 1)", pa.int8()),
        ("if(b, 1, 2.5)", DEC(11, 1)),
        ("CAST(s AS tinyint)", pa.int8()),
        ("CAST(s AS timestamp)", pa.timestamp("us", "UTC")),
        ("CAST(s AS timestamp_ntz)", pa.timestamp("us")),
        ("CAST(NULL AS binary)", pa.binary()),
    ],
)
def test_types(text: str, wanted: pa.DataType) -> None:
    expr = parse(f"SELECT max({text}) FROM p OVER infinite")[0].items[0].args[0]
    assert type_of(expr, SCHEMA) == wanted


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint64(), DEC(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.binary(4), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns", "Europe/Paris"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.decimal32(5, 2), DEC(5, 2)),
        (pa.decimal256(38, 2), DEC(38, 2)),
        (pa.decimal256(39, 2), None),
        (pa.list_(pa.int8()), None),
        (pa.struct({"a": pa.int8()}), None),
        (pa.map_(pa.int8(), pa.int8()), None),
        (pa.time64("us"), None),
        (pa.duration("us"), None),
    ],
)
def test_columns_are_brought_to_plain_types(given: pa.DataType, plain: pa.DataType | None) -> None:
    assert plain_type(given) == plain


def test_a_missing_column() -> None:
    with pytest.raises(BindError, match="there is no column x"):
        type_of(Column("x"), SCHEMA)
