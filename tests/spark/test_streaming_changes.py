"""Metrics and columns that change while state lives, and a past that is filled in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.measure.definition import Definition
from headrace.measure.run import measure_table
from headrace.testing.compare import assert_same_answers
from headrace.testing.file_stream import TableStream
from headrace.testing.spark import dataframe

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SPENT = "SELECT sum(amount) AS spent, count(*) AS n FROM payments GROUP BY card OVER sliding 5 minutes"
ADDED = """
    SELECT max(amount * 2) AS top, last(shop) AS place FROM payments WHERE amount > 20 GROUP BY card OVER sliding 5m;
    SELECT avg(amount) AS usual FROM payments GROUP BY card OVER sliding 10 minutes delayed by 1 minute;
    SELECT countDistinct(shop) AS shops FROM payments GROUP BY card OVER sliding 3 minutes;
    SELECT sum(amount) AS last_five FROM payments GROUP BY card OVER sliding 5 events
"""


def payments(rows: int, seed: int) -> pa.Table:
    dice = np.random.default_rng(seed)
    late = np.where(dice.random(rows) < 0.1, dice.integers(0, 30_000_000, rows), 0)
    return pa.table(
        {
            "offset": np.arange(rows),
            "ts": pa.array(np.arange(rows) * 1_000_000 - late, pa.timestamp("us", "UTC")),
            "card": pa.array([f"card-{card}" for card in dice.integers(0, 9, rows)]),
            "shop": pa.array(np.array(["a", "b", "c"])[dice.integers(0, 3, rows)], mask=dice.random(rows) < 0.1),
            "amount": pa.array(dice.integers(1, 90, rows), pa.int32()),
        }
    )


def new_metrics(stream: TableStream, text: str = SPENT, tasks: int = 2, **more: object) -> hr.Metrics:
    settings = {"time": "ts", "arrival": "offset", "parallelism": tasks, "state": stream.state} | more
    return hr.Metrics(text, **settings)  # type: ignore[arg-type]


def expected(text: str, table: pa.Table, start: int, rows: int) -> pa.Table:
    """The answers of the batch over all that has come, of the rows from `start` on."""
    found = measure_table(Definition(text, "ts", arrival="offset"), table.slice(0, rows))
    return found.slice(start)


def assert_answers(stream: TableStream, text: str, start: int, table: pa.Table | None = None) -> None:
    rows = expected(text, stream.table if table is None else table, start, stream.arrived)
    names = ["offset", *Definition(text, "ts").names]
    answers = stream.answers("offset")
    assert_same_answers(answers.slice(start).select(names), rows.select(names))


def test_added_metrics_begin_with_what_is_remembered(spark: SparkSession, tmp_path: Path) -> None:
    stream = TableStream(spark, tmp_path, payments(1200, seed=1))
    stream.arrive_rows([250, 350])
    stream.run(new_metrics(stream, keep_columns=["shop"]))
    changed = new_metrics(stream, tasks=3, keep_columns=["shop"]).add(ADDED).remove("n")
    stream.arrive_rows([300])
    query = stream.run(changed)
    text = f"SELECT sum(amount) AS spent FROM payments GROUP BY card OVER sliding 5 minutes; {ADDED}"
    assert_answers(stream, text, start=600)
    assert changed.progress(query).stages[0].complete_from == {}
    stream.arrive_rows([300])
    stream.run(changed)
    assert_answers(stream, text, start=600)


def test_what_was_not_remembered_is_said(spark: SparkSession, tmp_path: Path) -> None:
    stream = TableStream(spark, tmp_path, payments(500, seed=2))
    stream.arrive_rows([200])
    stream.run(new_metrics(stream))
    changed = new_metrics(stream).add(
        "SELECT countDistinct(shop) AS shops FROM payments GROUP BY card OVER sliding 2 m"
    )
    stream.arrive_rows([300])
    query = stream.run(changed)
    newest = stream.table.slice(0, 200)["ts"].to_pylist()
    assert changed.progress(query).stages[0].complete_from["shops"] <= max(newest)
    # Two minutes after the change, every window is of events that came with the new metric.
    text = "SELECT countDistinct(shop) AS shops FROM payments GROUP BY card OVER sliding 2 m"
    assert_answers(stream, text, start=200 + 150)


def test_a_metric_with_groups_of_its_own_begins_when_it_is_added(spark: SparkSession, tmp_path: Path) -> None:
    stream = TableStream(spark, tmp_path, payments(500, seed=3))
    stream.arrive_rows([200])
    stream.run(new_metrics(stream))
    by_shop = "SELECT count(*) AS visits FROM payments GROUP BY shop OVER sliding 2 m"
    changed = new_metrics(stream).add(by_shop)
    stream.arrive_rows([150, 150])
    query = stream.run(changed)
    assert_answers(stream, SPENT, start=0)
    assert_answers(stream, by_shop, start=200 + 150)
    said = {name: stage.complete_from for name, stage in ((s.name, s) for s in changed.progress(query).stages)}
    assert set(said["by-shop"]) == {"visits"}
    assert said["by-card"] == {}


def test_changes_that_are_not_declared_are_refused_before_the_query_starts(spark: SparkSession, tmp_path: Path) -> None:
    stream = TableStream(spark, tmp_path, payments(100, seed=4))
    stream.arrive_rows([100])
    stream.run(new_metrics(stream))
    source = stream.frame()
    more = SPENT + "; SELECT max(amount) AS top FROM payments GROUP BY card OVER sliding 5 minutes"
    with pytest.raises(hr.StateMismatch, match=r"has no metric top; to add it to the stream, say so: metrics\.add"):
        source.transform(new_metrics(stream, more).measure)
    less = "SELECT sum(amount) AS spent FROM payments GROUP BY card OVER sliding 5 minutes"
    with pytest.raises(hr.StateMismatch, match=r'a metric n, which the query does not have; .*metrics\.remove\("n"\)'):
        source.transform(new_metrics(stream, less).measure)
    with pytest.raises(hr.StateMismatch, match=r"the state at .* has time ts, the query has day"):
        source.selectExpr("*", "ts AS day").transform(new_metrics(stream, time="day").measure)
    with pytest.raises(hr.StateMismatch, match="has shards 16, the query has 4"):
        source.transform(new_metrics(stream, shards=4).measure)


def test_columns_are_widened_added_and_removed(spark: SparkSession, tmp_path: Path) -> None:
    stream = TableStream(spark, tmp_path, payments(900, seed=5))
    text = SPENT + "; SELECT avg(amount) AS usual FROM payments WHERE amount < 50 GROUP BY card OVER sliding 4 minutes"
    stream.arrive_rows([200, 100])
    stream.run(new_metrics(stream, text))
    wide = stream.table.set_column(4, "amount", stream.table["amount"].cast(pa.int64())).drop_columns("shop")
    wide = wide.append_column("note", pa.array(["new"] * 900))
    stream.arrive_rows([300, 300], wide)
    stream.run(new_metrics(stream, text))
    assert_answers(stream, text, start=0, table=wide)


@pytest.mark.parametrize(("type", "said"), [(pa.int16(), "smallint"), (pa.string(), "string")])
def test_an_incompatible_column_is_refused(spark: SparkSession, tmp_path: Path, type: pa.DataType, said: str) -> None:
    stream = TableStream(spark, tmp_path, payments(200, seed=6))
    text = "SELECT last(amount) AS spent FROM payments GROUP BY card OVER sliding 5 minutes"
    stream.arrive_rows([100])
    stream.run(new_metrics(stream, text))
    stream.arrive_rows([100], stream.table.set_column(4, "amount", stream.table["amount"].cast(type)))
    metrics = new_metrics(stream, text)
    with pytest.raises(hr.StateMismatch, match=f"column amount was int when .* is {said} now"):
        metrics.measure(stream.frame())


def test_a_backfill_and_the_stream_meet_with_no_gap_and_no_overlap(spark: SparkSession, tmp_path: Path) -> None:
    table = payments(1000, seed=7)
    stream = TableStream(spark, tmp_path, table)
    metrics = new_metrics(stream, SPENT + ";" + ADDED, status="status")
    report = metrics.backfill(dataframe(spark, table.slice(0, 600)))
    assert report.rows == 600
    # The stream starts well before the end of the past.
    stream.arrived = 450
    stream.arrive_rows([100, 250, 200])
    query = stream.run(metrics)
    found = stream.answers("offset")
    assert found["status"].to_pylist()[:150] == ["duplicate"] * 150
    assert found["status_reason"][0].as_py() == "its offset is not past the backfill, which has it"
    rows = expected(SPENT + ";" + ADDED, table, 600, 1000)
    assert_same_answers(found.slice(150).select(metrics.names), rows.select(metrics.names))
    assert metrics.progress(query).counts["duplicate"] == 150


def test_a_backfill_needs_an_order_of_arrival(spark: SparkSession, tmp_path: Path) -> None:
    metrics = hr.Metrics(SPENT, time="ts", state=str(tmp_path / "state"))
    with pytest.raises(hr.DefinitionError, match="backfill needs arrival=, a column of numbers or times"):
        metrics.backfill(dataframe(spark, payments(10, seed=8)))
