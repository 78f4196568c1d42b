"""Streams on Spark Connect: the same answers, counts and errors."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.measure.definition import Definition
from headrace.measure.run import measure_table
from headrace.testing.compare import assert_same_answers
from headrace.testing.spark import on_connect
from headrace.testing.synchronized import events_of, expected_of

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(300)]

TEXT = """SELECT sum(amount) AS spent, last(amount) AS newest FROM payments GROUP BY card OVER sliding 1 minute;
          SELECT count(*) AS n FROM payments OVER sliding 1 minute"""


def payments(rows: int) -> pa.Table:
    dice = np.random.default_rng(3)
    late = np.where(dice.random(rows) < 0.1, dice.integers(0, 30_000_000, rows), 0)
    return pa.table(
        {
            "offset": np.arange(rows),
            "ts": pa.array(np.arange(rows) * 1_000_000 - late, pa.timestamp("us", "UTC")),
            "card": dice.integers(0, 9, rows),
            "amount": np.round(dice.lognormal(3, 1, rows), 2),
        }
    )


def streamed(spark: SparkSession, table: pa.Table) -> tuple[Any, dict[str, int], int]:
    """Two runs of one query, the second with other parallelism."""
    from headrace.testing.file_stream import TableStream

    with tempfile.TemporaryDirectory() as folder:
        stream = TableStream(spark, Path(folder) / "stream", table)
        for tasks, sizes in ((2, [120, 80]), (3, [100])):
            stream.arrive_rows(sizes)
            metrics = hr.Metrics(
                TEXT, time="ts", arrival="offset", parallelism=tasks, state=stream.state, status="fate"
            )
            query = stream.run(metrics)
        # Connect gives the values beside their schema.
        observed = sum(batch["observedMetrics"]["headrace"]["values"][0] for batch in query.recentProgress)
        return stream.answers("offset"), metrics.progress(query).counts, observed


def program_streamed(spark: SparkSession, events: pa.Table) -> Counter[tuple[Any, ...]]:
    """A program in two runs of one query, the second with other parallelism."""
    from headrace.testing.synchronized import on_stream

    with tempfile.TemporaryDirectory() as folder:
        return on_stream(spark, Path(folder), "fraud", events, [2, 4], batches=3)


def both(spark: SparkSession, table: pa.Table, events: pa.Table) -> tuple[Any, Counter[tuple[Any, ...]]]:
    """In one process: a server takes its time to start."""
    return streamed(spark, table), program_streamed(spark, events)


def test_streams_on_connect() -> None:
    table, events = payments(300), events_of("fraud", 5)
    (answers, counts, observed), given = on_connect(both, table, events)
    assert given == expected_of("fraud", events)
    expected = measure_table(Definition(TEXT, "ts", arrival="offset"), table)
    names = ["offset", "spent", "newest", "n"]
    assert_same_answers(answers.select(names), expected.select(names))
    assert sum(counts.values()) == 300
    assert counts["late"] > 0
    assert observed == 100
