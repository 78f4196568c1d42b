"""Optimizers: from implementation tags with their rates to a tree of workers. Any valid plan gives the same results.

An optimizer is a function `(space, leaves) -> Worker`; what it gives is checked (`make_plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace.errors import ProgramError
from headrace.synchronize.plan import Plan, Worker
from headrace.synchronize.program import pairs_of
from headrace.synchronize.tags import TagSpace

Optimizer: TypeAlias = Callable[[TagSpace, int], Worker]
_TINY_EACH: Final = 0.05
_TINY_TOGETHER: Final = 0.25
"""Of what a leaf has to do."""


def sequential(space: TagSpace, leaves: int = 1) -> Worker:
    """One worker for all."""
    return Worker(tuple(range(len(space.entries))))


def by_rate(space: TagSpace, leaves: int) -> Worker:
    """Rare events at the top: tags leave the graph of dependence, the rarest first, until it falls apart.

    What is left are families that are independent of each other: each gets leaves by its share of the events.
    """
    return _grown(space, tuple(range(len(space.entries))), leaves, [entry.rate for entry in space.entries])


def balanced(space: TagSpace, leaves: int) -> Worker:
    """As `by_rate`, with all tags as frequent as each other: where rates are not known, or change."""
    # The rare ones still have to go first, or hardly anything falls apart: those that most others depend on.
    degrees = space.dependence.sum(axis=1)
    return _grown(space, tuple(range(len(space.entries))), leaves, [1.0 / (1 + degree) for degree in degrees.tolist()])


OPTIMIZERS: Final[dict[str, Optimizer]] = {"by_rate": by_rate, "balanced": balanced, "sequential": sequential}


def optimizer_of(program: str, chosen: str | Optimizer) -> Optimizer:
    """By its name, or as it is. Raises ProgramError."""
    found = OPTIMIZERS.get(chosen) if isinstance(chosen, str) else chosen
    if not callable(found):
        names = ", ".join(map(repr, OPTIMIZERS))
        raise ProgramError(program, f"optimizer={chosen!r}; use one of {names}, or a function")
    return found


def _grown(space: TagSpace, tags: tuple[int, ...], leaves: int, rates: Sequence[float]) -> Worker:
    if leaves <= 1 or len(tags) <= 1:
        return Worker(tags)
    own: list[int] = []
    left = sorted(tags, key=lambda tag: (rates[tag], tag))
    families = _families(space, left)
    while len(families) < 2 and left:
        own.append(left.pop(0))
        families = _families(space, left)
    if len(families) < 2:
        return Worker(tags)
    tiny = _tiny(space, families, leaves, rates)
    large = [family for family in families if family not in tiny]
    tree = _nested(space, tuple(sorted(own)), _shared_out(large, leaves, rates), rates)
    return _with_more(tree, [tag for family in tiny for tag in family], rates)


def _tiny(
    space: TagSpace, families: list[tuple[int, ...]], leaves: int, rates: Sequence[float]
) -> list[tuple[int, ...]]:
    """Families that a leaf can take on beside others: one of their own would be idle. Where states have one type."""
    if any(pair.whole is not None for pair in pairs_of(space.program)):
        return []
    weights = {family: sum(rates[tag] for tag in family) for family in families}
    total = sum(weights.values()) or 1.0
    found = [family for family in families if leaves * weights[family] / total < _TINY_EACH]
    is_idle = sum(leaves * weights[family] / total for family in found) < _TINY_TOGETHER
    return found if is_idle and len(found) < len(families) else []


def _with_more(tree: Worker, tags: list[int], rates: Sequence[float]) -> Worker:
    """With more tags at the leaf that has least to do. They are independent of all others that are not above it."""
    if not tags:
        return tree
    leaves = [worker for worker in tree.all_below() if worker.is_leaf]
    least = min(leaves, key=lambda leaf: sum(rates[tag] for tag in leaf.tags))

    def copied(worker: Worker) -> Worker:
        if worker is least:
            return Worker(tuple(sorted((*worker.tags, *tags))))
        if worker.children is None:
            return worker
        left, right = worker.children
        return Worker(worker.tags, (copied(left), copied(right)))

    return copied(tree)


def _families(space: TagSpace, tags: Sequence[int]) -> list[tuple[int, ...]]:
    """The connected parts of the graph of dependence, each in the order of its numbers."""
    left, found = set(tags), []
    for start in sorted(tags):
        if start not in left:
            continue
        family, edge = [start], [start]
        left.discard(start)
        while edge:
            near = [tag for tag in left if space.dependence[edge[-1], tag]]
            edge.pop()
            left.difference_update(near)
            family += near
            edge += near
        found.append(tuple(sorted(family)))
    return found


@dataclass
class _Group:
    tags: list[int]
    leaves: int
    rate: float


def _shared_out(families: list[tuple[int, ...]], leaves: int, rates: Sequence[float]) -> list[_Group]:
    """Families with their leaves: the large ones have several, small ones share one. At least two groups."""
    weights = [sum(rates[tag] for tag in family) for family in families]
    total = sum(weights) or 1.0
    order = sorted(range(len(families)), key=lambda n: (-weights[n], families[n]))
    if len(families) <= leaves:
        groups = [_Group(list(families[n]), 1, weights[n]) for n in order]
        for _ in range(leaves - len(families)):
            most = max(groups, key=lambda group: group.rate / group.leaves)
            most.leaves += 1
        return sorted(groups, key=lambda group: group.tags)
    groups, rest, left = [], [], leaves
    for n in order:
        worth = round(leaves * weights[n] / total)
        if worth >= 1 and left - worth >= 1:
            groups.append(_Group(list(families[n]), worth, weights[n]))
            left -= worth
        else:
            rest.append(n)
    bins = [_Group([], 1, 0.0) for _ in range(min(left, len(rest)))]
    for n in rest:
        least = min(bins, key=lambda group: (group.rate, len(group.tags)))
        least.tags += families[n]
        least.rate += weights[n]
    return sorted((*groups, *bins), key=lambda group: group.tags)


def _nested(space: TagSpace, own: tuple[int, ...], groups: list[_Group], rates: Sequence[float]) -> Worker:
    """A worker with these tags over all groups, with workers without tags between, so that it is low."""
    if len(groups) == 1:
        group = groups[0]
        below = _grown(space, tuple(sorted(group.tags)), group.leaves, rates)
        return below if not own else Worker((*own, *below.tags), below.children)
    half, taken = sum(group.leaves for group in groups) / 2, 0
    for at, group in enumerate(groups, 1):
        taken += group.leaves
        if taken >= half or at == len(groups) - 1:
            break
    return Worker(own, (_nested(space, (), groups[:at], rates), _nested(space, (), groups[at:], rates)))


# ------------------------------------------------------------------------- cost


@dataclass(frozen=True)
class Cost:
    """What a plan costs, in the unit of the rates."""

    messages: float
    """Between workers: for each event of an inner worker, a request, a state up and one down on every edge below."""
    between_tasks: float
    """Those of them that leave their task."""
    busiest: float
    """Events of the task with the most of them."""
    critical_path: int
    """Edges that a state travels for an event at the root, up and down."""


def cost_of(plan: Plan) -> Cost:
    edges = {member.number: 0 for member in plan.members}
    far = dict(edges)
    for member in reversed(plan.members):
        for child in member.children or ():
            edges[member.number] += 1 + edges[child]
            far[member.number] += (plan.members[child].task != member.task) + far[child]
    rates = {member.number: plan.rate_of(member) for member in plan.members}
    loads = [0.0] * plan.tasks
    for member in plan.members:
        loads[member.task] += rates[member.number]
    return Cost(
        sum(3 * rates[number] * edges[number] for number in edges),
        sum(3 * rates[number] * far[number] for number in far),
        max(loads),
        2 * plan.root.height,
    )
