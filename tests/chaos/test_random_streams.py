"""Random streams on real Spark are answered as the batch kernel and the brute-force oracle answer them.

`make chaos RUNS=500` for more of them, `make chaos SEED=1234` for others.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.testing.random_streams import check_random_live, check_random_stream

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

FIRST = int(os.environ.get("SEED") or 1)
RUNS = int(os.environ.get("RUNS") or 200)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_random_streams_are_answered_as_the_batch_and_the_oracle_do(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    check_random_stream(spark, tmp_path, seed)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_random_streams_are_answered_live_while_workers_die(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    check_random_live(spark, tmp_path, seed)
