"""Workers that come and go, and the bytes that travel for it: by the sticky assignment, and by position.

A task's state is files that are written once. Between two events some of them are replaced, as commits do. A worker
keeps the files of copies that it lost, and those it had when it went down, unless its disk is lost with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.support.delta import delta
from headrace.replicate.assignment import Assignment, TaskLoad, WorkerSeen, assign

COPIES: Final = 2
FILES: Final = 20
REPLACED: Final = 0.1
"""Of the files of a task, from one event to the next."""
DISK_LOST: Final = 0.25
"""Of the workers that go down, those that come back empty."""

Holders = dict[str, frozenset[int]]
"""Of each task, the workers that have a copy."""
Strategy = Callable[[Sequence[WorkerSeen]], Holders]


@dataclass(frozen=True)
class Event:
    """The workers that are up afterwards, and one that lost its disk."""

    up: tuple[int, ...]
    wiped: int | None = None


@dataclass(frozen=True)
class History:
    """The first event starts the flow. `states`: before each event, the files of every task, with their sizes."""

    events: tuple[Event, ...]
    states: tuple[Mapping[str, Mapping[str, int]], ...]


def random_history(seed: int, tasks: int, workers: int, events: int) -> History:
    """So many workers at first, of half as many again; each event is one that goes down, or one that comes up."""
    chance = random.Random(seed)
    everyone, up = range(workers + workers // 2), set(range(workers))
    state = {f"t{at}": _files(chance, f"t{at}") for at in range(tasks)}
    found, states = [Event(tuple(sorted(up)))], [state]
    for number in range(1, events + 1):
        wiped = None
        down = sorted(set(everyone) - up)
        if not down or (len(up) > workers - workers // 3 and chance.random() < 0.5):
            gone = chance.choice(sorted(up))
            up.remove(gone)
            wiped = gone if chance.random() < DISK_LOST else None
        else:
            up.add(chance.choice(down))
        state = {task: _later(chance, files, number) for task, files in state.items()}
        found.append(Event(tuple(sorted(up)), wiped))
        states.append(state)
    return History(tuple(found), tuple(states))


def _files(chance: random.Random, task: str) -> dict[str, int]:
    """Some tasks have a hundred times the state of others."""
    size = chance.lognormvariate(16.0, 1.2) / FILES
    return {f"{task}-{at}-0": int(size * chance.uniform(0.5, 1.5)) for at in range(FILES)}


def _later(chance: random.Random, files: Mapping[str, int], number: int) -> dict[str, int]:
    """The same with some files replaced by others of their size."""
    return {
        f"{name.rpartition('-')[0]}-{number}" if chance.random() < REPLACED else name: size
        for name, size in files.items()
    }


# --------------------------------------------------------------------- strategies


class Sticky:
    """`headrace.replicate`; it knows which workers have files of which tasks."""

    def __init__(self, tasks: Sequence[str]):
        self._tasks = [TaskLoad(task) for task in tasks]
        self._before: Assignment | None = None

    def __call__(self, workers: Sequence[WorkerSeen]) -> Holders:
        self._before = assign(self._tasks, workers, COPIES, self._before)
        return _holders((copy.task, int(share.worker)) for share in self._before.shares for copy in share.copies)


class ByPosition:
    """The next worker for the next task, and the one behind it for the second copy."""

    def __init__(self, tasks: Sequence[str]):
        self._tasks = tasks

    def __call__(self, workers: Sequence[WorkerSeen]) -> Holders:
        names = [int(worker.name) for worker in workers]
        return {
            task: frozenset(names[(at + copy) % len(names)] for copy in range(COPIES))
            for at, task in enumerate(self._tasks)
        }


def _holders(pairs: Iterable[tuple[str, int]]) -> Holders:
    found: dict[str, set[int]] = {}
    for task, worker in pairs:
        found.setdefault(task, set()).add(worker)
    return {task: frozenset(workers) for task, workers in found.items()}


# ----------------------------------------------------------------------- bytes


@dataclass
class Moved:
    """Over a history: copies that began somewhere, their state, and what of it was not there already."""

    copies: int = 0
    state_bytes: int = 0
    delta_bytes: int = 0
    heaviest: float = 0.0
    """The largest number of copies on a worker, beside the average."""
    lost_bytes: int = 0
    """State of copies on workers that went down."""
    by_event: list[int] = field(default_factory=list)
    """Bytes of the delta, summed up."""


def replayed(history: History, strategy: Strategy) -> Moved:
    """What travels after the flow has started."""
    found, disks = Moved(), _Disks()
    holders: Holders = {}
    for number, (event, state) in enumerate(zip(history.events, history.states, strict=True)):
        if event.wiped is not None:
            disks.wipe(event.wiped)
        # Until now, each copy was kept up to date where it ran.
        up = set(event.up)
        for task, workers in holders.items():
            for worker in workers & up:
                disks.keep(worker, task, state[task])
        after = strategy([WorkerSeen(at, f"host-{at}", keeps=disks.tasks(at)) for at in event.up])
        if number:
            _count(found, state, holders, after, up, disks)
        for task, workers in after.items():
            for worker in workers:
                disks.keep(worker, task, state[task])
        holders = after
    return found


def _count(
    found: Moved,
    state: Mapping[str, Mapping[str, int]],
    before: Holders,
    after: Holders,
    up: set[int],
    disks: _Disks,
) -> None:
    loads = dict.fromkeys(up, 0)
    for task, workers in after.items():
        files = state[task]
        size = sum(files.values())
        for worker in workers:
            loads[worker] += 1
        for worker in workers - before[task]:
            found.copies += 1
            found.state_bytes += size
            found.delta_bytes += delta(files, disks.files(worker, task)).bytes
        found.lost_bytes += size * len(before[task] - up)
    found.heaviest = max(found.heaviest, max(loads.values()) * len(loads) / sum(loads.values()))
    found.by_event.append(found.delta_bytes)


class _Disks:
    """What each worker has of each task: the files of the newest commit it has seen."""

    def __init__(self) -> None:
        self._files: dict[int, dict[str, Mapping[str, int]]] = {}

    def keep(self, worker: int, task: str, files: Mapping[str, int]) -> None:
        self._files.setdefault(worker, {})[task] = files

    def files(self, worker: int, task: str) -> Mapping[str, int]:
        return self._files.get(worker, {}).get(task, {})

    def tasks(self, worker: int) -> frozenset[str]:
        return frozenset(self._files.get(worker, {}))

    def wipe(self, worker: int) -> None:
        self._files.pop(worker, None)
