"""DuckDB and the windows as slices, against the literal oracle, on a table small enough for both."""

from __future__ import annotations

import random
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.language import parse
from headrace.testing.compare import assert_same_answers
from headrace.testing.duckdb_oracle import duckdb_table
from headrace.testing.exact_windows import ExactWindows
from headrace.testing.oracle import Oracle
from headrace.testing.values import WINDOWS

ITEMS = """count(*) AS n, count(s) AS cs, sum(i) AS si, sum(d) AS sd, sum(f) AS sf, avg(i) AS ai, avg(d) AS ad,
    avg(f) AS af, stdDev(i) AS di, stdDev(d) AS dd, min(s) AS least, max(d) AS most, first(s) AS oldest,
    last(i) AS newest, prev(s) AS before, countDistinct(s) AS kinds, median(d) AS middle, percentile(f, 0.9) AS p90,
    topK(s, 2) AS top, sum(CASE WHEN i > 0 THEN i END) AS positive"""
NEAR = {"di": 4, "dd": 4, "middle": 4, "p90": 4}


def events(rows: int = 80) -> pa.Table:
    dice = random.Random(9)
    times = dice.sample(range(-20_000_000, 40_000_000, 500_000), rows)

    def some(*values: object) -> list[object]:
        return [dice.choice((None, *values)) for _ in range(rows)]

    return pa.table(
        {
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "k": pa.array(some("a", "b"), pa.string()),
            "g": pa.array(some(1, 2), pa.int32()),
            "ok": pa.array(some(True, True, False), pa.bool_()),
            "i": pa.array(some(-3, 0, 1, 2, 1000), pa.int64()),
            "d": pa.array(some(Decimal("-0.05"), Decimal("1.10"), Decimal("2.35")), pa.decimal128(10, 2)),
            "f": pa.array(some(0.1, 1e16, 1.0, 3e-9, 7.25), pa.float64()),
            "s": pa.array(some("x", "y", "", "é"), pa.string()),
        }
    )


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("rest", ["GROUP BY k", "WHERE ok GROUP BY k, g", "WHERE i > 0 OR s = 'x'"])
def test_both_big_oracles_equal_the_literal_one(window: str, rest: str) -> None:
    text = f"SELECT {ITEMS} FROM events {rest} OVER {window}"
    table = events()
    oracle = Oracle(text, table, time="ts")
    expected = oracle.table()
    assert_same_answers(duckdb_table(text, table, time="ts"), expected, ulps=NEAR, inputs=oracle.inputs)

    (statement,) = parse(text)
    windows = ExactWindows(statement, table, "ts")
    columns = {str(item.name): windows.answers(item, range(table.num_rows)) for item in statement.items}
    assert_same_answers(pa.table(columns), expected.select(list(columns)))


def test_duckdb_refuses_what_it_cannot_tell() -> None:
    twice = pa.concat_tables([events(), events()])
    with pytest.raises(AssertionError, match="distinct times"):
        duckdb_table("SELECT count(*) AS n FROM events OVER infinite", twice, time="ts")
    with pytest.raises(ValueError, match="stdDev of doubles"):
        duckdb_table("SELECT stdDev(f) AS m FROM events OVER infinite", events(), time="ts")
