"""Which worker has a copy of which task, while it is being decided. Tasks and workers are numbers here, by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from headrace.replicate.budgets import ROUNDING, rounded_up


@dataclass(frozen=True)
class Problem:
    """What is asked for, and what there was before."""

    weights: Sequence[float]
    wanted: Sequence[int]
    """Copies of each task, no more than there are places."""
    places: Sequence[int]
    """Of each worker, its place of failure."""
    shares: Sequence[float]
    """What each worker should carry, see `fair_shares`."""
    homes: Sequence[Sequence[int]]
    """Of each task, the workers that had a copy and are still there; those to keep it first come first."""
    stale: Sequence[Sequence[int]]
    """Of each task, the workers with older files of it."""
    actives: Sequence[int | None]
    """Of each task, the worker that had the active copy."""

    @cached_property
    def budgets(self) -> list[float]:
        return rounded_up(self.shares, self.weights)

    @cached_property
    def is_even(self) -> bool:
        """All tasks weigh the same."""
        return len(set(self.weights)) <= 1


class Placement:
    """Starts empty. A worker should not take on more than its budget; nothing here keeps it from doing so."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.holders: list[list[int]] = [[] for _ in problem.weights]
        self.held: list[set[int]] = [set() for _ in problem.shares]
        self.loads = [0.0] * len(problem.shares)
        self._limits = [budget * (1 + ROUNDING) for budget in problem.budgets]
        self._lightest = min(problem.weights, default=0.0)
        self._left_of_place: dict[int, float] = dict.fromkeys(problem.places, 0.0)
        for place, budget in zip(problem.places, problem.budgets, strict=True):
            self._left_of_place[place] += budget
        self._nothing = [0] * (max(problem.places, default=-1) + 1)
        self._common = [[*self._nothing] for _ in self._nothing]
        """How many tasks run in both of two places."""

    # ------------------------------------------------------------------ look

    def left(self, worker: int) -> float:
        return self._limits[worker] - self.loads[worker]

    def excess(self, worker: int) -> float:
        """How much is to go; a little more, for sums are not exact."""
        return self.loads[worker] * (1 + ROUNDING) - self.problem.budgets[worker]

    def is_full(self, worker: int) -> bool:
        """Not even the lightest task fits."""
        return self.loads[worker] + self._lightest > self._limits[worker]

    def is_over(self, worker: int) -> bool:
        return self.loads[worker] > self._limits[worker]

    def rooms(self) -> list[int]:
        return [worker for worker in range(len(self.loads)) if not self.is_full(worker)]

    def misses(self, task: int) -> bool:
        return len(self.holders[task]) < self.problem.wanted[task]

    def taken(self, task: int, leaving: int | None = None) -> set[int]:
        """The places where the task runs, but for the copy that is about to leave."""
        places = self.problem.places
        return {places[worker] for worker in self.holders[task] if worker != leaving}

    def home_room(self, task: int, leaving: int) -> int | None:
        """A worker that had a copy of the task, and has room; the one with the least load."""
        return self._least_loaded(self.problem.homes[task], task, leaving)

    def stale_room(self, task: int, leaving: int | None = None) -> int | None:
        """A worker that has files of the task, and room; the one with the least load."""
        return self._least_loaded(self.problem.stale[task], task, leaving)

    def _least_loaded(self, group: Sequence[int], task: int, leaving: int | None) -> int | None:
        fit = self._fit(group, task, leaving) if group else []
        return min(fit, key=lambda worker: (self.loads[worker], worker), default=None)

    def any_room(self, rooms: Sequence[int], task: int, leaving: int | None = None) -> int | None:
        """The worker of `rooms` with the most budget left, in the place with the most; then by load.

        Places first: what one large place could have taken, several small ones may not be able to take later, for each
        of them takes a task only once. In this order whole tasks always find their workers, if there is any way.
        Then the place that has the fewest tasks in common with those of the other copies, so that what is lost with a
        place is taken over by many; then by name.
        """
        taken, places, weight = self.taken(task, leaving), self.problem.places, self.problem.weights[task]
        loads, limits, of_place, common = self.loads, self._limits, self._left_of_place, self._in_common(taken)
        best, most = None, 0.0
        rank = (0.0, 0.0, 0)
        # A loop, for it runs over all workers for every copy.
        for at in rooms:
            place = places[at]
            if of_place[place] < most or place in taken or loads[at] + weight > limits[at]:
                continue
            its = (limits[at] - loads[at], -loads[at], -common[place])
            if of_place[place] > most or best is None or its > rank:
                best, most, rank = at, of_place[place], its
        return best

    def _in_common(self, taken: Iterable[int]) -> Sequence[int]:
        """For each place, how many tasks it has in common with these."""
        rows = [self._common[place] for place in taken]
        return rows[0] if len(rows) == 1 else [sum(column) for column in zip(self._nothing, *rows, strict=True)]

    def _fit(self, workers: Iterable[int], task: int, leaving: int | None) -> list[int]:
        taken, places, weight = self.taken(task, leaving), self.problem.places, self.problem.weights[task]
        loads, limits = self.loads, self._limits
        return [at for at in workers if places[at] not in taken and loads[at] + weight <= limits[at]]

    def least_harm(self, task: int) -> int:
        """Where one more is the least above its budget."""
        taken, places = self.taken(task), self.problem.places
        fit = (worker for worker in range(len(self.loads)) if places[worker] not in taken)
        return min(fit, key=lambda worker: (-self.left(worker), worker))

    def leaving_order(self, worker: int) -> list[int]:
        """Copies of a worker that has too many: replicas go before active ones, heavy ones first, so that few go."""
        actives, weights = self.problem.actives, self.problem.weights
        return sorted(self.held[worker], key=lambda task: (actives[task] == worker, -weights[task], task))

    # ---------------------------------------------------------------- change

    def put(self, task: int, worker: int) -> None:
        self._count(task, worker, 1)
        self.holders[task].append(worker)
        self.held[worker].add(task)
        self._change(worker, self.problem.weights[task])

    def move(self, task: int, origin: int, to: int) -> None:
        holders = self.holders[task]
        at = holders.index(origin)
        self._count(task, origin, -1)
        holders[at] = to
        self._count(task, to, 1)
        self.held[origin].remove(task)
        self.held[to].add(task)
        self._change(origin, -self.problem.weights[task])
        self._change(to, self.problem.weights[task])

    def _count(self, task: int, worker: int, change: int) -> None:
        place = self.problem.places[worker]
        for other in self.taken(task, worker):
            self._common[place][other] += change
            self._common[other][place] += change

    def _change(self, worker: int, weight: float) -> None:
        place, budget = self.problem.places[worker], self.problem.budgets[worker]
        self._left_of_place[place] -= max(0.0, budget - self.loads[worker])
        self.loads[worker] += weight
        self._left_of_place[place] += max(0.0, budget - self.loads[worker])
