"""Linked queues of values, one a group, in pooled arrays: the state below min, max and first."""

from __future__ import annotations

import numpy as np

from headrace.measure.jit import Ints, Word, grown, kernel
from headrace.state.tables import Tables

# Rows of the node matrix.
NEXT, BEFORE, VALUE, VALID, TIME, NUMBER = 0, 1, 2, 3, 4, 5
NODE_ROWS = 6
# Rows of the end matrix, by slot.
OLDEST, NEWEST = 0, 1
NONE = -1


@kernel
def take_node(free: Ints) -> Word:
    """free[0] is how many free nodes follow it."""
    node = free[free[0]]
    free[0] -= 1
    return node


@kernel
def give_node(free: Ints, node: int) -> None:
    free[0] += 1
    free[free[0]] = node


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


class Queues:
    """The pool: `nodes`, the `ends` of every slot's queue, and the `free` nodes."""

    def __init__(self) -> None:
        self.nodes: Ints = np.zeros((0, NODE_ROWS), np.int64)
        self.ends: Ints = np.zeros((0, 2), np.int64)
        self.free: Ints = np.zeros(1, np.int64)

    def grow(self, slots: int) -> None:
        self.ends = grown(self.ends, slots, fill=NONE)

    def dump(self) -> Tables:
        return {"nodes": self.nodes.copy(), "ends": self.ends.copy(), "free": self.free[: self.free[0] + 1].copy()}

    def restore(self, tables: Tables) -> None:
        self.nodes, self.ends, self.free = (tables["nodes"], tables["ends"], tables["free"])
        self.free = grown(self.free, len(self.nodes) + 1)

    def reserve(self, count: int) -> None:
        """Have `count` free nodes."""
        self.nodes, self.free = reserve_nodes(self.nodes, self.free, count)


def reserve_nodes(nodes: Ints, free: Ints, count: int) -> tuple[Ints, Ints]:
    """The pool with at least `count` free nodes; free[0] says how many follow it."""
    have, total = int(free[0]), len(nodes)
    if have >= count:
        return nodes, free
    nodes = grown(nodes, total + count - have)
    added = len(nodes) - total
    free = grown(free, len(nodes) + 1)
    free[have + 1 : have + 1 + added] = np.arange(total, len(nodes))[::-1]
    free[0] = have + added
    return nodes, free
