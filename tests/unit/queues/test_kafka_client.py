"""What a producer has an answer for: a wait is for certain messages, and not for so many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import QueueUnreachable
from headrace.queues.kafka import KafkaQueues, KafkaWriter
from headrace.queues.kafka_admin import Topic

Answer = Callable[[Any, Any], None]


class ScriptedProducer:
    """Each poll does the next thing of a script; after it all is answered."""

    def __init__(self, *script: Callable[[], None]):
        self.script = list(script)
        self.open: dict[str, list[Answer]] = {}
        self.room = 1000

    def produce(self, topic: str, value: bytes, partition: int, on_delivery: Answer) -> None:
        if self.room == 0:
            raise BufferError
        self.room -= 1
        self.open.setdefault(topic, []).append(on_delivery)

    def poll(self, timeout_s: float) -> None:
        if self.script:
            self.script.pop(0)()

    def answer(self, topic: str) -> None:
        for answer in self.open.pop(topic, []):
            answer(None, None)


def _writer(producer: ScriptedProducer, timeout_s: float = 30.0) -> KafkaWriter:
    pytest.importorskip("confluent_kafka")
    writer = KafkaQueues("nowhere:1", "", timeout_s=timeout_s).writer()
    writer._producer = producer
    for queue in ("a", "b"):
        writer._topics[queue], writer._queue_of[queue], writer._sizes[queue] = Topic(queue, 1 << 20), queue, (0, 0)
    return writer


def test_answers_to_later_messages_do_not_count_for_earlier_ones() -> None:
    producer = ScriptedProducer()
    writer = _writer(producer)
    writer.append("a", [b"0", b"1"])
    done: list[str] = []

    def others_are_answered() -> None:
        writer.append("b", [b"0", b"1", b"2"])
        producer.answer("b")

    def then_these() -> None:
        done.append("answered")
        producer.answer("a")

    producer.script = [others_are_answered, lambda: None, lambda: None, then_these]
    writer.sync(["a"])
    assert done == ["answered"]


def test_what_is_sent_after_a_wait_began_is_not_waited_for() -> None:
    producer = ScriptedProducer()
    writer = _writer(producer)
    writer.append("a", [b"0"])
    producer.script = [lambda: writer.append("b", [b"0"]), lambda: None, lambda: producer.answer("a")]
    writer.sync(["a"])
    assert list(producer.open) == ["b"]


def test_what_was_not_answered_in_time_is_waited_for_again() -> None:
    producer = ScriptedProducer()
    writer = _writer(producer, timeout_s=0.05)
    writer.append("a", [b"0", b"1"])
    with pytest.raises(QueueUnreachable, match="append 2 frames, which are kept"):
        writer.sync(["a"])
    writer.append("b", [b"2"])
    producer.answer("b")
    with pytest.raises(QueueUnreachable, match="append 2 frames, which are kept"):
        writer.sync(["a"])
    producer.answer("a")
    writer.sync(["a"])


def test_frames_that_found_no_room_are_not_waited_for() -> None:
    producer = ScriptedProducer()
    producer.room = 2
    writer = _writer(producer, timeout_s=0.05)
    with pytest.raises(QueueUnreachable, match="fill the memory"):
        writer.append("a", [b"0", b"1", b"2", b"3"])
    producer.answer("a")
    writer.sync(["a"])
