"""A sample of what `make chaos` does: random streams, crashes at scripted points, damaged files, a full disk."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.testing.crash_checks import (
    check_crash,
    check_damage,
    check_full_disk,
    check_no_space_at,
    crash_points,
    run_stream_to_damage,
)
from headrace.testing.crashes import KILL_WORKER, Crashes, Point
from headrace.testing.damage import Damage, flipped, missing, truncated
from headrace.testing.full_disk import small_disk
from headrace.testing.random_streams import check_random_stream
from headrace.testing.streams import FolderStream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SAMPLE = (
    Point("after", "*/by-card/files/000000000000-*.events"),
    Point("after", "*/by-card/files/000000000001-*.state"),
    Point("after", "*/by-card/batches/000000000001/0-of-2.manifest"),
)


@pytest.mark.parametrize("seed", range(6))
def test_random_streams_are_answered_as_the_batch_and_the_oracle_do(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    check_random_stream(spark, tmp_path, seed)


def test_a_micro_batch_in_which_no_event_has_a_time_is_answered_with_nulls(spark: SparkSession, tmp_path: Path) -> None:
    stream = FolderStream(spark, tmp_path, "SELECT count(*) AS n FROM t GROUP BY k OVER infinite", time="ts")
    times = pa.timestamp("us", "UTC")
    stream.arrive(
        pa.table({"k": ["a"], "ts": pa.array([None], times)}), pa.table({"k": ["a"], "ts": pa.array([7], times)})
    )
    stream.run_tasks(1)
    assert sorted(stream.answers()["n"].to_pylist(), key=str) == [1, None]


def test_workers_killed_in_the_middle_of_commits_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    crashes = Crashes(tmp_path / "crashes")
    with crashes.installed(spark):
        calm, points = crash_points(spark, tmp_path / "calm", crashes)
        assert set(SAMPLE) <= set(points)
        failures = check_crash(spark, tmp_path / "crashed", crashes, KILL_WORKER, list(SAMPLE), calm)
        assert failures
        full = Point("before", "*/by-card/batches/000000000001/1-of-2.manifest")
        check_no_space_at(spark, tmp_path / "full", crashes, full, calm)


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FolderStream:
    return run_stream_to_damage(spark, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("kind", "damage"), [(".json", truncated), (".manifest", missing), (".state", flipped), (".events", missing)]
)
def test_a_damaged_file_is_named_and_never_leads_to_a_wrong_answer(
    whole: FolderStream, tmp_path: Path, kind: str, damage: Damage
) -> None:
    check_damage(whole, tmp_path, kind, damage, random.Random(1), tasks=3)


def test_a_disk_that_is_really_full(spark: SparkSession, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("this process may not mount a file system")
        check_full_disk(spark, tmp_path / "stream", disk)
