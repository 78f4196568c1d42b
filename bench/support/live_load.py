"""The load of bench/measure_live: payments that are sent when they are due, and how long their answers take."""

from __future__ import annotations

import gc
import re
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import psutil
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from hdrh.histogram import HdrHistogram

from bench.harness import is_quick, stolen_percent
from bench.support.echo import ONE_BY_ONE, due_until, in_two_processes
from headrace.flow.json_stages import json_objects

SCHEMA: Final = pa.schema(
    [("id", pa.string()), ("ms", pa.int64()), ("card", pa.string()), ("amount", pa.float64()), ("due_us", pa.int64())]
)
CARDS: Final = 10_000
WARM_S: Final = 3.0 if is_quick() else 12.0
DRAIN_S: Final = 30.0
_due = re.compile(rb'"due_us": ?([1-9][0-9]*)').search
_number = re.compile(rb'"id": ?"([0-9]+)').search
"""In an answer: when it was due, which events of the history have not, and its number."""


# ----------------------------------------------------------------------- events


def cards(count: int, seed: int) -> list[str]:
    """Zipf over 10,000 cards."""
    rng = np.random.default_rng(seed)
    return [f"card-{number}" for number in ((rng.zipf(1.2, count) - 1) % CARDS).tolist()]


def message(number: int, ms: int, card: bytes, due_us: int) -> bytes:
    return b'{"id":"%d","ms":%d,"card":"%s","amount":%.2f,"due_us":%d}' % (number, ms, card, (number % 997) / 7, due_us)


def load_history(servers: str, topic: str, count: int, span_s: float, more: str = "") -> None:
    """So many events, evenly over the time that ends now; as fast as Kafka takes them. `more` is put into each."""
    rng = np.random.default_rng(5)
    now_ms = time.time_ns() // 1_000_000
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000})
    for first in range(0, count, 100_000):
        size = min(100_000, count - first)
        numbers = np.arange(first, first + size)
        batch = pa.record_batch(
            [
                pa.array([f"h{n}" for n in numbers]),
                pa.array(now_ms - ((count - numbers) * (span_s * 1000 / count)).astype(np.int64)),
                pa.array([f"card-{card}" for card in ((rng.zipf(1.2, size) - 1) % CARDS).tolist()]),
                pa.array((numbers % 997) / 7),
                pa.array(np.zeros(size, np.int64)),
            ],
            schema=SCHEMA,
        )
        for value in json_objects(batch).to_pylist():
            while True:
                try:
                    producer.produce(topic, value[:-1] + more + "}")
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    producer.flush()


# ------------------------------------------------------------------------- load


def send(servers: str, topic: str, rate: float, seconds: float, began: Any) -> None:
    """In a process of its own."""
    settings = {"bootstrap.servers": servers, "enable.idempotence": True, "queue.buffering.max.messages": 1_000_000}
    if rate <= ONE_BY_ONE:
        settings["linger.ms"] = 0  # more of them gather for 5 ms, the default of the client
    producer = Producer(settings)
    total = int(rate * seconds)
    names = [name.encode() for name in cards(total, seed=7)]
    gc.disable()
    began.wait()
    start, sent = time.time() + 0.2, 0
    while sent < total:
        until = due_until(start, rate, sent, total)
        ms = time.time_ns() // 1_000_000
        for number in range(sent, until):
            producer.produce(topic, message(number, ms, names[number], int((start + number / rate) * 1e6)))
        producer.poll(0)
        sent = until
    producer.flush()


@dataclass(frozen=True)
class Measured:
    """Latencies in microseconds after the warm-up, and how many answers never came."""

    histogram: HdrHistogram
    missing: int
    stolen_percent: float
    """Of the cores' time, by other machines of this one's host."""

    def __str__(self) -> str:
        latencies = ", ".join(f"p{percentile:g} {self.ms(percentile):,.1f} ms" for percentile in (50, 99, 99.9))
        return f"{latencies}, {self.missing} missing, {self.stolen_percent:.1f} % of the cores with other machines"

    def ms(self, percentile: float) -> float:
        return float(self.histogram.get_value_at_percentile(percentile)) / 1000


def receive(servers: str, topic: str, rate: float, seconds: float, began: Any, found: Any) -> None:
    """In a process of its own, which does as little as it can: it has the same cores as all others."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": f"bench-{time.time_ns()}", "fetch.wait.max.ms": 5,
         "enable.auto.commit": False}
    )  # fmt: skip
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.assign([TopicPartition(topic, 0, end)])
    consumer.poll(1.0)
    since_us = time.time_ns() // 1000  # not those of a run before
    began.set()
    left, skipped, latencies = int(rate * seconds), int(rate * WARM_S), list[int]()
    gc.disable()
    silent_since = time.monotonic()
    while left > 0 and time.monotonic() - silent_since < DRAIN_S:
        first = consumer.poll(0.1)
        if first is None:
            continue
        silent_since = time.monotonic()
        for each in [first, *consumer.consume(10_000, 0)]:
            if each.error() is None:
                now, value = time.time_ns() // 1000, each.value() or b""
                if (due := _due(value)) and (due_us := int(due[1])) >= since_us:
                    left -= 1
                    if int(_number(value)[1]) >= skipped:  # type: ignore[index]
                        latencies.append(max(1, now - due_us))
    histogram = HdrHistogram(1, 120_000_000, 3)
    for latency, count in zip(*np.unique(latencies, return_counts=True), strict=True):
        histogram.record_value(int(latency), int(count))
    found.send((left, histogram.encode()))


def measured(servers: str, topic_in: str, topic_out: str, rate: float, seconds: float) -> Measured:
    ends = (servers, topic_out, rate, seconds), (servers, topic_in, rate, seconds)
    before = psutil.cpu_times()
    missing, encoded = in_two_processes((receive, ends[0]), (send, ends[1]))
    return Measured(HdrHistogram.decode(encoded), missing, stolen_percent(before, psutil.cpu_times()))
