"""Source order on real Spark, whatever dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.testing.flows import assert_conflux, conflux, kill_workers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_killed_workers_do_not_disturb_the_order(spark: SparkSession, tmp_path: Path) -> None:
    records = 300_000
    job = conflux(tmp_path / "out", records, first=5, last=3).start(spark, tmp_path / "at", commit_s=0.2)
    kill_workers(job, kills=3, seed=1, pause_s=(0.4, 0.9))
    assert job.wait(200)
    assert_conflux(tmp_path / "out", records)


@pytest.mark.chaos
def test_what_was_stopped_goes_on_in_order(spark: SparkSession, tmp_path: Path) -> None:
    records = 400_000
    for drain in (True, False):
        job = conflux(tmp_path / "out", records, first=3).start(spark, tmp_path / "at", commit_s=0.2, batch_records=512)
        job.wait(0.8)
        assert job.stop(drain=drain, timeout_s=100)
    assert conflux(tmp_path / "out", records, first=3).start(spark, tmp_path / "at").wait(200)
    assert_conflux(tmp_path / "out", records)
