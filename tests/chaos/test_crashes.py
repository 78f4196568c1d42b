"""Exactly once: kill -9 of a Python worker before and after every write of a state file changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.testing.crash_checks import check_crash, crash_points
from headrace.testing.crashes import KILL_WORKER, Crashes

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]


def test_a_worker_killed_at_any_point_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    crashes = Crashes(tmp_path / "crashes")
    with crashes.installed(spark):
        calm, points = crash_points(spark, tmp_path / "calm", crashes)
        assert {Path(point.name).suffix for point in points} == {".json", ".state", ".events", ".manifest"}
        for number, point in enumerate(points):
            print(point)
            check_crash(spark, tmp_path / str(number), crashes, KILL_WORKER, [point], calm)


def test_workers_killed_at_all_points_one_after_the_other_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    crashes = Crashes(tmp_path / "crashes")
    with crashes.installed(spark):
        calm, points = crash_points(spark, tmp_path / "calm", crashes)
        failures = check_crash(spark, tmp_path / "crashed", crashes, KILL_WORKER, points, calm)
        assert failures


def test_workers_killed_at_all_points_change_nothing_with_state_in_rocksdb(spark: SparkSession, tmp_path: Path) -> None:
    crashes = Crashes(tmp_path / "crashes")
    with crashes.installed(spark):
        calm, points = crash_points(spark, tmp_path / "calm", crashes, backend="rocksdb")
        assert {".sst", ".rocks"} <= {Path(point.name).suffix for point in points}
        failures = check_crash(spark, tmp_path / "crashed", crashes, KILL_WORKER, points, calm)
        assert failures
