"""Queues, files and manifests of a simulated world. They outlive processes; of queues, what was synced outlives all."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import QueueDamaged
from headrace.flow.copies import copy_of, task_of
from headrace.flow.effects import Snapshot
from headrace.flow.losses import Loss, loss_of
from headrace.flow.manifests import way_of, writer_of
from headrace.flow.plan import Plan
from headrace.model.frames import stamped
from headrace.queues.protocol import Entry

_KEPT: Final = 3


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
        self.named: dict[tuple[str, int, int], set[str]] = {}
        """The files of each commit."""
        self.holds: dict[tuple[str, int], set[str]] = {}
        """What copies need, in a life in which they have no commit yet."""
        self.moments: dict[str, tuple[int, int]] = {}
        self.run = 0
        self.incarnation = 0
        self._known = 0
        self._losses: tuple[Loss, ...] = ()

    def queue(self, name: str) -> SimQueue:
        return self.queues.setdefault(name, SimQueue(name))

    def write_manifest(self, snapshot: Snapshot, moment_s: float) -> None:
        if any(epoch > snapshot.epoch for epoch, _ in self.manifests.get(snapshot.task, ())):
            return  # of a worker that was replaced: nobody reads it, and its files may be gone
        missing = [name for name in (*snapshot.files, *snapshot.kept) if name not in self.files]
        assert not missing, f"a manifest names files that were not written: {missing}"
        versions = self.manifests.setdefault(snapshot.task, {})
        versions[snapshot.epoch, snapshot.version] = json.dumps(snapshot.values)
        self.named[snapshot.task, snapshot.epoch, snapshot.version] = {*snapshot.files, *snapshot.kept}
        self.holds.pop((snapshot.task, snapshot.epoch), None)
        self._collect(snapshot.task)
        self.note_moment(snapshot.task, moment_s)

    def _collect(self, copy: str) -> None:
        """As `FlowStore`: what only old commits of a copy name is gone."""
        old = sorted(self.manifests[copy])[:-_KEPT]
        gone: set[str] = set()
        for epoch, version in old:
            del self.manifests[copy][epoch, version]
            gone |= self.named.pop((copy, epoch, version))
        gone -= {name for names in (*self.named.values(), *self.holds.values()) for name in names}
        for name in gone:
            # Files of others are theirs to collect.
            if copy_of(copy) == writer_of(name):
                self.files.pop(name, None)

    def note_moment(self, task: str, moment_s: float) -> None:
        moment, known = self.moments.get(task, (-1, -1))
        now = nanoseconds(moment_s)
        self.moments[task] = (max(moment, now) if known == self.incarnation else now, self.incarnation)

    def newest(self, task: str) -> tuple[int, Mapping[str, Any]] | None:
        """Of all copies of a task, the commit that has come furthest."""
        found = self._newest(task)
        return None if found is None else (found[2], json.loads(self.manifests[found[0]][found[1], found[2]]))

    def hold(self, copy: str, epoch: int) -> tuple[int, Mapping[str, Any], str] | None:
        """The same, for a copy that begins with it: its files stay. With whose it is."""
        found = self._newest(task_of(copy))
        if found is None:
            return None
        self.holds = {key: files for key, files in self.holds.items() if key[0] != copy}
        self.holds[copy, epoch] = set(self.named[found])
        return found[2], json.loads(self.manifests[found[0]][found[1], found[2]]), found[0]

    def _newest(self, task: str) -> tuple[str, int, int] | None:
        found = [(name, *max(each)) for name, each in self.manifests.items() if task_of(name) == task]
        return max(found, key=lambda key: way_of(json.loads(self.manifests[key[0]][key[1:]])), default=None)

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
