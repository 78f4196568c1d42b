"""Payments are scored, and a worker dies: how long do scores take then, without copies of tasks and with them?

python examples/survives_a_crash.py              on Spark: a worker is killed, once without copies and once with two
headrace run examples/survives_a_crash.py        the same flow with its figures in the terminal
headrace simulate examples/survives_a_crash.py   the same flow under crashes, in a simulated world
"""

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

RATE = 500
PAYMENTS = pa.schema(
    [("payment", pa.int64()), ("due", pa.timestamp("us", "UTC")), ("card", pa.int64()), ("cents", pa.int64())]
)
SCORED = PAYMENTS.append(pa.field("spent", pa.int64()))
LEVEL_S = 0.5
"""Scores that are no later than this are taken as up to date: what piled up at the start is gone."""


def payments(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Functions of the number of a payment: so all copies make the same ones."""
    n = batch["n"].to_numpy()
    return pa.record_batch([batch["n"], batch["ts"], pa.array(n * 31 % 20), pa.array(n * 7919 % 10_000)], PAYMENTS)


def score(spent: int | None, payment: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The state of a card is what it has spent."""
    spent = (spent or 0) + payment["cents"]
    return spent, {**payment, "spent": spent}


def draw(sink: Any, records: int | None = None) -> hr.Flow:
    flow = hr.Flow("scores")
    made = flow.stage("payments", payments, flow.source("ticks", hr.rate(RATE, records)))
    flow.sink("scores", flow.keyed("score", score, made, by="card", parallelism=2, schema=SCORED), sink)
    return flow


flow = draw(hr.parquet("scores"), 1000)


class Watched:
    """A job, and the scores that come of it, each with the moment at which it came."""

    def __init__(self, job: Any, receiver: hr.Receiver):
        self.job, self._receiver = job, receiver
        self.scores: list[pa.RecordBatch] = []

    def until(self, holds: Callable[[], Any]) -> None:
        """Take scores until something is so."""
        while not holds():
            self.job.look(0)  # raises what went wrong
            self.take()

    def take(self, timeout_s: float = 0.02) -> None:
        for batch in self._receiver.receive(timeout_s):
            came = pa.repeat(pa.scalar(time.time_ns() // 1000, pa.int64()), batch.num_rows)
            self.scores.append(batch.append_column("came", came))

    def is_level(self) -> bool:
        """Are all workers there, and is the last score up to date?"""
        workers = self.job.status()["workers"].values()
        if not self.scores or not all(worker["up"] for worker in workers):
            return False
        return bool(time.time() - pc.max(self.scores[-1]["due"]).as_py().timestamp() < LEVEL_S)


def crash(spark: Any, folder: Path, replicas: int) -> tuple[pa.Table, float]:
    """Scores while a worker is killed; and how long the slowest took of those that were due after that, in seconds."""
    from headrace.queues.log import LogQueues

    queues = LogQueues(folder / "queues")
    with hr.Receiver(queues, "scores") as receiver:
        job = draw(hr.queue("scores")).start(spark, at=folder, queues=queues, workers=2, replicas=replicas)
        watched = Watched(job, receiver)
        watched.until(watched.is_level)
        worker = next(each for each in job.status()["workers"].values() if "score.0" in each["tasks"])
        os.kill(worker["pid"], signal.SIGKILL)
        killed_us = time.time_ns() // 1000
        watched.until(lambda: job.status()["restarts"] and watched.is_level())
        job.ask_to_stop()  # all that was given reaches the queue first
        watched.until(lambda: job.is_over)
        watched.take(timeout_s=0.5)
    found = pa.Table.from_batches(watched.scores).sort_by("payment")
    took_us = pc.subtract(found["came"], found["due"].cast(pa.int64()))
    return found, pc.max(took_us.filter(pc.greater(found["due"].cast(pa.int64()), killed_us))).as_py() / 1e6


def is_as_one_by_one(found: pa.Table) -> bool:
    """Is each payment there once, with the score that a loop over all of them gives?"""
    spent: dict[int, int] = {}
    for number, payment in enumerate(found.to_pylist()):
        spent[payment["card"]], scored = score(spent.get(payment["card"]), payment)
        if payment["payment"] != number or payment["spent"] != scored["spent"]:
            return False
    return True


if __name__ == "__main__":
    from headrace.spark.session import local_session

    spark = local_session("crash", cores=2)
    for name, replicas in (("without copies", 1), ("with two copies", 2)):
        found, longest_s = crash(spark, Path(tempfile.mkdtemp()), replicas)
        print(f"{name}: each payment is scored once, as one by one: {'yes' if is_as_one_by_one(found) else 'no'}")
        print(f"  of {found.num_rows} payments, the slowest after the crash took {longest_s:.2f} s")
    spark.stop()
