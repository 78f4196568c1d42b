"""A topic that is read from now on: from where it was when the flow first began, whenever that is asked again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.flow.io import Opening, SplitReader
from headrace.flow.kafka_ends import KafkaSource
from headrace.spark.broker import Broker
from headrace.testing.flows import kill_workers, until

from .topics import fill, new_topic

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(300)]


def _copying(broker: Broker, topic: str, folder: Path) -> hr.Flow:
    flow = hr.Flow("copying")
    flow.sink("out", flow.source("in", hr.kafka(topic, broker.address, from_start=False)), hr.parquet(str(folder)))
    return flow


def _is_up(job: Any) -> bool:
    workers = job.status()["workers"].values()
    return bool(workers) and all(worker["up"] for worker in workers)


def _found(folder: Path) -> list[int]:
    # A file that is still being written has a name with a dot in front.
    files = sorted(folder.glob("*.parquet"))
    return [int(value) for file in files for value in pq.read_table(file).column("value").to_pylist()]


def test_a_split_that_was_read_and_not_committed_begins_with_the_same_message(kafka_broker: Broker) -> None:
    topic = new_topic(kafka_broker)
    fill(kafka_broker, topic, range(100))
    source = KafkaSource(hr.kafka(topic, kafka_broker.address, from_start=False))
    opening = Opening("copying", "in.0", 0, 1, 0, node="in", beginning=source.beginning())
    for end in (150, 200):
        fill(kafka_broker, topic, range(end - 50, end))
        reader = source.open(opening, None)
        found: list[Any] = []
        until(lambda: _read(reader, found) and found[-1] == end - 1)  # noqa: B023
        reader.close()
        assert found == list(range(100, end))


def _read(reader: SplitReader, found: list[Any]) -> bool:
    """Whether there is something by now."""
    feed = reader.poll(1000)
    found += [] if feed is None or feed.batch is None else [int(v) for v in feed.batch.column("value").to_pylist()]
    return bool(found)


def test_what_came_while_nobody_read_is_not_skipped(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(kafka_broker)
    fill(kafka_broker, topic, range(100))
    flow = _copying(kafka_broker, topic, tmp_path / "out")
    job = flow.start(spark, tmp_path / "at", commit_s=0.1)
    until(lambda: _is_up(job))
    assert job.stop(drain=False, timeout_s=100)
    fill(kafka_broker, topic, range(100, 150))
    job = flow.start(spark, tmp_path / "at", commit_s=0.1)
    until(lambda: _is_up(job))
    fill(kafka_broker, topic, range(150, 200))
    until(lambda: len(_found(tmp_path / "out")) >= 100)
    assert job.stop(timeout_s=100)
    assert _found(tmp_path / "out") == list(range(100, 200))


def test_copies_begin_alike(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:
    topic = new_topic(kafka_broker)
    fill(kafka_broker, topic, range(100))
    job = _copying(kafka_broker, topic, tmp_path / "out").start(
        spark, tmp_path / "at", workers=2, replicas=2, commit_s=0.2
    )
    for first in range(100, 1100, 100):
        fill(kafka_broker, topic, range(first, first + 100))
        time.sleep(0.1)
    until(lambda: _is_up(job))
    kill_workers(job, kills=1, seed=4, pause_s=(0.1, 0.2))
    fill(kafka_broker, topic, range(1100, 1200))
    until(lambda: len(_found(tmp_path / "out")) >= 1100)
    assert job.stop(timeout_s=100)
    assert _found(tmp_path / "out") == list(range(100, 1200))
