"""A stream at work: its flow on Spark, and who waits for which answers.

A request is appended to the queue of events with a number of its own; the flow answers every event into a queue of
answers, which a thread reads: an answer wakes the request with its number, and is remembered by the id of its event, so
that a request that is sent again gets the answer that it got, or would have got.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.flow.json_stages import json_objects
from headrace.flow.queue_ends import Sender, outside, queue
from headrace.language.type_names import spark_name
from headrace.measure.explain import describe
from headrace.model import frames
from headrace.queues.protocol import Queues
from headrace.service.figures import Figures
from headrace.service.streams import REASON, STATUS, StreamSpec
from headrace.spark.live import Flow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUEST: Final = "__request"
ROW: Final = "__row"
SCORE: Final = "score"
_REPEATED: Final = "duplicate"
_LOOK_S: Final = 0.2
_TIDY_S: Final = 10.0
_REMEMBERED: Final = 200_000
_READER: Final = "front-end"


@dataclass
class _Waiting:
    """A request whose answers have not all come."""

    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[list[str]]
    answers: list[str | None]
    left: int


@dataclass
class Unanswered(Exception):
    """Some answers did not come in time. The events are in the log and will be counted."""

    answers: list[str | None]


@dataclass
class _Remembered:
    """The newest answers by the ids of their events."""

    most: int = _REMEMBERED
    found: OrderedDict[Any, str] = field(default_factory=OrderedDict)

    def add(self, id: Any, answer: str) -> None:
        self.found[id] = answer
        if len(self.found) > self.most:
            self.found.popitem(last=False)


class Engine:
    """One stream: takes events, gives answers."""

    def __init__(
        self,
        spark: SparkSession,
        spec: StreamSpec,
        at: str,
        queues: Queues,
        parallelism: int = 1,
        commit_s: float = 1.0,
        replicas: int = 1,
    ):
        self.spec, self.figures = spec, Figures()
        self._queues = queues
        self._events, self._answers = f"{spec.name}.events", f"{spec.name}.answers"
        self._schema = pa.schema([*spec.schema, (REQUEST, pa.int64()), (ROW, pa.int32())])
        self._remembered = _Remembered()
        self._waiting: dict[int, _Waiting] = {}
        self._lock = threading.Lock()
        self._first = secrets.randbits(30) << 32
        self._numbers = 0
        self._sender = Sender(queues, self._events)
        queues.create([outside(self._answers)])
        flow = self._flow(parallelism)
        self.job = flow.start(spark, at, queues=queues, workers=replicas, commit_s=commit_s, replicas=replicas)
        self._stopped = threading.Event()
        self._is_caught_up = threading.Event()
        self._problem: HeadraceError | None = None
        self._thread = threading.Thread(target=self._run, name=f"headrace-{spec.name}-answers", daemon=True)
        self._thread.start()

    def _flow(self, parallelism: int) -> Flow:
        flow = Flow(flow_of(self.spec.name))
        events = flow.source("events", queue(self._events, self._schema))
        scored = flow.measure(SCORE, self.spec.metrics(), events, parallelism=parallelism)
        flow.sink("answers", scored, queue(self._answers))
        return flow

    def close(self) -> None:
        """Stop the flow; what it has not answered yet it answers when it is started again."""
        self._stopped.set()
        self._thread.join()
        self._sender.close()
        if not self.job.is_over:
            self.job.stop(drain=False)

    # ------------------------------------------------------------------- answer

    async def answer(self, batch: pa.RecordBatch, timeout_s: float) -> list[str]:
        """The answers of these events, JSON objects, in order. Raises Unanswered where some did not come in time."""
        self.check()
        began = time.perf_counter()
        loop = asyncio.get_running_loop()
        waiting = _Waiting(loop, loop.create_future(), [None] * batch.num_rows, batch.num_rows)
        with self._lock:
            self._numbers += 1
            request = self._first + self._numbers
            self._waiting[request] = waiting
            rows = pa.array(range(batch.num_rows), pa.int32())
            numbers = pa.array([request] * batch.num_rows, pa.int64())
            self._sender.send(pa.RecordBatch.from_arrays([*batch.columns, numbers, rows], schema=self._schema))
        try:
            found = await asyncio.wait_for(waiting.done, timeout_s)
        except TimeoutError:
            self.figures.timed_out(waiting.left)
            raise Unanswered(waiting.answers) from None
        finally:
            with self._lock:
                self._waiting.pop(request, None)
        self.figures.answered(batch.num_rows, time.perf_counter() - began)
        return found

    def check(self) -> None:
        """Raises what has ended the flow, if anything has."""
        if self._problem is not None:
            raise self._problem
        if self.job.is_over:
            self.job.look(0)

    @property
    def is_ready(self) -> bool:
        workers = self.job.status()["workers"].values()
        return self._is_caught_up.is_set() and bool(workers) and all(worker["up"] for worker in workers)

    # ------------------------------------------------------------------ metrics

    def metrics(self) -> list[dict[str, Any]]:
        changed = self.job.metrics(SCORE)
        spec = StreamSpec.from_json({**self.spec.as_json(), "metrics": changed})
        found = spec.metrics().check(spec.schema)
        sizes = Counter[str]()
        for report in self.job.reports().values():
            for stage in report["stages"].values():
                sizes.update(stage.get("bytes", {}))
        return [
            {
                "name": metric.name,
                "type": spark_name(metric.type),
                "is": describe(metric),
                "bytes": sizes[f"metric {metric.name}"],
            }
            for metric in found
        ]

    def add_metrics(self, text: str) -> dict[str, int]:
        return self.job.add_metrics(SCORE, text)

    def remove_metric(self, name: str) -> dict[str, int]:
        return self.job.remove_metric(SCORE, name)

    # ------------------------------------------------------------------- thread

    def _run(self) -> None:
        name = outside(self._answers)
        start, end = self._queues.bounds(name)
        had: dict[int, int] = {}
        kept: deque[tuple[int, int]] = deque()
        tidied = time.monotonic()
        try:
            with self._queues.reader(_READER, {name: start}) as reader:
                position = start
                while not self._stopped.is_set():
                    if position >= end:
                        self._is_caught_up.set()
                    for entry in reader.poll([name], _LOOK_S):
                        before, position = position, entry.next
                        reader.acknowledge(name, position)
                        frame = frames.decode(entry.frame)
                        known = had.get(frame.channel, frame.first)
                        if frame.end > known:
                            had[frame.channel] = frame.end
                            batch = frame.since(known).batch
                            if batch is not None:
                                kept.append((before, batch.num_rows))
                                self._take(batch)
                    if time.monotonic() - tidied > _TIDY_S:
                        tidied = time.monotonic()
                        self._tidy(kept)
        except HeadraceError as error:
            self._problem = error

    def _take(self, batch: pa.RecordBatch) -> None:
        ids, statuses = batch.column(self.spec.id).to_pylist(), batch.column(STATUS).to_pylist()
        requests, rows = batch.column(REQUEST).to_pylist(), batch.column(ROW).to_pylist()
        answers = json_objects(batch.drop_columns([REQUEST, ROW, STATUS, REASON])).to_pylist()
        fates = json_objects(batch.select([STATUS, REASON])).to_pylist()
        for request, row, id, status, answer, fate in zip(requests, rows, ids, statuses, answers, fates, strict=True):
            if status == _REPEATED:
                answer = self._remembered.found.get(id, answer)
            else:
                self._remembered.add(id, answer)
            self._wake(request, row, f"{answer[:-1]},{fate[1:]}")

    def _wake(self, request: int, row: int, answer: str) -> None:
        with self._lock:
            waiting = self._waiting.get(request)
            if waiting is None or waiting.answers[row] is not None:
                return
            waiting.answers[row] = answer
            waiting.left -= 1
            if waiting.left:
                return
        waiting.loop.call_soon_threadsafe(_resolve, waiting)

    def _tidy(self, kept: deque[tuple[int, int]]) -> None:
        """What no restart needs goes: events before the commits that are kept, answers past those remembered."""
        left = sum(rows for _, rows in kept)
        if left > 2 * _REMEMBERED:
            while left - kept[0][1] >= _REMEMBERED:
                left -= kept.popleft()[1]
            self._queues.truncate(outside(self._answers), kept[0][0])
        needed = self.job.needed_from(outside(self._events))
        if needed > 0:
            self._queues.truncate(outside(self._events), needed)


def flow_of(stream: str) -> str:
    """The name of the flow of a stream."""
    return f"stream-{stream}"


def _resolve(waiting: _Waiting) -> None:
    if not waiting.done.done():
        waiting.done.set_result([answer for answer in waiting.answers if answer is not None])


def state_of(engine: Engine) -> Mapping[str, Any]:
    """For status pages: rates, queues, what became of events."""
    status = engine.job.status()
    return {
        "ready": engine.is_ready,
        "state": status["state"],
        "restarts": status["restarts"],
        "workers": status["workers"],
        "backlog_bytes": status["backlog_bytes"],
        "tasks": status["tasks"],
    }
