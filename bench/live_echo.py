"""How long an event takes through a flow inside Spark tasks: over Kafka beside a bare Python echo, and over the log.

A load generator in a process of its own sends events at a steady rate, one by one or each millisecond, whatever comes
back (an open loop); the latency of an event counts from the moment it was due, so a stall counts for all that were due
in it (coordinated omission corrected). The flow reads a queue, runs a stage that does nothing, and writes a queue.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyarrow as pa
from hdrh.histogram import HdrHistogram

import headrace as hr
from bench.harness import Bench, Target, is_quick
from bench.support.echo import bare_echo, due_until, in_two_processes
from headrace.queues.kafka import KafkaQueues
from headrace.queues.log import LogQueues
from headrace.queues.protocol import Queues
from headrace.spark.broker import Broker
from headrace.spark.session import local_session
from headrace.testing.cluster import free_port

MILLISECONDS: Final = "ms"
SCHEMA: Final = pa.schema([("n", pa.int64()), ("due_us", pa.int64()), ("card", pa.string())])
_WARM_S: Final = 3.0 if is_quick() else 15.0
"""A broker compiles its code as it goes: its first seconds are not what it is like later."""
_DRAIN_S: Final = 10.0


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def echo_flow(name: str) -> hr.Flow:
    flow = hr.Flow(name)
    events = flow.source("events", hr.queue(f"{name}-in", SCHEMA))
    flow.sink("answers", flow.stage("same", same, events), hr.queue(f"{name}-out"))
    return flow


# ------------------------------------------------------------------------ load


def send(queues: Queues, queue: str, rate: float, seconds: float, began: Any) -> None:
    """In a process of its own."""
    with hr.Sender(queues, queue) as sender:
        began.wait()
        start, sent = time.time() + 0.2, 0
        while sent < int(rate * seconds):
            until = due_until(start, rate, sent, int(rate * seconds))
            numbers = range(sent, until)
            due = [int((start + n / rate) * 1e6) for n in numbers]
            sender.send(pa.record_batch([list(numbers), due, [f"card-{n % 1000}" for n in numbers]], schema=SCHEMA))
            sent = until


def measured(queues: Queues, name: str, rate: float, seconds: float) -> HdrHistogram:
    """Latencies in microseconds of the events after the warm-up."""
    ends = (queues, f"{name}-out", rate, seconds), (queues, f"{name}-in", rate, seconds)
    encoded = in_two_processes((receive, ends[0]), (send, ends[1]))
    if isinstance(encoded, int):
        raise RuntimeError(f"{encoded} events did not come back")
    return HdrHistogram.decode(encoded)


def receive(queues: Queues, queue: str, rate: float, seconds: float, began: Any, found: Any) -> None:
    """In a process of its own, which does nothing else."""
    histogram = HdrHistogram(1, 60_000_000, 3)
    with hr.Receiver(queues, queue, f"bench-{time.time_ns()}") as receiver:
        began.set()
        left, skipped = int(rate * seconds), int(rate * _WARM_S)
        deadline = time.monotonic() + seconds + _DRAIN_S + 20
        while left > 0 and time.monotonic() < deadline:
            for batch in receiver.receive(0.1):
                now = time.time_ns() // 1000
                for n, due in zip(batch["n"].to_pylist(), batch["due_us"].to_pylist(), strict=True):
                    if n >= skipped:
                        histogram.record_value(max(1, now - due))
                left -= batch.num_rows
    found.send(left if left > 0 else histogram.encode())


# ----------------------------------------------------------------------- echoes


@contextmanager
def headrace_echo(spark: Any, queues: Queues, name: str, folder: str) -> Iterator[None]:
    job = echo_flow(name).start(spark, folder, workers=1, queues=queues)
    while not any(worker["up"] for worker in job.status()["workers"].values()):
        job.wait(0.05)
    try:
        yield
    finally:
        job.stop(drain=False)


def bare_process(queues: KafkaQueues, name: str) -> AbstractContextManager[None]:
    queues.create([f"q.{name}-in", f"q.{name}-out"])
    return bare_echo(queues.servers, queues.topic(f"q.{name}-in"), queues.topic(f"q.{name}-out"))


# ------------------------------------------------------------------------- main


def percentile_figures(bench: Bench, system: str, what: str, histogram: HdrHistogram) -> float:
    for name, percentile in (("p50", 50), ("p99", 99), ("p99.9", 99.9)):
        value = histogram.get_value_at_percentile(percentile) / 1000
        bench.figure(system, f"{what}, {name}", value, MILLISECONDS)
    return float(histogram.get_value_at_percentile(99.9)) / 1000


def main() -> None:
    bench = Bench(
        "live_echo",
        "An event through a flow inside a Spark task, and back",
        targets=[
            Target("p999_over_bare_echo", at_most=2.0),
            Target("p999_ms_25k_kafka", at_most=100.0),
            Target("p999_ms_500_log", at_most=5.0),
        ],
    )
    seconds = 8.0 if bench.quick else 60.0
    bench.set(
        seconds=seconds,
        warm_up_seconds=_WARM_S,
        frame="one event at 500/s, what is due each millisecond at 25,000/s",
    )
    with bench.running(steps=5), tempfile.TemporaryDirectory() as folder:
        broker = Broker(folder=Path(folder) / "kafka", port=free_port())
        broker.start()
        spark = local_session(cores=2)
        try:
            race(bench, spark, KafkaQueues(broker.address, "echo-"), LogQueues(f"{folder}/queues"), folder, seconds)
        finally:
            spark.stop()
            broker.stop()
    bench.finish()


def race(bench: Bench, spark: Any, kafka: KafkaQueues, log: LogQueues, folder: str, seconds: float) -> None:
    def measure(system: str, rate: float, queues: Queues, name: str, running: Any, share: float = 1.0) -> float:
        with bench.step(f"{system}, {rate:,.0f} events/s"), running:
            found = measured(queues, name, rate, seconds * share)
        return percentile_figures(bench, system, f"{rate:,.0f} ev/s", found)

    def ours(queues: Queues, name: str) -> Any:
        return headrace_echo(spark, queues, name, f"{folder}/{name}")

    bench.ratio("p999_ms_500_log", measure("Headrace on log", 500, log, "log500", ours(log, "log500")))
    # A new broker makes its internal topics when the first idempotent producer asks, and takes seconds for it.
    with bench.step("a broker that has seen producers"), bare_process(kafka, "warm"):
        measured(kafka, "warm", 500, _WARM_S + seconds / 2)
    bare = measure("bare Python on Kafka", 500, kafka, "bare500", bare_process(kafka, "bare500"))
    slow = measure("Headrace on Kafka", 500, kafka, "kafka500", ours(kafka, "kafka500"))
    bench.ratio("p999_over_bare_echo", slow / bare)
    fast = measure("Headrace on Kafka", 25_000, kafka, "fast", ours(kafka, "fast"), 0.5)
    bench.ratio("p999_ms_25k_kafka", fast)


if __name__ == "__main__":
    main()
