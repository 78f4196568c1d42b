"""What latency benches share: a load that does not drift, and the echo that a Python program does without Headrace."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

ONE_BY_ONE: Final = 2000
"""Up to so many events a second are sent one by one; more of them each millisecond, as many as are due."""


def sleep_until(due: float) -> None:
    while (left := due - time.time()) > 0:
        # The last stretch is not slept: a timer is late by more than what is measured.
        time.sleep(left - 0.0002 if left > 0.0003 else 0)


def due_until(start: float, rate: float, sent: int, total: int) -> int:
    """Wait for the next event that is due; gives how many are due by then."""
    due = start + sent / rate
    if rate <= ONE_BY_ONE:
        sleep_until(due)
    else:
        # A timer is late by a tenth of that: no reason to take half a core from those who are measured.
        time.sleep(max(0.0, due + 0.001 - time.time()))
    return min(total, max(sent + 1, int((time.time() - start) * rate)))


@contextmanager
def bare_echo(servers: str, topic_in: str, topic_out: str) -> Iterator[None]:
    """A process that sends on what comes: no metrics, no state, no commits, nothing exact."""
    context = multiprocessing.get_context("spawn")
    stopped = context.Event()
    process = context.Process(target=_echo, args=(servers, topic_in, topic_out, stopped))
    process.start()
    time.sleep(2.0)
    try:
        yield
    finally:
        stopped.set()
        process.join()


def _echo(servers: str, topic_in: str, topic_out: str, stopped: Any) -> None:
    """Poll one, drain, produce."""
    common = {"bootstrap.servers": servers}
    consumer = Consumer({**common, "group.id": "bare", "fetch.wait.max.ms": 5, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic_in, 0, 0)])
    producer = Producer({**common, "linger.ms": 0, "enable.idempotence": True})
    while not stopped.is_set():
        first = consumer.poll(0.1)
        if first is None:
            continue
        for message in [first, *consumer.consume(1000, 0)]:
            if message.error() is None:
                producer.produce(topic_out, message.value())
        producer.poll(0)
    producer.flush()
    consumer.close()


def in_two_processes(receive: Any, send: Any) -> Any:
    """Each a (function, arguments); the first is given (…, began, found) and the other (…, began): what was found."""
    context = multiprocessing.get_context("spawn")
    began, (found, there) = context.Event(), context.Pipe(duplex=False)
    receiver = context.Process(target=receive[0], args=(*receive[1], began, there))
    sender = context.Process(target=send[0], args=(*send[1], began))
    for process in (receiver, sender):
        process.start()
    there.close()
    result = found.recv()
    for process in (receiver, sender):
        process.join()
    return result
