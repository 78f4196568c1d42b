"""A leaf whose window is a number of events: each group keeps its own last N, in the order of arrival."""

from __future__ import annotations

import numpy as np

from headrace.language.nodes import LastEvents
from headrace.measure.aggregator import Aggregator, dump_all, restore_all
from headrace.measure.events import EventEncoder
from headrace.measure.jit import Ints, grown, kernel
from headrace.measure.leaf import Batch, leaf_name
from headrace.measure.plan import Leaf
from headrace.measure.queue import NONE, reserve_nodes, take_node
from headrace.measure.replay import replay
from headrace.measure.steps import (
    ADD,
    ANSWER,
    HEAD,
    KIND,
    PART_SHIFT,
    REMOVE,
    ROW,
    SOURCE,
    STEP_SLOT,
    TAIL,
)
from headrace.state.tables import Tables

# Columns of the group matrix.
_OLDEST, _NEWEST, _SIZE = 0, 1, 2


@kernel
def _write_count_steps(
    slot: Ints,
    counted: Ints,
    limit: int,
    groups: Ints,
    after: Ints,
    free: Ints,
    node_of_row: Ints,
    leaving: Ints,
    steps: Ints,
) -> tuple[int, int]:
    """Gives how many steps there are and how many nodes are leaving. Nodes are free again only after the batch."""
    at, left = 0, 0
    for row in range(len(slot)):
        s = slot[row]
        node_of_row[row] = NONE
        if counted[row]:
            node = take_node(free)
            node_of_row[row] = node
            after[node, 0] = NONE
            if groups[s, _SIZE] == 0:
                groups[s, _OLDEST] = node
            else:
                after[groups[s, _NEWEST], 0] = node
            groups[s, _NEWEST] = node
            groups[s, _SIZE] += 1
            steps[KIND, at] = ADD
            steps[STEP_SLOT, at] = s
            steps[SOURCE, at] = (HEAD << PART_SHIFT) | row
            steps[ROW, at] = -1
            at += 1
            if groups[s, _SIZE] > limit:
                oldest = groups[s, _OLDEST]
                groups[s, _OLDEST] = after[oldest, 0]
                groups[s, _SIZE] -= 1
                leaving[left] = oldest
                left += 1
                steps[KIND, at] = REMOVE
                steps[STEP_SLOT, at] = s
                steps[SOURCE, at] = (TAIL << PART_SHIFT) | oldest
                steps[ROW, at] = -1
                at += 1
        steps[KIND, at] = ANSWER
        steps[STEP_SLOT, at] = s
        steps[SOURCE, at] = -1
        steps[ROW, at] = row
        at += 1
    return at, left


class CountLeaf:
    """The last N counted events of every group are kept in a pool of their own: they may be of any age."""

    def __init__(self, leaf: Leaf, aggregators: list[Aggregator], encoder: EventEncoder):
        assert isinstance(leaf.window, LastEvents)
        self._leaf = leaf
        self._limit = leaf.window.count
        self.aggregators = aggregators
        self._encoder = encoder
        self._slot_row = encoder.slot_row(leaf.group_by)
        self.name = leaf_name(leaf, aggregators[0])
        self._groups: Ints = np.zeros((0, 3), np.int64)
        self._after: Ints = np.zeros((0, 1), np.int64)
        self._free: Ints = np.zeros(1, np.int64)
        self._pool: Ints = np.zeros((encoder.rows, 0), np.int64)

    def dump(self) -> Tables:
        return {
            "groups": self._groups.copy(),
            "after": self._after.copy(),
            "free": self._free[: self._free[0] + 1].copy(),
            "pool": np.ascontiguousarray(self._pool.T),
            **dump_all(self.aggregators),
        }

    def restore(self, tables: Tables) -> None:
        self._groups, self._after = tables["groups"], tables["after"]
        self._free = grown(tables["free"], len(self._after) + 1)
        self._pool = np.ascontiguousarray(tables["pool"].T)
        restore_all(self.aggregators, tables)

    def push(self, batch: Batch) -> None:
        slots = self._encoder.groupings[self._leaf.group_by].slots
        self._groups = grown(self._groups, slots)
        for aggregator in self.aggregators:
            aggregator.begin(batch.rows, slots)
        self._reserve(batch.rows)
        counted = self._encoder.counted(batch.events, self._leaf.where)
        node_of_row, leaving = np.empty(batch.rows, np.int64), np.empty(batch.rows, np.int64)
        steps = np.empty((4, 3 * batch.rows), np.int64)
        written, left = _write_count_steps(
            batch.events[self._slot_row], counted, self._limit, self._groups, self._after, self._free,
            node_of_row, leaving, steps,
        )  # fmt: skip
        entered = node_of_row >= 0
        self._pool[:, node_of_row[entered]] = batch.events[:, entered]
        replay(steps[:, :written], (batch.events, self._pool, batch.events), self.aggregators, self._encoder)
        have = int(self._free[0])
        self._free[have + 1 : have + 1 + left] = leaving[:left]
        self._free[0] = have + left

    def _reserve(self, count: int) -> None:
        self._after, self._free = reserve_nodes(self._after, self._free, count)
        missing = len(self._after) - self._pool.shape[1]
        if missing:
            self._pool = np.concatenate([self._pool, np.zeros((len(self._pool), missing), np.int64)], axis=1)
