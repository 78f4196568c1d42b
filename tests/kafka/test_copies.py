"""Tasks with copies, with queues and ends in a real Kafka broker: a killed worker is not noticed in a topic."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

import headrace as hr
from headrace.errors import FlowError
from headrace.spark.broker import Broker
from headrace.testing.flows import assert_as_sequential, kill_workers, three_stages, until
from headrace.testing.kafka import new_kafka_queues

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(300)]

EVENTS = 3000
MESSAGE = pa.schema([("key", pa.binary()), ("value", pa.binary())])


def _new_topic(broker: Broker) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


def _load(servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    for n in range(EVENTS):
        producer.produce(topic, json.dumps({"n": n}), str(n % 7))
        producer.poll(0)
        if n % 10 == 0:
            time.sleep(0.01)
    producer.flush()


def _messages(broker: Broker, topic: str) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": uuid4().hex, "isolation.level": "read_committed",
         "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    found = []
    consumer.assign([TopicPartition(topic, 0, 0)])
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append(json.loads(message.value() or b"")["n"])
    consumer.close()
    return found


def _as_it_is(record: dict[str, Any]) -> dict[str, Any]:
    return {"key": record["key"], "value": record["value"]}


def _echo(topic_in: str, topic_out: Any, servers: str) -> hr.Flow:
    flow = hr.Flow("echo")
    events = flow.source("events", hr.kafka(topic_in, servers))
    flow.sink("answers", flow.stage("same", _as_it_is, events, each="record", schema=MESSAGE), topic_out)
    return flow


@pytest.mark.parametrize("how", ["transactional", "every_copy"])
def test_topics_in_and_out_while_a_worker_dies(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path, how: str
) -> None:
    servers = kafka_broker.address
    topic_in, topic_out = _new_topic(kafka_broker), _new_topic(kafka_broker)
    is_all = how == "every_copy"
    flow = _echo(topic_in, hr.kafka(topic_out, servers, transactional=not is_all, every_copy=is_all), servers)
    job = flow.start(spark, tmp_path / "at", workers=2, replicas=2, commit_s=0.2)
    until(lambda: all(worker["up"] for worker in job.status()["workers"].values()))
    loader = threading.Thread(target=_load, args=(servers, topic_in))
    loader.start()
    until(lambda: all((copy["records_in"] or 0) > 0 for copy in job.status()["copies"].values()))
    kill_workers(job, kills=2, seed=4, pause_s=(0.5, 1.0))
    loader.join()
    until(lambda: max(copy["records_in"] or 0 for copy in job.status()["copies"].values()) >= EVENTS)
    assert job.stop(drain=True, timeout_s=100)
    found = _messages(kafka_broker, topic_out)
    if how == "transactional":
        assert found == list(range(EVENTS)), "one copy speaks: each message once, in its order"
        return
    assert len(found) > EVENTS, "both copies wrote"
    again = hr.Flow("again")
    again.sink(
        "out", again.source("topic", hr.kafka(topic_out, servers, every_copy=True)), hr.parquet(str(tmp_path / "out"))
    )
    job = again.start(spark, tmp_path / "at", commit_s=0.2)
    until(lambda: sum(task["records_out"] for task in job.status()["tasks"].values()) >= EVENTS)
    assert job.stop(drain=True, timeout_s=100)
    values = pq.read_table(tmp_path / "out").column("value").to_pylist()
    assert [json.loads(value)["n"] for value in values] == list(range(EVENTS)), "and a source leaves second copies out"


@pytest.mark.parametrize("order", ["round-robin", "leader"])
def test_orders_with_queues_in_kafka(spark: SparkSession, kafka_broker: Broker, tmp_path: Path, order: str) -> None:
    flow = three_stages(tmp_path / "out", 100_000)
    queues = new_kafka_queues(kafka_broker)
    job = flow.start(spark, tmp_path / "at", workers=2, queues=queues, replicas=2, order=order, commit_s=0.3)
    assert job.wait(200)
    assert_as_sequential(flow, tmp_path / "out")


def test_what_cannot_be() -> None:
    with pytest.raises(FlowError, match="say transactional or every_copy"):
        hr.kafka("topic", "nowhere:1", transactional=True, every_copy=True)
