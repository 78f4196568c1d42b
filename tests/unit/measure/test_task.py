"""What only shows with many events: spilling, long jumps in time, very late events."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from headrace.measure.chunk_files import ScratchFiles
from headrace.measure.definition import Definition
from headrace.measure.policy import Policy
from headrace.measure.reservoir import CHUNK_EVENTS
from headrace.measure.run import measure_table
from headrace.measure.task import MeasureTask
from headrace.model.jit import Ints
from headrace.model.ticks import Ticks
from headrace.state.tables import plain

MANY = 7 * CHUNK_EVENTS
SECOND = 1_000_000


def events(times: Ints, **columns: Ints) -> pa.Table:
    return pa.table({"ts": pa.array(times, pa.timestamp("us")), **columns})


def ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.combine_chunks().to_numpy(zero_copy_only=False))


def test_a_window_larger_than_memory_gives_the_same_answers() -> None:
    text = """SELECT count(*) AS n, sum(x) AS total FROM t GROUP BY k OVER sliding 300000 s;
              SELECT max(x) AS top FROM t GROUP BY k OVER sliding 100 s"""
    rng = np.random.default_rng(5)
    table = events(np.arange(MANY) * SECOND, k=rng.integers(0, 100, MANY), x=rng.integers(0, 1000, MANY))
    definition = Definition(text, "ts")
    task = MeasureTask(definition.plan(table.schema).stages[0], definition.settings(0))
    small = [task.push(batch) for batch in table.to_batches(max_chunksize=10_000)]
    assert task.reservoir.spilled_chunks > 0
    roomy = measure_table(definition, table)
    for i, name in enumerate(["n", "total", "top"]):
        assert pa.chunked_array([answers[i] for answers in small]) == roomy[name]


def test_memory_does_not_grow_with_what_windows_have_passed() -> None:
    definition = Definition("SELECT count(*) AS n FROM t OVER sliding 10 s", "ts")
    table = events(np.arange(MANY) * SECOND)
    task = MeasureTask(definition.plan(table.schema).stages[0], definition.settings())
    for batch in table.to_batches(max_chunksize=10_000):
        task.push(batch)
    assert len(task.reservoir) <= 2 * CHUNK_EVENTS


def test_one_event_may_end_many_windows() -> None:
    times = np.concatenate([np.arange(MANY), [10**12]])
    table = events(times, x=np.ones(MANY + 1, np.int64))
    answers = measure_table(Definition("SELECT sum(x) AS s, count(*) AS n FROM t OVER sliding 1 day", "ts"), table)
    assert answers["n"].to_pylist()[-2:] == [MANY, 1]
    assert answers["s"].to_pylist()[-2:] == [MANY, 1]


def test_one_event_may_let_many_into_a_delayed_window() -> None:
    times = np.concatenate([np.arange(MANY), [3600 * SECOND]])
    text = "SELECT count(*) AS n, last(x) AS l FROM t OVER infinite delayed by 30 minutes"
    answers = measure_table(Definition(text, "ts"), events(times, x=np.arange(MANY + 1)))
    assert answers["n"].to_pylist()[-2:] == [0, MANY]
    assert answers["l"].to_pylist()[-1] == MANY - 1


def test_an_event_may_be_later_than_any_number_of_others() -> None:
    times = np.concatenate([np.arange(1, MANY), [0], [MANY]])
    arrival = np.arange(MANY + 1)
    text = """SELECT count(*) AS n, max(x) AS top, first(x) AS f, last(x) AS l, median(x) AS mid
              FROM t OVER sliding 1 day"""
    table = events(times, x=times.copy(), arrival=arrival)
    answers = measure_table(Definition(text, "ts", arrival="arrival"), table, frames=[10_000] * 50)
    assert answers.slice(MANY - 1).drop_columns(["ts", "x", "arrival"]).to_pylist() == [
        {"n": 1, "top": 0, "f": 0, "l": 0, "mid": 0.0},
        {"n": MANY + 1, "top": MANY, "f": 0, "l": MANY, "mid": MANY / 2},
    ]


def test_rows_without_a_time_are_answered_with_nulls() -> None:
    table = pa.table({"ts": pa.array([None, 1, 2, None], pa.timestamp("us")), "x": [1, 2, 3, 4]})
    answers = measure_table(Definition("SELECT count(*) AS n, topK(x, 1) AS t FROM t OVER infinite", "ts"), table)
    assert answers["n"].to_pylist() == [None, 1, 2, None]
    assert answers["t"].to_pylist() == [None, [{"value": 2, "count": 1}], [{"value": 2, "count": 1}], None]


def test_dates_are_times() -> None:
    table = pa.table({"day": pa.array([0, 1, 1, 3], pa.date32())})
    answers = measure_table(Definition("SELECT count(*) AS n FROM t OVER sliding 2 days", "day"), table)
    assert answers["n"].to_pylist() == [1, 2, 3, 1]


def test_an_empty_table_has_the_columns() -> None:
    table = pa.table({"ts": pa.array([], pa.timestamp("us"))})
    answers = measure_table(Definition("SELECT count(*) AS n FROM t OVER infinite", "ts"), table)
    assert answers.column_names == ["ts", "n"]
    assert ints(answers["n"]).tolist() == []


def test_where_guards_what_is_computed() -> None:
    table = pa.table({"ts": pa.array([1, 2, 3], pa.timestamp("us")), "a": [3, 2**62, 4], "d": ["1.5", "x", "2.5"]})
    text = """SELECT sum(a * a) AS s, max(cast(d AS decimal(30, 2))) AS m FROM t WHERE a < 100 OVER infinite"""
    answers = measure_table(Definition(text, "ts"), table)
    assert answers["s"].to_pylist() == [9, 9, 25]
    assert answers["m"].to_pylist() == [Decimal("1.50"), Decimal("1.50"), Decimal("2.50")]
    none = measure_table(Definition(text.replace("< 100", "< 0"), "ts"), table)
    assert none["m"].to_pylist() == [None, None, None]


def test_times_at_the_ends_of_64_bits_are_not_measured() -> None:
    definition = Definition("SELECT count(*) AS n FROM t OVER infinite", "ts")
    ends = pa.array([-(2**63), 0, 2**63 - 1], pa.timestamp("us"))
    assert measure_table(definition, pa.table({"ts": ends}))["n"].to_pylist() == [None, 1, None]
    days = pa.array([-(2**31), 0, 2**31 - 1], pa.date32())
    assert measure_table(definition, pa.table({"ts": days}))["n"].to_pylist() == [None, 1, None]


def test_a_condition_that_is_null_counts_nothing() -> None:
    table = events(np.arange(2))
    answers = measure_table(Definition("SELECT count(*) AS n FROM t WHERE null OVER infinite", "ts"), table)
    assert answers["n"].to_pylist() == [0, 0]


def test_dictionary_columns_are_taken_by_value() -> None:
    table = events(np.zeros(3, np.int64)).append_column("k", pa.array(["b", "a", "b"]).dictionary_encode())
    answers = measure_table(Definition("SELECT count(*) AS n FROM t GROUP BY k OVER infinite", "ts"), table)
    assert answers["n"].to_pylist() == [1, 1, 2]


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_times_that_do_not_fit_in_microseconds_are_not_measured(unit: str) -> None:
    """Cut to 64 bits they would be times like any others."""
    farthest = np.array([5, 1 << 62, -(1 << 62), (1 << 61) + 3, 6], np.int64)
    table = pa.table({"ts": pa.array(farthest).cast(pa.timestamp(unit))})
    answers = measure_table(Definition("SELECT count(*) AS n FROM t OVER infinite", "ts", status="status"), table)
    assert answers["n"].to_pylist() == [1, None, None, None, 2]
    assert answers["status"].to_pylist() == ["ok", "discarded", "discarded", "discarded", "ok"]


@pytest.mark.parametrize(
    ("ids", "statuses"),
    [
        (pa.array([0.0, -0.0, float("nan"), -float("nan"), 1.0]), ["ok", "duplicate", "ok", "duplicate", "ok"]),
        (pa.array([1, 2, 1, 1001, 2]).cast(pa.timestamp("ns")), ["ok", "ok", "duplicate", "ok", "duplicate"]),
    ],
    ids=["doubles", "nanoseconds"],
)
def test_ids_are_the_same_where_their_values_are(ids: pa.Array, statuses: list[str]) -> None:
    table = events(np.arange(5), id=ids, place=np.arange(5))
    policy = Policy(dedup=Ticks(SECOND))
    text = "SELECT count(*) AS n FROM t OVER infinite"
    definition = Definition(text, "ts", id="id", arrival="place", policy=policy, status="status")
    assert measure_table(definition, table)["status"].to_pylist() == statuses


@pytest.mark.parametrize("function", ["first", "last", "prev", "min", "max", "sum", "median"])
def test_a_metric_that_is_added_takes_wide_decimals_whole(function: str) -> None:
    """It begins with the events that are remembered, before there is a row to answer."""
    values = [Decimal("-99999999999999999999.999"), None, Decimal(7), Decimal("99999999999999999999.999"), Decimal(1)]
    table = events(np.arange(5) * SECOND, x=pa.array(values, pa.decimal128(30, 3)))
    before = Definition("SELECT count(x) AS n FROM t OVER sliding 10 s", "ts")
    after = before.adding(f"SELECT {function}(x) AS later FROM t OVER sliding 10 s")
    tasks = []
    for definition in (before, after):
        [stage] = definition.plan(table.schema).stages
        told = definition.settings(schema=table.schema, columns=stage.columns)
        tasks.append(MeasureTask(stage, told, ScratchFiles()))
    tasks[0].push(table.slice(0, 4).to_batches()[0])
    tables, values_of, files = tasks[0].dump()
    tasks[1].restore(plain(tables), values_of, files)
    answers = tasks[1].push(table.slice(4).to_batches()[0])
    assert answers[1].to_pylist() == measure_table(after, table)["later"].to_pylist()[4:]
