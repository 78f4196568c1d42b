"""Linked queues of values, one a group, in pooled arrays: the state below min, max and first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.model.jit import Ints, Word, grown, kernel
from headrace.state.ragged import Ragged, reach
from headrace.state.tables import Tables

# Rows of the node matrix.
NEXT, BEFORE, VALUE, VALID, TIME, NUMBER = 0, 1, 2, 3, 4, 5
NODE_ROWS = 6
# Rows of the end matrix, by slot.
OLDEST, NEWEST = 0, 1
NONE = -1


# What `free` holds: how many nodes were given back, the first node that was never used, the nodes given back.
GIVEN_BACK, NEVER_USED, FIRST_FREE = 0, 1, 2


@kernel
def take_node(free: Ints) -> Word:
    if free[GIVEN_BACK]:
        free[GIVEN_BACK] -= 1
        return free[FIRST_FREE + free[GIVEN_BACK]]
    free[NEVER_USED] += 1
    return free[NEVER_USED] - 1


@kernel
def give_node(free: Ints, node: int) -> None:
    free[FIRST_FREE + free[GIVEN_BACK]] = node
    free[GIVEN_BACK] += 1


@kernel
def link_after(nodes: Ints, ends: Ints, slot: int, before: int, node: int) -> None:
    """Put `node` after `before`, or first where that is NONE."""
    after = ends[slot, OLDEST] if before == NONE else nodes[before, NEXT]
    nodes[node, BEFORE] = before
    nodes[node, NEXT] = after
    if before == NONE:
        ends[slot, OLDEST] = node
    else:
        nodes[before, NEXT] = node
    if after == NONE:
        ends[slot, NEWEST] = node
    else:
        nodes[after, BEFORE] = node


@kernel
def unlink(nodes: Ints, ends: Ints, slot: int, node: int, free: Ints) -> None:
    before, after = nodes[node, BEFORE], nodes[node, NEXT]
    if before == NONE:
        ends[slot, OLDEST] = after
    else:
        nodes[before, NEXT] = after
    if after == NONE:
        ends[slot, NEWEST] = before
    else:
        nodes[after, BEFORE] = before
    give_node(free, node)


@kernel
def fill_node(nodes: Ints, node: int, value: int, valid: int, time: int, number: int) -> None:
    nodes[node, VALUE] = value
    nodes[node, VALID] = valid
    nodes[node, TIME] = time
    nodes[node, NUMBER] = number


@kernel
def _lengths(nodes: Ints, ends: Ints, slots: Ints, lengths: Ints) -> None:
    for i in range(len(slots)):
        node = ends[slots[i], OLDEST]
        while node != NONE:
            lengths[i] += 1
            node = nodes[node, NEXT]


@kernel
def _take(nodes: Ints, ends: Ints, slots: Ints, kept: Ints, words: Ints) -> None:
    at = 0
    for i in range(len(slots)):
        node = ends[slots[i], OLDEST]
        while node != NONE:
            for j in range(len(kept)):
                words[at] = nodes[node, kept[j]]
                at += 1
            node = nodes[node, NEXT]


@kernel
def _put(nodes: Ints, ends: Ints, free: Ints, slots: Ints, kept: Ints, lengths: Ints, words: Ints) -> None:
    at = 0
    for i in range(len(slots)):
        for _ in range(lengths[i]):
            node = take_node(free)
            fill_node(nodes, node, 0, 0, 0, 0)
            for j in range(len(kept)):
                nodes[node, kept[j]] = words[at]
                at += 1
            link_after(nodes, ends, slots[i], ends[slots[i], NEWEST], node)


class Queues:
    """The pool: `nodes`, the `ends` of every slot's queue, and the `free` nodes."""

    def __init__(self, kept: Sequence[int] = (VALUE, VALID, TIME, NUMBER)) -> None:
        """`kept`: the columns of a node that its user reads; the others are 0 after a group was put back."""
        self._kept = np.array(kept, np.int64)
        self.clear_groups()

    def clear_groups(self) -> None:
        self.nodes: Ints = np.zeros((0, NODE_ROWS), np.int64)
        self.ends: Ints = np.zeros((0, 2), np.int64)
        self.free: Ints = no_free_nodes()
        self._slots = 0

    def grow(self, slots: int) -> None:
        self.ends, self._slots = grown(self.ends, slots, fill=NONE), max(self._slots, slots)

    def dump(self) -> Tables:
        used, free = pool_in_use(self.nodes, self.free)
        return {"nodes": used, "ends": self.ends[: self._slots], "free": free}

    def restore(self, tables: Tables) -> None:
        self.nodes, self.ends, self._slots = tables["nodes"], tables["ends"], len(tables["ends"])
        self.free = grown(tables["free"], len(self.nodes) + FIRST_FREE)

    def reserve(self, count: int) -> None:
        """Have `count` free nodes."""
        self.nodes, self.free = reserve_nodes(self.nodes, self.free, count)

    def take_groups(self, slots: Ints) -> Ragged:
        """The kept columns of the nodes of each queue, from the oldest to the newest."""
        self.grow(reach(slots))
        lengths = np.zeros(len(slots), np.int64)
        _lengths(self.nodes, self.ends, slots, lengths)
        lengths *= len(self._kept)
        words = np.empty(int(lengths.sum()), np.int64)
        _take(self.nodes, self.ends, slots, self._kept, words)
        return Ragged(lengths, words)

    def put_groups(self, slots: Ints, groups: Ragged) -> None:
        self.grow(reach(slots))
        lengths = groups.lengths // len(self._kept)
        self.reserve(int(lengths.sum()))
        _put(self.nodes, self.ends, self.free, slots, self._kept, lengths, groups.words)


def no_free_nodes() -> Ints:
    return np.zeros(FIRST_FREE, np.int64)


def pool_in_use(nodes: Ints, free: Ints) -> tuple[Ints, Ints]:
    """The nodes that were ever used, and what is free among them: views."""
    return nodes[: free[NEVER_USED]], free[: FIRST_FREE + free[GIVEN_BACK]]


def reserve_nodes(nodes: Ints, free: Ints, count: int) -> tuple[Ints, Ints]:
    """The pool with at least `count` free nodes."""
    nodes = grown(nodes, int(free[NEVER_USED]) + count - int(free[GIVEN_BACK]))
    return nodes, grown(free, len(nodes) + FIRST_FREE)
