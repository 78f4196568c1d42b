from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.measure.treap import MAJOR, WEIGHT, Treaps, erase, first_nodes, insert, kth

_NO_OFFSETS, _NO_ARENA = np.zeros(1, np.int64), np.zeros(0, np.uint8)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-6, 6), st.booleans()), max_size=120))
def test_behaves_as_sorted_lists(steps: list[tuple[int, int, bool]]) -> None:
    treaps = Treaps()
    treaps.grow(3)
    lists: list[list[int]] = [[], [], []]
    for slot, value, adds in steps:
        treaps.reserve(1)
        if adds:
            insert(treaps.nodes, treaps.roots, treaps.free, treaps.path, slot, value, 0, False, _NO_OFFSETS, _NO_ARENA)
            lists[slot].append(value)
        elif value in lists[slot]:
            erase(treaps.nodes, treaps.roots, treaps.free, slot, value, 0, False, _NO_OFFSETS, _NO_ARENA)
            lists[slot].remove(value)
        for s in range(3):
            check_slot(treaps, s, sorted(lists[s]))


def check_slot(treaps: Treaps, slot: int, expected: list[int]) -> None:
    root = int(treaps.roots[slot])
    if root < 0:
        assert not expected
        return
    assert treaps.nodes[root, WEIGHT] == len(expected)
    assert [int(treaps.nodes[kth(treaps.nodes, root, k), MAJOR]) for k in range(len(expected))] == expected
    found = np.zeros(20, np.int64)
    count = first_nodes(treaps.nodes, root, 20, treaps.path, found)
    assert [int(treaps.nodes[node, MAJOR]) for node in found[:count]] == sorted(Counter(expected))


def test_nodes_are_used_again() -> None:
    treaps = Treaps()
    treaps.grow(1)
    for value in range(10_000):
        treaps.reserve(1)
        insert(treaps.nodes, treaps.roots, treaps.free, treaps.path, 0, value, 0, False, _NO_OFFSETS, _NO_ARENA)
        if value >= 10:
            erase(treaps.nodes, treaps.roots, treaps.free, 0, value - 10, 0, False, _NO_OFFSETS, _NO_ARENA)
    assert len(treaps.nodes) <= 64
