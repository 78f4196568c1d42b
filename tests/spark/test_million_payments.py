"""A million payments: every aggregation over three windows equals DuckDB, to the bit, for any number of partitions."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.language import parse
from headrace.testing.compare import assert_same_answers
from headrace.testing.definitions import ULPS, canonical
from headrace.testing.duckdb_oracle import duckdb_table
from headrace.testing.exact_windows import ExactWindows
from headrace.testing.payments import EVERY_AGGREGATION, payments
from headrace.testing.spark import on_connect

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PAYMENTS = 1_000_000
WINDOWS = {"hour": "sliding 1 hour", "day": "sliding 1 day", "week": "sliding 7 days"}

TEXT = ";\n".join(EVERY_AGGREGATION.format(w=name, window=window) for name, window in WINDOWS.items())

OTHER_WINDOWS = """
    SELECT count(*) AS seen, sum(amount) AS volume FROM payments GROUP BY merchant OVER sliding 1 hour delayed by 5m;
    SELECT max(amount) AS peak, sum(qty) AS moved FROM payments WHERE amount > 500 GROUP BY merchant OVER tumbling 1d;
    SELECT sum(qty) AS ever, countDistinct(country) AS lands FROM payments GROUP BY merchant, card OVER infinite;
    SELECT sum(amount) AS last_ten, last(country) AS latest FROM payments WHERE country <> 'DE' GROUP BY card
      OVER sliding 10 events"""


def by_id(table: pa.Table) -> pa.Table:
    return table.sort_by("id").combine_chunks()


def ulps_of(text: str) -> dict[str, int]:
    """Where DuckDB or the definition may be some units in the last place away; every other answer is exact."""
    near = {**ULPS, "median": 4, "percentile": 4}  # DuckDB interpolates by another formula
    items = [item for statement in parse(text) for item in statement.items]
    return {str(item.name): near.get(canonical(item.function), 0) for item in items}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return payments(PAYMENTS)


@pytest.fixture(scope="module")
def path(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("payments")
    pq.write_table(table, folder / "payments.parquet", row_group_size=100_000)
    return str(folder / "payments.parquet")


def run(spark: SparkSession, text: str, path: str, partitions: int) -> pa.Table:
    """The measured rows, by id; through a file, as sixty columns of a million rows are much for a driver."""
    with tempfile.TemporaryDirectory() as folder:
        write(spark, text, path, folder, partitions)
        return read(folder)


def write(spark: SparkSession, text: str, path: str, folder: str, partitions: int) -> None:
    metrics = hr.Metrics(text, time="ts", id="id", parallelism=partitions)
    spark.read.parquet(path).transform(metrics.measure).write.parquet(folder, mode="overwrite", compression="none")


def read(folder: str) -> pa.Table:
    answered = pq.read_table(folder)
    # Spark writes UTC times without the name of a zone.
    zoned = answered.column("ts").cast(pa.timestamp("us", "UTC"))
    return by_id(answered.set_column(answered.column_names.index("ts"), "ts", zoned))


@pytest.fixture(scope="module")
def measured(spark: SparkSession, path: str) -> pa.Table:
    return run(spark, TEXT, path, partitions=2)


@pytest.mark.chaos
def test_every_aggregation_over_three_windows_equals_duckdb(table: pa.Table, measured: pa.Table) -> None:
    assert_same_answers(measured, by_id(duckdb_table(TEXT, table, time="ts")), ulps=ulps_of(TEXT))


def test_on_a_fifth_every_aggregation_over_three_windows_equals_duckdb(
    table: pa.Table, measured_part: pa.Table
) -> None:
    expected = by_id(duckdb_table(TEXT, table.slice(0, PAYMENTS // 5), time="ts"))
    assert_same_answers(measured_part, expected, ulps=ulps_of(TEXT))


def test_chosen_rows_equal_the_definition(table: pa.Table, measured_part: pa.Table) -> None:
    table = table.slice(0, PAYMENTS // 5)
    rows = np.random.default_rng(6).choice(table.num_rows, 100, replace=False)
    # Answers are in the order of ids.
    places = np.searchsorted(np.sort(np.asarray(table.column("id"))), np.asarray(table.column("id"))[rows])
    chosen = measured_part.take(pa.array(places))
    for statement in parse(TEXT):
        windows = ExactWindows(statement, table, "ts")
        expected = pa.table({str(item.name): windows.answers(item, rows) for item in statement.items})
        assert_same_answers(
            chosen.select(expected.column_names), expected, ulps={n: 4 for n in ulps_of(TEXT) if "spread" in n}
        )


@pytest.fixture(scope="module")
def part(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A fifth of them, for what is done again and again."""
    path = tmp_path_factory.mktemp("part") / "payments.parquet"
    pq.write_table(table.slice(0, PAYMENTS // 5), path, row_group_size=20_000)
    return str(path)


@pytest.fixture(scope="module")
def measured_part(spark: SparkSession, part: str) -> pa.Table:
    return run(spark, TEXT, part, partitions=2)


@pytest.mark.parametrize("partitions", [1, 7])
def test_the_number_of_partitions_changes_nothing(
    spark: SparkSession, part: str, measured_part: pa.Table, partitions: int
) -> None:
    assert run(spark, TEXT, part, partitions).equals(measured_part)


@pytest.mark.chaos
@pytest.mark.connect
def test_spark_connect_gives_the_same_rows(part: str, measured_part: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        on_connect(write, TEXT, part, folder, 2)
        assert read(folder).equals(measured_part)


def test_delayed_tumbling_infinite_and_count_windows_equal_duckdb(
    spark: SparkSession, part: str, table: pa.Table
) -> None:
    answered = run(spark, OTHER_WINDOWS, part, partitions=3)
    some = table.slice(0, PAYMENTS // 5)
    assert_same_answers(answered, by_id(duckdb_table(OTHER_WINDOWS, some, time="ts")))
