"""Runs of the bench of replicated tasks: a flow whose workers are killed, and what a reader sees of it.

The reader is a process of its own, which takes the first copy of each record and notes when it came.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa
from pyarrow import feather

import headrace as hr
from bench.support.replicate_crashes import Choice, Crash, kill
from bench.support.replicate_flows import OUT, Load
from headrace.flow.job import Job
from headrace.queues.kafka import KafkaQueues
from headrace.queues.log import LogQueues
from headrace.queues.protocol import Queues
from headrace.spark.broker import Broker

Floats = npt.NDArray[np.float64]
WORKERS: Final = 3
AFTER_S: Final = 5.0
"""What is due so long after a crash, or was on the way at it, may have been hit by it."""
_FLAT_LIMIT_S: Final = 30.0
_FLAT_SHARE: Final = 0.6
_FLAT_MOST_S: Final = 1.0
_DRAIN_LIMIT_S: Final = 60.0
_MICROS: Final = 1e6


@dataclass(frozen=True)
class System:
    """A way to run a flow."""

    name: str
    mode: str = "active"
    order: str = "queue"
    heartbeat_s: float = 0.01
    is_exact: bool = True
    """By arrival copies disagree, and records are lost and doubled: it is there for its latency."""

    @property
    def options(self) -> dict[str, Any]:
        replicas = 1 if self.mode == "none" else 2
        return {"mode": self.mode, "order": self.order, "replicas": replicas, "heartbeat_s": self.heartbeat_s}


@dataclass(frozen=True)
class Usage:
    """What was used up to a moment."""

    at_s: float
    worker_cpu_s: float
    broker_cpu_s: float
    queue_bytes: int


@dataclass(frozen=True)
class Run:
    """What a reader got in a run."""

    what: str
    system: System
    rate: int
    n: npt.NDArray[np.int64]
    ts_us: npt.NDArray[np.int64]
    at_us: npt.NDArray[np.int64]
    warm_us: int
    """From then on latency was flat."""
    end_us: int
    used: tuple[Usage, Usage]
    """When it was warm, and before the first crash."""
    crashes: tuple[Crash, ...]
    restarts: int
    was_flat: bool
    faults: tuple[int, int]
    """Lost, and doubled."""

    @property
    def ms(self) -> Floats:
        return (self.at_us - self.ts_us) / 1000

    def steady(self) -> Floats:
        """Latencies from when it was warm until the first crash."""
        until = self.crashes[0].at_us if self.crashes else self.end_us
        return self._some((self.ts_us >= self.warm_us) & (self.at_us < until))

    def just_before(self, crash: Crash) -> Floats:
        """As many seconds as are looked at after it: so long are the longest without any crash."""
        since = max(self.warm_us, crash.at_us - int(AFTER_S * _MICROS))
        return self._some((self.ts_us >= since) & (self.at_us < crash.at_us))

    def after(self, crash: Crash) -> Floats:
        return self._some((self.at_us >= crash.at_us) & (self.ts_us < crash.at_us + int(AFTER_S * _MICROS)))

    def warm(self) -> Floats:
        return self._some((self.ts_us >= self.warm_us) & (self.ts_us < self.end_us))

    def back_after_s(self, crash: Crash) -> float:
        """Until the last record that took more than twice as long as one of a thousand did before, or 0."""
        limit = 2 * float(np.percentile(self.steady(), 99.9))
        since = (self.at_us - crash.at_us) / _MICROS
        slow = since[(since >= 0) & (self.ms > limit) & (self.ts_us < crash.at_us + int(AFTER_S * _MICROS))]
        return float(slow.max()) if len(slow) else 0.0

    def p99_by_second(self, crash: Crash, seconds: tuple[int, int]) -> list[tuple[float, float]]:
        """By the second in which records were due, before and after the crash."""
        since, ms = np.floor((self.ts_us - crash.at_us) / _MICROS), self.ms
        is_warm = self.ts_us >= self.warm_us
        found = [(second, ms[is_warm & (since == second)]) for second in range(*seconds)]
        return [(second + 0.5, float(np.percentile(each, 99))) for second, each in found if len(each)]

    def used_by_event(self) -> tuple[float, float, float]:
        """CPU seconds of workers and of the broker for a thousand events, and bytes into queues for one."""
        first, last = self.used
        events = self.rate * (last.at_s - first.at_s)
        workers, broker = last.worker_cpu_s - first.worker_cpu_s, last.broker_cpu_s - first.broker_cpu_s
        return 1000 * workers / events, 1000 * broker / events, (last.queue_bytes - first.queue_bytes) / events

    def _some(self, which: npt.NDArray[np.bool_]) -> Floats:
        found: Floats = self.ms[which]
        if not len(found):
            raise RuntimeError(f"{self.what}: nothing came in the time that was to be measured")
        return found


# ----------------------------------------------------------------------- reader


class ReaderProcess:
    """Reads a queue at a time, until it is told that it is over."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._medians = context.Array("d", 4)
        self._process = context.Process(target=_read_queues, args=(there, self._medians), daemon=True)
        self._process.start()
        there.close()

    def begin(self, queues: Queues, file: Path, columns: Sequence[str]) -> None:
        self._pipe.send((queues, str(file), tuple(columns)))
        self._pipe.recv()

    @property
    def is_flat(self) -> bool:
        """What piled up is gone: the last second was hardly better than the one before, and records still come."""
        seconds, before, last, due_s = self._medians[:]
        is_late = time.time() - due_s > _FLAT_MOST_S
        return bool(seconds >= 2 and _FLAT_SHARE * before <= last < _FLAT_MOST_S and not is_late)

    def end(self) -> None:
        """When it returns, the file is there."""
        self._pipe.send(None)
        self._pipe.recv()

    def close(self) -> None:
        self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()


def _read_queues(pipe: Any, medians: Any) -> None:
    while True:
        try:
            queues, file, columns = pipe.recv()
            medians[:] = [0.0, 0.0, 0.0, 0.0]
            with hr.Receiver(queues, OUT, "bench") as receiver:
                pipe.send("began")
                batches = list(_arrivals(receiver, columns, pipe, medians))
        except EOFError:
            return  # the bench is over, or has failed and says so itself
        table = pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in (*columns, "ts", "at")})
        feather.write_feather(table, file, compression="uncompressed")
        pipe.send("done")


def _arrivals(receiver: hr.Receiver, columns: Sequence[str], pipe: Any, medians: Any) -> Iterator[pa.RecordBatch]:
    """Records with the time at which they came; when it is told to end, what is still there."""
    second = 0
    latencies: list[Floats] = []
    is_ending, had = False, True
    while had or not is_ending:
        is_ending, had = is_ending or pipe.poll(0), False
        for batch in receiver.receive(0.5 if is_ending else 0.05):
            now, had = time.time_ns() // 1000, True
            if now // 1_000_000 != second and latencies:
                medians[:3] = [medians[0] + 1, medians[2], float(np.median(np.concatenate(latencies)))]
                latencies = []
            second = now // 1_000_000
            medians[3] = batch["ts"][-1].value / _MICROS
            latencies.append((now - batch["ts"].cast(pa.int64()).to_numpy()) / _MICROS)
            yield batch.select([*columns, "ts"]).append_column("at", pa.repeat(now, batch.num_rows))
    pipe.recv()


# ------------------------------------------------------------------------- runs


@dataclass
class Place:
    """Where runs take place: each has a folder and queues of its own."""

    spark: Any
    folder: Path
    broker: Broker | None
    """None: queues are files."""
    reader: ReaderProcess = field(default_factory=ReaderProcess)
    _runs: int = 0

    def run(
        self, what: str, load: Load, system: System, choices: Sequence[Choice], before_s: float, after_s: float
    ) -> Run:
        """Warm up, measure for `before_s`, kill what is chosen, one after the other, and look on for `after_s`."""
        self._runs += 1
        name = f"run{self._runs}"
        folder = self.folder / name
        folder.mkdir()
        queues = self._queues(name)
        self.reader.begin(queues, folder / "arrivals", load.columns)
        job = load.flow(name).start(self.spark, folder / "flow", workers=WORKERS, queues=queues, **system.options)
        with _stopped(job):
            was_flat = self._wait_until_flat(job)
            first, warm_us = self._usage(job, name), _now_us()
            job.look(before_s)
            used = first, self._usage(job, name)
            # A crash in the midst of a stall that has other reasons would tell nothing.
            was_flat = self._wait_until_flat(job) and was_flat
            crashes = tuple(kill(job, choice(job), after_s, load.rate / 2) for choice in choices)
            status, end_us = job.status(), _now_us()
            job.ask_to_stop(drain=system.is_exact)
            if not job.wait(_DRAIN_LIMIT_S):
                raise RuntimeError(f"{what}: asked to stop, it has not ended after {_DRAIN_LIMIT_S:.0f} s")
        self.reader.end()
        table = feather.read_table(folder / "arrivals")
        n, ts_us, at_us = (column.to_numpy() for column in (table["n"], table["ts"].cast(pa.int64()), table["at"]))
        run = Run(
            what, system, load.rate, n, ts_us, at_us, warm_us, end_us, used, crashes, status["restarts"], was_flat,
            load.faults(table, int(job.reports()[load.source]["records_in"])),
        )  # fmt: skip
        _expect_all(run)
        return run

    def close(self) -> None:
        self.reader.close()

    def _queues(self, name: str) -> Queues:
        if self.broker is None:
            return LogQueues(self.folder / name / "queues")
        return KafkaQueues(self.broker.address, f"{name}-")

    def _wait_until_flat(self, job: Job) -> bool:
        deadline = time.monotonic() + _FLAT_LIMIT_S
        while not self.reader.is_flat and time.monotonic() < deadline:
            job.look(0.05)
        return self.reader.is_flat

    def _usage(self, job: Job, name: str) -> Usage:
        pids = {worker["pid"] for worker in job.status()["workers"].values()}
        broker = 0.0 if self.broker is None or self.broker.pid is None else _cpu_s(self.broker.pid)
        return Usage(time.time(), sum(map(_cpu_s, pids - {None})), broker, self._bytes(name))

    def _bytes(self, name: str) -> int:
        """In the files of all queues. Segments are large: none goes within a run."""
        if self.broker is None:
            files = [file for file in (self.folder / name / "queues").rglob("*") if file.is_file()]
        else:
            files = list((self.broker.folder / "data").glob(f"{name}-*/*.log"))
        return sum(file.stat().st_size for file in files)


@contextmanager
def _stopped(job: Job) -> Iterator[None]:
    """Nothing of it is left, whatever goes wrong."""
    try:
        yield
    finally:
        if not job.is_over:
            job.stop(drain=False, timeout_s=_DRAIN_LIMIT_S)


def _expect_all(run: Run) -> None:
    """Raises RuntimeError where records are lost or doubled."""
    lost, doubled = run.faults
    if run.system.is_exact and (lost or doubled):
        raise RuntimeError(f"{run.what}: {lost:,} records are lost, and {doubled:,} came twice")


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _now_us() -> int:
    return time.time_ns() // 1000
