"""Flows at full size: on files, Kafka, Connect and a cluster, while workers, executors, brokers and drivers die.

`make chaos ARGS='-k flows'`; SEED and RUNS choose the random moments and the simulated seeds (RUNS times 50).
"""

from __future__ import annotations

import functools
import os
import random
import threading
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.flow.job import Job
from headrace.simulate.check import Simulation
from headrace.spark.broker import Broker
from headrace.testing.cluster import standalone_cluster
from headrace.testing.flow_process import flow_process
from headrace.testing.flows import (
    assert_as_sequential,
    counting,
    kill_workers,
    numbers,
    three_stages,
    until,
    without_sevens,
)
from headrace.testing.fuzz_files import fuzz_manifests, fuzz_segments
from headrace.testing.fuzz_frames import fuzz
from headrace.testing.kafka import kafka_broker, new_kafka_queues  # noqa: F401
from headrace.testing.spark import on_connect

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("SEED") or 1)
RUNS = int(os.environ.get("RUNS") or 200)
RECORDS = 1_000_000
ROUNDS = 5
SEEDS_A_TEST = 500


def test_a_million_records_on_files(spark: SparkSession, tmp_path: Path) -> None:
    flow = three_stages(tmp_path / "out", RECORDS)
    assert flow.start(spark, tmp_path / "at").wait(600)
    assert_as_sequential(flow, tmp_path / "out")


def test_a_million_records_on_kafka(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:  # noqa: F811
    flow = three_stages(tmp_path / "out", RECORDS)
    assert flow.start(spark, tmp_path / "at", queues=new_kafka_queues(kafka_broker)).wait(600)
    assert_as_sequential(flow, tmp_path / "out")


def _on_connect(spark: SparkSession, folder: str) -> None:
    job = three_stages(f"{folder}/out", RECORDS).start(spark, f"{folder}/at", workers=2, commit_s=0.3)
    kill_workers(job, kills=3, seed=SEED)
    assert job.wait(600)


def test_a_million_records_on_connect(tmp_path: Path) -> None:
    on_connect(_on_connect, str(tmp_path))
    assert_as_sequential(three_stages(tmp_path / "out", RECORDS), tmp_path / "out")


@pytest.mark.parametrize("kafka", [False, True], ids=["files", "kafka"])
def test_a_million_records_on_a_cluster_while_executors_die(
    tmp_path: Path, kafka: bool, request: pytest.FixtureRequest
) -> None:
    address = request.getfixturevalue("kafka_broker").address if kafka else ""
    rng = random.Random(SEED)
    with standalone_cluster(tmp_path / "cluster") as master, flow_process(master, tmp_path, RECORDS, address) as driver:
        kills, at = 0, time.monotonic() + 1.0
        while (status := driver.look()) is not None:
            up = [worker["pid"] for worker in status["workers"].values() if worker["up"] and worker["pid"]]
            if kills < 3 and up and time.monotonic() > at:
                _kill_executor_of(rng.choice(up))
                kills, at = kills + 1, time.monotonic() + rng.uniform(1.0, 3.0)
        assert driver.wait() == 0
    assert_as_sequential(three_stages(tmp_path / "out", RECORDS), tmp_path / "out")


def _kill_executor_of(pid: int) -> None:
    """The JVM that a Python worker belongs to."""
    try:
        for parent in psutil.Process(pid).parents():
            if "java" in parent.name() and "CoarseGrainedExecutorBackend" in " ".join(parent.cmdline()):
                parent.kill()
                return
    except psutil.NoSuchProcess:
        pass


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_drivers_are_killed_at_random_moments(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(3):
        with flow_process("local[2]", tmp_path, RECORDS) as driver:
            while (status := driver.look()) is not None and not status["tasks"]:
                pass
            time.sleep(rng.uniform(0.0, 1.5))
            driver.kill()
    with flow_process("local[2]", tmp_path, RECORDS) as driver:
        assert driver.wait() == 0
    assert_as_sequential(three_stages(tmp_path / "out", RECORDS), tmp_path / "out")


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_workers_and_the_broker_are_killed_at_random_moments(
    spark: SparkSession,
    kafka_broker: Broker,  # noqa: F811
    tmp_path: Path,
    seed: int,
) -> None:
    flow = counting(tmp_path / "out", 150_000)
    job = flow.start(spark, tmp_path / "at", queues=new_kafka_queues(kafka_broker), commit_s=0.3)
    until(lambda: bool(job.status()["tasks"]))
    breaker = threading.Thread(target=_break, args=(kafka_broker, job, seed))
    breaker.start()
    kill_workers(job, kills=5, seed=seed)
    breaker.join()
    assert job.wait(600)
    assert_as_sequential(flow, tmp_path / "out")


def _break(broker: Broker, job: Job, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2):
        time.sleep(rng.uniform(0.5, 2.0))
        broker.kill()
        time.sleep(rng.uniform(0.1, 1.0))
        broker.start()
        if job.is_over:
            return


@pytest.mark.parametrize("first", range(SEED, SEED + 50 * RUNS, SEEDS_A_TEST))
def test_simulated_seeds_are_as_the_sequential_run(tmp_path: Path, first: int) -> None:
    simulation = Simulation(counting(tmp_path / "out", 300).graph())
    for seed in range(first, first + SEEDS_A_TEST):
        failure = simulation.run(simulation.setup(seed))
        assert failure is None, failure.story()


def test_millions_of_hostile_frames_do_no_harm() -> None:
    assert fuzz(SEED, 2_000_000, print) == 0


def test_segments_and_manifests_that_have_gone_bad_are_not_believed() -> None:
    assert fuzz_segments(SEED, 200_000) == 200_000
    assert fuzz_manifests(SEED, 1_000_000) == 1_000_000


def dawdle(batch: pa.RecordBatch, until_s: float) -> pa.RecordBatch:
    """Slow for a while: 50,000 records a second."""
    if time.time() < until_s:
        time.sleep(batch.num_rows * 20e-6)
    return batch


def test_a_slow_sink_for_a_minute_does_not_fill_the_memory(spark: SparkSession, tmp_path: Path) -> None:
    """The source could give a million records a second; then all of it catches up."""
    flow, records = hr.Flow("slow"), 10_000_000
    made = flow.source("numbers", hr.generate(numbers, records))
    kept = flow.stage("filter", without_sevens, made, parallelism=2, route=hr.key("k"))
    slow = functools.partial(dawdle, until_s=time.time() + 75)
    held = flow.stage("slow", slow, kept, parallelism=2, route=hr.key("k"), schema=numbers(0, 0).schema)
    flow.sink("out", held, hr.parquet(str(tmp_path / "out")))
    room = 4 << 20
    job = flow.start(spark, tmp_path / "at", room_bytes=room)
    until(lambda: all(worker["pid"] for worker in job.status()["workers"].values()))
    sizes, waiting, began = list[float](), list[int](), time.monotonic()
    while time.monotonic() - began < 60:
        time.sleep(0.5)
        status = job.status()
        pids = [worker["pid"] for worker in status["workers"].values()]
        sizes.append(max(psutil.Process(pid).memory_info().rss / 1e6 for pid in pids))
        waiting.append(max(status["backlog_bytes"].values()))
    taken = job.status()["tasks"]["numbers.0"]["records_in"]
    print(f"resident MB {sizes[10]:.0f} .. {sizes[-1]:.0f}, most waiting {max(waiting) / 1e6:.1f} MB, taken {taken:,}")
    assert not job.is_over
    assert taken < records
    assert max(sizes[-20:]) < 1.15 * max(sizes[:40])
    # What is there at once may come on top of what there was room for.
    assert max(waiting) < room + (32 << 20)
    assert job.wait(900)
    assert_as_sequential(flow, tmp_path / "out")
