"""Expressions over columns: every operator and function, nulls, NaN, the edges."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import MeasureError
from headrace.language import columns_of, evaluate, parse, type_of
from headrace.language.nodes import Column, Expr

NAN, INF = math.nan, math.inf
BATCH = pa.record_batch(
    {
        "i": pa.array([1, None, -3, 0], pa.int64()),
        "j": pa.array([2, 5, 0, None], pa.int32()),
        "f": pa.array([1.5, NAN, -0.0, None]),
        "d": pa.array([Decimal("1.25"), None, Decimal("-0.05"), Decimal("9999.99")], pa.decimal128(6, 2)),
        "s": pa.array(["abc", None, "a%c", "é日"]),
        "b": pa.array([True, None, False, True]),
        "ts": pa.array([0, None, -1, 86_400_000_000], pa.timestamp("us", "UTC")),
        "day": pa.array([0, None, -1, 1], pa.date32()),
        "raw": pa.array([b"ab", None, b"", b"abc"]),
        "max": pa.array([2**63 - 1, None, -(2**63), 0], pa.int64()),
        "n": pa.nulls(4),
    }
)


def expr_of(text: str) -> Expr:
    return parse(f"SELECT max({text}) FROM p OVER infinite")[0].items[0].args[0]


def values_of(text: str, batch: pa.RecordBatch = BATCH) -> list[Any]:
    result = evaluate(expr_of(text), batch)
    result.validate(full=True)
    assert result.type == type_of(expr_of(text), batch.schema)
    assert len(result) == batch.num_rows
    return list(result.to_pylist())


D = Decimal
CASES: list[tuple[str, list[Any]]] = [
    # arithmetic
    ("i + j", [3, None, -3, None]),
    ("i - 1.5", [D("-0.5"), None, D("-4.5"), D("-1.5")]),
    ("i * d", [D("1.25"), None, D("0.15"), D("0.00")]),
    ("i / j", [0.5, None, None, None]),
    ("i % j", [1, None, None, None]),
    ("-7 % 2 + i", [0, None, -4, -1]),
    ("f / 0", [None, None, None, None]),
    ("f / -0.0e0", [None, None, None, None]),
    ("d / 3", [D("0.416667"), None, D("-0.016667"), D("3333.330000")]),
    ("d / 0", [None, None, None, None]),
    ("d % 1", [D("0.25"), None, D("-0.05"), D("0.99")]),
    ("f % 1", [0.5, NAN, -0.0, None]),
    ("i % 0", [None, None, None, None]),
    ("max % -1", [0, None, 0, 0]),
    ("-f", [-1.5, NAN, 0.0, None]),
    ("i + n", [None] * 4),
    ("s || '!' || s", ["abc!abc", None, "a%c!a%c", "é日!é日"]),
    # comparison
    ("i < j", [True, None, True, None]),
    ("f = f", [True, True, True, None]),
    ("f > 1e300", [False, True, False, None]),
    ("f <= 0", [False, False, True, None]),
    ("f <> f", [False, False, False, None]),
    ("f = 0", [False, False, True, None]),
    ("d = 1.25", [True, None, False, False]),
    ("d >= f", [False, None, False, None]),
    ("max > 9223372036854775806.5", [True, None, False, False]),
    ("s < 'b'", [True, None, True, False]),
    ("b > false", [True, None, False, True]),
    ("raw >= raw", [True, None, True, True]),
    ("ts >= '1970-01-01'", [True, None, False, True]),
    ("ts = day", [True, None, False, True]),
    ("day = '1970-01-02'", [False, None, False, True]),
    ("day < '1970-01-01 00:00:01'", [True, None, True, False]),
    ("ts < timestamp '1970-01-01 00:00:00+01:00'", [False, None, False, False]),
    ("i = n", [None] * 4),
    ("NULL = NULL", [None] * 4),
    # logic
    ("b AND NULL", [None, None, False, None]),
    ("b OR NULL", [True, None, None, True]),
    ("NOT b", [False, None, True, False]),
    ("NOT NULL", [None] * 4),
    ("b AND i > 0 AND TRUE", [True, None, False, False]),
    ("i IS NULL", [False, True, False, False]),
    ("i IS NOT NULL", [True, False, True, True]),
    ("n IS NULL", [True] * 4),
    # predicates
    ("i IN (1, 0)", [True, None, False, True]),
    ("i NOT IN (1, 0)", [False, None, True, False]),
    ("i IN (1, NULL)", [True, None, None, None]),
    ("i NOT IN (1, NULL)", [False, None, None, None]),
    ("i IN (j, 0.0, -3)", [False, None, True, True]),
    ("f IN (0, 1.5)", [True, False, True, None]),
    ("s IN ('abc', 'x')", [True, None, False, False]),
    ("day IN ('1970-01-01', '1970-01-02 00:00:00')", [True, None, False, True]),
    ("1 IN (i, j)", [True, None, False, None]),
    ("1 IN (1, 2)", [True] * 4),
    ("d IN (1.250, 9999.99)", [True, None, False, True]),
    ("i BETWEEN 0 AND j", [True, None, False, None]),
    ("i NOT BETWEEN 0 AND j", [False, None, True, None]),
    ("2 BETWEEN i AND j", [True, None, False, None]),
    ("s LIKE 'a%'", [True, None, True, False]),
    ("s NOT LIKE 'a_c'", [False, None, False, True]),
    (r"s LIKE 'a\%c'", [False, None, True, False]),
    ("s LIKE '__'", [False, None, False, True]),
    ("n LIKE 'a'", [None] * 4),
    ("'a.c' LIKE 'a_c'", [True] * 4),
    # case
    ("CASE WHEN i > 0 THEN 'up' WHEN i < 0 THEN 'down' END", ["up", None, "down", None]),
    ("CASE WHEN b THEN i ELSE 0.5 END", [D("1.0"), D("0.5"), D("0.5"), D("0.0")]),
    ("CASE i WHEN 1 THEN 'one' ELSE s END", ["one", None, "a%c", "é日"]),
    ("CASE WHEN TRUE THEN 1 END", [1, 1, 1, 1]),
    ("CASE WHEN NULL THEN 1 ELSE 2 END", [2, 2, 2, 2]),
    ("CASE WHEN b THEN NULL END", [None] * 4),
    ("CASE WHEN max < 100 AND max > -100 THEN max * max ELSE 0 END", [0, 0, 0, 0]),
    ("CASE WHEN b IS NULL AND s IS NOT NULL THEN 9223372036854775807 + 1 ELSE i END", [1, None, -3, 0]),
    ("CASE WHEN max > 100 THEN 1 WHEN max < -100 THEN 2 WHEN max * max = 0 THEN 3 END", [1, None, 2, 3]),
    # functions
    ("coalesce(i, j, 0)", [1, 5, -3, 0]),
    ("coalesce(n, i)", [1, None, -3, 0]),
    ("nvl(s, '?')", ["abc", "?", "a%c", "é日"]),
    ("abs(i)", [1, None, 3, 0]),
    ("abs(d)", [D("1.25"), None, D("0.05"), D("9999.99")]),
    ("abs(f)", [1.5, NAN, 0.0, None]),
    ("lower(upper(s))", ["abc", None, "a%c", "é日"]),
    ("upper(s)", ["ABC", None, "A%C", "É日"]),
    ("length(s)", [3, None, 3, 2]),
    ("length(raw)", [2, None, 0, 3]),
    ("length(NULL)", [None] * 4),
    ("trim(' a ')", ["a"] * 4),
    ("concat(s, '-', upper(s))", ["abc-ABC", None, "a%c-A%C", "é日-É日"]),
    ("substr(s, 2)", ["bc", None, "%c", "日"]),
    ("substr(s, 0, 1)", ["a", None, "a", "é"]),
    ("substr(s, -2, 1)", ["b", None, "%", "é"]),
    ("substr(s, -2, 9)", ["bc", None, "%c", "é日"]),
    ("substr(s, -3, 2)", ["ab", None, "a%", "é"]),
    ("substring(s, 1, 0)", ["", None, "", ""]),
    ("round(f)", [2.0, NAN, 0.0, None]),
    ("round(2.675e0, 2)", [2.68] * 4),
    ("round(-0.5e0)", [-1.0] * 4),
    ("round(1e300, 3)", [1e300] * 4),
    ("round(d, 1)", [D("1.3"), None, D("-0.1"), D("10000.0")]),
    ("round(i, 2)", [1, None, -3, 0]),
    ("floor(d)", [D(1), None, D(-1), D(9999)]),
    ("ceil(d)", [D(2), None, D(0), D(10000)]),
    ("ceiling(0.5)", [D(1)] * 4),
    ("floor(f)", [1, None, 0, None]),
    ("floor(-0.5e0)", [-1] * 4),
    ("floor(j)", [2, 5, 0, None]),
    ("floor(1e300)", [None] * 4),
    ("greatest(i, j)", [2, 5, 0, 0]),
    ("least(i, f)", [1.0, NAN, -3.0, 0.0]),
    ("greatest(f, 1e308)", [1e308, NAN, 1e308, 1e308]),
    ("least(s, 'b')", ["abc", "b", "a%c", "b"]),
    ("greatest(NULL, NULL)", [None] * 4),
    ("nullif(j, 2)", [None, 5, 0, None]),
    ("nullif(NULL, 1)", [None] * 4),
    ("if(b, i, j)", [1, 5, 0, 0]),
    ("if(TRUE, i, j)", [1, None, -3, 0]),
    ("sqrt(j)", [math.sqrt(2), math.sqrt(5), 0.0, None]),
    ("ln(i)", [0.0, None, None, None]),
    ("exp(0)", [1.0] * 4),
    ("power(j, 2)", [4.0, 25.0, 0.0, None]),
    # constants
    ("1", [1] * 4),
    ("NULL", [None] * 4),
    ("'x'", ["x"] * 4),
    ("1 + 2 * 3", [7] * 4),
    ("date '2024-02-29'", [dt.date(2024, 2, 29)] * 4),
]


@pytest.mark.parametrize(("text", "wanted"), CASES, ids=[text for text, _ in CASES])
def test_values(text: str, wanted: list[Any]) -> None:
    found = values_of(text)
    # repr tells NaN, -0.0, 1 from 1.0 and 1.0 from 1.00, where == does not.
    assert [repr(value) for value in found] == [repr(value) for value in wanted]


@pytest.mark.parametrize(("text", "wanted"), CASES, ids=[text for text, _ in CASES])
def test_no_rows(text: str, wanted: list[Any]) -> None:
    assert values_of(text, BATCH.slice(0, 0)) == []


def test_slices_of_a_batch() -> None:
    assert values_of("CASE WHEN i < 0 THEN d * 2 ELSE i END", BATCH.slice(2, 2)) == [D("-0.10"), D("0.00")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max + 1", "max + 1: the result does not fit bigint; cast to a wider type, or to double"),
        ("max - 1", "does not fit bigint"),
        ("max * 2", "does not fit bigint"),
        ("-max", "-max: the result does not fit bigint"),
        ("abs(max)", "does not fit bigint"),
        ("CAST(max AS decimal(38,0)) * 99999999999999999999", "does not fit decimal(38,0)"),
        (f"max + 1 > 0 OR {' OR '.join(['b'] * 50)}", "does not fit bigint"),
    ],
)
def test_overflow_is_an_error(text: str, message: str) -> None:
    with pytest.raises(MeasureError) as caught:
        values_of(text)
    assert message in str(caught.value)


def test_an_overflow_can_be_avoided_by_a_cast() -> None:
    assert values_of("CAST(max AS decimal(20,0)) + 1")[0] == 2**63


def test_every_encoding_of_a_column_gives_the_same() -> None:
    texts = ["a", None, "b"]
    encodings = [
        pa.array(texts),
        pa.array(texts, pa.large_string()),
        pa.array(texts, pa.string_view()),
        pa.array(texts).dictionary_encode(),
        pa.array(texts, pa.large_string()).dictionary_encode(),
    ]
    for column in encodings:
        batch = pa.record_batch({"x": column})
        assert values_of("x", batch) == texts
        assert values_of("x = 'a'", batch) == [True, None, False]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
def test_every_kind_of_timestamp(unit: str, zone: str | None) -> None:
    column = pa.array([0, None, -1], pa.timestamp("s")).cast(pa.timestamp(unit)).cast(pa.timestamp(unit, zone))
    batch = pa.record_batch({"x": column})
    assert values_of("CAST(x AS bigint)", batch) == [0, None, -1]
    assert values_of("x >= timestamp '1970-01-01'", batch) == [True, None, False]
    assert values_of("x >= CAST('1970-01-01' AS timestamp_ntz)", batch) == [True, None, False]


def test_nanoseconds_are_rounded_down() -> None:
    batch = pa.record_batch({"x": pa.array([1999, -1], pa.timestamp("ns"))})
    assert evaluate(Column("x"), batch).cast(pa.int64()).to_pylist() == [1, -1]


def test_unsigned_half_and_small_decimals() -> None:
    batch = pa.record_batch(
        {
            "u": pa.array([2**64 - 1], pa.uint64()),
            "h": pa.array([1.5], pa.float16()),
            "e": pa.array([D("1.50")], pa.decimal64(5, 2)),
            "x": pa.array([b"ab"], pa.binary(2)),
        }
    )
    assert values_of("u + 1", batch) == [2**64]
    assert values_of("h + e", batch) == [3.0]
    assert values_of("length(x)", batch) == [2]


def test_times_out_of_range() -> None:
    batch = pa.record_batch({"x": pa.array([2**62], pa.timestamp("s"))})
    with pytest.raises(MeasureError, match="column x holds a value out of range"):
        evaluate(Column("x"), batch)


def test_a_column_that_the_data_lacks() -> None:
    with pytest.raises(MeasureError, match="the data has no column zzz"):
        evaluate(Column("zzz"), BATCH)


def test_columns_of() -> None:
    assert columns_of(expr_of("CASE WHEN a > 1 THEN coalesce(b, c) ELSE -d END")) == {"a", "b", "c", "d"}
    assert columns_of(expr_of("1 + 1")) == frozenset()


def test_long_lists_are_walked_without_recursion() -> None:
    text = " OR ".join(f"i = {n}" for n in range(2, 2_000)) + " OR i IN (" + ", ".join(map(str, range(2_000))) + ")"
    assert values_of(text) == [True, None, False, True]


def test_a_hundred_levels() -> None:
    assert values_of("- " * 100 + "i") == [1, None, -3, 0]
