"""Flows on real Spark: the same output as the sequential run, whatever dies."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.testing.flow_process import flow_process
from headrace.testing.flows import (
    assert_as_sequential,
    assert_in_order,
    counting,
    kill_workers,
    numbers,
    three_stages,
    until,
    written,
)
from headrace.testing.full_disk import small_disk
from headrace.testing.spark import on_connect

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_three_stages_give_what_the_sequential_run_gives(spark: SparkSession, tmp_path: Path) -> None:
    flow = three_stages(tmp_path / "out", 200_000)
    job = flow.start(spark, tmp_path / "at")
    assert job.wait(200)
    assert job.status()["state"] == "over"
    assert_as_sequential(flow, tmp_path / "out")


def test_killed_workers_come_back_and_nothing_is_lost_or_twice(spark: SparkSession, tmp_path: Path) -> None:
    flow = counting(tmp_path / "out", 120_000)
    job = flow.start(spark, tmp_path / "at", commit_s=0.2)
    kills = kill_workers(job, kills=3, seed=1, pause_s=(0.2, 0.8))
    assert job.wait(200)
    assert job.status()["restarts"] >= kills - 1  # the last one may have come when all was done
    assert_as_sequential(flow, tmp_path / "out")


def test_a_flow_that_was_stopped_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    def flow() -> hr.Flow:
        return three_stages(tmp_path / "out", 0, source=hr.generate(numbers))

    taken = 0
    for drain in (True, False, True):
        job = flow().start(spark, tmp_path / "at", commit_s=0.2, room_bytes=1 << 20)
        until(lambda job=job, taken=taken: _records_in(job, "numbers.0") > taken + 5000)  # type: ignore[misc]
        assert job.stop(drain=drain, timeout_s=100)
        taken = _records_in(job, "numbers.0")
        if drain:
            assert written(tmp_path / "out").num_rows == taken - (taken + 6) // 7
    assert_in_order(tmp_path / "out")


def _records_in(job: object, task: str) -> int:
    tasks = job.status()["tasks"]  # type: ignore[attr-defined]
    return int(tasks[task]["records_in"]) if task in tasks else 0


@pytest.mark.chaos
def test_a_killed_driver_is_started_again_and_goes_on(tmp_path: Path) -> None:
    records = 700_000
    with flow_process("local[2]", tmp_path, records) as driver:
        while (status := driver.look()) is not None:
            if status["tasks"].get("filter.0", {}).get("records_in", 0) > 10_000:
                break
        driver.kill()
    assert status is not None, "it was over before it could be killed"
    with flow_process("local[2]", tmp_path, records) as driver:
        assert driver.wait() == 0
    assert_as_sequential(three_stages(tmp_path / "out", records), tmp_path / "out")


def _on_connect(spark: SparkSession, folder: str) -> None:
    job = three_stages(f"{folder}/out", 50_000).start(spark, f"{folder}/at", workers=2, commit_s=0.3)
    kill_workers(job, kills=1, seed=2, pause_s=(1.0, 2.0))
    assert job.wait(200)


@pytest.mark.connect
def test_flows_on_connect(tmp_path: Path) -> None:
    on_connect(_on_connect, str(tmp_path))
    assert_as_sequential(three_stages(tmp_path / "out", 50_000), tmp_path / "out")


def divided(record: dict[str, int]) -> dict[str, int]:
    return {**record, "n": 1000 // (record["n"] - 500)}


def test_a_stage_that_raises_stops_the_flow_and_says_where(spark: SparkSession, tmp_path: Path) -> None:
    flow = hr.Flow("raising")
    made = flow.source("numbers", hr.generate(numbers, 1000))
    flow.sink("out", flow.stage("divide", divided, made, each="record"), hr.parquet(str(tmp_path / "out")))
    with pytest.raises(hr.StageFailed) as raised:
        flow.start(spark, tmp_path / "at").wait(100)
    said = str(raised.value)
    assert said.startswith("stage divide: ZeroDivisionError: integer division or modulo by zero\n")
    assert "test_flows.py, line" in said
    assert "in divided" in said
    assert "record {'n': 500, 'k': " in said


def test_records_that_a_stage_raises_for_can_go_aside(spark: SparkSession, tmp_path: Path) -> None:
    flow = hr.Flow("aside")
    made = flow.source("numbers", hr.generate(numbers, 1000))
    divide = flow.stage("divide", divided, made, each="record", on_error="side")
    flow.sink("out", divide, hr.parquet(str(tmp_path / "out")))
    flow.sink("bad", divide.side("errors"), hr.parquet(str(tmp_path / "bad")))
    assert flow.start(spark, tmp_path / "at").wait(100)
    assert written(tmp_path / "out").num_rows == 999
    bad = written(tmp_path / "bad").to_pylist()
    assert [(record["n"], record["reason"]) for record in bad] == [
        (500, "ZeroDivisionError: integer division or modulo by zero")
    ]


def test_too_few_slots_are_an_error_before_anything_starts(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(hr.FlowError, match=r"7 workers need 7 task slots, and this session has \d; start Spark with"):
        three_stages(tmp_path / "out", 10).start(spark, tmp_path / "at", workers=7)


def test_a_flow_laid_out_otherwise_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    assert three_stages(tmp_path / "out", 10).start(spark, tmp_path / "at").wait(100)
    other = hr.Flow("three")
    made = other.source("numbers", hr.generate(numbers, 10))
    other.sink("out", other.stage("filter", lambda batch: batch, made, parallelism=3), hr.parquet(str(tmp_path)))
    with pytest.raises(hr.FlowError, match=r"filter was filter, parallelism 4, and is filter \+ out, parallelism 3"):
        other.start(spark, tmp_path / "at")


def test_a_place_is_needed(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(hr.FlowError, match=r"needs a place for its queues and commits: flow.start\(spark, at="):
        three_stages(tmp_path / "out", 10).start(spark)
    with pytest.raises(hr.FlowError, match=r"queues in files need a folder of this machine, not s3://b/x"):
        three_stages(tmp_path / "out", 10).start(spark, "s3://b/x")


def test_loops_end_when_nothing_goes_round_any_more(spark: SparkSession, tmp_path: Path) -> None:
    flow = hr.Flow("loop")
    made = flow.source("numbers", hr.generate(numbers, 200))
    again = flow.loop("again", made, parallelism=2, route=hr.key("k"))
    schema = numbers(0, 0).schema
    step = flow.stage("step", halved, again, sides={"more": schema}, schema=schema)
    again.back(step.side("more"), hr.key("k"))
    flow.sink("out", step, hr.parquet(str(tmp_path / "out")))
    assert flow.start(spark, tmp_path / "at").wait(100)
    assert written(tmp_path / "out").num_rows == 200


def halved(batch: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    """Numbers are halved until they are 0, and then leave."""
    n = batch.column("n").to_numpy()
    smaller = pa.record_batch({"n": pa.array(n // 2), "k": batch.column("k")})
    done = pa.array(n // 2 == 0)
    return {"": smaller.filter(done), "more": smaller.filter(pa.array(n // 2 != 0))}


def test_a_full_disk_stops_the_flow_and_it_goes_on_when_there_is_space(spark: SparkSession, tmp_path: Path) -> None:
    # All that the flow writes has room there, even where much of it is written again: it is full because it was filled.
    with small_disk(tmp_path / "disk", "128m") as disk:
        if disk is None:
            pytest.skip("this process may not mount a file system")
        flow = three_stages(tmp_path / "out", 1_000_000)
        job = flow.start(spark, disk.folder, commit_s=0.2)
        until(lambda: bool(job.status()["tasks"]))
        disk.fill()
        with pytest.raises(hr.HeadraceError, match=r"(the disk is full; free some space|No space left on device)"):
            assert not job.wait(100), "it was over before the disk was full"
        disk.free()
        assert flow.start(spark, disk.folder).wait(200)
    assert_as_sequential(flow, tmp_path / "out")


def test_status_is_plain_values(spark: SparkSession, tmp_path: Path) -> None:
    job = three_stages(tmp_path / "out", 10).start(spark, tmp_path / "at")
    assert job.wait(100)
    assert json.loads(json.dumps(job.status()))["flow"] == "three"
