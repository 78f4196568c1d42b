"""Synchronization plans: a binary tree of workers, each with the implementation tags whose events it updates with.

A leaf updates its state as events come. An inner worker has no state but while its children are joined: for each of its
events they give up theirs, it joins, updates, and forks again. Workers without tags of their own only join and fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headrace.errors import PlanError
from headrace.model.failures import RAISED, problem_of
from headrace.synchronize.program import Pair, Program, pairs_of
from headrace.synchronize.tags import Bucket, ImplementationTag, Other, TagSpace


@dataclass(frozen=True)
class Worker:
    """A node of the tree, and all below it."""

    tags: tuple[int, ...]
    """The numbers of its own implementation tags."""
    children: tuple[Worker, Worker] | None = None

    @property
    def is_leaf(self) -> bool:
        return self.children is None

    def all_below(self) -> Iterator[Worker]:
        """Itself, and all below it, from the left."""
        yield self
        for child in self.children or ():
            yield from child.all_below()

    @cached_property
    def subtree(self) -> frozenset[int]:
        """The tags of itself and of all below it."""
        below = [child.subtree for child in self.children or ()]
        return frozenset(self.tags).union(*below)

    @property
    def height(self) -> int:
        return 0 if self.children is None else 1 + max(child.height for child in self.children)


@dataclass(frozen=True)
class Member:
    """A worker with its place in the tree. Numbers are from the root on, from the left."""

    number: int
    tags: tuple[int, ...]
    parent: int | None
    children: tuple[int, int] | None
    task: int
    kind: type | None
    """The type of its state, where the program has several."""
    pair: Pair | None
    """How its state is forked and joined, if it has children."""

    @property
    def name(self) -> str:
        return f"w{self.number}"


@dataclass(frozen=True)
class Plan:
    """A valid plan: what runs. Made by `make_plan`."""

    space: TagSpace
    root: Worker
    members: tuple[Member, ...]
    tasks: int

    @property
    def entries(self) -> tuple[ImplementationTag, ...]:
        return self.space.entries

    @cached_property
    def owner(self) -> tuple[int, ...]:
        """For each implementation tag, the member that updates with its events."""
        found = {tag: member.number for member in self.members for tag in member.tags}
        return tuple(found[number] for number in range(len(self.entries)))

    @cached_property
    def subtrees(self) -> tuple[frozenset[int], ...]:
        """For each member, the tags of itself and of all below it."""
        return tuple(worker.subtree for worker in self.root.all_below())

    def above(self, member: Member) -> frozenset[int]:
        """The tags of all workers above one."""
        found: set[int] = set()
        while member.parent is not None:
            member = self.members[member.parent]
            found.update(member.tags)
        return frozenset(found)

    def rate_of(self, member: Member) -> float:
        return sum(self.entries[tag].rate for tag in member.tags)


def make_plan(space: TagSpace, root: Worker, tasks: int = 1) -> Plan:
    """Raises PlanError where it is not valid for the program: it names the workers and the tags."""
    _check_shape(space.program, root)
    workers = list(root.all_below())
    _check_all_there(space, workers)
    _check_independent(space, root)
    kinds, pairs = _typed(space, root)
    numbers = {id(worker): number for number, worker in enumerate(workers)}
    if len(numbers) < len(workers):
        raise PlanError(space.program.name, "a worker is in the tree twice")
    parents = {id(child): id(worker) for worker in workers for child in worker.children or ()}
    tasks = min(tasks, sum(worker.is_leaf for worker in workers))
    places = place(space, root, tasks)
    members = []
    for worker in workers:
        above = parents.get(id(worker))
        children = None
        if worker.children is not None:
            children = (numbers[id(worker.children[0])], numbers[id(worker.children[1])])
        members.append(
            Member(
                numbers[id(worker)],
                worker.tags,
                None if above is None else numbers[above],
                children,
                places[id(worker)],
                kinds.get(id(worker)),
                pairs.get(id(worker)),
            )
        )
    return Plan(space, root, tuple(members), tasks)


# ---------------------------------------------------------------------- validity


def _named(space: TagSpace, worker: Worker) -> str:
    tags = ", ".join(str(space.entries[tag]) for tag in worker.tags)
    return f"worker {{{tags}}}"


def _check_shape(program: Program, given: Any) -> None:
    """Is it made of workers, with two children or none, and numbers as tags?"""
    if not isinstance(given, Worker):
        raise PlanError(
            program.name,
            f"an optimizer gave {given!r}, which is no worker; give Worker(tags) or Worker(tags, (left, right)), of "
            f"headrace.synchronize.plan",
        )
    tags, children = given.tags, given.children
    if not isinstance(tags, Sequence) or not all(isinstance(tag, int | np.integer) for tag in tags):
        raise PlanError(
            program.name, f"a worker has the tags {tags!r}; they are the numbers of implementation tags, such as (0, 2)"
        )
    if children is None:
        return
    if not isinstance(children, Sequence) or len(children) != 2:
        raise PlanError(program.name, f"a worker has the children {children!r}; they are two workers, or None")
    for child in children:
        _check_shape(program, child)


def _check_all_there(space: TagSpace, workers: list[Worker]) -> None:
    seen: dict[int, Worker] = {}
    for worker in workers:
        for tag in worker.tags:
            if not 0 <= tag < len(space.entries):
                raise PlanError(space.program.name, f"{tag} is the number of no implementation tag")
            if tag in seen:
                raise PlanError(
                    space.program.name,
                    f"{space.entries[tag]} belongs to {_named(space, seen[tag])} and to {_named(space, worker)}; "
                    f"give it to one",
                )
            seen[tag] = worker
    for worker in workers:
        if worker.is_leaf and not worker.tags:
            raise PlanError(space.program.name, "a leaf of the plan has no tags, so nothing comes to it; leave it out")
    missing = [str(entry) for number, entry in enumerate(space.entries) if number not in seen]
    if missing:
        raise PlanError(space.program.name, f"no worker takes {', '.join(missing)}")


def _check_independent(space: TagSpace, root: Worker) -> None:
    """V2: workers of which none is above the other have tags that are independent of each other."""
    for worker in root.all_below():
        if worker.children is None:
            continue
        left, right = worker.children
        for a in left.all_below():
            for b in right.all_below():
                for one in a.tags:
                    for two in b.tags:
                        if space.dependence[one, two]:
                            raise PlanError(
                                space.program.name,
                                f"{_named(space, a)} and {_named(space, b)} run side by side, and {space.entries[one]} "
                                f"depends on {space.entries[two]}; give one of the two to a worker above both",
                            )


def _typed(space: TagSpace, root: Worker) -> tuple[dict[int, type], dict[int, Pair]]:
    """V1: for each worker the type of its state, and how that is forked: whatever fits all below."""
    program = space.program
    pairs = pairs_of(program)
    first: type = type(program.init())
    kinds: dict[int, type] = {}
    chosen: dict[int, Pair] = {}

    misfits: list[tuple[int, str]] = []  # how deep, and what

    def fits(worker: Worker, kind: type, depth: int = 0) -> bool:
        strange = [
            number for number in sorted(worker.subtree) if not _handles(program, kind, space.entries[number].tag)
        ]
        if strange:
            named = ", ".join(str(space.entries[number]) for number in strange)
            misfits.append(
                (
                    depth,
                    f"{_named(space, worker)} would have {kind.__name__} as its state, which does not handle {named}",
                )
            )
            return False
        kinds[id(worker)] = kind
        if worker.children is None:
            return True
        for pair in pairs:
            if pair.whole not in (None, kind):
                continue
            left, right = (pair.left or kind, pair.right or kind)
            if fits(worker.children[0], left, depth + 1) and fits(worker.children[1], right, depth + 1):
                chosen[id(worker)] = pair
                return True
        if not any(pair.whole in (None, kind) for pair in pairs):
            misfits.append(
                (depth, f"{_named(space, worker)} would have {kind.__name__} as its state, which has no fork")
            )
        return False

    if not root.is_leaf and not pairs:
        raise PlanError(program.name, "it has no fork and no join, so it can have one worker only; write both")
    if not fits(root, first):
        raise PlanError(
            program.name,
            f"no sequence of its forks gives each worker a type of state that handles its tags, from "
            f"{first.__name__} on: {max(misfits, key=lambda each: each[0])[1]}; see handles() and the forks that are "
            f"marked @hr.fork",
        )
    return kinds, chosen


def _handles(program: Program, kind: type, tag: Any) -> bool:
    """Of a bucket only the kind is known. All else comes to the root alone, whose state takes everything."""
    if isinstance(tag, Other):
        return True
    return handles_kind(program, kind, tag.kind) if isinstance(tag, Bucket) else program.handles(kind, tag)


def handles_kind(program: Program, state: type, kind: Any) -> bool:
    """What a program says of a kind of events whose keys share buckets. Raises PlanError where it asks for the key."""
    try:
        return program.handles(state, (kind,))
    except RAISED as error:
        raise PlanError(
            program.name,
            f"handles({state.__name__}, ({kind!r},)) raised {problem_of(error)}; keys share buckets, so it is asked "
            f"about kinds alone: let it look at tag[0] only, or list all tags (tags = [...] in the program)",
        ) from error


# --------------------------------------------------------------------- placement


def place(space: TagSpace, root: Worker, tasks: int) -> Mapping[int, int]:
    """A task for each worker, by its id: leaves so that loads are even; the others with their busier child."""
    loads = [0.0] * tasks
    places: dict[int, int] = {}

    def rate(worker: Worker) -> float:
        return sum(space.entries[tag].rate for tag in worker.tags)

    leaves = [worker for worker in root.all_below() if worker.is_leaf]
    for _, leaf in sorted(enumerate(leaves), key=lambda each: (-rate(each[1]), each[0])):
        chosen = min(range(tasks), key=lambda task: (loads[task], task))
        loads[chosen] += rate(leaf)
        places[id(leaf)] = chosen

    def climb(worker: Worker) -> float:
        if worker.children is None:
            return rate(worker)
        below = [climb(child) for child in worker.children]
        busier = worker.children[0] if below[0] >= below[1] else worker.children[1]
        places[id(worker)] = places[id(busier)]
        return rate(worker) + sum(below)

    climb(root)
    return places
