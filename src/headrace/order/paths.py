"""Data paths: the ways that records may take from a source to where they are put in order again.

Along one path records stay in order: every task is FIFO, and so is every channel. A task tells paths apart by the
channel that a record came on and the path it had at the producer; so the paths of a task are numbered through its
channels, and the number of one is all that a record carries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Hop:
    """What a task may receive on a channel: the producer, and how many paths lead through that."""

    channel: int
    producer: str
    paths: int


@dataclass(frozen=True)
class TaskPaths:
    """The paths that lead to a task, numbered through its channels; a source, or a task that merges, has one."""

    hops: tuple[Hop, ...] = ()

    @property
    def count(self) -> int:
        return sum(hop.paths for hop in self.hops) if self.hops else 1

    def first(self, channel: int) -> int:
        """The number of the first path that comes on a channel."""
        found = 0
        for hop in self.hops:
            if hop.channel == channel:
                return found
            found += hop.paths
        raise KeyError(channel)

    def hop_of(self, path: int) -> tuple[Hop, int]:
        """Where a path comes from, and its number there."""
        for hop in self.hops:
            if path < hop.paths:
                return hop, path
            path -= hop.paths
        raise KeyError(path)


def listed(task: str, path: int, known: dict[str, TaskPaths]) -> list[str]:
    """The tasks of a path, from the source on."""
    found = [task]
    while known[task].hops:
        hop, path = known[task].hop_of(path)
        task = hop.producer
        found.append(task)
    return found[::-1]


def all_paths(tasks: Sequence[str], known: dict[str, TaskPaths]) -> list[list[str]]:
    return [listed(task, path, known) for task in tasks for path in range(known[task].count)]
