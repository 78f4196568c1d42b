"""Exactly once, checked: a small stream that keeps every kind of state file, and what must be true after any crash."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headrace.errors import StateDamaged, StateError
from headrace.measure import definition as definitions
from headrace.measure.run import measure_table
from headrace.spark.metrics import Metrics
from headrace.testing.compare import assert_same_answers
from headrace.testing.crashes import DISK_FULL, Crashes, Point
from headrace.testing.damage import Damage, files_in_use
from headrace.testing.full_disk import SmallDisk
from headrace.testing.streams import FolderStream, assert_same_state

TEXT: Final = """
    SELECT sum(amount) AS spent, count(*) AS n, last(shop) AS newest, countDistinct(shop) AS shops
      FROM payments GROUP BY card OVER sliding 1 minute;
    SELECT avg(amount) AS usual FROM payments WHERE amount > 10 GROUP BY card OVER sliding 30s delayed by 10s;
    SELECT sum(amount) AS last_five FROM payments GROUP BY card OVER sliding 5 events
"""
SETTINGS: Final[dict[str, Any]] = {
    "time": "ts",
    "id": "offset",
    "arrival": "offset",
    "closure": "5 seconds",
    "dedup": "1 minute",
    "shards": 3,
}
TASKS: Final = 2
BATCHES: Final = 2
ROWS: Final = 90
CHUNK_EVENTS: Final = 8


def payments(rows: int, seed: int = 1) -> pa.Table:
    """Two payments a second, a tenth of them late."""
    dice = np.random.default_rng(seed)
    late = np.where(dice.random(rows) < 0.1, dice.integers(0, 20_000_000, rows), 0)
    return pa.table(
        {
            "offset": np.arange(rows),
            "ts": pa.array(np.arange(rows) * 500_000 - late, pa.timestamp("us", "UTC")),
            "card": pa.array([f"card-{card}" for card in dice.integers(0, 9, rows)], mask=dice.random(rows) < 0.05),
            "shop": pa.array(np.array(["a", "b", "ü"])[dice.integers(0, 3, rows)], mask=dice.random(rows) < 0.1),
            "amount": np.round(dice.lognormal(3, 1, rows), 2),
        }
    )


@contextmanager
def small_chunks() -> Iterator[None]:
    """A few events fill a chunk, so that a small stream has files of them."""
    with patch.object(definitions, "STREAM_CHUNK_EVENTS", CHUNK_EVENTS):
        yield


def small_stream(spark: SparkSession, folder: Path, batches: int = BATCHES, backend: str = "columnar") -> FolderStream:
    """A stream of which so many micro-batches have arrived, and that has not been run."""
    stream = FolderStream(spark, folder, TEXT, backend=backend, **SETTINGS)
    stream.arrive(*[micro_batch(number) for number in range(batches)])
    return stream


def micro_batch(number: int) -> pa.Table:
    return payments(10 * ROWS).slice(number * ROWS, ROWS)


def crash_points(
    spark: SparkSession, folder: Path, crashes: Crashes, backend: str = "columnar"
) -> tuple[FolderStream, list[Point]]:
    """The small stream without any crash, and the points that it passes."""
    crashes.clear()
    stream = small_stream(spark, folder, backend=backend)
    with small_chunks():
        stream.run_tasks(TASKS)
    assert_answered_once(stream)
    return stream, crashes.points()


def check_crash(
    spark: SparkSession, folder: Path, crashes: Crashes, what: str, points: list[Point], calm: FolderStream
) -> list[str]:
    """Crash at these points, each once, and start again until all is answered: rows and state are those of `calm`.

    Gives what the query failed with.
    """
    stream = scripted_stream(spark, folder, crashes, what, points, calm.settings["backend"])
    with small_chunks():
        failures = stream.run_through(TASKS)
    assert not [failure for failure in failures if "StateDamaged" in failure], failures
    assert_as_calm(stream, crashes, calm)
    return failures


def scripted_stream(
    spark: SparkSession, folder: Path, crashes: Crashes, what: str, points: list[Point], backend: str = "columnar"
) -> FolderStream:
    """The small stream, not run yet, with crashes to come."""
    crashes.clear()
    for point in points:
        crashes.script(what, at=point)
    return small_stream(spark, folder, backend=backend)


def assert_as_calm(stream: FolderStream, crashes: Crashes, calm: FolderStream) -> None:
    """All crashes have happened, and the stream is where the calm one is."""
    assert crashes.pending() == 0, f"{crashes.pending()} crashes did not happen"
    assert_answered_once(stream)
    assert_same_answers(stream.answers().sort_by("offset"), calm.answers().sort_by("offset"))
    assert_same_state(stream.state, calm.state)


# --------------------------------------------------------------------- damage


def run_stream_to_damage(spark: SparkSession, folder: Path) -> FolderStream:
    """The small stream after some batches, with one more that has arrived and is not answered."""
    stream = small_stream(spark, folder)
    with small_chunks():
        stream.run_tasks(TASKS)
    assert_answered_once(stream)
    stream.arrive(micro_batch(BATCHES))
    return stream


def check_damage(whole: FolderStream, folder: Path, kind: str, damage: Damage, dice: random.Random, tasks: int) -> bool:
    """Go on from a copy of the state in which one file of this kind is damaged.

    Raises AssertionError unless the query is refused with StateDamaged and the name of the file (then gives True) or
    its answers are right. The copy has a place of its own: workers remember what they wrote in another.
    """
    stream = whole.copied(folder / "copy")
    path = dice.choice(files_in_use(stream.state)[kind])
    damage(path, dice)
    refused = None
    try:
        with small_chunks():
            stream.run_tasks(tasks)
    except (StreamingQueryException, StateDamaged) as error:
        refused = f"{type(error).__name__}: {error}"
    if refused is None:
        assert_answered_once(stream)
        return False
    assert "StateDamaged" in refused, refused
    # Nobody knows the name of a manifest that is missing; its folder is known.
    assert path.name in refused or (not path.exists() and str(path.parent) in refused), refused
    return True


# ------------------------------------------------------------------ full disk


def check_full_disk(spark: SparkSession, folder: Path, disk: SmallDisk) -> None:
    """A disk with the state on it fills up between two batches; the query goes on when there is space again."""
    stream = small_stream(spark, folder, batches=1)
    stream.state = disk.folder / "state"
    with small_chunks():
        stream.run_tasks(TASKS)
        before = sorted(stream.state.rglob("*"))
        stream.arrive(micro_batch(1))
        disk.fill()
        assert_says_no_space(stream)
        assert sorted(stream.state.rglob("*.part-*")) == [path for path in before if ".part-" in path.name]
        disk.free()
        stream.run_tasks(TASKS)
    assert_answered_once(stream)


def check_no_space_at(spark: SparkSession, folder: Path, crashes: Crashes, point: Point, calm: FolderStream) -> None:
    """The same, with a disk that says it is full from a point on."""
    stream = scripted_stream(spark, folder, crashes, DISK_FULL, [point])
    with small_chunks():
        assert_says_no_space(stream)
        crashes.free_space()
        stream.run_tasks(TASKS)
    assert_as_calm(stream, crashes, calm)


def assert_says_no_space(stream: FolderStream) -> None:
    """The query fails with what is wrong, where, and what to do."""
    failed = None
    try:
        stream.run_tasks(TASKS)
    except (StreamingQueryException, StateError) as error:
        failed = str(error)
    assert failed is not None, "a full disk was not noticed"
    for said in ("No space left on device", str(stream.state), "free some space and start the query again"):
        assert said in failed, failed


def assert_answered_once(stream: FolderStream) -> None:
    """Every event that has arrived has one row, and it is the batch's."""
    table, answers = stream.arrived(), stream.answers().sort_by("offset")
    assert answers["offset"].to_pylist() == table["offset"].to_pylist()
    metrics = Metrics(stream.text, **stream.settings)
    names = ["offset", *metrics.names]
    assert_same_answers(answers.select(names), measure_table(metrics.definition, table).select(names))
