"""Late and repeated events: what counts, and over which windows, as a literal version of the rules has it."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.measure.definition import Definition
from headrace.measure.policy import Policy
from headrace.measure.run import measure_table
from headrace.model.ticks import SECOND, Ticks
from headrace.testing.admitted import Rules, statuses
from headrace.testing.compare import assert_same_answers
from headrace.testing.oracle import oracle_table
from headrace.testing.strategies import frame_sizes

TEXT = """
    SELECT sum(x) AS total, count(*) AS n, last(x) AS newest, max(x) AS top FROM t GROUP BY card OVER sliding 10 s;
    SELECT count(*) AS lot FROM t WHERE x > 3 GROUP BY card OVER sliding 3 events;
    SELECT avg(x) AS usual FROM t GROUP BY card OVER sliding 5 s delayed by 2 s
"""
METRICS = ["total", "n", "newest", "top", "lot", "usual"]
START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)

lengths = st.integers(0, 20)


@st.composite
def tables(draw: st.DrawFn, ids: st.SearchStrategy[object], type: pa.DataType) -> pa.Table:
    rows = draw(st.integers(0, 40))
    seconds = draw(st.lists(st.one_of(st.none(), st.integers(0, 40)), min_size=rows, max_size=rows))
    times = [None if s is None else START + dt.timedelta(seconds=s) for s in seconds]
    return pa.table(
        {
            "arrival": pa.array(range(rows), pa.int64()),
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "txn": pa.array(draw(st.lists(ids, min_size=rows, max_size=rows)), type),
            "card": pa.array(draw(st.lists(st.sampled_from(["a", "b"]), min_size=rows, max_size=rows)), pa.string()),
            "x": pa.array(draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows)), pa.int64()),
        }
    )


numbered = tables(st.one_of(st.none(), st.integers(-2, 12)), pa.int64())
named = tables(st.one_of(st.none(), st.sampled_from(["", "a", "b", "ab", "a\0", "ü" * 9, "x" * 40])), pa.string())


@given(
    st.one_of(numbered, named),
    st.sampled_from(["accept", "rewrite", "discard"]),
    lengths,
    st.one_of(st.none(), lengths),
    st.data(),
)
@settings(max_examples=200)
def test_what_counts_is_what_the_rules_say(
    table: pa.Table, late: str, closure: int, dedup: int | None, data: st.DataObject
) -> None:
    frames = data.draw(frame_sizes(table.num_rows), label="frames")
    seen = None if dedup is None else dedup * SECOND
    policy = Policy(late, Ticks(closure * SECOND), None, None if seen is None else Ticks(seen))
    definition = Definition(TEXT, "ts", id="txn", arrival="arrival", policy=policy, status="status")
    actual = measure_table(definition, table, frames)

    rules = Rules(late, closure * SECOND, None, seen)
    expected, counted = statuses(table, rules, time="ts", group=("card",), id="txn", arrival="arrival")
    assert actual["status"].to_pylist() == expected
    assert [reason is None for reason in actual["status_reason"].to_pylist()] == [s == "ok" for s in expected]
    counts = pa.array([moment is not None for moment in counted], pa.bool_())
    moved = table.set_column(1, "ts", pa.array(counted, pa.int64()).cast(pa.timestamp("us", "UTC"))).filter(counts)
    answers = oracle_table(TEXT, moved, time="ts", arrival="arrival")
    assert_same_answers(actual.filter(counts).select(METRICS), answers.select(METRICS))
    rejected = actual.filter(pa.compute.invert(counts)).select(METRICS)
    assert all(column.null_count == len(column) for column in rejected.columns)
