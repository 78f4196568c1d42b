"""Copies that make room for each other: where none of the workers with room may have a copy, others move on.

For tasks of one weight. A chain begins with a copy that has no worker, or at a worker with too many. Each copy of it
takes the place of the next; the last goes to a worker with room. That is an augmenting path of a flow from tasks over
places to workers, and the search finds the one that moves the fewest copies: so one is found whenever there is a
placement within the budgets, and no placement within them moves fewer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.replicate.placement import Placement

_COSTS: Final = (-1, 0, 1)
"""A copy goes back to a worker that has its state; from one such worker to another, or from none to none; away."""


@dataclass(frozen=True)
class _Chain:
    """Who gets room, and the moves (task, origin, to) that make it."""

    first: int
    moves: tuple[tuple[int, int, int], ...]
    cost: int


@dataclass
class _Search:
    """Workers reached so far: at what cost, in how many steps, and from where."""

    costs: dict[int, int] = field(default_factory=dict)
    hops: dict[int, int] = field(default_factory=dict)
    origins: dict[int, int] = field(default_factory=dict)
    levels: dict[int, int] = field(default_factory=dict)
    """For each cost, the workers that were reached at it, as bits."""

    def as_cheap(self, cost: int) -> int:
        """Workers that were reached at no more than this cost, as bits."""
        found = 0
        for level, mask in self.levels.items():
            if level <= cost:
                found |= mask
        return found

    def reach(self, worker: int, cost: int, hops: int) -> None:
        self.levels[cost] = self.levels.get(cost, 0) | 1 << worker
        self.costs[worker], self.hops[worker] = cost, hops


class Chains:
    """Of one placement; after others have changed it, `look_again`."""

    def __init__(self, placement: Placement):
        self._placement = placement
        problem = placement.problem
        self._everyone = (1 << len(problem.shares)) - 1
        self._members: dict[int, int] = {}
        for worker, place in enumerate(problem.places):
            self._members[place] = self._members.get(place, 0) | 1 << worker
        self._homes = [sum(1 << worker for worker in homes) for homes in problem.homes]
        self._reach: dict[int, tuple[int, int, int]] = {}

    def look_again(self) -> None:
        """Somebody else has moved copies."""
        self._reach.clear()

    def bring_in(self, task: int) -> bool:
        """Find a worker for one more copy of the task; False if there is no chain."""
        starts = {worker: 1 - self._is_home(task, worker) for worker in _bits(self._open_to(task, None))}
        chain = self._chain(starts, least=min(starts.values(), default=0))
        if chain is None:
            return False
        self._apply(chain)
        self._placement.put(task, chain.first)
        self._forget(task)
        return True

    def relieve(self, worker: int, *, for_nothing: bool = False) -> bool:
        """Take one copy off the worker, or only if that moves no state; False if there is no chain.

        What can be relieved for nothing must have been, before anything else moves.
        """
        chain = self._chain({worker: 0}, least=0 if for_nothing else 1)
        if chain is None or (for_nothing and chain.cost > 0):
            return False
        self._apply(chain)
        return True

    # ---------------------------------------------------------------- search

    def _chain(self, starts: Mapping[int, int], least: int) -> _Chain | None:
        search = self._searched(starts, least)
        ends = self._with_room(search.costs)
        if not ends:
            return None
        left = self._placement.left
        at = min(ends, key=lambda end: (search.costs[end], search.hops[end], -left(end), end))
        cost = search.costs[at]
        moves: list[tuple[int, int, int]] = []
        # No task is twice in it, nor a worker, as long as nothing moved in vain: there would be a shorter chain.
        while at in search.origins:
            if len(moves) > len(self._placement.loads):
                return None
            origin = search.origins[at]
            moves.append((self._best_task(origin, at), origin, at))
            at = origin
        return _Chain(at, tuple(moves), cost)

    def _searched(self, starts: Mapping[int, int], least: int) -> _Search:
        """Bellman and Ford's search, until it is over, or an end is found at the least cost that there can be.

        A step back costs less than nothing, and still no chain gets cheaper than the first could be: when each of them
        was the cheapest, the next one is no cheaper.
        """
        search = _Search()
        for worker, cost in starts.items():
            search.reach(worker, cost, 0)
        frontier = sorted(starts)
        for hop in range(1, len(self._placement.loads) + 1):
            if not frontier or any(search.costs[end] <= least for end in self._with_room(frontier)):
                break
            reached = self._next(search, frontier)
            for worker, (cost, origin) in reached.items():
                search.reach(worker, cost, hop)
                search.origins[worker] = origin
            frontier = sorted(reached)
        return search

    def _with_room(self, workers: Iterable[int]) -> list[int]:
        return [worker for worker in workers if not self._placement.is_full(worker)]

    def _next(self, search: _Search, frontier: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Workers reached at a lower cost than before, by one step more: the cost, and from where."""
        reached: dict[int, tuple[int, int]] = {}
        for origin in frontier:
            for extra, mask in zip(_COSTS, self._ways(origin), strict=True):
                cost = search.costs[origin] + extra
                for worker in _bits(mask & ~search.as_cheap(cost)):
                    if worker not in reached or cost < reached[worker][0]:
                        reached[worker] = (cost, origin)
        return reached

    def _ways(self, origin: int) -> tuple[int, int, int]:
        """For each of the costs, the workers that some copy of `origin` can go to, as bits."""
        if origin not in self._reach:
            back = even = away = 0
            for task in self._placement.held[origin]:
                open_to, homes = self._open_to(task, origin), self._homes[task]
                if self._is_home(task, origin):
                    even, away = even | open_to & homes, away | open_to & ~homes
                else:
                    back, even = back | open_to & homes, even | open_to & ~homes
            self._reach[origin] = (back, even, away)
        return self._reach[origin]

    def _best_task(self, origin: int, to: int) -> int:
        """The cheapest copy that can go; then one with stale files there, then a replica, then by name."""
        problem = self._placement.problem
        open_ones = (task for task in self._placement.held[origin] if self._open_to(task, origin) >> to & 1)
        return min(
            open_ones,
            key=lambda task: (
                self._is_home(task, origin) - self._is_home(task, to),
                to not in problem.stale[task],
                problem.actives[task] == origin,
                task,
            ),
        )

    def _is_home(self, task: int, worker: int) -> int:
        return self._homes[task] >> worker & 1

    def _open_to(self, task: int, leaving: int | None) -> int:
        """Workers that may have one more copy of the task, or the one that leaves, as bits."""
        blocked = 0 if leaving is None else 1 << leaving
        for place in self._placement.taken(task, leaving):
            blocked |= self._members[place]
        return self._everyone & ~blocked

    # ----------------------------------------------------------------- apply

    def _apply(self, chain: _Chain) -> None:
        for task, origin, to in chain.moves:
            self._forget(task)
            self._placement.move(task, origin, to)
            self._forget(task)

    def _forget(self, task: int) -> None:
        """What its workers can do is to be looked at again."""
        for worker in self._placement.holders[task]:
            self._reach.pop(worker, None)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
