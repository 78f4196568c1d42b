"""Queues, files and manifests of a simulated world. They outlive processes; of queues, what was synced outlives all."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import QueueDamaged
from headrace.flow.effects import Snapshot
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
        self.run = 0

    def queue(self, name: str) -> SimQueue:
        return self.queues.setdefault(name, SimQueue(name))

    def write_manifest(self, snapshot: Snapshot) -> None:
        missing = [name for name in snapshot.files if name not in self.files]
        assert not missing, f"a manifest names files that were not written: {missing}"
        versions = self.manifests.setdefault(snapshot.task, {})
        versions[snapshot.epoch, snapshot.version] = json.dumps(snapshot.values)

    def newest(self, task: str) -> tuple[int, Mapping[str, Any]] | None:
        versions = self.manifests.get(task)
        if not versions:
            return None
        epoch, version = max(versions)
        return version, json.loads(versions[epoch, version])

    def lose_power(self) -> None:
        for queue in self.queues.values():
            del queue.frames[queue.synced :]


@dataclass
class Outbox:
    """What a worker has appended and the queue does not have yet, in the order of appending."""

    waiting: dict[str, deque[bytes]] = field(default_factory=dict)

    def append(self, queue: str, frames: list[bytes]) -> None:
        self.waiting.setdefault(queue, deque()).extend(frames)

    def deliver(self, queue: SimQueue, most: int | None = None) -> None:
        waiting = self.waiting.get(queue.name, deque())
        for _ in range(len(waiting) if most is None else min(most, len(waiting))):
            queue.frames.append(waiting.popleft())
