"""Ordered multisets, one a group, in pooled arrays: the state below median, percentile and topK.

A treap: a search tree by (major, minor) that is a heap by a hash of them, so its shape depends on what is in it only,
never on the order in which it came. Every node knows the weight below it, so the k-th value takes logarithmic time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.measure.keys import compare_codes, mix
from headrace.measure.queue import (
    FIRST_FREE,
    NONE,
    give_node,
    no_free_nodes,
    pool_in_use,
    reserve_nodes,
    take_node,
)
from headrace.model.jit import Bytes, Ints, Word, grown, kernel
from headrace.state.ragged import Ragged, reach
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
def _add_up(nodes: Ints, x: int) -> None:
    nodes[x, WEIGHT] = nodes[x, COPIES] + _weight(nodes, nodes[x, LEFT]) + _weight(nodes, nodes[x, RIGHT])


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
        _add_up(nodes, path[i])


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


@kernel
def _take(nodes: Ints, roots: Ints, path: Ints, slots: Ints, kept: Ints, lengths: Ints, words: Ints) -> int:
    """Write the kept columns of each slot's nodes, in order; gives how many words there are."""
    at = 0
    for i in range(len(slots)):
        before, depth, x = at, 0, roots[slots[i]]
        while depth > 0 or x != NONE:
            while x != NONE:
                path[depth] = x
                depth += 1
                x = nodes[x, LEFT]
            depth -= 1
            node = path[depth]
            for j in range(len(kept)):
                words[at] = nodes[node, kept[j]]
                at += 1
            x = nodes[node, RIGHT]
        lengths[i] = at - before
    return at


@kernel
def _build(nodes: Ints, free: Ints, path: Ints, kept: Ints, words: Ints, at: int, count: int) -> Word:
    """The root of a tree of `count` nodes that come in order: each is hung to the right edge, which is in `path`."""
    depth = 0
    for _ in range(count):
        node = take_node(free)
        nodes[node, MAJOR], nodes[node, MINOR], nodes[node, COPIES] = 0, 0, 1
        for j in range(len(kept)):
            nodes[node, kept[j]] = words[at]
            at += 1
        nodes[node, PRIORITY] = _priority(nodes[node, MAJOR], nodes[node, MINOR])
        below = NONE
        while depth > 0 and nodes[path[depth - 1], PRIORITY] < nodes[node, PRIORITY]:
            depth -= 1
            below = path[depth]
            _add_up(nodes, below)
        nodes[node, LEFT] = below
        nodes[node, RIGHT] = NONE
        if depth > 0:
            nodes[path[depth - 1], RIGHT] = node
        path[depth] = node
        depth += 1
    for i in range(depth - 1, -1, -1):
        _add_up(nodes, path[i])
    return path[0]


@kernel
def _put(
    nodes: Ints, roots: Ints, free: Ints, path: Ints, slots: Ints, kept: Ints, lengths: Ints, words: Ints
) -> None:  # fmt: skip
    at = 0
    for i in range(len(slots)):
        if lengths[i]:
            roots[slots[i]] = _build(nodes, free, path, kept, words, at, lengths[i] // len(kept))
            at += lengths[i]


class Treaps:
    """The pool: `nodes`, the `roots` by slot, the `free` nodes, and space for a `path`."""

    def __init__(self, kept: Sequence[int] = (MAJOR, MINOR, COPIES)) -> None:
        """`kept`: the columns of a node that are not the same in all of them: MAJOR and MINOR 0, COPIES 1."""
        self._kept = np.array(kept, np.int64)
        self.path: Ints = np.zeros(_DEPTH, np.int64)
        self.clear_groups()

    def clear_groups(self) -> None:
        self.nodes: Ints = np.zeros((0, NODE_COLUMNS), np.int64)
        self.roots: Ints = np.zeros(0, np.int64)
        self.free: Ints = no_free_nodes()
        self._slots = 0

    def grow(self, slots: int) -> None:
        self.roots, self._slots = grown(self.roots, slots, fill=NONE), max(self._slots, slots)

    def dump(self) -> Tables:
        used, free = pool_in_use(self.nodes, self.free)
        return {"nodes": used, "roots": self.roots[: self._slots], "free": free}

    def restore(self, tables: Tables) -> None:
        self.nodes, self.roots, self._slots = tables["nodes"], tables["roots"], len(tables["roots"])
        self.free = grown(tables["free"], len(self.nodes) + FIRST_FREE)

    def reserve(self, count: int) -> None:
        """Have `count` free nodes."""
        self.nodes, self.free = reserve_nodes(self.nodes, self.free, count)

    def take_groups(self, slots: Ints) -> Ragged:
        """The kept columns of the nodes of each tree, in order."""
        self.grow(reach(slots))
        roots = self.roots[slots]
        # No more nodes than copies; memory that is not written to is not there.
        most = int(self.nodes[roots[roots != NONE], WEIGHT].sum())
        lengths, words = np.empty(len(slots), np.int64), np.empty(most * len(self._kept), np.int64)
        used = _take(self.nodes, self.roots, self.path, slots, self._kept, lengths, words)
        return Ragged(lengths, words[:used])

    def put_groups(self, slots: Ints, groups: Ragged) -> None:
        self.grow(reach(slots))
        self.reserve(len(groups.words) // len(self._kept))
        _put(self.nodes, self.roots, self.free, self.path, slots, self._kept, groups.lengths, groups.words)
