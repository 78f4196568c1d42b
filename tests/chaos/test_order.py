"""Source order at full size: the pipeline of the paper on files and on Kafka while workers die; in simulated worlds.

`make chaos ARGS='-k order'`; SEED and RUNS choose the random moments and the simulated seeds (RUNS times 50).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.spark.broker import Broker
from headrace.testing.flows import assert_conflux, conflux, kill_workers
from headrace.testing.kafka import kafka_broker, new_kafka_queues  # noqa: F401
from headrace.testing.random_order import check_ordered_flow

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("SEED") or 1)
RUNS = int(os.environ.get("RUNS") or 200)
RECORDS = 10_000_000
SEEDS_A_TEST = 500


@pytest.mark.parametrize("kills", [0, 6], ids=["calm", "kills"])
def test_the_pipeline_of_the_paper_on_files(spark: SparkSession, tmp_path: Path, kills: int) -> None:
    job = conflux(tmp_path / "out", RECORDS).start(spark, tmp_path / "at", batch_records=32_768)
    kill_workers(job, kills, SEED, pause_s=(0.5, 4.0))
    assert job.wait(900)
    assert_conflux(tmp_path / "out", RECORDS)


@pytest.mark.parametrize("kills", [0, 6], ids=["calm", "kills"])
def test_the_pipeline_of_the_paper_on_kafka(
    spark: SparkSession,
    kafka_broker: Broker,  # noqa: F811
    tmp_path: Path,
    kills: int,
) -> None:
    flow = conflux(tmp_path / "out", RECORDS)
    job = flow.start(spark, tmp_path / "at", queues=new_kafka_queues(kafka_broker), batch_records=32_768)
    kill_workers(job, kills, SEED, pause_s=(0.5, 4.0))
    assert job.wait(900)
    assert_conflux(tmp_path / "out", RECORDS)


@pytest.mark.parametrize("first", range(SEED, SEED + 50 * RUNS, SEEDS_A_TEST))
def test_simulated_flows_are_in_source_order(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        failure = check_ordered_flow(seed)
        assert failure is None, f"seed {seed}: {failure.story()}"
