"""Which worker runs which copies: Railgun's sticky strategy, so that little state moves when workers come and go.

- A worker's *budget* is its share of all copies, rounded up to whole tasks; see `budgets`.
- Active copies go before replicas. Each stays where it was; else goes where files of it are, else to the most budget.
- Two copies of a task never run in one *place of failure*: one host, or one worker where there is only one host.

    after = assign(tasks, workers, copies=2, before=before)
    for task, copy, origin, to in moved(before, after): ...

The same tasks, workers and `before` give the same assignment, in whatever order they come.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

from headrace.errors import FlowError
from headrace.replicate import assignment_text
from headrace.replicate.budgets import fair_shares, rounded_up
from headrace.replicate.placement import Placement, Problem
from headrace.replicate.settling import settled

WorkerName = int | str
_NUMBERS: Final = re.compile(r"([0-9]+)")


@dataclass(frozen=True)
class TaskLoad:
    """A task, and how heavy it is beside others."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True)
class WorkerSeen:
    """A worker that can take tasks. `keeps`: tasks of which it has files of some earlier commit."""

    name: WorkerName
    host: str
    capacity: float = 1.0
    keeps: frozenset[str] = frozenset()


class Copy(NamedTuple):
    """A copy of a task. Its number stays with its worker: it is below the copies asked for, and names its folder."""

    task: str
    number: int

    def __str__(self) -> str:
        return f"{self.task}~{self.number}" if self.number else self.task


class Move(NamedTuple):
    """A copy that needs state in its new worker. `origin` is None where it did not run before."""

    task: str
    number: int
    origin: WorkerName | None
    to: WorkerName


@dataclass(frozen=True)
class Share:
    """What one worker has. Its load is not above its budget, unless tasks weigh differently and `notes` say so."""

    worker: WorkerName
    host: str
    copies: tuple[Copy, ...]
    load: float
    budget: float


@dataclass(frozen=True)
class Assignment:
    """Who has what. `active`: of each task that runs, the number of the copy that speaks where only one does."""

    shares: tuple[Share, ...]
    active: Mapping[str, int]
    notes: tuple[str, ...] = ()

    @cached_property
    def worker_of(self) -> dict[Copy, WorkerName]:
        return {copy: share.worker for share in self.shares for copy in share.copies}

    def of(self, worker: WorkerName) -> tuple[Copy, ...]:
        """Nothing for a worker that is not there."""
        return next((share.copies for share in self.shares if share.worker == worker), ())

    def is_active(self, copy: Copy) -> bool:
        return self.active.get(copy.task) == copy.number

    def explain(self) -> str:
        """For a terminal: a line for each worker, then what the user should know."""
        rows = [
            (share.worker, share.host, share.load, share.budget,
             [(str(copy), self.is_active(copy)) for copy in share.copies])
            for share in self.shares
        ]  # fmt: skip
        return assignment_text.table(rows, self.notes)


def moved(before: Assignment | None, after: Assignment) -> list[Move]:
    """What needs state, in the order of workers. Another active copy alone moves nothing."""
    shares = () if before is None else before.shares
    was = {copy: (share.worker, share.host) for share in shares for copy in share.copies}
    return [
        Move(copy.task, copy.number, was[copy][0] if copy in was else None, share.worker)
        for share in after.shares
        for copy in share.copies
        if was.get(copy) != (share.worker, share.host)
    ]


def assign(
    tasks: Sequence[TaskLoad],
    workers: Sequence[WorkerSeen],
    copies: Mapping[str, int] | int,
    before: Assignment | None = None,
) -> Assignment:
    """Copies for each task (1 where the mapping has none for it), on the workers that there are.

    What does not fit is left out, and `notes` say so. A worker that comes back on another host is another worker.
    Raises FlowError for a name that is there twice, and for weights and numbers of copies that are not above 0.
    """
    tasks = sorted(tasks, key=lambda task: by_name(task.name))
    workers = sorted(workers, key=lambda worker: by_name(worker.name))
    asked = _checked(tasks, workers, copies)
    if not workers:
        return Assignment((), {}, tuple(assignment_text.no_worker(len(tasks))))
    hosts = sorted({worker.host for worker in workers})
    by_worker = len(hosts) == 1
    places = [at if by_worker else hosts.index(worker.host) for at, worker in enumerate(workers)]
    found = _Found(tasks, workers, asked, before)
    problem = found.problem(places)
    placement = settled(problem)
    shares, active = found.named(placement)
    kind = "worker" if by_worker else "host"
    notes = (
        *assignment_text.too_few_places(asked, len(set(places)), kind),
        *assignment_text.one_machine(hosts[0], len(workers), asked, by_worker),
        *assignment_text.uneven(shares, _even(problem, workers), kind),
        *assignment_text.overfull([share for at, share in enumerate(shares) if placement.is_over(at)]),
    )
    return Assignment(shares, active, notes)


class _Found:
    """Tasks and workers by number, and who of them was there before."""

    def __init__(
        self,
        tasks: Sequence[TaskLoad],
        workers: Sequence[WorkerSeen],
        asked: Sequence[int],
        before: Assignment | None,
    ):
        self.tasks, self.workers, self.asked = tasks, workers, asked
        self.numbers: list[dict[int, int]] = [{} for _ in tasks]
        """Of each task, the workers that had a copy: its number."""
        self.active = [None if before is None else before.active.get(task.name) for task in tasks]
        index = {task.name: at for at, task in enumerate(tasks)}
        places = {(worker.name, worker.host): at for at, worker in enumerate(workers)}
        for share in before.shares if before is not None else ():
            worker = places.get((share.worker, share.host))
            for copy in share.copies if worker is not None else ():
                if worker is not None and copy.task in index:
                    self.numbers[index[copy.task]][worker] = copy.number

    def problem(self, places: Sequence[int]) -> Problem:
        weights = [task.weight for task in self.tasks]
        wanted = [min(count, len(set(places))) for count in self.asked]
        stale: dict[str, list[int]] = {}
        for at, worker in enumerate(self.workers):
            for task in worker.keeps:
                stale.setdefault(task, []).append(at)
        return Problem(
            weights,
            wanted,
            places,
            fair_shares(weights, wanted, [worker.capacity for worker in self.workers], places),
            [self._homes(task) for task in range(len(self.tasks))],
            [stale.get(task.name, []) for task in self.tasks],
            [self._worker_of(task, number) for task, number in enumerate(self.active)],
        )

    def _homes(self, task: int) -> list[int]:
        """Those that keep their number before others, the active copy first: with fewer copies, the last ones go."""
        numbers, active, asked = self.numbers[task], self.active[task], self.asked[task]
        return sorted(numbers, key=lambda at: (numbers[at] >= asked, numbers[at] != active, numbers[at], at))

    def _worker_of(self, task: int, number: int | None) -> int | None:
        return next((worker for worker, each in self.numbers[task].items() if each == number), None)

    def named(self, placement: Placement) -> tuple[tuple[Share, ...], dict[str, int]]:
        held: list[list[Copy]] = [[] for _ in self.workers]
        active = {}
        for at, speaker in enumerate(self._speakers(placement)):
            name, numbers = self.tasks[at].name, self._numbered(at, placement.holders[at], speaker)
            active[name] = numbers[speaker]
            for worker, number in numbers.items():
                held[worker].append(Copy(name, number))
        loads = [math.fsum(placement.problem.weights[task] for task in each) for each in placement.held]
        shares = (
            Share(worker.name, worker.host, tuple(held[at]), loads[at], placement.problem.budgets[at])
            for at, worker in enumerate(self.workers)
        )
        return tuple(shares), active

    def _numbered(self, task: int, holders: Sequence[int], speaker: int) -> dict[int, int]:
        """A worker keeps the number it had; the others get the lowest that are free, the active copy first."""
        asked = self.asked[task]
        kept = {worker: number for worker, number in self.numbers[task].items() if worker in holders and number < asked}
        free = iter(sorted(set(range(asked)) - set(kept.values())))
        ordered = sorted(holders, key=lambda worker: worker != speaker)
        return {worker: kept[worker] if worker in kept else next(free) for worker in ordered}

    def _speakers(self, placement: Placement) -> list[int]:
        """Of each task, the worker of its active copy: the one that was, else one that had a copy, else files of it.

        Of several, the one with the fewest active copies for its budget; then by load, then by name.
        """
        problem = placement.problem
        found = [was if was in here else None for was, here in zip(problem.actives, placement.holders, strict=True)]
        speaking = Counter(worker for worker in found if worker is not None)
        for task, holders in enumerate(placement.holders):
            if found[task] is None:
                there = [worker for worker in holders if worker in self.numbers[task]]
                there = there or [worker for worker in holders if worker in problem.stale[task]] or holders
                found[task] = speaker = min(
                    there, key=lambda at: (speaking[at] / problem.budgets[at], placement.loads[at], at)
                )
                speaking[speaker] += 1
        return [speaker for speaker in found if speaker is not None]


# ------------------------------------------------------------------- checks


def _checked(tasks: Sequence[TaskLoad], workers: Sequence[WorkerSeen], copies: Mapping[str, int] | int) -> list[int]:
    """How many copies each task should have."""
    names = [task.name for task in tasks]
    _check_once("task", names)
    _check_once("worker", [worker.name for worker in workers])
    for task in tasks:
        _check_above_zero(f"task {task.name}: weight", task.weight)
    for worker in workers:
        _check_above_zero(f"worker {worker.name}: capacity", worker.capacity)
    if isinstance(copies, Mapping):
        unknown = sorted(set(copies) - set(names))
        if unknown:
            raise FlowError(f"copies are asked for of {unknown[0]}, which is not among the {len(names)} tasks")
        asked = [copies.get(name, 1) for name in names]
    else:
        asked = [copies] * len(names)
    for name, count in zip(names, asked, strict=True):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise FlowError(f"task {name}: copies={count!r}; use a number from 1 on")
    return asked


def _check_once(what: str, names: Sequence[WorkerName]) -> None:
    for name, after in pairwise(names):
        if name == after:
            raise FlowError(f"{what} {name} is there twice; give each a name of its own")


def _check_above_zero(what: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise FlowError(f"{what}={value!r}; use a number above 0")


def by_name(name: WorkerName) -> tuple[object, ...]:
    """The order of names, numbers in them by value: 2, 10, parse.2, parse.10."""
    parts = _NUMBERS.split(str(name))
    return isinstance(name, str), tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts), name


def _even(problem: Problem, workers: Sequence[WorkerSeen]) -> list[float]:
    """The budgets if copies could be anywhere."""
    total = math.fsum(weight * count for weight, count in zip(problem.weights, problem.wanted, strict=True))
    capacity = math.fsum(worker.capacity for worker in workers)
    return rounded_up([total * worker.capacity / capacity for worker in workers], problem.weights)
