"""Queues as the ends of a flow: one flow's output is another one's input, exactly once and with no server between."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.io import Opening, Sink, Source
from headrace.model import frames
from headrace.queues.protocol import Queues

_WITHIN: Final = (1 << 20) - 1
_MOMENTS: Final = 1 << 60
"""From here on numbers are moments in nanoseconds: no Sender that counts its records from 0 gets so far."""


@dataclass(frozen=True)
class QueueEnd(Source, Sink):
    """A queue by its name. As a source it wants the columns, and ends once so many producers have (None: never)."""

    name: str
    schema: pa.Schema = None
    producers: int | None = None

    keeps_first = True

    def splits(self) -> int | None:
        if self.schema is None:
            raise FlowError(f"queue {self.name}: as a source it needs its columns, hr.queue({self.name!r}, schema)")
        return 1

    def open(self, opening: Opening, position: Any) -> Any:
        raise AssertionError("the worker reads and writes queues itself")


class Sender:
    """Puts records into a queue, for a flow to read.

    ```python
    with Sender(queues, "payments") as sender:
        sender.send(batch)
    ```
    `queues` are those of the flow: `hr.kafka_queues(...)`, or for queues in files `LogQueues(f"{at}/queues")` from
    `headrace.queues.log`.

    With `channel`, a number of your own, and `first`, the number of the next record, what you send again after a crash
    counts once.
    """

    def __init__(self, queues: Queues, queue: str, channel: int | None = None, first: int = 0):
        self._queue = outside(queue)
        queues.create([self._queue])
        self._channel = secrets.randbits(32) if channel is None else channel
        # What is drawn may have been drawn before: those records had lower numbers.
        self._next = time.time_ns() & ~_WITHIN if channel is None else first
        self._writer = queues.writer()

    def send(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._writer.append(self._queue, [frames.encode(frames.data(self._channel, self._next, batch))])
            self._next += batch.num_rows

    def end(self) -> None:
        """Nothing more comes from here."""
        self._writer.append(self._queue, [frames.encode(frames.end(self._channel, self._next))])
        self._writer.sync([self._queue])

    def close(self) -> None:
        """When it returns, all that was sent is safe."""
        self._writer.sync([self._queue])
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Receiver:
    """Takes records out of a queue that a flow writes to: each once, in the order of the queue, from its start on.

    `queues` are those of the flow: see `hr.Sender`.
    """

    def __init__(self, queues: Queues, queue: str, name: str = "receiver"):
        self._queue = outside(queue)
        queues.create([self._queue])
        self._reader = queues.reader(name, {self._queue: queues.bounds(self._queue)[0]})
        self._had: dict[int, int] = {}

    def receive(self, timeout_s: float) -> Iterator[pa.RecordBatch]:
        """What is there, or comes in time."""
        for entry in self._reader.poll([self._queue], timeout_s):
            frame = frames.decode(entry.frame)
            had = self._had.get(frame.channel, frame.first)
            self._reader.acknowledge(self._queue, entry.next)
            if frame.end > had:
                self._had[frame.channel] = frame.end
                part = frame.since(had).batch
                if part is not None:
                    yield part

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def begins(number: int) -> bool:
    """May a Sender that drew its channel have begun with this number?"""
    return number >= _MOMENTS and not number & _WITHIN


def outside(name: str) -> str:
    """The queue of this name, among those of flows."""
    return f"q.{name}"


def queue(name: str, schema: pa.Schema | None = None, *, producers: int | None = None) -> QueueEnd:
    """A queue that outlives the flow: the sink of one flow, the source of another.

    As a source it needs its columns, `schema`, and ends when `producers` senders have ended; never, if that is not
    given. Programs outside of flows use it by `hr.Sender` and `hr.Receiver`.
    """
    return QueueEnd(name, schema, producers)
