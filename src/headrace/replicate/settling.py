"""From what there was to what there is: stay where you are, fill what is missing, relieve who has too much."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.replicate.chains import Chains
from headrace.replicate.placement import Placement, Problem


def settled(problem: Problem) -> Placement:
    """All copies are placed, none twice in one place.

    Tasks of one weight: within the budgets, and with as few moves as that takes. Others: nearly so; a worker is above
    its budget only where no copy of it fits anywhere else. Settled once more, nothing moves.
    """
    placement = Placement(problem)
    _stay(placement)
    _fill(placement)
    if problem.is_even:
        _exchange(placement)
    else:
        _squeeze(placement)
    return placement


def _stay(placement: Placement) -> None:
    problem = placement.problem
    for task, homes in enumerate(problem.homes):
        for worker in homes:
            if placement.misses(task) and problem.places[worker] not in placement.taken(task):
                placement.put(task, worker)


def _fill(placement: Placement) -> None:
    """Tasks that run nowhere come first: so active copies go before replicas of others. Heavy ones go first."""
    holders, weights = placement.holders, placement.problem.weights
    missing = [task for task in range(len(weights)) if placement.misses(task)]
    rooms = placement.rooms()
    for task in sorted(missing, key=lambda task: (bool(holders[task]), -weights[task], task)):
        while placement.misses(task):
            to = placement.stale_room(task)
            if to is None:
                to = placement.any_room(rooms, task)
            if to is None and placement.problem.is_even:
                break
            if to is None:
                to = placement.least_harm(task)
            placement.put(task, to)
            if placement.is_full(to) and to in rooms:
                rooms.remove(to)


def _exchange(placement: Placement) -> None:
    """For tasks of one weight. What costs nothing goes first: so no move is in vain, and chains are the shortest."""
    workers = range(len(placement.loads))
    _relieve(placement, (_home,))
    chains = Chains(placement)
    both = zip(placement.problem.homes, placement.holders, strict=True)
    if any(set(homes) - set(holders) for homes, holders in both):
        for worker in workers:
            while placement.is_over(worker) and chains.relieve(worker, for_nothing=True):
                pass
    _relieve(placement, (_stale, Placement.any_room))
    chains.look_again()
    for task in range(len(placement.holders)):
        while placement.misses(task):
            if not chains.bring_in(task):  # It always does, if sums of capacities are exact.
                placement.put(task, placement.least_harm(task))
                chains.look_again()
    for worker in workers:
        while placement.is_over(worker) and chains.relieve(worker):
            pass


def _squeeze(placement: Placement) -> None:
    """For others: what fits nowhere was put where it does the least harm, and lighter copies make room for it."""
    while _relieve(placement, (_home, _stale, Placement.any_room)):
        pass


Finder = Callable[[Placement, Sequence[int], int, int], int | None]
"""Of the workers with room, one that a copy can go to: placement, workers, task, the worker that it leaves."""


def _home(placement: Placement, _: Sequence[int], task: int, leaving: int) -> int | None:
    return placement.home_room(task, leaving)


def _stale(placement: Placement, _: Sequence[int], task: int, leaving: int) -> int | None:
    return placement.stale_room(task, leaving)


def _relieve(placement: Placement, finders: Sequence[Finder]) -> int:
    """Copies leave workers that have too many, while there is room; gives how many."""
    rooms, count = placement.rooms(), 0
    for finder in finders:
        for worker in range(len(placement.loads)):
            if placement.is_over(worker):
                count += _shed(placement, worker, rooms, finder)
    return count


def _shed(placement: Placement, worker: int, rooms: list[int], finder: Finder) -> int:
    weights, order, count = placement.problem.weights, placement.leaving_order(worker), 0
    # What is no heavier than the excess goes first; only then does more go than must.
    for exactly in (True, False):
        for task in order if exactly else sorted(order, key=lambda task: weights[task]):
            if not rooms or not placement.is_over(worker):
                return count
            if task not in placement.held[worker] or (exactly and weights[task] > placement.excess(worker)):
                continue
            to = finder(placement, rooms, task, worker)
            if to is not None:
                placement.move(task, worker, to)
                count += 1
                # A worker that gave more than it had to has room, and is not among those that had it at first.
                if placement.is_full(to) and to in rooms:
                    rooms.remove(to)
    return count
