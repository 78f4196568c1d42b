"""Flows on Spark: a worker is a long-running Spark job of one task. Classic Spark and Spark Connect.

A job of its own means that a worker that dies comes back alone, in about half a second, and that the others do not
notice.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import InheritableThread, TaskContext
from pyspark.sql import SparkSession

from headrace.errors import FlowError, QueueUnreachable
from headrace.flow.builder import Flow as DrawnFlow
from headrace.flow.copies import agreed, replication
from headrace.flow.effects import Exited
from headrace.flow.host import run_worker
from headrace.flow.job import Job, Launcher
from headrace.flow.local_places import whole_path, with_whole_paths
from headrace.flow.options import check_options
from headrace.flow.plan import make_plan
from headrace.flow.rooms import ROOM_BYTES
from headrace.flow.worker import Pace
from headrace.flow.worker_setup import BATCH_RECORDS, WorkerSetup
from headrace.queues.log import LogQueues
from headrace.queues.protocol import Queues
from headrace.spark.location import STATE_CONF
from headrace.spark.pickles import check_pickles
from headrace.spark.raised import raised_in_a_worker
from headrace.spark.slots import Claim, claim, is_connect, is_stopped

_NO_ROWS: Final = "x long"
_SHOWN: Final = 2000
_NOT_FOUND: Final = re.compile(r"ModuleNotFoundError: No module named '([^']*)'")


class Flow(DrawnFlow):
    """Stages joined by FIFO queues.

    ```python
    flow = hr.Flow("trades")
    raw = flow.source("capture", hr.rate(1000))
    parsed = flow.stage("parse", parse, raw, parallelism=4)
    flow.sink("clean", parsed, hr.parquet("clean"))
    job = flow.start(spark, at="/data/flows")
    ```
    """

    def start(
        self,
        spark: SparkSession,
        at: str | Path | None = None,
        *,
        workers: int | None = None,
        queues: Queues | None = None,
        commit_s: float = 1.0,
        room_bytes: int = ROOM_BYTES,
        batch_records: int = BATCH_RECORDS,
        heartbeat_s: float = 0.01,
        replicas: int | Mapping[str, int] = 1,
        mode: str = "active",
        order: str = "queue",
    ) -> Job:
        """Run it on this session. A flow of the same name that ran at the same place before goes on where it was.

        `at`             a folder that all executors reach, for commits, and for queues if `queues` is not given; by
                         default what the session has as `headrace.state.location`
        `workers`        how many Spark tasks share the work, each in a slot of its own; by default as many as there are
                         slots that no other flow of this process holds, but no more than the flow has tasks
        `queues`         where queues are, if not in files below `at`: `hr.kafka_queues("broker:9092")`
        `commit_s`       how often tasks commit; after a crash, this much is done again
        `room_bytes`     how much may wait in a queue before its senders pause
        `batch_records`  how many records a source is asked for at a time, at most
        `heartbeat_s`    how often sources say how far they have come, in flows that are ordered, and how often beats
                         are sent with `order="round-robin"`
        `replicas`       how many copies of each task run, in different workers, so that a crash causes no gap; or how
                         many of which stages, `{"score": 2}`
        `mode`           what copies do: "active", all send what they have, and the first copy of each record counts;
                         "standby", one speaks, and another one takes over; "none", there are no copies
        `order`          how copies agree on the order of what several tasks send them: "queue", they read the same
                         queue; "round-robin", in turns, between beats; "leader", one of them decides
        """
        check_options(
            workers=workers,
            commit_s=commit_s,
            room_bytes=room_bytes,
            batch_records=batch_records,
            heartbeat_s=heartbeat_s,
        )
        graph = with_whole_paths(agreed(order, self.graph()))
        folder = str(at) if at is not None else spark.conf.get(STATE_CONF, None)
        if not folder:
            raise FlowError(
                f'flow {self.name} needs a place for its queues and commits: flow.start(spark, at="/path/to/flows") '
                f'or spark.conf.set("{STATE_CONF}", "/path/to/flows")'
            )
        plan = make_plan(graph)
        copies = replication(mode, replicas, plan)
        used = queues if queues is not None else LogQueues(_local_folder(folder) / "queues")
        pace = Pace(commit_s, min(0.5, commit_s), heartbeat_s)
        check_pickles(graph)
        state = state_at(folder)
        slots = claim(spark, self.name, state, len(copies.names(plan)), workers, copies.most)
        launcher = SparkLauncher(spark, self.name, slots)
        try:
            return Job(graph, launcher, used, state, slots.count, pace, room_bytes, batch_records, copies)
        except BaseException:
            launcher.close()
            raise


def state_at(folder: str) -> str:
    """Where flows at a place have their commits."""
    return f"{whole_path(folder)}/state"


def _local_folder(folder: str) -> Path:
    if "://" in folder.removeprefix("file://"):
        raise FlowError(
            f"queues in files need a folder of this machine, not {folder}; give at= such a folder, or "
            f'queues=hr.kafka_queues("host:9092")'
        )
    return Path(folder.removeprefix("file://"))


class SparkLauncher(Launcher):
    """One thread and one Spark job a worker."""

    def __init__(self, spark: SparkSession, flow: str, slots: Claim):
        super().__init__()
        self._spark = spark
        self._slots = slots
        self._flow = flow
        self._run = uuid.uuid4().hex[:8]
        self._threads: dict[tuple[int, int], threading.Thread] = {}
        self._is_connect = is_connect(spark)

    def start(self, setup: WorkerSetup) -> None:
        # On classic Spark a thread of Python has one of the JVM, which is to end with it.
        kind: Any = threading.Thread if self._is_connect else InheritableThread
        name = f"headrace-{self._flow}-{setup.worker}"
        thread: threading.Thread = kind(target=self._submit, args=(setup,), name=name, daemon=True)
        self._threads[setup.worker, setup.epoch] = thread
        thread.start()

    def _submit(self, setup: WorkerSetup) -> None:
        tag = self._tag(setup.worker, setup.epoch)
        problem, failure = None, None
        try:
            if self._is_connect:
                self._spark.addTag(tag)
            else:
                about = f"flow {self._flow}, worker {setup.worker}"
                self._spark.sparkContext.setJobGroup(tag, about, interruptOnCancel=True)
            self._spark.range(0, 1, 1, 1).mapInArrow(_body(setup), _NO_ROWS).collect()
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:_SHOWN]}"
            failure = _failure_in(str(error))
        self._threads.pop((setup.worker, setup.epoch), None)
        self.exits.append(Exited(setup.worker, setup.epoch, problem, failure))

    def cancel(self, worker: int, epoch: int) -> None:
        tag = self._tag(worker, epoch)
        if (worker, epoch) not in self._threads:
            return
        try:
            if self._is_connect:
                self._spark.interruptTag(tag)
            else:
                self._spark.sparkContext.cancelJobGroup(tag)
        except Exception:
            # The jobs of a session that is gone are gone with it.
            if self.lost() is None:
                raise

    def lost(self) -> str | None:
        return "the Spark session was stopped" if is_stopped(self._spark) else None

    def close(self) -> None:
        try:
            for worker, epoch in list(self._threads):
                self.cancel(worker, epoch)
            for thread in list(self._threads.values()):
                thread.join(timeout=10)
        finally:
            self._slots.release()

    def _tag(self, worker: int, epoch: int) -> str:
        return f"headrace-{self._flow}-{self._run}-{worker}-{epoch}"


def _failure_in(text: str) -> dict[str, str] | None:
    """The error of ours by which a worker ended, if starting it again would not help."""
    missing = _NOT_FOUND.search(text) if "in read_command" in text else None
    if missing is not None:
        return {
            "type": FlowError.__name__,
            "message": f"a worker cannot read the functions of the flow: {missing[0]}; what they import must be there "
            f"as well: install it where workers run, or send it along before the flow starts, "
            f'spark.addArtifacts("{missing[1].partition(".")[0]}.py", pyfile=True)',
        }
    found = raised_in_a_worker(text)
    if found is None or found[0] == QueueUnreachable.__name__:
        return None
    return {"type": found[0], "message": found[1]}


def _body(setup: WorkerSetup) -> Any:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        setup.check_machine()
        context = TaskContext.get()
        if context is not None and context.attemptNumber():
            # An attempt of Spark's own would be a second worker of the same epoch.
            raise RuntimeError("the coordinator starts workers that died, not Spark")
        for _ in batches:
            pass
        run_worker(setup)
        yield from ()

    return work
