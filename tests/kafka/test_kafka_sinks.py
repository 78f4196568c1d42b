"""What a sink has in its topic after a crash: each message once, whichever of them had come."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from headrace.flow.io import Opening
from headrace.flow.kafka_ends import kafka
from headrace.flow.kafka_writing import KafkaWriter
from headrace.spark.broker import Broker

from .topics import messages_of, new_topic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

OPENING = Opening("flow", "sink.0", 0, 1, began_us=0, node="sink")
MARK = "flow.0.sink.0"


def records(first: int, count: int, keys: bool = True) -> pa.RecordBatch:
    numbers = range(first, first + count)
    columns = {"value": [json.dumps({"n": n}) for n in numbers]}
    return pa.record_batch(columns | ({"key": [f"key {n % 7}" for n in numbers]} if keys else {}))


def write(broker: Broker, topic: str, committed: Any, batches: list[tuple[int, pa.RecordBatch]]) -> Any:
    """As a task does that starts, writes and commits; what was committed."""
    writer = KafkaWriter(kafka(topic, broker.address), OPENING, committed)
    for first, batch in batches:
        writer.write(first, batch)
    committed = writer.cut()()
    writer.close()
    return committed


@pytest.mark.parametrize("keys", [True, False], ids=["keys", "no keys"])
def test_one_partition_had_got_further_than_another(kafka_broker: Broker, keys: bool) -> None:
    topic = new_topic(kafka_broker, 3)
    committed = write(kafka_broker, topic, None, [(0, records(0, 10, keys))])
    whole = messages_of(kafka_broker, topic, 3)
    # A crash: of the records 10 to 99 those of one partition have come, and others have not.
    other = new_topic(kafka_broker, 3)
    write(kafka_broker, other, None, [(10, records(10, 90, keys))])
    came = [message for message in messages_of(kafka_broker, other, 3) if message.partition() == 1]
    assert 0 < len(came) < 90
    producer = Producer({"bootstrap.servers": kafka_broker.address})
    for message in came:
        producer.produce(topic, message.value(), message.key(), 1, headers=message.headers())
    assert producer.flush(30) == 0
    write(kafka_broker, topic, committed, [(10, records(10, 60, keys)), (70, records(70, 50, keys))])
    found = messages_of(kafka_broker, topic, 3)
    assert sorted(_numbers(found)) == list(range(120))
    for partition in range(3):
        ours = [n for n, message in zip(_numbers(found), found, strict=True) if message.partition() == partition]
        assert ours == sorted(ours)
    assert len(whole) == 10


def test_what_came_between_a_cut_and_its_commit_is_found(kafka_broker: Broker) -> None:
    topic = new_topic(kafka_broker, 2)
    writer = KafkaWriter(kafka(topic, kafka_broker.address), OPENING, None)
    writer.write(0, records(0, 20))
    make_safe = writer.cut()
    writer.write(20, records(20, 30))
    writer.close()  # all of it is there, and then the commit is
    committed = make_safe()
    write(kafka_broker, topic, committed, [(20, records(20, 40))])
    assert sorted(_numbers(messages_of(kafka_broker, topic, 2))) == list(range(60))


def test_all_runs_send_what_has_no_key_to_the_same_partition(kafka_broker: Broker) -> None:
    found = []
    for _ in range(2):
        topic = new_topic(kafka_broker, 3)
        write(kafka_broker, topic, None, [(0, records(0, 30, keys=False))])
        messages = messages_of(kafka_broker, topic, 3)
        found.append(sorted(zip(_numbers(messages), [message.partition() for message in messages], strict=True)))
    assert found[0] == found[1]
    assert len({partition for _, partition in found[0]}) == 3


def _numbers(messages: list[Any]) -> list[int]:
    """Each value is of the number in its header."""
    numbers = [json.loads(message.value())["n"] for message in messages]
    headers = [dict(message.headers())["headrace"].decode() for message in messages]
    assert headers == [f"{MARK}:{n}" for n in numbers]
    return numbers
