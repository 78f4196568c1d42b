"""Tasks with copies on real Spark: a worker that is killed is not missed, and what leaves is exact."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.errors import CopiesDiffer, FlowError
from headrace.queues.log import LogQueues
from headrace.testing.flows import assert_as_sequential, counting, kill_workers, numbers, three_stages, until, written

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def _are_up(job: Any) -> bool:
    return all(worker["up"] for worker in job.status()["workers"].values())


@pytest.mark.parametrize(("mode", "order"), [("active", "queue"), ("standby", "queue"), ("active", "round-robin")])
def test_killed_workers_are_not_missed(spark: SparkSession, tmp_path: Path, mode: str, order: str) -> None:
    # Without an end: one worker alone may have been through all before the other has begun.
    job = counting(tmp_path / "out", None).start(
        spark, tmp_path / "at", workers=2, commit_s=0.2, room_bytes=1 << 18, replicas=2, mode=mode, order=order
    )
    until(lambda: _are_up(job))
    assert kill_workers(job, kills=2, seed=1, pause_s=(0.2, 0.8)) == 2
    assert job.stop(drain=True, timeout_s=200)
    # A source that began again may have been stopped before it came to what it had given: not so those behind it.
    reports = job.status()["tasks"].items()
    taken = sum(report["records_in"] for task, report in reports if task.startswith("filter."))
    assert taken
    assert_as_sequential(counting(tmp_path / "out", taken), tmp_path / "out")


def test_a_flow_goes_on_with_another_number_of_copies(spark: SparkSession, tmp_path: Path) -> None:
    taken = 0
    for replicas in (2, 1, 2):
        flow = three_stages(tmp_path / "out", 0, source=hr.generate(numbers))
        job = flow.start(
            spark, tmp_path / "at", workers=2, commit_s=0.2, room_bytes=1 << 20, replicas={"filter": replicas}
        )
        until(lambda job=job, taken=taken: _given(job) > taken + 5000)  # type: ignore[misc]
        assert job.stop(drain=True, timeout_s=100)
        taken = _given(job)
        assert written(tmp_path / "out").num_rows == taken - (taken + 6) // 7


def _given(job: Any) -> int:
    return int(job.status()["tasks"].get("numbers.0", {"records_in": 0})["records_in"])


@pytest.mark.parametrize("order", ["round-robin", "leader"])
def test_a_flow_is_drained_whatever_the_order(spark: SparkSession, tmp_path: Path, order: str) -> None:
    flow = three_stages(tmp_path / "out", 0, source=hr.generate(numbers))
    job = flow.start(
        spark, tmp_path / "at", workers=2, commit_s=0.2, room_bytes=1 << 20, replicas=2, mode="active", order=order
    )
    until(lambda: _given(job) > 5000)
    assert job.stop(drain=True, timeout_s=100)
    assert written(tmp_path / "out").num_rows == _given(job) - (_given(job) + 6) // 7


METRICS = "SELECT count(*) AS n, sum(amount) AS spent FROM p GROUP BY card OVER sliding 1 hour"
SCHEMA = pa.schema(
    [("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("card", pa.int64()), ("amount", pa.float64())]
)


def test_answers_of_metrics_are_exact_while_a_worker_dies(spark: SparkSession, tmp_path: Path) -> None:
    flow = hr.Flow("scored")
    metrics = hr.Metrics(METRICS, time="ts", id="id")
    events = flow.source("events", hr.queue("events", SCHEMA))
    flow.sink("answers", flow.measure("score", metrics, events, parallelism=2), hr.queue("answers"))
    queues = LogQueues(tmp_path / "queues")
    job = flow.start(spark, tmp_path / "at", queues=queues, workers=2, commit_s=0.2, replicas=2)
    until(lambda: _are_up(job))
    found: dict[int, dict[str, Any]] = {}
    with hr.Sender(queues, "events") as sender, hr.Receiver(queues, "answers") as receiver:
        for n in range(400):
            row = {"id": n, "ts": n * 1_000_000, "card": n % 3, "amount": float(n)}
            sender.send(pa.RecordBatch.from_pylist([row], SCHEMA))
            if n in (100, 250):
                os.kill(job.status()["workers"][n // 200]["pid"], signal.SIGKILL)
            asked = time.monotonic()
            while n not in found:
                assert time.monotonic() - asked < 5, "the other copy answers"
                for batch in receiver.receive(0.1):
                    found.update({answer["id"]: answer for answer in batch.to_pylist()})
            if n == 200:
                until(lambda: _are_up(job))
    assert job.stop(timeout_s=60)
    for n in range(400):
        before = list(range(n % 3, n + 1, 3))
        assert (found[n]["n"], found[n]["spent"]) == (len(before), float(sum(before)))


def _stamped(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(1, "k", pa.array([time.time_ns()] * batch.num_rows, pa.int64()))


def test_copies_that_differ_are_named(spark: SparkSession, tmp_path: Path) -> None:
    flow = hr.Flow("stamped")
    stamped = flow.stage("stamp", _stamped, flow.source("numbers", hr.generate(numbers)), route=hr.rebalance())
    flow.sink("out", stamped, hr.parquet(str(tmp_path / "out")), route=hr.rebalance())
    job = flow.start(spark, tmp_path / "at", workers=2, replicas=2, room_bytes=1 << 20)
    with pytest.raises(CopiesDiffer, match=r"copies of stamp\.0 do not agree: record \d+ of what they send to out\.0"):
        job.wait(60)


def test_more_copies_than_slots(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(FlowError, match=r"9 copies of a task need 9 workers, each in a slot of its own, and this sess"):
        three_stages(tmp_path / "out", 10).start(spark, tmp_path / "at", replicas=9)
