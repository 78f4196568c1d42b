"""Streams of Parquet files to a Parquet sink: the same source, trigger and checkpoint for every way to measure."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from bench.support import tws
from bench.support.systems import CORES, WINDOW

SCHEMA: Final = "txn long, ts timestamp, card string, merchant string, amount double"

_TEXT: Final = f"SELECT sum(amount) AS spent, count(*) AS n FROM payments GROUP BY card OVER sliding {WINDOW}"


@dataclass(frozen=True)
class StreamFolders:
    """Where one run of a query reads and writes; all but the source are new for every run."""

    source: Path
    run: Path

    @property
    def answers(self) -> Path:
        return self.run / "answers"

    @property
    def state(self) -> Path:
        return self.run / "state"

    @property
    def checkpoint(self) -> Path:
        return self.run / "checkpoint"


@dataclass(frozen=True)
class StreamRun:
    """The micro-batches that a query committed."""

    progress: tuple[dict[str, Any], ...]

    def mean_millis(self) -> dict[str, float]:
        """Where the wall time of a micro-batch goes, as Spark tells it."""
        parts = dict.fromkeys(part for batch in self.progress for part in batch["durationMs"])
        return {
            part: round(sum(batch["durationMs"].get(part, 0) for batch in self.progress) / len(self.progress), 1)
            for part in parts
        }


def write_batches(table: pa.Table, folder: Path, rows_a_batch: int) -> Path:
    """Files of which `CORES` make one micro-batch, in the order of time."""
    folder.mkdir(parents=True)
    rows_a_file = -(-rows_a_batch // CORES)
    for number, start in enumerate(range(0, table.num_rows, rows_a_file)):
        path = folder / f"{number:05d}.parquet"
        pq.write_table(table.slice(start, rows_a_file), path)
        os.utime(path, (number, number))  # the source takes the oldest files first
    return folder


def headrace(spark: SparkSession, folders: StreamFolders) -> StreamRun:
    """`hr.Metrics` as a user would write it."""
    metrics = hr.Metrics(_TEXT, time="ts", id="txn", state=str(folders.state))
    return _run(spark, folders, metrics.measure)


def transform_with_state(spark: SparkSession, folders: StreamFolders) -> StreamRun:
    """Spark's own."""
    return _run(spark, folders, tws.measure)


def nothing(spark: SparkSession, folders: StreamFolders) -> StreamRun:
    """What the source, the sink and the micro-batches cost: every row as it came."""
    return _run(spark, folders, lambda payments: payments)


def first_answers(answers: Path, target: Path, rows: int) -> None:
    """The answers to the first payments, in one file: for a system that had no more."""
    with duckdb.connect() as connection:
        first = f"SELECT * FROM read_parquet('{answers}/*.parquet') WHERE txn <= {rows}"
        connection.execute(f"COPY ({first}) TO '{target}' (FORMAT parquet)")


def _run(spark: SparkSession, folders: StreamFolders, measure: Callable[[DataFrame], DataFrame]) -> StreamRun:
    payments = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", CORES).parquet(str(folders.source))
    query = (
        payments.transform(measure)
        .writeStream.format("parquet")
        .option("path", str(folders.answers))
        .option("checkpointLocation", str(folders.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    # Spark keeps the last hundred; a batch without rows is none.
    batches: list[Any] = list(query.recentProgress)
    return StreamRun(tuple(dict(batch) for batch in batches if batch["numInputRows"]))
