"""What brokers cannot do at a moment is asked for again, and topics are told apart from those that are not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import QueueError
from headrace.queues.kafka_admin import KafkaAdmin

kafka = pytest.importorskip("confluent_kafka")
_NOBODY: int = kafka.KafkaError.LEADER_NOT_AVAILABLE
_ANOTHER: int = kafka.KafkaError.NOT_LEADER_FOR_PARTITION
_UNKNOWN: int = kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
_FORBIDDEN: int = kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED


class _Cluster:
    """Answers as a client does: to each request for offsets with the next of the errors, if any is left."""

    def __init__(self, errors: Iterable[int] = (), topic_error: int | None = None):
        self._errors, self._topic_error = iter(errors), topic_error
        self.requests = 0

    def list_offsets(self, asked: Mapping[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        self.requests += 1
        error = next(self._errors, None)
        return {place: _answer(error, place.partition) for place in asked}

    def list_topics(self, *_: Any, **__: Any) -> Any:
        error = None if self._topic_error is None else kafka.KafkaError(self._topic_error)
        parts = {} if error else dict.fromkeys((1, 0), SimpleNamespace(leader=0))
        return SimpleNamespace(topics={"clicks": SimpleNamespace(error=error, partitions=parts)})

    def poll(self, _: float) -> None: ...


def _answer(error: int | None, partition: int) -> Future[Any]:
    future: Future[Any] = Future()
    if error is None:
        future.set_result(SimpleNamespace(offset=10 + partition))
    else:
        future.set_exception(kafka.KafkaException(kafka.KafkaError(error)))
    return future


def _admin(cluster: _Cluster) -> KafkaAdmin:
    admin = KafkaAdmin("127.0.0.1:1", {}, timeout_s=5.0)
    vars(admin)["_client"] = cluster
    return admin


def test_offsets_are_asked_for_again_while_a_leader_is_found() -> None:
    cluster = _Cluster([_ANOTHER, _NOBODY])
    assert _admin(cluster).offsets("clicks", [0, 1], "look") == {0: 10, 1: 11}
    assert cluster.requests == 3


def test_what_will_not_change_is_told_at_once() -> None:
    cluster = _Cluster([_FORBIDDEN] * 9)
    with pytest.raises(QueueError, match=r"cannot look: .*TOPIC_AUTHORIZATION_FAILED"):
        _admin(cluster).offsets("clicks", [0], "look")
    assert cluster.requests == 1


@pytest.mark.parametrize(
    ("error", "partitions"), [(None, [0, 1]), (_UNKNOWN, []), (_NOBODY, [])], ids=["there", "not there", "not yet"]
)
def test_partitions_of_a_topic(error: int | None, partitions: list[int]) -> None:
    assert _admin(_Cluster(topic_error=error)).partitions("clicks", "look") == partitions
    assert _admin(_Cluster()).partitions("others", "look") == []


def test_a_topic_that_may_not_be_looked_at_is_not_one_that_is_missing() -> None:
    with pytest.raises(QueueError, match=r"cannot look: .*TOPIC_AUTHORIZATION_FAILED"):
        _admin(_Cluster(topic_error=_FORBIDDEN)).partitions("clicks", "look")
