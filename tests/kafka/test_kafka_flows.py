"""Flows with queues and ends in a real Kafka broker: nothing lost, nothing twice, whatever is killed."""

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
from headrace.flow.sequential import run_sequentially
from headrace.spark.broker import Broker
from headrace.testing.flows import (
    assert_as_sequential,
    assert_conflux,
    conflux,
    counting,
    kill_workers,
    three_stages,
    until,
)
from headrace.testing.kafka import new_kafka_queues

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(300)]


def test_three_stages_with_queues_in_kafka(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:
    flow = three_stages(tmp_path / "out", 100_000)
    job = flow.start(spark, tmp_path / "at", queues=new_kafka_queues(kafka_broker))
    assert job.wait(200)
    assert_as_sequential(flow, tmp_path / "out")


def test_source_order_with_queues_in_kafka(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:
    flow = conflux(tmp_path / "out", 60_000, first=3)
    job = flow.start(spark, tmp_path / "at", queues=new_kafka_queues(kafka_broker), commit_s=0.3)
    kill_workers(job, kills=1, seed=5, pause_s=(0.5, 1.0))
    assert job.wait(200)
    assert_conflux(tmp_path / "out", 60_000)


@pytest.mark.chaos  # librdkafka has been seen to abort, once, when a broker died
def test_workers_and_the_broker_are_killed(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:
    flow = counting(tmp_path / "out", 100_000)
    job = flow.start(spark, tmp_path / "at", queues=new_kafka_queues(kafka_broker), commit_s=0.3)
    until(lambda: bool(job.status()["tasks"]))
    kafka_broker.kill()
    time.sleep(0.5)
    kafka_broker.start()
    kill_workers(job, kills=2, seed=3, pause_s=(0.3, 1.0))
    assert job.wait(200)
    assert_as_sequential(flow, tmp_path / "out")


def new_topic(broker: Broker, partitions: int) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


def all_messages(broker: Broker, topic: str, partitions: int, isolation: str) -> list[dict[str, Any]]:
    """What the topic has now, partition by partition."""
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": uuid4().hex, "isolation.level": isolation,
         "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    found, ended = [], 0
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    while ended < partitions:
        message = consumer.poll(10)
        assert message is not None
        if message.error() is not None:
            ended += 1
        else:
            found.append({**json.loads(message.value() or b""), "partition": message.partition()})
    consumer.close()
    return found


def doubled(record: dict[str, Any]) -> dict[str, Any]:
    event = json.loads(record["value"])
    return {"key": record["key"], "value": json.dumps({**event, "double": 2 * event["n"]}).encode()}


def echo(topic_in: str, topic_out: str, servers: str, transactional: bool) -> hr.Flow:
    flow = hr.Flow("echo")
    events = flow.source("events", hr.kafka(topic_in, servers))
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    answers = flow.stage("double", doubled, events, each="record", schema=schema)
    flow.sink("answers", answers, hr.kafka(topic_out, servers, transactional=transactional))
    return flow


@pytest.mark.parametrize("transactional", [False, True], ids=["at once", "transactional"])
def test_topics_in_and_out_exactly_once(
    spark: SparkSession, kafka_broker: Broker, tmp_path: Path, transactional: bool
) -> None:
    servers, events, partitions = kafka_broker.address, 3000, 2
    topic_in, topic_out = new_topic(kafka_broker, partitions), new_topic(kafka_broker, partitions)

    def load() -> None:
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
        for n in range(events):
            producer.produce(topic_in, json.dumps({"n": n}), str(n % 7))
            producer.poll(0)
            if n % 10 == 0:
                time.sleep(0.005)
        producer.flush()

    loader = threading.Thread(target=load)
    loader.start()
    job = echo(topic_in, topic_out, servers, transactional).start(spark, tmp_path / "at", commit_s=0.2)
    kill_workers(job, kills=2, seed=4, pause_s=(0.8, 1.6))
    loader.join()
    until(lambda: _taken(job) >= events)
    assert job.stop(drain=True, timeout_s=100)
    isolation = "read_committed" if transactional else "read_uncommitted"
    found = all_messages(kafka_broker, topic_out, partitions, isolation)
    assert sorted(message["n"] for message in found) == list(range(events))
    assert all(message["double"] == 2 * message["n"] for message in found)


def _taken(job: Any) -> int:
    return sum(int(task["records_in"]) for task in job.status()["tasks"].values())


def test_a_topic_that_is_not_there(kafka_broker: Broker) -> None:
    with pytest.raises(
        hr.FlowError, match=r"there is no topic nowhere at 127.0.0.1:\d+; create it, or look at its name"
    ):
        hr.Flow("x").source("events", hr.kafka("nowhere", kafka_broker.address))


def test_a_sink_wants_a_value(kafka_broker: Broker) -> None:
    topic = new_topic(kafka_broker, 1)
    flow = hr.Flow("x")
    flow.sink("out", flow.source("n", hr.rate(10)), hr.kafka(topic, kafka_broker.address))
    with pytest.raises(hr.FlowError, match=r"sink out: topic .* takes a column value .* it is given n int64, ts"):
        flow.graph()


def test_queues_between_two_flows(spark: SparkSession, kafka_broker: Broker, tmp_path: Path) -> None:
    queues = new_kafka_queues(kafka_broker)
    first = counting(tmp_path / "unused", 5000, "first")
    expected = run_sequentially(first.graph())["out"]
    one = hr.Flow("one")
    schema = expected.schema
    made = one.source("numbers", hr.queue("middle", schema, producers=1))
    one.sink("out", made, hr.parquet(str(tmp_path / "out")))
    with hr.Sender(queues, "middle", channel=1) as sender:
        for batch in expected.to_batches():
            sender.send(batch)
        sender.end()
    assert one.start(spark, tmp_path / "at", queues=queues).wait(100)
    assert pq.read_table(tmp_path / "out").num_rows == expected.num_rows
