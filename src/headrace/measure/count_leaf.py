"""A leaf whose window is a number of events: each group keeps its own last N, in the order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.language.nodes import LastEvents
from headrace.measure.aggregator import Aggregator, clear_all, dump_all, put_all, restore_all, take_all
from headrace.measure.events import NUMBER_ROW, TIME_ROW, EventEncoder, EventLayout
from headrace.measure.leaf import Batch, add_all, leaf_name, missing_until
from headrace.measure.plan import Leaf
from headrace.measure.queue import (
    FIRST_FREE,
    GIVEN_BACK,
    NONE,
    no_free_nodes,
    pool_in_use,
    reserve_nodes,
    take_node,
)
from headrace.measure.replay import replay
from headrace.measure.reservoir import EventReservoir
from headrace.measure.residents import Residents
from headrace.measure.steps import (
    ADD,
    ANSWER,
    HEAD,
    KIND,
    NEVER,
    PART_SHIFT,
    REMOVE,
    ROW,
    SLOT,
    SOURCE,
    STEP_SLOT,
    TAIL,
)
from headrace.model.jit import Ints, grown, kernel
from headrace.model.ticks import FARTHEST
from headrace.state.ragged import Ragged, reach
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
                steps[KIND, at] = REMOVE
                steps[STEP_SLOT, at] = s
                steps[SOURCE, at] = (TAIL << PART_SHIFT) | left
                steps[ROW, at] = -1
                at += 1
                leaving[left] = oldest
                left += 1
        steps[KIND, at] = ANSWER
        steps[STEP_SLOT, at] = s
        steps[SOURCE, at] = -1
        steps[ROW, at] = row
        at += 1
    return at, left


@kernel
def _take_nodes(groups: Ints, after: Ints, slots: Ints, taken: Ints) -> None:
    """The nodes of these groups, one group after the other, each from the oldest to the newest."""
    at = 0
    for i in range(len(slots)):
        node = groups[slots[i], _OLDEST]
        for _ in range(groups[slots[i], _SIZE]):
            taken[at] = node
            at += 1
            node = after[node, 0]


@kernel
def _put_nodes(groups: Ints, after: Ints, free: Ints, slots: Ints, sizes: Ints, put: Ints) -> None:
    """Chain as many new nodes to each group as `sizes` says."""
    at = 0
    for i in range(len(slots)):
        for _ in range(sizes[i]):
            node = take_node(free)
            put[at] = node
            at += 1
            after[node, 0] = NONE
            if groups[slots[i], _SIZE] == 0:
                groups[slots[i], _OLDEST] = node
            else:
                after[groups[slots[i], _NEWEST], 0] = node
            groups[slots[i], _NEWEST] = node
            groups[slots[i], _SIZE] += 1


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
        self.residents: Residents | None = None
        # Which slots a past event was in is not asked again, and slots change when a group moves.
        slot_rows = [encoder.slot_row(group_by) for group_by in encoder.groupings]
        self._kept_rows: Ints = np.setdiff1d(np.arange(encoder.rows), slot_rows)
        self._clear_events()

    def _clear_events(self) -> None:
        self._groups: Ints = np.zeros((0, 3), np.int64)
        self._after: Ints = np.zeros((0, 1), np.int64)
        self._free: Ints = no_free_nodes()
        self._pool: Ints = np.zeros((0, self._encoder.rows), np.int64)
        self._slots = 0

    def dump(self) -> Tables:
        after, free = pool_in_use(self._after, self._free)
        groups, pool = self._groups[: self._slots], self._pool[: len(after)]
        return {"groups": groups, "after": after, "free": free, "pool": pool, **dump_all(self.aggregators)}

    def restore(
        self, tables: Tables, newest: int, aggregators: Sequence[Aggregator], current: Callable[[Ints], Ints]
    ) -> None:
        """These aggregators go on; `current` reads events as they were kept."""
        if "pool" not in tables:
            return
        self._groups, self._after = tables["groups"], tables["after"]
        self._pool = np.ascontiguousarray(current(np.ascontiguousarray(tables["pool"].T)).T)
        self._slots = len(self._groups)
        self._free = grown(tables["free"], len(self._after) + FIRST_FREE)
        restore_all(aggregators, tables)

    def backfill(
        self, aggregators: Sequence[Aggregator], reservoir: EventReservoir, layouts: Sequence[EventLayout]
    ) -> int | None:
        """Aggregators that are new take the last events, which are in the pool, or else in the reservoir.

        Gives the time up to which events are missing for them, None if none are.
        """
        if self._slots:
            slots = np.arange(self._slots)
            nodes = np.empty(int(self._groups[:, _SIZE].sum()), np.int64)
            _take_nodes(self._groups, self._after, slots, nodes)
            events, view = np.ascontiguousarray(self._pool[nodes].T), np.ones((4, len(nodes)), np.int64)
            view[SLOT] = np.repeat(slots, self._groups[: self._slots, _SIZE])
            for aggregator in aggregators:
                aggregator.grow(self._slots)
            add_all(events, view, aggregators, self._encoder)
            return None
        found = [events.copy() for events in reservoir.between(NEVER, FARTHEST)]
        if found:
            events = np.concatenate(found, axis=1)
            events = np.ascontiguousarray(events[:, np.argsort(events[NUMBER_ROW])])
            latest = int(events[TIME_ROW].max())
            self.push(Batch(events, int(events[NUMBER_ROW, 0]), latest, np.zeros(0, np.int64)))
        return missing_until(self._leaf, reservoir, layouts)

    def take_groups(self, slots: Ints) -> list[Ragged]:
        """First the last events of each group, from the oldest to the newest; then as each aggregator has it."""
        self._grow(reach(slots))
        sizes = self._groups[slots, _SIZE]
        nodes = np.empty(int(sizes.sum()), np.int64)
        _take_nodes(self._groups, self._after, slots, nodes)
        events = Ragged(sizes * len(self._kept_rows), self._pool[nodes[:, None], self._kept_rows].reshape(-1))
        return [events, *take_all(self.aggregators, slots)]

    def put_groups(self, slots: Ints, groups: Sequence[Ragged]) -> None:
        """Set the state of these slots, which are empty, from what `take_groups` gives."""
        events, *rest = groups
        self._grow(reach(slots))
        sizes = events.lengths // len(self._kept_rows)
        nodes = np.empty(int(sizes.sum()), np.int64)
        self._reserve(len(nodes))
        _put_nodes(self._groups, self._after, self._free, slots, sizes, nodes)
        self._pool[nodes[:, None], self._kept_rows] = events.words.reshape(-1, len(self._kept_rows))
        put_all(self.aggregators, slots, rest)

    def clear_groups(self) -> None:
        """Forget all groups and their events."""
        self._clear_events()
        clear_all(self.aggregators)

    def push(self, batch: Batch) -> None:
        own = batch.events[self._slot_row]
        if self.residents is not None:
            own = self.residents.local(own)
        slots = (
            self.residents.slots if self.residents is not None else self._encoder.groupings[self._leaf.group_by].slots
        )
        self._grow(slots)
        for aggregator in self.aggregators:
            aggregator.begin(batch.rows, slots)
        self._reserve(batch.rows)
        counted = self._encoder.counted(batch.events, self._leaf.where)
        node_of_row, leaving = np.empty(batch.rows, np.int64), np.empty(batch.rows, np.int64)
        steps = np.empty((4, 3 * batch.rows), np.int64)
        written, left = _write_count_steps(
            own, counted, self._limit, self._groups, self._after, self._free,
            node_of_row, leaving, steps,
        )  # fmt: skip
        leaving = leaving[:left]
        entered = node_of_row >= 0
        self._pool[node_of_row[entered]] = batch.events[:, entered].T
        left_events = np.ascontiguousarray(self._pool[leaving].T)
        replay(steps[:, :written], (batch.events, left_events, batch.events), self.aggregators, self._encoder)
        first = FIRST_FREE + int(self._free[GIVEN_BACK])
        self._free[first : first + left] = leaving
        self._free[GIVEN_BACK] += left

    def _grow(self, slots: int) -> None:
        self._groups, self._slots = grown(self._groups, slots), max(self._slots, slots)

    def _reserve(self, count: int) -> None:
        self._after, self._free = reserve_nodes(self._after, self._free, count)
        self._pool = grown(self._pool, len(self._after))
