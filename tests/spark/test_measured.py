"""Metrics in a flow on real Spark: the same answers as on the other two hosts, whatever dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.testing.random_streams import check_random_live, check_random_stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", [3, 11])
def test_three_hosts_give_the_same_answers(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    (tmp_path / "stream").mkdir()
    check_random_stream(spark, tmp_path / "stream", seed)
    check_random_live(spark, tmp_path / "live", seed)
