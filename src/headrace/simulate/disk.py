"""Queues, files and manifests of a simulated world. They outlive processes; of queues, what was synced outlives all."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import QueueDamaged
from headrace.flow.copies import task_of
from headrace.flow.effects import Snapshot
from headrace.flow.losses import Loss, loss_of
from headrace.flow.manifests import way_of
from headrace.flow.plan import Plan
from headrace.model.frames import stamped
from headrace.queues.protocol import Entry


@dataclass
class SimQueue:
    """Positions are numbers of frames."""

    name: str
    frames: list[bytes] = field(default_factory=list)
    start: int = 0
    synced: int = 0
    acknowledged: int = 0

    def read(self, position: int, most: int) -> list[Entry]:
        if position < self.start:
            raise QueueDamaged(self.name, f"position {position} is wanted, and what is before {self.start} is gone")
        if position > len(self.frames):
            raise QueueDamaged(self.name, f"position {position} is wanted, past the end {len(self.frames)}")
        part = self.frames[position : position + most]
        return [Entry(self.name, frame, position + at + 1) for at, frame in enumerate(part)]


class Disk:
    """What is still there after a crash."""

    def __init__(self) -> None:
        self.queues: dict[str, SimQueue] = {}
        self.files: dict[str, bytes] = {}
        self.manifests: dict[str, dict[tuple[int, int], str]] = {}
        self.moments: dict[str, tuple[int, int]] = {}
        self.run = 0
        self.incarnation = 0
        self._known = 0
        self._losses: tuple[Loss, ...] = ()

    def queue(self, name: str) -> SimQueue:
        return self.queues.setdefault(name, SimQueue(name))

    def write_manifest(self, snapshot: Snapshot, moment_s: float) -> None:
        missing = [name for name in (*snapshot.files, *snapshot.kept) if name not in self.files]
        assert not missing, f"a manifest names files that were not written: {missing}"
        versions = self.manifests.setdefault(snapshot.task, {})
        versions[snapshot.epoch, snapshot.version] = json.dumps(snapshot.values)
        self.note_moment(snapshot.task, moment_s)

    def note_moment(self, task: str, moment_s: float) -> None:
        moment, known = self.moments.get(task, (-1, -1))
        now = nanoseconds(moment_s)
        self.moments[task] = (max(moment, now) if known == self.incarnation else now, self.incarnation)

    def newest(self, task: str) -> tuple[int, Mapping[str, Any]] | None:
        """Of all copies of a task, the commit that has come furthest."""
        found = [
            (max(each)[1], json.loads(each[max(each)]))
            for name, each in self.manifests.items()
            if task_of(name) == task
        ]
        return max(found, key=lambda pair: way_of(pair[1]), default=None)

    def begin_run(self, plan: Plan) -> tuple[Loss, ...]:
        """As `FlowStore.begin_run`."""
        self.run += 1
        if self.incarnation != self._known:
            moments: dict[str, int] = {}
            for name, (moment, known) in self.moments.items():
                if known == self._known:
                    moments[task_of(name)] = max(moment, moments.get(task_of(name), -1))
            ends = {queue.name: len(queue.frames) for queue in self.queues.values()}
            self._losses = (*self._losses, loss_of(plan, self._losses, ends, moments))
            self._known = self.incarnation
        return self._losses

    def lose_power(self, rng: random.Random) -> None:
        """Of what was not synced, some may be there all the same."""
        self.incarnation += 1
        for queue in self.queues.values():
            kept = queue.synced + rng.choice((0, 0, 1, 3, 100))
            del queue.frames[kept:]
            queue.synced = len(queue.frames)


@dataclass
class Outbox:
    """What a worker has appended and the queue does not have yet, in the order of appending."""

    waiting: dict[str, deque[bytes]] = field(default_factory=dict)

    def append(self, queue: str, frames: list[bytes]) -> None:
        self.waiting.setdefault(queue, deque()).extend(frames)

    def deliver(self, queue: SimQueue, now_s: float, most: int | None = None) -> None:
        waiting = self.waiting.get(queue.name, deque())
        for _ in range(len(waiting) if most is None else min(most, len(waiting))):
            queue.frames.append(stamped(waiting.popleft(), nanoseconds(now_s)))


def nanoseconds(now_s: float) -> int:
    return round(now_s * 1e9)
