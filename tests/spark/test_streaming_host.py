"""Streams answer as the batch does: whatever the micro-batches, restarts, tasks and failed attempts."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from headrace.measure.definition import Definition
from headrace.measure.recorded import sealed
from headrace.measure.run import measure_table
from headrace.testing.compare import assert_same_answers
from headrace.testing.file_stream import TableStream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TEXT = """
    SELECT sum(amount) AS spent, count(*) AS n, max(amount) AS top, last(amount) AS newest, prev(shop) AS before,
           first(shop) AS oldest, countDistinct(shop) AS shops, median(amount) AS middle, topK(shop, 2) AS favourites,
           stdDev(amount) AS spread
      FROM payments GROUP BY card OVER sliding 5 minutes;
    SELECT sum(amount) AS last_five FROM payments WHERE shop <> 'b' GROUP BY card OVER sliding 5 events;
    SELECT avg(amount) AS usual FROM payments WHERE amount > 10 GROUP BY shop OVER sliding 10m delayed by 1m
"""


def payments(rows: int, seed: int) -> pa.Table:
    """A payment a second, a tenth of them up to half a minute late."""
    dice = np.random.default_rng(seed)
    late = np.where(dice.random(rows) < 0.1, dice.integers(0, 30_000_000, rows), 0)
    shops = np.array(["a", "b", "c", "ü"])[dice.integers(0, 4, rows)]
    return pa.table(
        {
            "offset": np.arange(rows),
            "ts": pa.array(np.arange(rows) * 1_000_000 - late, pa.timestamp("us", "UTC")),
            "card": pa.array([f"card-{card}" for card in dice.integers(0, 12, rows)], mask=dice.random(rows) < 0.02),
            "shop": pa.array(shops, mask=dice.random(rows) < 0.05),
            "amount": np.round(dice.lognormal(3, 1, rows), 2),
        }
    )


class Stream(TableStream):
    backend = "columnar"

    def run_text(self, tasks: int, text: str = TEXT, each: Callable[[DataFrame, int], None] | None = None) -> None:
        metrics = hr.Metrics(
            text, time="ts", arrival="offset", parallelism=tasks, state=self.state, backend=self.backend
        )
        self.run(metrics, each)

    def expected(self) -> pa.Table:
        return measure_table(Definition(TEXT, "ts", arrival="offset"), self.table.slice(0, self.arrived))


def assert_as_the_batch(stream: Stream) -> None:
    expected = stream.expected()
    names = expected.column_names[stream.table.num_columns :]
    assert_same_answers(stream.answers("offset").select(["offset", *names]), expected.select(["offset", *names]))


def test_answers_are_those_of_the_batch_through_restarts_and_rescales(spark: SparkSession, tmp_path: Path) -> None:
    dice = random.Random(11)
    stream = Stream(spark, tmp_path, payments(3000, seed=11))
    for tasks in (2, 5, 1):
        stream.arrive_rows([dice.randint(1, 500) for _ in range(2)])
        stream.run_text(tasks)
    assert_as_the_batch(stream)


def test_state_in_rocksdb_and_in_another_place_gives_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """`local://` is a file system of fsspec like any other: what is far away, with a cache here."""
    stream = Stream(spark, tmp_path, payments(1500, seed=17))
    stream.backend = "rocksdb"
    stream.state = f"local://{tmp_path}/far"
    for tasks in (2, 1):
        stream.arrive_rows([300, 200])
        stream.run_text(tasks)
    assert_as_the_batch(stream)
    assert list((tmp_path / "far").rglob("*.sst"))


def test_a_batch_that_failed_after_its_state_was_written_is_run_again(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, payments(900, seed=12))
    stream.arrive_rows([400, 300])
    out = str(tmp_path / "out")

    def fails_late(answered: DataFrame, batch: int) -> None:
        answered.write.mode("overwrite").format("noop").save()
        if batch == 1:
            raise RuntimeError("the sink is away")
        answered.write.mode("append").parquet(out)

    def works(answered: DataFrame, batch: int) -> None:
        answered.write.mode("append").parquet(out)

    with pytest.raises(StreamingQueryException, match="the sink is away"):
        stream.run_text(2, each=fails_late)
    stream.arrive_rows([200])
    stream.run_text(3, each=works)
    assert_as_the_batch(stream)


def test_killed_workers_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """kill -9 of Python workers at random moments, in the middle of batches and of commits; then the query restarts."""
    dice = random.Random(15)
    stream = Stream(spark, tmp_path, payments(1500, seed=15))
    stream.arrive_rows([dice.randint(50, 250) for _ in range(6)])
    over, killed = threading.Event(), 0
    failures: list[str] = []

    def kill_now_and_then() -> None:
        nonlocal killed
        while not over.wait(dice.uniform(0.1, 0.6)):
            workers = [process for process in psutil.Process().children(recursive=True) if is_forked_worker(process)]
            if workers and killed < 6:
                dice.choice(workers).kill()
                killed += 1

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    try:
        for _ in range(20):
            try:
                stream.run_text(2)
                break
            except StreamingQueryException as error:
                failures.append(str(error))
    finally:
        over.set()
        killer.join()
    assert killed > 0
    assert not [failure for failure in failures if "StateDamaged" in failure]
    assert_as_the_batch(stream)


def is_forked_worker(process: psutil.Process) -> bool:
    """A worker is a child of the daemon, which has the same command line; the daemon is a child of the JVM."""
    try:
        parent = process.parent()
        return parent is not None and all("pyspark.daemon" in one.cmdline() for one in (process, parent))
    except psutil.Error:
        return False


def test_damaged_state_stops_the_query_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, payments(600, seed=13))
    stream.arrive_rows([300])
    stream.run_text(2)
    # In another folder, for workers remember what they wrote themselves.
    moved = Path(stream.state).rename(tmp_path / "moved")
    stream.state = str(moved)
    for path in moved.rglob("*.state"):
        path.write_bytes(path.read_bytes()[:-100])
    stream.arrive_rows([300])
    with pytest.raises(StreamingQueryException) as raised:
        stream.run_text(3)
    assert "StateDamaged" in str(raised.value)
    assert "it is shorter than what was written" in str(raised.value)


def test_other_metrics_do_not_start_from_this_state(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, payments(200, seed=14))
    stream.arrive_rows([100])
    stream.run_text(1, "SELECT count(*) AS n FROM payments GROUP BY card OVER sliding 5 minutes")
    stream.arrive_rows([100])
    with pytest.raises(hr.StateMismatch, match=r"has n = count.* over sliding 5m, the query has n = "):
        stream.run_text(1, "SELECT count(*) AS n FROM payments GROUP BY card OVER sliding 6 minutes")


def test_a_stream_needs_a_place_for_its_state(spark: SparkSession) -> None:
    rate = spark.readStream.format("rate").load()
    metrics = hr.Metrics("SELECT count(*) AS n FROM rate OVER sliding 1 minute", time="timestamp")
    with pytest.raises(hr.DefinitionError, match="needs a place to keep state"):
        metrics.measure(rate)


def test_a_location_that_cannot_be_used_is_refused_before_the_query_starts(spark: SparkSession, tmp_path: Path) -> None:
    rate = spark.readStream.format("rate").load()
    text = "SELECT count(*) AS n FROM rate GROUP BY value OVER sliding 1 minute"
    (tmp_path / "file").write_text("")
    with pytest.raises(hr.StateError, match=r"state location .*/file is a file; name a folder, it is made if"):
        hr.Metrics(text, time="timestamp", state=str(tmp_path / "file")).measure(rate)
    with pytest.raises(hr.StateError, match=r"state location /proc/x: cannot be used \(.*\); "):
        hr.Metrics(text, time="timestamp", state="/proc/x").measure(rate)
    with pytest.raises(hr.EnvironmentProblem, match=r"state location nope://x: .*for example pip install s3fs"):
        hr.Metrics(text, time="timestamp", state="nope://x").measure(rate)


def test_state_of_a_newer_headrace_is_refused_before_the_query_starts(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, payments(100, seed=16))
    stream.arrive_rows([100])
    stream.run_text(1)
    for path in Path(stream.state).rglob("definitions/*.json"):
        path.write_bytes(sealed(json.loads(path.read_text())["record"] | {"format": 3}))
    with pytest.raises(hr.StateMismatch, match="has format 3, and this Headrace knows formats up to 2; upgrade"):
        stream.run_text(1)


def nowhere(answered: DataFrame, batch: int) -> None:
    answered.write.format("noop").mode("overwrite").save()


def test_the_session_may_say_where_state_is(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, payments(50, seed=18))
    stream.arrive_rows([50])
    text = "SELECT count(*) AS n FROM payments GROUP BY card OVER sliding 1 minute"
    for name, folder in (
        ("headrace.state.location", tmp_path / "shared"),
        ("spark.sql.streaming.checkpointLocation", tmp_path / "checkpoints" / "headrace-state"),
    ):
        place = folder if name.startswith("headrace") else folder.parent
        spark.conf.set(name, str(place))
        try:
            metrics = hr.Metrics(text, time="ts", arrival="offset", parallelism=1)
            query = stream.run(metrics, nowhere)
            assert metrics.progress(query).rows == 50
        finally:
            spark.conf.unset(name)
        assert list(folder.rglob("*.manifest"))
        shutil.rmtree(tmp_path / "checkpoint")
