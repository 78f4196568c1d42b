"""What a task does whose input is ordered: it reads a queue for each data path, and takes their records in order.

What it has released of a path is in its snapshot, as a position of the queue and a number: a task that starts again
reads again what it had not released. It does not read a path that is ahead: what waits, waits in its queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from headrace.errors import QueueDamaged
from headrace.flow.losses import Loss
from headrace.flow.plan import PathIn
from headrace.model import frames
from headrace.model.frames import Kind
from headrace.order.by_sequence import ALWAYS, NEVER, BySequence
from headrace.order.columns import AFTER_ALL, Keys
from headrace.queues.protocol import Entry

MEMORY_BYTES: Final = 64 << 20


@dataclass
class _Passed:
    """A frame that was read: once so many records have left, the position is behind it."""

    number: int
    position: int
    promised: int = NEVER
    is_end: bool = False


@dataclass
class _Path:
    plan: PathIn
    at: int
    next: int = 0
    """The number of the record that is to be read next."""
    position: int = 0
    promised: int = NEVER
    """What was promised before that position."""
    is_over: bool = False
    """Has all left, and will nothing come?"""
    read: deque[_Passed] = field(default_factory=deque)


class Merging:
    """The inputs of one task."""

    def __init__(
        self,
        paths: Sequence[PathIn],
        keys: Keys,
        losses: Sequence[Loss],
        wait_s: float | None = None,
        memory_bytes: int = MEMORY_BYTES,
    ):
        self._paths = {path.queue: _Path(path, at) for at, path in enumerate(paths)}
        self._merge = BySequence([str(path) for path in paths], keys)
        self._losses = losses
        self._wait_s = wait_s
        self._seen: deque[tuple[float, int]] = deque()
        self._asked: dict[str, int] = {}
        self._most_bytes = memory_bytes // len(paths)

    @property
    def frontier(self) -> int:
        return self._merge.frontier

    @property
    def is_over(self) -> bool:
        return all(path.is_over for path in self._paths.values())

    @property
    def positions(self) -> dict[str, int]:
        return {queue: path.position for queue, path in self._paths.items()}

    @property
    def numbers(self) -> dict[int, int]:
        """For each channel, how much of it has left."""
        return {path.plan.channel: int(self._merge.released[path.at]) + path.is_over for path in self._paths.values()}

    def wanted(self) -> list[str]:
        """The queues to read: those of paths that are not far ahead, and always of those that are last."""
        ahead = {queue: path.at for queue, path in self._paths.items() if self._is_ahead(path)}
        if not ahead:
            return list(self._paths)
        last = self._merge.last
        return [queue for queue in self._paths if queue not in ahead or ahead[queue] in last]

    def _is_ahead(self, path: _Path) -> bool:
        return self._merge.bytes_of(path.at) > self._most_bytes

    # -------------------------------------------------------------------- take

    def take(self, queue: str, entries: Sequence[Entry]) -> bool:
        """Frames of a path; tells whether a heartbeat was among them. Raises QueueDamaged, OrderBroken."""
        path, beat = self._paths[queue], False
        for entry in entries:
            frame = frames.decode(entry.frame)
            number = path.next
            if not all(loss.counts(queue, entry.next, frame.stamp) for loss in self._losses):
                path.read.append(_Passed(number, entry.next))
                continue
            if frame.channel != path.plan.channel:
                raise QueueDamaged(queue, f"it has a frame of channel {frame.channel}, which is not its")
            if frame.first > number:
                raise QueueDamaged(
                    queue,
                    f"records {number} to {frame.first - 1} are missing; restore the queues from a copy, or start the "
                    f"flow anew under another name",
                )
            passed = _Passed(number, entry.next)
            if frame.kind == Kind.HEARTBEAT:
                beat = True
                passed.promised = frame.progress
                self._merge.promise(path.at, frame.progress)
            elif frame.end > number and frame.kind == Kind.END:
                path.next, passed.is_end, passed.promised, beat = frame.end, True, ALWAYS, True
                self._merge.end(path.at)
            elif frame.end > number and frame.batch is not None:
                batch = frame.since(number).batch
                assert batch is not None
                self._merge.push(path.at, batch)
                path.next = passed.number = frame.end
            path.read.append(passed)
        self._pass(path)
        return beat

    def release(self) -> pa.RecordBatch | None:
        """What can leave, in order."""
        released = self._merge.release()
        if released is not None:
            for path in self._paths.values():
                self._pass(path)
        return released

    def _pass(self, path: _Path) -> None:
        count = int(self._merge.released[path.at])
        while path.read and path.read[0].number <= count:
            passed = path.read.popleft()
            path.position = passed.position
            path.promised = max(path.promised, passed.promised)
            path.is_over = path.is_over or passed.is_end

    def hurry(self, now_s: float) -> list[tuple[str, bytes]]:
        """What is to be said, in the queue of a path itself: that it has come so far, for patience is at its end.

        What is in a queue is read again by who starts again: so what is released is decided once, by the queue.
        """
        if self._wait_s is None:
            return []
        frontiers = self._merge.frontiers()
        furthest = int(frontiers.max(initial=NEVER, where=frontiers < AFTER_ALL))
        if not self._seen or furthest > self._seen[-1][1]:
            self._seen.append((now_s, furthest))
        target = NEVER
        while self._seen and now_s - self._seen[0][0] >= self._wait_s:
            target = self._seen.popleft()[1]
        found = []
        for queue, path in self._paths.items():
            if frontiers[path.at] < target and self._asked.get(queue, NEVER) < target:
                self._asked[queue] = target
                found.append((queue, frames.encode(frames.heartbeat(path.plan.channel, 0, target))))
        return found

    def report(self) -> dict[str, Any]:
        return {"waiting": self._merge.rows, "frontier": self._merge.frontier, "inversions": self._merge.inversions}

    # ------------------------------------------------------------------- state

    def snapshot(self) -> dict[str, Any]:
        return {
            queue: [path.position, int(self._merge.released[path.at]), path.promised, path.is_over]
            for queue, path in self._paths.items()
        }

    def restore(self, values: Mapping[str, Any], inversions: int = 0) -> None:
        self._merge.inversions = inversions
        for queue, (position, released, promised, is_over) in values.items():
            path = self._paths[queue]
            path.position, path.promised, path.is_over = position, promised, is_over
            path.next = released + is_over
            self._merge.go_on(path.at, released, promised)
