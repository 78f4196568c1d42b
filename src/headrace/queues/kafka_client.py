"""What all clients of the Kafka kind of queue share: how they are set up, and their errors in our words."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import EnvironmentProblem, QueueError, QueueUnreachable

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

_LOOK_S: Final = 0.02
_COMMON: Final[Mapping[str, Any]] = {
    # librdkafka writes to the terminal by itself; what it knows comes through `Trouble` instead.
    "log_level": 0,
    "allow.auto.create.topics": False,
    # A broker that is back is found again soon.
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "client.id": "headrace",
}


def confluent() -> ModuleType:
    """The client library; it is an extra."""
    try:
        importlib.import_module("confluent_kafka.admin")
        return importlib.import_module("confluent_kafka")
    except ImportError as error:
        raise EnvironmentProblem(
            f'queues in Kafka need the package confluent-kafka ({error}); pip install "headrace[kafka]"'
        ) from None


class Trouble:
    """Listens to a client's complaints about its connections."""

    def __init__(self) -> None:
        self.reason = ""
        self.down_since: float | None = None

    def __call__(self, error: KafkaError) -> None:
        if error.name() == "_ALL_BROKERS_DOWN":
            self.down_since = self.down_since or time.monotonic()
        else:
            self.reason = error.str()

    def is_over(self) -> None:
        self.down_since = None


class Lot:
    """Messages that are waited for together: those between two cuts of `Deliveries`."""

    def __init__(self, note: Callable[[Any, Any], None], lock: threading.Lock):
        self._note = note
        self._lock = lock
        self.unanswered = 0

    def answer(self, error: Any, message: Any) -> None:
        """What a producer calls, from whichever thread polls."""
        self._note(error, message)
        with self._lock:
            self.unanswered -= 1

    def withdraw(self, count: int) -> None:
        """There will be no answer."""
        with self._lock:
            self.unanswered -= count


class Deliveries:
    """Which messages were given to a producer and have no answer yet: `note` gets each of these.

    A producer's own `flush` waits until it has nothing left at all, which under load may never be. Answers come in the
    order of their partition only, so to count them says nothing of a message: each lot of messages counts its own.
    """

    def __init__(self, note: Callable[[Any, Any], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._lots = [Lot(note, self._lock)]

    def begin(self, count: int) -> Lot:
        """Before so many messages are given to the producer, with the lot's `answer`."""
        with self._lock:
            lot = self._lots[-1]
            lot.unanswered += count
            return lot

    def cut(self) -> Sequence[Lot]:
        """All that was begun so far, for `wait`."""
        with self._lock:
            before = [lot for lot in self._lots if lot.unanswered]
            self._lots = [*before, Lot(self._note, self._lock)]
            return before

    def wait(self, producer: Any, lots: Sequence[Lot], timeout_s: float) -> int:
        """For the answers to all messages of these; gives how many are missing when the time is up."""
        deadline = time.monotonic() + timeout_s
        while (missing := sum(lot.unanswered for lot in lots)) and (left := deadline - time.monotonic()) > 0:
            producer.poll(min(left, _LOOK_S))
        return missing


def client_settings(
    servers: str, settings: Mapping[str, str], trouble: Trouble, own: Mapping[str, Any]
) -> dict[str, Any]:
    """The user's settings win over the shared ones, but not over those that a queue cannot do without (`own`)."""
    return {**_COMMON, **settings, **own, "bootstrap.servers": servers, "error_cb": trouble}


def new_client(kind: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
    """A Producer, Consumer or AdminClient. It does not connect yet, but knows its settings."""
    try:
        return kind(settings)
    except confluent().KafkaException as error:
        raise QueueError(f"these settings are not for Kafka's client: {error.args[0].str()}") from None


# ---------------------------------------------------------------------- errors

_NOT_REACHED: Final = {
    "_TRANSPORT",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_MSG_TIMED_OUT",
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "_WAIT_COORD",
    "_SSL",
    "_AUTHENTICATION",
    "REQUEST_TIMED_OUT",
    "BROKER_NOT_AVAILABLE",
    "COORDINATOR_NOT_AVAILABLE",
}
_NO_QUEUE: Final = {"UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_NOENT"}


def is_no_queue(error: KafkaError) -> bool:
    return error.name() in _NO_QUEUE


def queue_error(error: KafkaError, doing: str, servers: str, waited_s: float, trouble: Trouble) -> QueueError:
    """What a client's error means to the person who wanted to do something with queues."""
    if error.name() in _NOT_REACHED:
        return unreachable(doing, servers, waited_s, trouble.reason or error.str())
    if is_no_queue(error):
        return QueueError(f"cannot {doing}: there is no such queue at {servers}; create it first")
    return QueueError(f"cannot {doing}: Kafka at {servers} says {error.name()}: {error.str()}")


def unreachable(doing: str, servers: str, waited_s: float, reason: str) -> QueueUnreachable:
    why = f" ({reason})" if reason else ""
    return QueueUnreachable(
        f"no Kafka broker answers at {servers}: tried for {waited_s:.0f} s to {doing}{why}; "
        f"look at the address, or start a broker on this machine: headrace kafka start"
    )
