"""A task whose copies read a queue for each sender, and agree on the order in which they take from them.

In turns (LiveRobin): the order is a function of what the queues hold, beats with it. By a leader (KaZoo): one copy says
in a log what comes next, and all follow the log. By arrival there is no agreement: what others are measured against.

All that has left is, of each queue, all before some number: that is in the snapshot, with a position before which all
has left. A task that starts again reads from there.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from headrace.errors import QueueDamaged
from headrace.flow.losses import Loss
from headrace.flow.plan import TaskPlan
from headrace.flow.second_copies import SecondCopies
from headrace.model import frames
from headrace.model.frames import Frame, Kind
from headrace.queues.protocol import Entry
from headrace.replicate.by_leader import ByLeader
from headrace.replicate.leader import Leadership
from headrace.replicate.round_robin import RoundRobin
from headrace.replicate.runs import Run

MEMORY_BYTES: Final = 64 << 20
_MANY: Final = 1000


@dataclass
class _Sender:
    at: int
    channel: int
    next: int = 0
    """The number that is to be read next."""
    position: int = 0
    number: int = 0
    """What was sent before that position."""
    read: deque[tuple[int, int]] = field(default_factory=deque)
    """Frames that were read, by the number and the position after them."""


class ByArrival:
    """As it comes, to each copy as it comes to it."""

    def __init__(self, names: list[str]):
        self._names = names
        self.taken = [0] * len(names)
        self._ended = [False] * len(names)
        self._runs: list[Run] = []

    def push(self, at: int, batch: pa.RecordBatch) -> None:
        self.taken[at] += batch.num_rows
        self._runs.append(Run(batch))

    def end(self, at: int) -> None:
        self.taken[at] += 1
        self._ended[at] = True

    def release(self) -> list[Run]:
        found, self._runs = self._runs, []
        return found

    @property
    def is_over(self) -> bool:
        return all(self._ended)

    @property
    def waiting_for(self) -> set[int]:
        return set()

    def bytes_of(self, at: int) -> int:
        return 0

    def snapshot(self) -> dict[str, Any]:
        return {"taken": self.taken, "ended": self._ended}

    def restore(self, values: Mapping[str, Any]) -> None:
        self.taken, self._ended = list(values["taken"]), list(values["ended"])


class Agreed:
    """The inputs of one copy of a task."""

    def __init__(
        self, plan: TaskPlan, agreement: str, copy: int, losses: Sequence[Loss], second: SecondCopies | None = None
    ):
        self._plan, self._losses, self._second = plan, losses, second
        self._senders = {each.queue: _Sender(at, each.channel) for at, each in enumerate(plan.agreed)}
        names = [each.queue for each in plan.agreed]
        self._merge: RoundRobin | ByLeader | ByArrival
        self._merge = RoundRobin(names) if agreement == "round-robin" else ByArrival(names)
        self._leading: _Leading | None = None
        if plan.order_log is not None:
            self._merge = ByLeader(names)
            self._leading = _Leading(self._merge, plan.order_log, copy)
        self._most_bytes = MEMORY_BYTES // len(names)

    @property
    def is_over(self) -> bool:
        return self._merge.is_over

    @property
    def positions(self) -> dict[str, int]:
        own = {queue: sender.position for queue, sender in self._senders.items()}
        return own if self._leading is None else {**own, self._leading.log: self._leading.position}

    @property
    def numbers(self) -> dict[int, int]:
        """For each channel, up to where all has left."""
        return {sender.channel: sender.number for sender in self._senders.values()}

    def wanted(self) -> list[str]:
        """The queues to read: not those that are far ahead of what the merge waits for."""
        waited = self._merge.waiting_for
        logs = [] if self._leading is None else [self._leading.log]
        return logs + [
            queue
            for queue, sender in self._senders.items()
            if sender.at in waited or self._merge.bytes_of(sender.at) <= self._most_bytes
        ]

    # -------------------------------------------------------------------- take

    def take(self, queue: str, entries: Sequence[Entry]) -> bool:
        """Frames of a sender, or of the leader; tells whether they are worth a commit. Raises QueueDamaged."""
        if self._leading is not None and queue == self._leading.log:
            return self._leading.take(entries, self._losses)
        sender = self._senders[queue]
        for entry in entries:
            frame, before = frames.decode(entry.frame), sender.next
            if all(loss.counts(queue, entry.next, frame.stamp) for loss in self._losses):
                self._push(queue, sender, frame)
                if self._second is not None:
                    self._second.look(frame, entry.frame, before)
            sender.read.append((sender.next, entry.next))
        return True

    def _push(self, queue: str, sender: _Sender, frame: Frame) -> None:
        if frame.channel != sender.channel:
            raise QueueDamaged(queue, f"it has a frame of channel {frame.channel}, which is not its")
        if frame.first > sender.next:
            raise QueueDamaged(
                queue,
                f"records {sender.next} to {frame.first - 1} are missing; restore the queues from a copy, or start the "
                f"flow anew under another name",
            )
        if frame.end <= sender.next:
            return
        if frame.kind == Kind.END:
            self._merge.end(sender.at)
        elif frame.kind == Kind.DATA:
            self._merge.push(sender.at, frame.since(sender.next).batch)
        elif frame.message is not None and "beat" in frame.message and isinstance(self._merge, RoundRobin):
            self._merge.beat(sender.at, int(frame.message["beat"]))
        else:
            raise QueueDamaged(queue, f"it has a frame of kind {frame.kind.name}, which nobody sends here")
        sender.next = frame.end

    def release(self) -> list[Run]:
        """What can leave, in the order that all copies take."""
        runs = self._merge.release()
        taken = self._merge.taken
        for sender in self._senders.values():
            while sender.read and sender.read[0][0] <= taken[sender.at]:
                sender.number, sender.position = sender.read.popleft()
            sender.number = max(sender.number, taken[sender.at])
        return runs

    def tick(self, now_s: float, is_silent: bool) -> list[tuple[str, bytes]]:
        """What the leader has to say, or who wants to be one."""
        return [] if self._leading is None else self._leading.tick(now_s, is_silent)

    def proposed(self) -> list[tuple[str, bytes]]:
        """The order of what has come, where this copy leads."""
        return [] if self._leading is None else self._leading.proposed()

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = {"waiting_for": [self._plan.agreed[at].producer for at in self._merge.waiting_for]}
        return found if self._leading is None else {**found, "leader": self._leading.leadership.leader}

    # ------------------------------------------------------------------- state

    def snapshot(self) -> dict[str, Any]:
        return {
            "merge": self._merge.snapshot(),
            "senders": {queue: [sender.position, sender.number] for queue, sender in self._senders.items()},
            "log": None if self._leading is None else self._leading.snapshot(),
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        self._merge.restore(values["merge"])
        for queue, (position, number) in values["senders"].items():
            sender = self._senders[queue]
            sender.position, sender.number, sender.next = position, number, number
        if self._leading is not None:
            self._leading.restore(values["log"])


class _Leading:
    """A copy and the log of orders."""

    def __init__(self, merge: ByLeader, log: str, copy: int):
        self.log = log
        self.position = 0
        self.leadership = Leadership(copy, uuid.uuid4().hex[:12], log=log)
        self._merge = merge
        self._now_s = 0.0
        self._under_way = 0
        self._heard = 0

    def take(self, entries: Sequence[Entry], losses: Sequence[Loss]) -> bool:
        """Signs of life alone are not worth a commit, before there are many."""
        self._heard += len(entries)
        is_new = self._heard > _MANY
        for entry in entries:
            frame = frames.decode(entry.frame)
            self.position = entry.next
            if frame.message is None or not all(loss.counts(self.log, entry.next, frame.stamp) for loss in losses):
                continue
            term = self.leadership.term
            runs = self.leadership.heard(frame.message, self._now_s)
            if runs is not None:
                self._merge.order(runs)
                self._under_way = max(0, self._under_way - 1)
                is_new = True
            if self.leadership.term != term:
                self._merge.forget_proposals()
                self._under_way = 0
        return is_new

    def tick(self, now_s: float, is_silent: bool) -> list[tuple[str, bytes]]:
        self._now_s = now_s
        said = [] if is_silent else self.leadership.tick(now_s)
        return [(self.log, frames.encode(frames.control(0, 0, each))) for each in said]

    def proposed(self) -> list[tuple[str, bytes]]:
        """One order at a time: what comes while it is under way is in the next one, so they grow with the load."""
        if not self.leadership.is_leader or self._under_way:
            return []
        order = self.leadership.proposal(self._merge.propose())
        if order is None:
            return []
        self._under_way += 1
        return [(self.log, frames.encode(frames.control(0, 0, order)))]

    def snapshot(self) -> dict[str, Any]:
        self._heard = 0
        return {"position": self.position, "leadership": self.leadership.snapshot()}

    def restore(self, values: Mapping[str, Any]) -> None:
        self.position = values["position"]
        self.leadership.restore(values["leadership"])
