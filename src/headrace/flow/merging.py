"""What a task does whose input is ordered: it reads a queue for each sender, and takes their records in order.

All that it has released is all that there is up to some tick: that tick is in its snapshot, and for each queue a
position before which all has left. A task that starts again reads from there, and leaves out what is not above the
tick. It does not read a sender that is ahead: what waits, waits in its queue.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from headrace.errors import QueueDamaged
from headrace.flow.losses import Loss
from headrace.flow.plan import PathsIn
from headrace.model import frames
from headrace.model.frames import Kind
from headrace.model.latencies import Latencies
from headrace.order.by_sequence import ALWAYS, NEVER, BySequence
from headrace.order.columns import AFTER_ALL, Keys
from headrace.queues.protocol import Entry

MEMORY_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class _Passed:
    """A frame that was read: once all up to the tick has left, the position is behind it."""

    tick: int
    position: int
    number: int
    promised: int = NEVER
    is_end: bool = False
    records: int = 0
    read_ns: int = 0


@dataclass
class _Sender:
    plan: PathsIn
    at: int
    next: int = 0
    """The number of the record that is to be read next."""
    position: int = 0
    number: int = 0
    """What was sent before that position."""
    promised: int = NEVER
    """What was promised before that position."""
    is_over: bool = False
    """Has all left, and will nothing come?"""
    went_back: int = 0
    """How often it promised less than before: after a restart of it that is right, and says nothing."""
    read: deque[_Passed] = field(default_factory=deque)


class Merging:
    """The inputs of one task."""

    def __init__(
        self,
        senders: Sequence[PathsIn],
        keys: Keys,
        losses: Sequence[Loss],
        wait_s: float | None = None,
        memory_bytes: int = MEMORY_BYTES,
    ):
        self._senders = {sender.queue: _Sender(sender, at) for at, sender in enumerate(senders)}
        self._merge = BySequence([str(each) for each in senders], keys, [each.paths for each in senders])
        self._losses = losses
        self._wait_s = wait_s
        self._seen: deque[tuple[float, int]] = deque()
        self._asked: dict[str, int] = {}
        self._most_bytes = memory_bytes // len(senders)
        self._in_queue, self._in_merge = Latencies(), Latencies()

    @property
    def frontier(self) -> int:
        return self._merge.frontier

    @property
    def is_over(self) -> bool:
        return all(sender.is_over for sender in self._senders.values())

    @property
    def positions(self) -> dict[str, int]:
        return {queue: sender.position for queue, sender in self._senders.items()}

    @property
    def numbers(self) -> dict[int, int]:
        """For each channel, up to where all has left."""
        return {sender.plan.channel: sender.number for sender in self._senders.values()}

    def wanted(self) -> list[str]:
        """The queues to read: those of senders that are not far ahead, and always of those that are last."""
        ahead = {queue: s.at for queue, s in self._senders.items() if self._merge.bytes_of(s.at) > self._most_bytes}
        if not ahead:
            return list(self._senders)
        last = self._merge.last
        return [queue for queue in self._senders if queue not in ahead or ahead[queue] in last]

    # -------------------------------------------------------------------- take

    def take(self, queue: str, entries: Sequence[Entry]) -> bool:
        """Frames of a sender; tells whether a heartbeat was among them. Raises QueueDamaged, OrderBroken."""
        sender, beat, now_ns = self._senders[queue], False, time.monotonic_ns()
        for entry in entries:
            frame = frames.decode(entry.frame)
            number = sender.next
            if not all(loss.counts(queue, entry.next, frame.stamp) for loss in self._losses):
                sender.read.append(_Passed(NEVER, entry.next, number))
                continue
            if frame.channel != sender.plan.channel:
                raise QueueDamaged(queue, f"it has a frame of channel {frame.channel}, which is not its")
            if frame.first > number:
                raise QueueDamaged(
                    queue,
                    f"records {number} to {frame.first - 1} are missing; restore the queues from a copy, or start the "
                    f"flow anew under another name",
                )
            passed = _Passed(NEVER, entry.next, number)
            if frame.kind == Kind.HEARTBEAT:
                beat, passed = True, _Passed(NEVER, entry.next, number, frame.progress)
                sender.went_back += not self._merge.promise(sender.at, frame.progress)
            elif frame.end > number and frame.kind == Kind.END:
                sender.next, beat = frame.end, True
                passed = _Passed(NEVER, entry.next, frame.end, ALWAYS, is_end=True)
                self._merge.end(sender.at)
            elif frame.end > number and frame.batch is not None:
                highest = self._merge.push(sender.at, frame.since(number).batch)
                sender.next = frame.end
                passed = _Passed(highest, entry.next, frame.end, records=frame.count, read_ns=now_ns)
                if frame.stamp:  # queues in files have them
                    self._in_queue.add(max(0, now_ns - frame.stamp) / 1e9, frame.count)
            sender.read.append(passed)
        self._pass(sender)
        return beat

    def release(self) -> pa.RecordBatch | None:
        """What can leave, in order."""
        released = self._merge.release()
        if released is not None:
            for sender in self._senders.values():
                self._pass(sender)
        return released

    def _pass(self, sender: _Sender) -> None:
        while sender.read and sender.read[0].tick <= self._merge.released_to:
            passed = sender.read.popleft()
            sender.position, sender.number = passed.position, passed.number
            sender.promised = max(sender.promised, passed.promised)
            sender.is_over = sender.is_over or passed.is_end
            if passed.records:
                self._in_merge.add((time.monotonic_ns() - passed.read_ns) / 1e9, passed.records)

    def hurry(self, now_s: float) -> list[tuple[str, bytes]]:
        """What is to be said, in the queue of a sender itself: that it has come so far, for patience is at its end.

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
        for queue, sender in self._senders.items():
            if frontiers[sender.at] < target and self._asked.get(queue, NEVER) < target:
                self._asked[queue] = target
                found.append((queue, frames.encode(frames.heartbeat(sender.plan.channel, 0, target))))
        return found

    def ask_again(self) -> None:
        """What was to be said has not been: this copy kept silent."""
        self._asked.clear()

    def report(self) -> dict[str, Any]:
        return {
            "waiting": self._merge.rows,
            "frontier": self._merge.frontier,
            "inversions": self._merge.inversions,
            "went_back": {str(each.plan): each.went_back for each in self._senders.values() if each.went_back},
            "in_queue": self._in_queue.as_json(),
            "in_merge": self._in_merge.as_json(),
        }

    # ------------------------------------------------------------------- state

    def snapshot(self) -> dict[str, Any]:
        return {
            "released_to": self._merge.released_to,
            "inversions": self._merge.inversions,
            "senders": {
                queue: [sender.position, sender.number, sender.promised, sender.is_over]
                for queue, sender in self._senders.items()
            },
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        for queue, (position, number, promised, is_over) in values["senders"].items():
            sender = self._senders[queue]
            sender.position, sender.number, sender.promised, sender.is_over = position, number, promised, is_over
            sender.next = number
        self._merge.go_on(values["released_to"], [sender.promised for sender in self._senders.values()])
        self._merge.inversions = values["inversions"]
