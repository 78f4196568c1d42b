"""What is refused before a flow starts, and what becomes of it when its session ends."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.demo.programs import EventWindows
from headrace.testing.flows import assert_as_sequential, three_stages
from headrace.testing.synchronized import events_of, expected_of, rows_of_frame

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

_GONE = """
import sys
import headrace as hr
from headrace.spark.session import local_session
from headrace.testing.flows import until

how, place = sys.argv[1:]
spark = local_session("gone", cores=2)
flow = hr.Flow("endless")
flow.sink("out", flow.source("numbers", hr.rate(1000)), hr.callback(lambda batch: None))
job = flow.start(spark, place)
until(lambda: any(task["records_in"] for task in job.status()["tasks"].values()))
if how == "stop":
    spark.stop()
else:
    spark.sparkContext._gateway.proc.kill()
for ask in (job.wait, job.stop):
    try:
        print("over" if ask(timeout_s=60) else "not over")
    except hr.FlowError as error:
        print(error)
print(job.status()["state"])
"""


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_flow_whose_session_is_gone_is_over_and_says_so(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _GONE, how, str(tmp_path / "at")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    gone = "flow endless: the Spark session was stopped while it ran; start the flow again: it goes on where it was"
    assert said.stdout.splitlines() == [gone, gone, "failed"], said.stderr[-2000:]


def _endless(name: str) -> hr.Flow:
    flow = hr.Flow(name)
    made = flow.stage("same", lambda batch: batch, flow.source("numbers", hr.rate(1000)), route=hr.rebalance())
    flow.sink("out", made, hr.callback(lambda batch: None))
    return flow


def test_a_flow_that_finds_no_free_slot_is_refused_and_told_who_holds_them(spark: SparkSession, tmp_path: Path) -> None:
    first = _endless("one").start(spark, tmp_path)
    with pytest.raises(hr.FlowError) as refused:
        _endless("two").start(spark, tmp_path)
    with pytest.raises(hr.FlowError, match=r"flow one runs already in this process, with its commits at .*/state; "):
        _endless("one").start(spark, tmp_path)
    assert first.stop(drain=False, timeout_s=60)
    assert str(refused.value) == (
        "flow two needs a task slot of its own, and of the 2 of this session 0 are free: flow one holds 2; "
        "start flow one with workers=1, or stop flow one first"
    )
    first = _endless("one").start(spark, tmp_path, workers=1)
    with pytest.raises(hr.FlowError, match=r"flow two needs 2 task slots of its own, and of the 2 .* 1 are free"):
        _endless("two").start(spark, tmp_path, workers=2)
    second = _endless("two").start(spark, tmp_path)
    assert len(second.status()["workers"]) == 1
    assert first.stop(drain=False, timeout_s=60)
    assert second.stop(drain=False, timeout_s=60)


def test_a_program_takes_the_slots_that_flows_leave(spark: SparkSession, tmp_path: Path) -> None:
    events = events_of("event_windows", seed=1)
    df = spark.createDataFrame(events)
    flow = _endless("one").start(spark, tmp_path / "at")
    with pytest.raises(hr.FlowError) as refused:
        df.transform(hr.synchronize(EventWindows()))
    assert flow.stop(drain=False, timeout_s=60)
    assert str(refused.value) == (
        "program EventWindows needs a task slot of its own, and of the 2 of this session 0 are free: flow one holds 2; "
        "start flow one with workers=1, or stop flow one first"
    )
    flow = _endless("one").start(spark, tmp_path / "at", workers=1)
    found = df.transform(hr.synchronize(EventWindows(), arrival="arrival", tasks=2))
    assert rows_of_frame(found) == expected_of("event_windows", events)
    assert flow.stop(drain=False, timeout_s=60)


def test_a_flow_that_cannot_start_holds_no_slots(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    flow = hr.Flow("refused")
    flow.sink("out", flow.source("numbers", hr.rate(1000)), hr.parquet(str(tmp_path / "file")))
    for _ in range(2):
        with pytest.raises(hr.FlowError, match="sink folder"):
            flow.start(spark, tmp_path / "at")


def test_a_relative_place_is_that_of_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flow = three_stages("out", 1000)
    assert flow.start(spark, "at").wait(100)
    assert (tmp_path / "at" / "state").is_dir()
    assert (tmp_path / "at" / "queues").is_dir()
    assert_as_sequential(flow, tmp_path / "out")


def test_a_stage_that_cannot_be_sent_is_refused_before_anything_starts(spark: SparkSession, tmp_path: Path) -> None:
    flow = hr.Flow("unsent")
    numbers = flow.source("numbers", hr.rate(1000))
    asks = flow.stage("asks", lambda batch: spark and batch, numbers, schema=hr.rate(1).schema)
    flow.sink("out", asks, hr.callback(lambda batch: None))
    with pytest.raises(
        hr.FlowError, match=r"^stage asks cannot be sent to workers: .*; make what cannot be sent where"
    ):
        flow.start(spark, tmp_path / "at")
    assert not (tmp_path / "at" / "state").exists()


def test_a_module_that_workers_do_not_have_ends_the_flow_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "headrace_beside.py").write_text("def same(batch):\n    return batch\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    beside = importlib.import_module("headrace_beside")
    flow = hr.Flow("beside")
    flow.sink("out", flow.stage("same", beside.same, flow.source("numbers", hr.rate(1000))), hr.callback(print))
    job = flow.start(spark, tmp_path / "at")
    with pytest.raises(
        hr.FlowError, match=r"No module named 'headrace_beside'; .*addArtifacts\(\"headrace_beside.py\""
    ):
        job.wait(100)
    assert job.status()["restarts"] == 0
