"""Metrics with two copies of their task, at 500 events a second, while a worker is killed: latency, and is it exact?"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

import headrace as hr
from headrace.queues.protocol import Queues

METRICS: Final = "SELECT sum(amount) AS spent, count(*) AS n FROM p GROUP BY card OVER sliding 60 minutes"
SCHEMA: Final = pa.schema(
    [("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("card", pa.int64()), ("amount", pa.float64())]
)
CARDS: Final = 1000
_WARM_S: Final = 8.0
_LATE_S: Final = 30.0


@dataclass(frozen=True)
class Answered:
    """Latencies in milliseconds, by event, from when it was due; `crash` is the first event after the kill."""

    latencies_ms: npt.NDArray[np.float64]
    crash: int
    wrong: int

    def percentile(self, percent: float) -> float:
        return float(np.percentile(self.latencies_ms, percent))


def answered(
    spark: SparkSession, queues: Queues, folder: Path, per_second: int, seconds: float, replicas: int
) -> Answered:
    """One event a frame. What comes while workers start, and warm up, does not count. A worker is killed half-way."""
    flow = hr.Flow(f"measured-{replicas}")
    events = flow.source("events", hr.queue(f"events-{replicas}", SCHEMA))
    metrics = hr.Metrics(METRICS, time="ts", id="id")
    flow.sink("answers", flow.measure("score", metrics, events), hr.queue(f"answers-{replicas}"))
    job = flow.start(spark, folder, queues=queues, workers=replicas, replicas=replicas)
    while not all(worker["up"] for worker in job.status()["workers"].values()):
        time.sleep(0.05)
    warm, count = int(_WARM_S * per_second), int((_WARM_S + seconds) * per_second)
    crash = warm + (count - warm) // 2
    started = time.time() + 0.5
    sender = threading.Thread(
        target=_send, args=(queues, f"events-{replicas}", started, per_second, count, crash, job), daemon=True
    )
    sender.start()
    arrived, answers = _received(queues, f"answers-{replicas}", count, started + count / per_second + _LATE_S)
    sender.join()
    job.stop(drain=False)
    due = started + np.arange(count) / per_second
    latencies = np.array([arrived.get(n, np.inf) for n in range(count)]) - due
    return Answered(latencies[warm:] * 1000, crash - warm, _wrong(answers, count))


def _send(queues: Queues, name: str, started: float, per_second: int, count: int, crash: int, job: Any) -> None:
    with hr.Sender(queues, name) as sender:
        for n in range(count):
            wait = started + n / per_second - time.time()
            if wait > 0:
                time.sleep(wait)
            row = {"id": [n], "ts": [n * 1000], "card": [n % CARDS], "amount": [float(n % 97)]}
            sender.send(pa.RecordBatch.from_pydict(row, SCHEMA))
            if n == crash:
                os.kill(job.status()["workers"][0]["pid"], signal.SIGKILL)


def _received(queues: Queues, name: str, count: int, until: float) -> tuple[dict[int, float], dict[int, Any]]:
    arrived: dict[int, float] = {}
    answers: dict[int, Any] = {}
    with hr.Receiver(queues, name) as receiver:
        while len(arrived) < count and time.time() < until:
            batches = list(receiver.receive(0.05))
            now = time.time()
            for batch in batches:
                ids = batch.column("id").to_pylist()
                arrived.update(dict.fromkeys(ids, now))
                values = zip(batch.column("n").to_pylist(), batch.column("spent").to_pylist(), strict=True)
                answers.update(zip(ids, values, strict=True))
    return arrived, answers


def _wrong(answers: dict[int, Any], count: int) -> int:
    """How many answers are missing or not those of a loop over the events."""
    found, seen, spent = 0, [0] * CARDS, [0.0] * CARDS
    for n in range(count):
        seen[n % CARDS] += 1
        spent[n % CARDS] += float(n % 97)
        found += answers.get(n) != (seen[n % CARDS], spent[n % CARDS])
    return found
