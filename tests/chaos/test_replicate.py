"""Copies of tasks, by the thousand in simulated worlds, and on Spark while workers die.

`make chaos ARGS='-k replicate'`; SEED and RUNS choose the simulated seeds (RUNS times 50) and the random moments.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.testing.flows import assert_as_sequential, kill_workers, three_stages, until
from headrace.testing.kafka import kafka_broker, new_kafka_queues  # noqa: F401
from headrace.testing.masking import masked
from headrace.testing.random_copies import check_copied_flow, check_other_flow

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(7200)]

SEED = int(os.environ.get("SEED") or 1)
RUNS = int(os.environ.get("RUNS") or 200)
RECORDS = 15_000_000


@pytest.mark.parametrize("part", range(10))
def test_simulated_copies(part: int) -> None:
    for seed in range(SEED + part * RUNS * 5, SEED + (part + 1) * RUNS * 5):
        failure = check_copied_flow(seed)
        assert failure is None, failure.story()


@pytest.mark.parametrize("part", range(4))
def test_simulated_copies_of_other_flows(part: int) -> None:
    for seed in range(SEED + part * RUNS * 2, SEED + (part + 1) * RUNS * 2):
        failure = check_other_flow(seed)
        assert failure is None, failure.story()


@pytest.mark.parametrize("kafka", [False, True], ids=["files", "kafka"])
@pytest.mark.parametrize("order", ["queue", "round-robin", "leader"])
@pytest.mark.parametrize("mode", ["active", "standby"])
def test_millions_of_records_while_workers_die(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest, kafka: bool, order: str, mode: str
) -> None:
    queues = new_kafka_queues(request.getfixturevalue("kafka_broker")) if kafka else None
    flow = three_stages(tmp_path / "out", RECORDS)
    job = flow.start(spark, tmp_path / "at", workers=2, commit_s=0.5, queues=queues, replicas=2, mode=mode, order=order)
    until(lambda: all(worker["up"] for worker in job.status()["workers"].values()))
    kill_workers(job, kills=4, seed=SEED, pause_s=(0.5, 3.0))
    assert job.wait(600)
    assert_as_sequential(flow, tmp_path / "out")


@pytest.mark.parametrize("order", ["queue", "round-robin"])
def test_a_failure_is_not_seen(order: str) -> None:
    """No record takes longer than two beats and the p99.9 of the same seed without the failure."""
    for seed in range(SEED, SEED + RUNS):
        found = masked(seed, order)
        assert found.worst_s <= found.limit_s, (seed, found)
