"""A task of a gang at work: reads its events, lets its workers work, and talks to the other tasks."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, Protocol

import pyarrow as pa

from headrace.errors import ProgramError
from headrace.model.pauses import few_pauses
from headrace.synchronize.codec import Codec
from headrace.synchronize.mailbox import FIRST, LAST, Events, Key
from headrace.synchronize.plan import Plan
from headrace.synchronize.running import ROWS_AT_ONCE
from headrace.synchronize.tree import TreeTask

_MARK: Final = struct.Struct("<qq")
_MESSAGE: Final = b"m"
_FRONTIER: Final = b"f"
_FAILED: Final = b"e"
_PATIENCE_S: Final = 0.5
_TELLINGS: Final = 16
"""How often a task says how far it has read, while it reads as many rows as may wait."""


class Line(Protocol):
    """What a task needs of its gang."""

    task: int
    size: int

    def say(self, to: int, *contents: bytes) -> None: ...

    def hear(self, wait_s: float) -> Any: ...

    def leave(self) -> None: ...


class GangTask:
    """It reads on while few events wait; a task that has read less far than all others always may, so none is stuck."""

    def __init__(self, plan: Plan, gang: Line, codec: Codec, schema: pa.Schema, limit_rows: int = 1 << 18):
        self._plan, self._gang, self._codec = plan, gang, codec
        self._tree = TreeTask(plan, gang.task, schema, ["input"])
        self._tree.flush = self._send
        self._read: list[Key] = [FIRST] * gang.size
        """How far each task has read."""
        self._limit_rows, self._untold_rows = limit_rows, 0
        self.state: Any = None

    def run(self, events: Iterator[Events]) -> Iterator[pa.RecordBatch]:
        """What the program gave here."""
        with few_pauses():
            yield from self._run(events)

    def _run(self, events: Iterator[Events]) -> Iterator[pa.RecordBatch]:
        self._tree.start(self._plan.space.program.init())
        yield from self._work()
        for part in events:
            if not len(part):
                continue
            self._check_last(part)
            self._tree.push(0, part)
            self._have_read(part.key(len(part) - 1), len(part))
            yield from self._work()
            self._listen(0)
            yield from self._work()
            while self._tree.rows > self._limit_rows and self._read[self._gang.task] > min(self._read):
                self._tell_read()
                self._listen(_PATIENCE_S)
                yield from self._work()
        self._have_read(LAST)
        self._tell_read()
        yield from self._work()
        while not self._tree.is_done:
            self._listen(_PATIENCE_S)
            yield from self._work()
        yield from self._tree.work()
        self._gang.leave()

    def run_stretch(self, state: Any, events: Events) -> Iterator[pa.RecordBatch]:
        """What the program gives for events of which none is missing; `state` is that of the root, before and after."""
        self.state = state
        with few_pauses():
            yield from self._run_stretch(events)

    def _run_stretch(self, events: Events) -> Iterator[pa.RecordBatch]:
        if 0 in self._tree.nodes:
            self._tree.start(self.state)
            self._tree.close()
        self._check_last(events)
        self._tree.push(0, events)
        self._tree.complete(0, LAST)
        yield from self._work()
        while not self._tree.is_closed:
            self._listen(_PATIENCE_S)
            yield from self._work()
        yield from self._tree.work()
        if 0 in self._tree.nodes:
            self.state = self._tree.state
        self._gang.leave()

    def fail(self, error: Exception) -> None:
        """Let the others know why this task goes away."""
        for other in range(self._gang.size):
            if other != self._gang.task:
                self._gang.say(other, _FAILED + str(error).encode())

    def _check_last(self, events: Events) -> None:
        """Raises ProgramError for an event that is where all events have come: it would wait for ever."""
        if len(events) and events.key(len(events) - 1) == LAST:
            raise ProgramError(
                self._plan.space.program.name,
                f"an event has the time {LAST[0]} and the arrival {LAST[1]}, the largest that there are, and nothing "
                f"can be behind it; give it a smaller arrival",
            )

    @property
    def has_root(self) -> bool:
        return 0 in self._tree.nodes

    def _have_read(self, key: Key, rows: int = 0) -> None:
        self._tree.complete(0, key)
        self._read[self._gang.task] = key
        self._untold_rows += max(1, rows)
        if self._untold_rows * _TELLINGS > self._limit_rows:
            self._tell_read()

    def _tell_read(self) -> None:
        """How far this task has read: not for every part, but always before it waits because of others."""
        if not self._untold_rows:
            return
        self._untold_rows = 0
        for other in range(self._gang.size):
            if other != self._gang.task:
                self._gang.say(other, _FRONTIER + _MARK.pack(*self._read[self._gang.task]))

    def _work(self) -> Iterator[pa.RecordBatch]:
        yield from self._tree.work(ROWS_AT_ONCE)
        self._send()

    def _send(self) -> None:
        sent: dict[int, list[bytes]] = {}
        for task, message in self._tree.outbox:
            sent.setdefault(task, []).append(_MESSAGE + self._codec.encode(message))
        self._tree.outbox.clear()
        for task, contents in sent.items():
            self._gang.say(task, *contents)

    def _listen(self, wait_s: float) -> None:
        """All that was said; waits for the first of it."""
        said = self._gang.hear(wait_s)
        while said is not None:
            kind, content = said.content[:1], said.content[1:]
            if kind == _FAILED:
                raise ProgramError(self._plan.space.program.name, f"task {said.sender} stopped: {content.decode()}")
            if kind == _FRONTIER:
                time, rank = _MARK.unpack(content)
                self._read[said.sender] = (time, rank)
            else:
                self._tree.receive(self._codec.decode(content))
            said = self._gang.hear(0)
