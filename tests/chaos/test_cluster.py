"""Exactly once on a cluster: kill -9 of executors, which the query survives, and of the driver, which is restarted."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.testing.cluster import standalone_cluster
from headrace.testing.crash_checks import assert_as_calm, crash_points, scripted_stream
from headrace.testing.crashes import KILL_DRIVER, KILL_EXECUTOR, KILL_WORKER, Crashes
from headrace.testing.stream_process import run_in_process

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("what", [KILL_EXECUTOR, KILL_WORKER])
def test_a_query_goes_on_by_itself_when_executors_or_workers_are_killed(
    spark: SparkSession, tmp_path: Path, what: str
) -> None:
    crashes = Crashes(tmp_path / "crashes")
    with crashes.installed(spark):
        calm, points = crash_points(spark, tmp_path / "calm", crashes)
    stream = scripted_stream(spark, tmp_path / "crashed", crashes, what, points)
    with standalone_cluster(tmp_path / "cluster", environment=crashes.environment) as master:
        assert run_in_process(master, stream.folder, crashes) == 0
    assert_as_calm(stream, crashes, calm)


def test_a_driver_killed_at_any_point_is_started_again_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    crashes = Crashes(tmp_path / "crashes")
    with crashes.installed(spark):
        calm, points = crash_points(spark, tmp_path / "calm", crashes)
    stream = scripted_stream(spark, tmp_path / "crashed", crashes, KILL_DRIVER, points)
    kills = 0
    with standalone_cluster(tmp_path / "cluster", environment=crashes.environment) as master:
        while run_in_process(master, stream.folder, crashes) != 0:
            kills += 1
            assert kills <= len(points)
    assert kills == len(points)
    assert_as_calm(stream, crashes, calm)
