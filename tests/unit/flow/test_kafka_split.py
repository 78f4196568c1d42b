"""The thread of a split of a topic: it ends when the split is closed, whatever comes at that moment."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import headrace as hr
from headrace.flow import kafka_ends
from headrace.flow.io import Opening
from headrace.flow.kafka_ends import KafkaSource, KafkaSplit

pytest.importorskip("confluent_kafka")


class _LateConsumer:
    """Has a message once it is allowed to."""

    def __init__(self) -> None:
        self.is_polled, self.may_answer = threading.Event(), threading.Event()

    def assign(self, places: list[Any]) -> None: ...

    def consume(self, most: int, timeout_s: float) -> list[Any]:
        return []

    def poll(self, timeout_s: float) -> object:
        self.is_polled.set()
        assert self.may_answer.wait(30)
        return object()

    def close(self) -> None: ...


def test_a_message_that_comes_while_it_is_closed_does_not_keep_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = _LateConsumer()
    monkeypatch.setattr(kafka_ends, "partitions_of", lambda topic: [0])
    monkeypatch.setattr(kafka_ends, "new_client", lambda kind, settings: consumer)
    split = KafkaSource(hr.kafka("t", "nowhere:1")).open(Opening("f", "s.0", 0, 1, 0), None)
    assert isinstance(split, KafkaSplit)
    assert split.poll(10) is None
    assert consumer.is_polled.wait(30)
    thread = split._thread

    class Joined:
        """Just when all is said that `close` says."""

        def join(self) -> None:
            consumer.may_answer.set()
            thread.join(5)

    split._thread = Joined()  # type: ignore[assignment]
    split.close()
    assert not thread.is_alive()
