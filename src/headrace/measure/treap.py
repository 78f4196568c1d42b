"""Ordered multisets, one a group, in pooled arrays: the state below median, percentile and topK.

A treap: a search tree by (major, minor) that is a heap by a hash of them, so its shape depends on what is in it only,
never on the order in which it came. Every node knows the weight below it, so the k-th value takes logarithmic time.
"""

from __future__ import annotations

import numpy as np

from headrace.measure.jit import Bytes, Ints, Word, grown, kernel
from headrace.measure.keys import compare_codes, mix
from headrace.measure.queue import NONE, give_node, reserve_nodes, take_node
from headrace.state.tables import Tables

# Columns of the node matrix.
LEFT, RIGHT, MAJOR, MINOR, COPIES, WEIGHT, PRIORITY = 0, 1, 2, 3, 4, 5, 6
NODE_COLUMNS = 7
_DEPTH = 512


@kernel
def _priority(major: int, minor: int) -> Word:
    return np.int64(mix(np.int64(mix(major)) ^ minor) >> np.uint64(1))


@kernel
def _order(nodes: Ints, x: int, major: int, minor: int, by_bytes: bool, offsets: Ints, arena: Bytes) -> int:
    """How (major, minor) compares with node x; minors are codes, compared by bytes where they stand for strings."""
    if major != nodes[x, MAJOR]:
        return -1 if major < nodes[x, MAJOR] else 1
    return compare_codes(minor, nodes[x, MINOR], by_bytes, offsets, arena)


@kernel
def _weight(nodes: Ints, x: int) -> int:
    return nodes[x, WEIGHT] if x != NONE else 0


@kernel
def _link(nodes: Ints, roots: Ints, slot: int, parent: int, side: int, child: int) -> None:
    if parent == NONE:
        roots[slot] = child
    else:
        nodes[parent, side] = child


@kernel
def _split(
    nodes: Ints, top: int, new: int, major: int, minor: int, by_bytes: bool, offsets: Ints, arena: Bytes, path: Ints
) -> None:
    """Hang what is below (major, minor) in the tree of `top` left of `new`, and the rest right of it."""
    left, left_side = new, LEFT
    right, right_side = new, RIGHT
    x, depth = top, 0
    while x != NONE:
        path[depth] = x
        depth += 1
        if _order(nodes, x, major, minor, by_bytes, offsets, arena) > 0:
            nodes[left, left_side] = x
            left, left_side = x, RIGHT
            x = nodes[x, RIGHT]
        else:
            nodes[right, right_side] = x
            right, right_side = x, LEFT
            x = nodes[x, LEFT]
    nodes[left, left_side] = NONE
    nodes[right, right_side] = NONE
    for i in range(depth - 1, -1, -1):
        y = path[i]
        nodes[y, WEIGHT] = nodes[y, COPIES] + _weight(nodes, nodes[y, LEFT]) + _weight(nodes, nodes[y, RIGHT])


@kernel
def insert(
    nodes: Ints, roots: Ints, free: Ints, path: Ints, slot: int, major: int, minor: int,
    by_bytes: bool, offsets: Ints, arena: Bytes,
) -> None:  # fmt: skip
    """One more copy of (major, minor)."""
    priority = _priority(major, minor)
    parent, side, x = NONE, LEFT, roots[slot]
    # Below a node of lower priority the key cannot be: its own priority is fixed by the key.
    while x != NONE and nodes[x, PRIORITY] >= priority:
        nodes[x, WEIGHT] += 1
        order = _order(nodes, x, major, minor, by_bytes, offsets, arena)
        if order == 0:
            nodes[x, COPIES] += 1
            return
        parent, side = x, LEFT if order < 0 else RIGHT
        x = nodes[x, side]
    node = take_node(free)
    nodes[node, MAJOR] = major
    nodes[node, MINOR] = minor
    nodes[node, COPIES] = 1
    nodes[node, PRIORITY] = priority
    nodes[node, WEIGHT] = 1 + _weight(nodes, x)
    _split(nodes, x, node, major, minor, by_bytes, offsets, arena, path)
    _link(nodes, roots, slot, parent, side, node)


@kernel
def erase(
    nodes: Ints, roots: Ints, free: Ints, slot: int, major: int, minor: int, by_bytes: bool, offsets: Ints, arena: Bytes
) -> None:
    """One copy less of (major, minor), which must be there."""
    parent, side, x = NONE, LEFT, roots[slot]
    while True:
        nodes[x, WEIGHT] -= 1
        order = _order(nodes, x, major, minor, by_bytes, offsets, arena)
        if order == 0:
            break
        parent, side = x, LEFT if order < 0 else RIGHT
        x = nodes[x, side]
    nodes[x, COPIES] -= 1
    if nodes[x, COPIES]:
        return
    a, b = nodes[x, LEFT], nodes[x, RIGHT]
    give_node(free, x)
    while a != NONE and b != NONE:
        weight = nodes[a, WEIGHT] + nodes[b, WEIGHT]
        if nodes[a, PRIORITY] >= nodes[b, PRIORITY]:
            _link(nodes, roots, slot, parent, side, a)
            nodes[a, WEIGHT] = weight
            parent, side, a = a, RIGHT, nodes[a, RIGHT]
        else:
            _link(nodes, roots, slot, parent, side, b)
            nodes[b, WEIGHT] = weight
            parent, side, b = b, LEFT, nodes[b, LEFT]
    _link(nodes, roots, slot, parent, side, a if a != NONE else b)


@kernel
def kth(nodes: Ints, root: int, k: int) -> int:
    """The node of the k-th copy (from 0) in order."""
    x = root
    while True:
        before = _weight(nodes, nodes[x, LEFT])
        if k < before:
            x = nodes[x, LEFT]
        elif k < before + nodes[x, COPIES]:
            return x
        else:
            k -= before + nodes[x, COPIES]
            x = nodes[x, RIGHT]


@kernel
def first_nodes(nodes: Ints, root: int, k: int, path: Ints, found: Ints) -> int:
    """Write the first k nodes in order into `found`; gives how many there are."""
    count, depth, x = 0, 0, root
    while count < k and (depth > 0 or x != NONE):
        while x != NONE:
            path[depth] = x
            depth += 1
            x = nodes[x, LEFT]
        depth -= 1
        found[count] = path[depth]
        count += 1
        x = nodes[path[depth], RIGHT]
    return count


class Treaps:
    """The pool: `nodes`, the `roots` by slot, the `free` nodes, and space for a `path`."""

    def __init__(self) -> None:
        self.nodes: Ints = np.zeros((0, NODE_COLUMNS), np.int64)
        self.roots: Ints = np.zeros(0, np.int64)
        self.free: Ints = np.zeros(1, np.int64)
        self.path: Ints = np.zeros(_DEPTH, np.int64)

    def grow(self, slots: int) -> None:
        self.roots = grown(self.roots, slots, fill=NONE)

    def dump(self) -> Tables:
        return {"nodes": self.nodes.copy(), "roots": self.roots.copy(), "free": self.free[: self.free[0] + 1].copy()}

    def restore(self, tables: Tables) -> None:
        self.nodes, self.roots, self.free = (tables["nodes"], tables["roots"], tables["free"])
        self.free = grown(self.free, len(self.nodes) + 1)

    def reserve(self, count: int) -> None:
        """Have `count` free nodes."""
        self.nodes, self.free = reserve_nodes(self.nodes, self.free, count)
