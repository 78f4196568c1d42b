"""Tracking on Spark: real tasks, real kills."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.errors import FlowError
from headrace.spark.live import Flow
from headrace.testing.flows import kill_workers, until, written

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]
A_SESSION = 20


def sessions(first: int, count: int) -> pa.RecordBatch:
    """Twenty records a session, five sessions at a time."""
    n = np.arange(first, first + count)
    session = n // (5 * A_SESSION) * 5 + n % 5
    return pa.record_batch(
        {"n": pa.array(n), "session": pa.array(session), "closed": pa.array(n // 5 % A_SESSION == A_SESSION - 1)}
    )


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.02)  # so that there is something to see while it runs
    return batch


def drawn(folder: Path, records: int, name: str = "sessions") -> Flow:
    flow = Flow(name)
    stream = flow.source("s", hr.generate(sessions, records))
    first = flow.stage("first", slowly, stream, parallelism=3, route=hr.rebalance(), one_to_one=True)
    second = flow.stage("second", same, first, parallelism=2, route=hr.rebalance())
    tracked = second.tracked(by="session", ends=hr.marker("closed"))
    flow.sink("out", tracked, hr.parquet(str(folder / "out")), parallelism=2, route=hr.rebalance())
    flow.sink("told", flow.ends("ends", tracked), hr.parquet(str(folder / "ends")))
    return flow


def ended(folder: Path) -> list[Any]:
    return written(folder).column("substream").to_pylist() if list(folder.glob("*.parquet")) else []


def test_what_has_ended_is_there_to_be_read_whatever_dies(spark: SparkSession, tmp_path: Path) -> None:
    records = 16_000
    job = drawn(tmp_path, records).start(spark, tmp_path / "at", workers=2, batch_records=100, commit_s=0.3)
    looks = 0
    for look in range(1000):
        if job.wait(0.2):
            break
        if look in (8, 20):
            kill_workers(job, 1, look, pause_s=(0.0, 0.1))
        told = set(ended(tmp_path / "ends"))
        if told:
            looks += 1
            found = written(tmp_path / "out").group_by("session").aggregate([("n", "count")])
            counts = dict(zip(*(found.column(name).to_pylist() for name in ("session", "n_count")), strict=True))
            assert {counts.get(session) for session in told} == {A_SESSION}, "a session was told of too early"
    assert job.wait(120)
    assert looks, "nothing was told while it ran"
    assert sorted(ended(tmp_path / "ends")) == list(range(records // A_SESSION))
    assert written(tmp_path / "out").num_rows == records


def test_why_says_what_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    flow = Flow("waiting")
    stream = flow.stage("twice", same, flow.source("clock", hr.rate(500)), parallelism=2, route=hr.rebalance())
    tracked = stream.tracked(by="n")
    flow.sink("out", tracked, hr.callback(same))
    flow.sink("told", flow.ends("ends", tracked), hr.callback(same))
    job = flow.start(spark, tmp_path / "at", workers=2)
    try:

        def tracker() -> dict[str, Any]:
            found: dict[str, Any] = job.status()["tasks"].get("tracker.0", {}).get("stages", {}).get("tracker", {})
            return found

        until(lambda: tracker().get("open", 0) > 10)
        assert job.why(3).startswith("n 3: its end is not promised by clock.0")
        assert tracker()["waits_for"] == ["source clock.0 has not ended, nor promised all"]
        assert job.why(10**12).startswith(f"n {10**12}: nothing of it was seen")
        with pytest.raises(FlowError, match="'x' is no substream of this flow: they are int64"):
            job.why("x")
    finally:
        job.stop(drain=False)
