"""Topics for the tests of queries in source order: made, filled with numbers, and read to their end."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace.spark.broker import Broker


def new_topic(broker: Broker, partitions: int = 1) -> str:
    name = f"topic-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    return name


def fill(broker: Broker, topic: str, numbers: range, partitions: int = 1) -> None:
    """Messages with keys and headers that follow from their number."""
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20})
    for n in numbers:
        while True:
            try:
                producer.produce(topic, str(n), f"key {n % 5}", n % partitions, headers=[("from", str(n % 3))])
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0


def filled_topic(broker: Broker, records: int, partitions: int = 1) -> str:
    topic = new_topic(broker, partitions)
    fill(broker, topic, range(records), partitions)
    return topic


def answers(broker: Broker, topic: str) -> list[tuple[int, str]]:
    """The sequences and values that the topic has now; they have the keys and headers of the numbers they are of."""
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": uuid4().hex, "isolation.level": "read_committed",
         "enable.partition.eof": True, "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[int, str]] = []
    while True:
        for message in consumer.consume(10_000, 30):
            if message.error() is not None:
                consumer.close()
                return found
            headers: dict[str, Any] = dict(message.headers() or ())
            sequence = int(headers["headrace-sequence"])
            assert headers["from"] == str(sequence % 3).encode()
            assert message.key() in (None, f"key {sequence % 5}".encode())
            found.append((sequence, (message.value() or b"").decode()))


def messages_of(broker: Broker, topic: str, partitions: int) -> list[Any]:
    """All that a topic has now, partition by partition."""
    found: list[Any] = []
    for partition in range(partitions):
        consumer = Consumer(
            {"bootstrap.servers": broker.address, "group.id": uuid4().hex, "enable.partition.eof": True}
        )
        consumer.assign([TopicPartition(topic, partition, 0)])
        while (message := consumer.poll(30)) is not None and message.error() is None:
            found.append(message)
        consumer.close()
    return found
