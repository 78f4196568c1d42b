"""Kafka to Spark: Spark's own connector, a real broker, and metrics on the stream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.spark.broker import Broker
from headrace.spark.kafka import add_kafka, kafka_settings, with_kafka

pytestmark = [pytest.mark.kafka, pytest.mark.spark]
TEXT = "SELECT sum(amount) AS spent, count(*) AS n FROM payments GROUP BY card OVER sliding 5 minutes"
PAYMENTS: list[dict[str, object]] = [
    {"txn": n, "ts": f"2026-03-03T12:{n // 60:02}:{n % 60:02}Z", "card": n % 3, "amount": n % 7 + 0.5}
    for n in range(600)
]


def send(broker: Broker, topic: str, payments: list[dict[str, object]]) -> None:
    producer = Producer({"bootstrap.servers": broker.address})
    for payment in payments:
        producer.produce(topic, json.dumps(payment).encode())
    assert producer.flush(30) == 0


def parsed(messages: DataFrame) -> DataFrame:
    schema = "txn long, ts timestamp, card long, amount double"
    return messages.select(F.from_json(F.col("value").cast("string"), schema).alias("of")).select("of.*")


def test_metrics_on_a_topic_are_those_of_the_batch(kafka_broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    add_kafka(spark)
    options = {
        "kafka.bootstrap.servers": kafka_broker.address,
        "subscribe": tmp_path.name,
        "startingOffsets": "earliest",
    }
    metrics = hr.Metrics(TEXT, time="ts", id="txn", state=str(tmp_path / "state"))

    def run() -> None:
        stream = parsed(spark.readStream.format("kafka").options(**options).load())
        query = (
            stream.transform(metrics.measure)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    send(kafka_broker, tmp_path.name, PAYMENTS[:400])
    run()
    send(kafka_broker, tmp_path.name, PAYMENTS[400:])
    run()
    columns = ["txn", "card", "spent", "n"]
    streamed = spark.read.parquet(str(tmp_path / "out")).select(columns).orderBy("txn").collect()
    batch = parsed(spark.read.format("kafka").options(**options).load())
    assert len(streamed) == len(PAYMENTS)
    assert streamed == hr.Metrics(TEXT, time="ts", id="txn").measure(batch).select(columns).orderBy("txn").collect()


def test_the_connector_is_a_setting_of_a_session(kafka_broker: Broker) -> None:
    jars = [Path(jar) for jar in kafka_settings()["spark.jars"].split(",")]
    assert all(jar.exists() for jar in jars)
    for part in ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2"):
        assert sum(part in jar.name for jar in jars) == 1
    builder = with_kafka(SparkSession.builder)
    assert isinstance(builder, SparkSession.Builder)
