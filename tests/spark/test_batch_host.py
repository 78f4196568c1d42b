"""`hr.Metrics` on a batch DataFrame: the rows, columns and types that come out, and the answers of the oracle."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.testing.compare import assert_same_answers
from headrace.testing.contracts import every_metric
from headrace.testing.oracle import Oracle
from headrace.testing.scenarios import every_kind
from headrace.testing.spark import dataframe
from headrace.testing.values import MAX_INT64

pytestmark = pytest.mark.spark


def by_id(table: pa.Table) -> pa.Table:
    return table.sort_by("id").combine_chunks()


def check(spark: SparkSession, text: str, table: pa.Table, arrival: str | None = None, **options: Any) -> pa.Table:
    """Measure on Spark and compare with the oracle, every column."""
    oracle = Oracle(text, by_id(table), time="ts", id="id", arrival=arrival)
    metrics = hr.Metrics(text, time="ts", id="id", arrival=arrival, **options)
    answered = by_id(dataframe(spark, table).transform(metrics.measure).toArrow())
    assert_same_answers(answered, oracle.table(), ulps=oracle.ulps(), inputs=oracle.inputs)
    return answered


@pytest.mark.parametrize("arrival", [None, "arrival"])
def test_every_function_over_every_type_equals_the_oracle(spark: SparkSession, arrival: str | None) -> None:
    check(spark, every_metric("sliding 9s"), every_kind(), arrival)


def test_several_partitioners_and_no_group_by_in_one_definition(spark: SparkSession) -> None:
    text = """
        SELECT count(*) AS by_key, last(i32) AS newest FROM events GROUP BY key OVER sliding 10s;
        SELECT sum(i32) AS by_flag FROM events WHERE ok GROUP BY flag OVER infinite;
        SELECT avg(f64) AS by_both FROM events GROUP BY flag, key OVER tumbling 10s;
        SELECT count(*) AS overall, max(text) AS greatest FROM events OVER sliding 20s delayed by 2s;
        SELECT sum(d10) AS by_day FROM events GROUP BY day OVER sliding 5 events"""
    check(spark, text, every_kind(), parallelism=3)


def test_arrival_replays_the_order_in_which_events_came(spark: SparkSession) -> None:
    text = """SELECT count(*) AS n, last(i32) AS newest, prev(text) AS before FROM events GROUP BY key OVER sliding 10s;
              SELECT sum(i64) AS total FROM events OVER sliding 4 events"""
    answered = check(spark, text, every_kind(), arrival="arrival")
    in_order = check(spark, text, every_kind())
    assert not answered.select(["n", "total"]).equals(in_order.select(["n", "total"])), "the events are not late at all"


def test_keys_that_compare_equal_are_one_group_in_every_partitioning(spark: SparkSession) -> None:
    keys = [0.0, -0.0, math.nan, float.fromhex("0x1p-1074"), None, 1.5, -math.nan, None, 0.0]
    table = pa.table(
        {
            "id": pa.array(range(len(keys)), pa.int64()),
            "ts": pa.array([n * 1_000_000 for n in range(len(keys))], pa.timestamp("us", "UTC")),
            "rate": pa.array(keys, pa.float64()),
            "small": pa.array(keys, pa.float32()),
        }
    )
    text = """SELECT count(*) AS n FROM events GROUP BY rate OVER infinite;
              SELECT count(*) AS m FROM events GROUP BY small, rate OVER infinite"""
    for parallelism in (1, 5):
        check(spark, text, table, parallelism=parallelism)


def test_arrow_batches_of_any_size_give_the_same_rows(spark: SparkSession) -> None:
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = str(spark.conf.get(setting))
    try:
        spark.conf.set(setting, "7")
        check(spark, every_metric("sliding 9s delayed by 1s"), every_kind(), arrival="arrival", parallelism=1)
    finally:
        spark.conf.set(setting, before)


def test_the_zone_of_the_session_does_not_move_a_window(spark: SparkSession) -> None:
    text = """SELECT count(*) AS n, max(ts) AS newest, first(moment) AS oldest, topK(moment, 2) AS top FROM events
              GROUP BY key OVER tumbling 1 day"""
    metrics = hr.Metrics(text, time="ts", id="id")
    expected = by_id(dataframe(spark, every_kind()).transform(metrics.measure).toArrow())
    try:
        spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
        answered = by_id(dataframe(spark, every_kind()).transform(metrics.measure).toArrow())
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    for name in ("n", "newest", "oldest"):
        assert answered.column(name).to_pylist() == expected.column(name).to_pylist()


WIDE = {
    "tags": "array(cast(id as string), null)",
    "grid": "array(array(id, id + 1), array())",
    "facts": "map('id', id, 'twice', id * 2)",
    "where": "named_struct('city', 'Pará', 'at', named_struct('lat', id / 3, 'lon', cast(null as double)))",
    "dotted.name": "id % 7",
    "spaced name": "concat('x', id)",
    "tick`ed": "cast(cast(id as string) as binary)",
    "nothing": "cast(null as int)",
    "span": "interval 1 day",
}


def test_all_other_columns_pass_through_untouched(spark: SparkSession) -> None:
    plain = {f"c{n}": f"cast(id * {n} as {type})" for n in range(34) for type in [("string", "double", "int")[n % 3]]}
    columns = [F.expr(sql).alias(name) for name, sql in (WIDE | plain).items()]
    df = spark.range(500).select("id", F.timestamp_seconds("id").alias("ts"), *columns)
    assert len(df.columns) == 45
    metrics = hr.Metrics("SELECT count(*) AS n FROM events GROUP BY `dotted.name` OVER infinite", time="ts", id="id")
    measured = df.transform(metrics.measure)
    assert measured.columns == [*df.columns, "n"]
    assert measured.drop("n").schema == df.schema
    assert sorted(measured.drop("n").collect()) == sorted(df.collect())
    assert [row.n for row in measured.sort("id").collect()] == [n // 7 + 1 for n in range(500)]


def test_an_empty_dataframe_gives_the_columns_and_no_rows(spark: SparkSession) -> None:
    table = every_kind().slice(0, 0)
    answered = check(spark, every_metric("sliding 9s"), table)
    assert answered.num_rows == 0
    overall = "SELECT count(*) AS n, topK(text, 2) AS top FROM events OVER infinite"
    assert check(spark, overall, table).num_rows == 0


@pytest.mark.parametrize("arrival", [None, "arrival"])
def test_rows_without_a_time_or_arrival_are_not_measured_and_are_listed(
    spark: SparkSession, arrival: str | None
) -> None:
    table = every_kind()
    without = {"ts": {3, 17, 40}, "arrival": {5, 17}}
    for name, rows in without.items():
        values = [None if row in rows else value for row, value in enumerate(table.column(name).to_pylist())]
        column = pa.array(values, table.schema.field(name).type)
        table = table.set_column(table.column_names.index(name), name, column)
    text = """SELECT count(*) AS n, sum(i32) AS s, topK(text, 2) AS top FROM events GROUP BY key OVER sliding 10s;
              SELECT count(*) AS ever FROM events OVER sliding 100 events"""
    answered = check(spark, text, table, arrival)
    expected = without["ts"] | (without["arrival"] if arrival else set())
    ids = {table.column("id")[row].as_py() for row in expected}
    assert {row["id"] for row in answered.to_pylist() if row["n"] is None} == ids

    rejected = hr.Metrics(text, time="ts", id="id", arrival=arrival).rejected(dataframe(spark, table))
    assert rejected.columns == [*table.column_names, "reason"]
    reasons = {row["id"]: row["reason"] for row in rejected.collect()}
    assert set(reasons) == ids
    assert reasons[table.column("id")[3].as_py()] == "ts is null"


def test_times_out_of_range_are_not_measured_and_are_listed(spark: SparkSession) -> None:
    micros = "CASE id WHEN 0 THEN 0 WHEN 1 THEN 1152921504606846976 ELSE -1152921504606846977 END"
    df = spark.range(3).select("id", F.expr(f"timestamp_micros({micros})").alias("ts"))
    metrics = hr.Metrics("SELECT count(*) AS n FROM events OVER infinite", time="ts")
    assert sorted(df.transform(metrics.measure).select("id", "n").collect()) == [(0, 1), (1, 2), (2, None)]
    assert metrics.rejected(df).select("id", "reason").collect() == [(2, "ts is out of range")]


def test_an_overflow_stops_the_query_and_names_the_metric(spark: SparkSession) -> None:
    table = pa.table(
        {
            "ts": pa.array([0, 1], pa.timestamp("us", "UTC")),
            "x": pa.array([MAX_INT64, 1], pa.int64()),
        }
    )
    metrics = hr.Metrics("SELECT sum(x) AS total FROM events OVER infinite", time="ts")
    with pytest.raises(Exception, match="metric total: the exact result does not fit bigint"):
        dataframe(spark, table).transform(metrics.measure).collect()


def test_a_date_is_a_time(spark: SparkSession) -> None:
    days = [dt.date(2024, 2, 28) + dt.timedelta(days=n) for n in range(5)]
    df = spark.createDataFrame([(day,) for day in days], "day date")
    metrics = hr.Metrics("SELECT count(*) AS n FROM events OVER sliding 2 days", time="day")
    assert [row.n for row in df.transform(metrics.measure).sort("day").collect()] == [1, 2, 2, 2, 2]


def test_answers_can_be_filtered_joined_and_counted(spark: SparkSession) -> None:
    metrics = hr.Metrics("SELECT count(*) AS n FROM events GROUP BY key OVER infinite", time="ts", id="id")
    measured = dataframe(spark, every_kind()).transform(metrics.measure)
    rows = {row["id"]: row["n"] for row in measured.select("id", "n").collect()}
    assert measured.where("n > 5").count() == sum(n > 5 for n in rows.values())
    assert measured.groupBy("key").agg(F.max("n").alias("most")).agg(F.sum("most")).first()[0] == len(rows)  # type: ignore[index]
    twice = measured.alias("a").join(measured.alias("b"), "id").where("a.n = b.n")
    assert twice.count() == len(rows)
