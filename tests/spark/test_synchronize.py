"""Programs on real Spark: on a batch, on a stream and in a flow they give what the sequential program gives."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

import headrace as hr
from headrace.demo.programs import PROGRAMS, EventWindows
from headrace.testing.flows import kill_workers
from headrace.testing.spark import on_connect
from headrace.testing.synchronized import events_of, expected_of, live_flow, on_batch, on_stream, rows_of_frame
from headrace.testing.trees import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
LEAVES = dict(zip(PROGRAMS, (4, 2, 8, 4, 2, 8), strict=True))


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_batch(spark: SparkSession, tmp_path: Path, name: str) -> None:
    events = events_of(name, seed=1)
    assert on_batch(spark, tmp_path, name, events, parallelism=LEAVES[name], tasks=2) == expected_of(name, events)


def test_a_stream_that_is_started_again_with_other_tasks(spark: SparkSession, tmp_path: Path) -> None:
    events = events_of("fraud", seed=2)
    assert on_stream(spark, tmp_path, "fraud", events, [2, 4], batches=3) == expected_of("fraud", events)


def test_a_flow_whose_workers_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    events = events_of("key_counters", seed=3)
    job = live_flow("key_counters", events, hr.parquet(str(tmp_path / "out")), 4).start(
        spark, tmp_path / "at", commit_s=0.2
    )
    kill_workers(job, kills=2, seed=1, pause_s=(0.2, 0.8))
    assert job.wait(200)
    assert rows_of(pq.read_table(tmp_path / "out")) == expected_of("key_counters", events)


SCRIPT = """
from __future__ import annotations
from dataclasses import dataclass
import headrace as hr
from headrace.demo.programs import EventWindows

@dataclass(frozen=True)
class Sum:
    cents: int

@dataclass(frozen=True)
class Book:
    sums: dict[str, Sum]

def book(cents):
    return Book({"all": Sum(cents)})

class Booked(EventWindows):
    update_batch = None

    def init(self):
        return book(0)

    def update(self, state, event):
        cents, given = EventWindows.update(self, state.sums["all"].cents, event)
        return book(cents), given

    def fork(self, state, left, right):
        return tuple(map(book, EventWindows.fork(self, state.sums["all"].cents, left, right)))

    def join(self, left, right):
        return book(left.sums["all"].cents + right.sums["all"].cents)

def run(df, **options):
    return df.transform(hr.synchronize(Booked(), arrival="arrival", parallelism=2, tasks=1, **options))

rows = run(spark.read.parquet(events)).collect()
stream = run(spark.readStream.schema(spark.read.parquet(events).schema).parquet(events + "*"), state=at + "/state")
query = stream.writeStream.format("noop").option("checkpointLocation", at + "/checkpoint")
query.trigger(availableNow=True).start().awaitTermination()
"""


def test_states_of_a_script_whose_annotations_are_texts(spark: SparkSession, tmp_path: Path) -> None:
    """In a worker these name nothing: `__main__` is another module there."""
    events = events_of("event_windows", seed=5)
    pq.write_table(events, tmp_path / "events.parquet")
    (tmp_path / "script.py").write_text(SCRIPT)
    given = {"spark": spark, "events": str(tmp_path / "events.parquet"), "at": str(tmp_path)}
    found = runpy.run_path(str(tmp_path / "script.py"), given, "__main__")
    assert Counter(map(tuple, found["rows"])) == expected_of("event_windows", events)


class Order(hr.Program):
    """All that has come, after each event."""

    outputs = pa.schema([("seen", pa.string())])
    tags = ("a",)

    def depends(self, a: Any, b: Any) -> bool:
        return True

    def init(self) -> Any:
        return ""

    def update(self, state: Any, event: Any) -> Any:
        state += f"{event.number}/{event.text} "
        return state, [(state,)]


def test_ties_and_heartbeats_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Ties are in the order of a batch; heartbeats may come twice, or late; the last one lets everything go."""
    schema = "time long, kind string, number double, text string"
    last = (1 << 63) - 1
    rows = [(5, "a", number, text) for number in (None, 1.0, float("nan"), -2.0) for text in ("z", None, "É", "")]
    rows += [(last, "a", 7.0, "last")]
    for name, part in enumerate([rows[:9], [(4, None, None, None)] * 2, rows[9:], [(last, None, None, None)] * 2]):
        path = tmp_path / "in" / f"{name}"
        spark.createDataFrame(part, schema).coalesce(1).write.parquet(str(path))
    run = hr.synchronize(Order(), time="time", tag="kind", parallelism=1, tasks=1, state=str(tmp_path / "state"))
    batch = spark.createDataFrame(rows, schema).repartition(3).transform(run).collect()
    for _ in range(2):  # the second has nothing new
        query = (
            spark.readStream.schema(schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(tmp_path / "in" / "*"))
            .transform(run)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert rows_of(pq.read_table(tmp_path / "out", schema=Order.outputs)) == Counter(map(tuple, batch))


def test_micro_batches_of_which_nothing_is_left(spark: SparkSession, tmp_path: Path) -> None:
    """No stage of Spark need run for them, and the state must be there for the next one all the same."""
    found, expected = _with_empty_batches(spark, str(tmp_path))
    assert found == expected


def test_micro_batches_of_which_nothing_is_left_on_connect(tmp_path: Path) -> None:
    found, expected = on_connect(_with_empty_batches, str(tmp_path))
    assert found == expected


def _with_empty_batches(spark: SparkSession, folder: str) -> tuple[list[Any], list[Any]]:
    """The first, the last and some between are empty, by a filter or as a file. What is newest waits for more."""
    noise: list[tuple[int, str]] = [(0, "noise")]
    parts = [noise, [(1, "a"), (2, "a")], noise, [], [(4, "a")], noise, [(5, "a")], noise]
    schema = pa.schema([("time", pa.int64()), ("kind", pa.string()), ("number", pa.float64()), ("text", pa.string())])
    os.makedirs(f"{folder}/in")
    for at, part in enumerate(parts):
        rows = [{"time": time, "kind": kind, "number": 1.0, "text": "x"} for time, kind in part]
        pq.write_table(pa.Table.from_pylist(rows, schema), f"{folder}/in/{at}.parquet")
        os.utime(f"{folder}/in/{at}.parquet", (1e9 + at, 1e9 + at))
    columns = "time long, kind string, number double, text string"
    events = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
    run = hr.synchronize(Order(), time="time", tag="kind", parallelism=2, tasks=2, state=f"{folder}/state")
    writer = events.where("kind <> 'noise'").transform(run).writeStream.format("parquet")
    writer = writer.option("path", f"{folder}/out").option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    found = sorted(pq.read_table(f"{folder}/out", schema=Order.outputs).column("seen").to_pylist())
    return found, ["1.0/x ", "1.0/x 1.0/x ", "1.0/x 1.0/x 1.0/x "]


class Dying(EventWindows):
    """It kills its worker once."""

    def __init__(self, mark: str):
        self._mark = mark

    def update_batch(self, state: Any, events: Any) -> Any:
        if 9 in events.column("value").to_pylist() and not os.path.exists(self._mark):
            Path(self._mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().update_batch(state, events)


@pytest.mark.chaos
def test_a_batch_whose_worker_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    events = events_of("event_windows", seed=4)
    pq.write_table(events, tmp_path / "events.parquet")
    made = hr.synchronize(Dying(str(tmp_path / "died")), arrival="arrival", parallelism=2, tasks=2)
    found = rows_of_frame(spark.read.parquet(str(tmp_path / "events.parquet")).transform(made))
    assert (tmp_path / "died").exists()
    assert found == expected_of("event_windows", events)


class StillBorn(EventWindows):
    """The first worker that gets it dies before it has met the others; these wait for it until Spark kills them."""

    def __init__(self, mark: str):
        self._mark = mark

    def __setstate__(self, given: dict[str, Any]) -> None:
        self.__dict__.update(given)
        with contextlib.suppress(FileExistsError):
            assert TaskContext.get() is not None
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_batch_whose_worker_is_killed_before_it_meets_the_others(spark: SparkSession, tmp_path: Path) -> None:
    """Who waits for it may live on for two seconds, and is not taken for one that was started again."""
    events = events_of("event_windows", seed=4)
    pq.write_table(events, tmp_path / "events.parquet")
    made = hr.synchronize(StillBorn(str(tmp_path / "died")), arrival="arrival", parallelism=2, tasks=2)
    found = rows_of_frame(spark.read.parquet(str(tmp_path / "events.parquet")).transform(made))
    assert (tmp_path / "died").exists()
    assert found == expected_of("event_windows", events)


@pytest.mark.chaos
@pytest.mark.parametrize("leaves", [1, 2, 4, 8])
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_every_host(spark: SparkSession, tmp_path: Path, name: str, leaves: int) -> None:
    events = events_of(name, seed=leaves)
    expected = expected_of(name, events)
    assert on_batch(spark, tmp_path / "batch", name, events, parallelism=leaves) == expected
    assert on_stream(spark, tmp_path / "stream", name, events, [leaves]) == expected
    job = live_flow(name, events, hr.parquet(str(tmp_path / "out")), leaves).start(spark, tmp_path / "at", commit_s=0.2)
    kill_workers(job, kills=2, seed=leaves, pause_s=(0.2, 1.0))
    assert job.wait(250)
    assert rows_of(pq.read_table(tmp_path / "out")) == expected
