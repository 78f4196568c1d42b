"""What a sink has in its topic after a crash: each message once, whichever of them had come."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from headrace.errors import QueueUnreachable
from headrace.flow import kafka_writing
from headrace.flow.io import Opening
from headrace.flow.kafka_ends import KafkaSink, kafka
from headrace.flow.kafka_writing import KafkaWriter
from headrace.spark.broker import Broker

from .topics import fill, messages_of, new_topic

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


def test_messages_are_found_whatever_the_clocks_say(kafka_broker: Broker) -> None:
    """The driver's clock is an hour ahead of the worker's; there is no commit yet."""
    topic = new_topic(kafka_broker, 2)
    fill(kafka_broker, topic, range(10), 2)
    sink = KafkaSink(kafka(topic, kafka_broker.address))
    began_us = (time.time_ns() // 1000) + 3_600_000_000
    opening = replace(OPENING, began_us=began_us, beginning=sink.beginning())
    for count in (20, 30):
        writer = sink.open(opening, None)
        writer.write(0, records(0, count))
        writer.cut()()
        writer.close()
    found = [message for message in messages_of(kafka_broker, topic, 2) if b"n" in message.value()]
    assert sorted(json.loads(message.value())["n"] for message in found) == list(range(30))


def test_an_open_transaction_of_another_does_not_hide_what_is_there(kafka_broker: Broker) -> None:
    topic = new_topic(kafka_broker)
    other = Producer({"bootstrap.servers": kafka_broker.address, "transactional.id": uuid4().hex})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(topic, "other", partition=0)
    assert other.flush(30) == 0
    ours = kafka(topic, kafka_broker.address, transactional=True)
    for count in (20, 30):
        later = threading.Timer(1.0, other.commit_transaction, (30,))
        if count == 30:
            later.start()
        # The first one's commit was not written down.
        writer = KafkaWriter(ours, replace(OPENING, beginning={"0": 1}), None)
        writer.write(0, records(0, count))
        writer.cut()()
        writer.close()
    later.join()
    found = [message for message in messages_of(kafka_broker, topic, 1) if message.value() != b"other"]
    assert _numbers(found) == list(range(30))


def test_a_transaction_that_does_not_end_is_named(kafka_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_writing, "_OPEN_S", 0.5)
    topic = new_topic(kafka_broker)
    other = Producer({"bootstrap.servers": kafka_broker.address, "transactional.id": uuid4().hex})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(topic, "other", partition=0)
    assert other.flush(30) == 0
    with pytest.raises(QueueUnreachable, match=r"partition 0, where a transaction of another writer has been open"):
        KafkaWriter(kafka(topic, kafka_broker.address, transactional=True), OPENING, None)
    other.abort_transaction(30)


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
