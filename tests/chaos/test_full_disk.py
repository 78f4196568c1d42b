"""A disk that fills up during a commit: the error says so and what to do, and the query goes on when there is space."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.testing.crash_checks import check_full_disk, check_no_space_at, crash_points
from headrace.testing.crashes import Crashes
from headrace.testing.full_disk import small_disk

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]


def test_a_disk_that_is_really_full(spark: SparkSession, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("this process may not mount a file system")
        check_full_disk(spark, tmp_path / "stream", disk)


def test_a_disk_that_is_full_at_any_write(spark: SparkSession, tmp_path: Path) -> None:
    crashes = Crashes(tmp_path / "crashes")
    with crashes.installed(spark):
        calm, points = crash_points(spark, tmp_path / "calm", crashes)
        for number, point in enumerate(point for point in points if point.when == "before"):
            check_no_space_at(spark, tmp_path / str(number), crashes, point, calm)
