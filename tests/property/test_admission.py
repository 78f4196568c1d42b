"""Late and repeated events: what counts, and over which windows, as a literal version of the rules has it."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.flow.files import FilesInMemory
from headrace.flow.measured import _Chunks
from headrace.measure import events
from headrace.measure.definition import Definition
from headrace.measure.policy import STATUSES, Policy
from headrace.measure.run import measure_table
from headrace.measure.task import MeasureTask
from headrace.model.ticks import SECOND, Ticks
from headrace.state.tables import plain
from headrace.testing.admitted import Rules, statuses
from headrace.testing.compare import assert_same_answers
from headrace.testing.oracle import oracle_table
from headrace.testing.strategies import frame_sizes

TEXT = """
    SELECT sum(x) AS total, count(*) AS n, last(x) AS newest, max(x) AS top FROM t GROUP BY card OVER sliding 10 s;
    SELECT count(*) AS lot FROM t WHERE x > 3 GROUP BY card OVER sliding 3 events;
    SELECT avg(x) AS usual FROM t GROUP BY card OVER sliding 5 s delayed by 2 s
"""
BRIEF = "SELECT count(*) AS n FROM t GROUP BY card OVER sliding 1 s"
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


@st.composite
def long_tables(draw: st.DrawFn) -> pa.Table:
    """Time goes on: some groups are silent for long, and ids come again late, or when they are forgotten."""
    event = st.tuples(st.integers(0, 8), st.sampled_from((0, 0, 0, 5, 15)), st.integers(0, 3), st.sampled_from("abc"))
    found, second = [], 0
    for place, (gap, late, id, card) in enumerate(draw(st.lists(event, max_size=40))):
        second += gap
        moment = START + dt.timedelta(seconds=second - late)
        found.append({"arrival": place, "ts": moment, "txn": id, "card": card})
    types = [("arrival", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("txn", pa.int64()), ("card", pa.string())]
    return pa.Table.from_pylist(found, pa.schema(types))


@given(
    long_tables(),
    st.sampled_from(["accept", "rewrite", "discard"]),
    lengths,
    st.one_of(st.none(), lengths),
    lengths,
    st.data(),
)
@settings(max_examples=200)
def test_neither_cuts_nor_restarts_change_what_counts(
    table: pa.Table, late: str, closure: int, keep: int | None, dedup: int, data: st.DataObject
) -> None:
    kept = None if keep is None else keep * SECOND
    policy = Policy(late, Ticks(closure * SECOND), None if kept is None else Ticks(kept), Ticks(dedup * SECOND))
    definition = Definition(BRIEF, "ts", id="txn", arrival="arrival", policy=policy, status="status")
    [stage] = definition.plan(table.schema).stages
    told = definition.settings(1 << 20, schema=table.schema, columns=stage.columns)
    told = replace(told, chunk_events=2)
    chunks = _Chunks(FilesInMemory())
    task, found, at = MeasureTask(stage, told, chunks), list[str](), 0
    with patch.object(events, "_FEW_GROUPS", 1):
        for size in [*data.draw(frame_sizes(table.num_rows), label="frames"), table.num_rows]:
            for rows in table.slice(at, size).combine_chunks().to_batches():
                task.push(rows)
                found += [STATUSES[code] for code in task.codes]
            at += size
            ends = data.draw(st.sampled_from(["nothing", "commit", "restart"]))
            if ends != "nothing":
                task.flush()
                state = task.dump()
            if ends == "restart":
                task = MeasureTask(stage, told, chunks)
                task.restore(plain(state[0]), *state[1:])
    rules = Rules(late, closure * SECOND, kept, dedup * SECOND)
    expected, _ = statuses(table, rules, time="ts", group=("card",), id="txn", arrival="arrival")
    assert found == expected
