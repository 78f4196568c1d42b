"""The same metrics by every system: one function each, Parquet file in, Parquet out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import duckdb
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.functions import arrow_udf

import headrace as hr

CORES: Final = 2
WINDOW: Final = "5 minutes"
SPARK_SETTINGS: Final[dict[str, str]] = {
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "2",
}

# Headrace's window is (t - 5 minutes, t]; SQL's frame is closed on both sides, so it is one microsecond shorter.
_FRAME: Final = "PARTITION BY card ORDER BY ts RANGE BETWEEN {interval} PRECEDING AND CURRENT ROW"
_SQL: Final = "SELECT *, sum(amount) OVER w AS spent, count(*) OVER w AS n FROM {source} WINDOW w AS ({frame})"
_TOLERANCE: Final = 1e-9


class AnswersDiffer(Exception):
    """Two systems gave different answers: the race is void."""


def headrace(
    spark: SparkSession,
    source: Path,
    target: Path,
    *,
    window: str = WINDOW,
    arrival: str | None = None,
    memory_bytes: int | None = None,
) -> None:
    """`hr.Metrics` as a user would write it."""
    more: dict[str, Any] = {} if memory_bytes is None else {"memory_bytes": memory_bytes}
    text = f"SELECT sum(amount) AS spent, count(*) AS n FROM payments GROUP BY card OVER sliding {window}"
    metrics = hr.Metrics(text, time="ts", id="txn", arrival=arrival, **more)
    _write(spark.read.parquet(str(source)).transform(metrics.measure), target)


def identity(spark: SparkSession, source: Path, target: Path) -> None:
    """What the shuffle, the sort, the way to Python and back, and the files cost: a UDF that answers with its input."""

    def repeat(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        for ts, amount, _ in batches:
            yield pa.StructArray.from_arrays([amount, ts.view(pa.int64())], names=["spent", "n"])

    # Spark reads the kind of UDF from the hints, as types.
    repeat.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
    make_udf: Any = arrow_udf
    udf: Any = make_udf(repeat, "spent double, n long")
    arranged = spark.read.parquet(str(source)).repartition("card").sortWithinPartitions("ts", "txn", "card", "amount")
    answered = arranged.select("*", udf.asNondeterministic()("ts", "amount", "card").alias("answer"))
    _write(answered.select("*", "answer.spent", "answer.n").drop("answer"), target)


def spark_sql(spark: SparkSession, source: Path, target: Path) -> None:
    """Spark's own window function."""
    frame = _FRAME.format(interval="INTERVAL '4:59.999999' MINUTE TO SECOND")
    spark.read.parquet(str(source)).createOrReplaceTempView("payments")
    _write(spark.sql(_SQL.format(source="payments", frame=frame)), target)


def spark_sql_within(seconds: float, spark: SparkSession, source: Path, target: Path) -> bool:
    """`spark_sql`, stopped after so many seconds; False if it had to be."""
    group, context, ended = f"bench-{uuid4().hex}", spark.sparkContext, threading.Event()

    def stop() -> None:
        # Again and again: a query has several jobs, and only those that run are cancelled.
        wait = seconds
        while not ended.wait(wait):
            context.cancelJobGroup(group)
            wait = 0.2

    watch = threading.Thread(target=stop, daemon=True)
    start = time.monotonic()
    context.setJobGroup(group, "Spark SQL's window", interruptOnCancel=True)
    watch.start()
    try:
        spark_sql(spark, source, target)
    except (PySparkException, Py4JJavaError):
        if time.monotonic() - start < seconds:
            raise
        return False
    finally:
        ended.set()
        watch.join()
        context.setJobGroup("", "")
    return True


def duckdb_sql(source: Path, target: Path) -> None:
    """DuckDB's window function, on as many threads as Spark has."""
    frame = _FRAME.format(interval="INTERVAL '299.999999 seconds'")
    query = _SQL.format(source=f"read_parquet('{source}')", frame=frame)
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {CORES}")
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet)")


def largest_difference(ours: Path, theirs: Path, rows: int) -> float:
    """The largest relative difference of two sums; raises unless rows and counts are the same."""
    with duckdb.connect() as connection:
        found = connection.execute(
            f"""
            SELECT count(*), count(*) FILTER (a.n IS DISTINCT FROM b.n),
                   coalesce(max(abs(a.spent - b.spent) / greatest(abs(a.spent), abs(b.spent))), 0),
                   count(*) FILTER (a.spent IS NULL OR b.spent IS NULL)
            FROM read_parquet('{_files(ours)}') a JOIN read_parquet('{_files(theirs)}') b USING (txn)
            """
        ).fetchone()
    assert found is not None
    joined, counts_differ, worst, nulls = found
    if joined != rows or counts_differ or nulls or worst > _TOLERANCE:
        raise AnswersDiffer(
            f"{joined} of {rows} rows joined, {counts_differ} counts differ, {nulls} sums are null, "
            f"sums differ by up to {worst:.1e}"
        )
    return float(worst)


def mean_window(answers: Path) -> float:
    """How many payments of its card the window of a payment holds, on average: what a naive window pays for."""
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT avg(n) FROM read_parquet('{_files(answers)}')").fetchone()
    assert found is not None
    return float(found[0])


def _write(df: DataFrame, target: Path) -> None:
    df.write.mode("overwrite").parquet(str(target))


def _files(path: Path) -> str:
    return f"{path}/*.parquet" if path.is_dir() else str(path)
