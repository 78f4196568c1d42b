"""One leaf of the plan at work: a window moves over the reservoir, and its aggregators replay the steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.language import columns_of, format_expr, format_window
from headrace.language.nodes import Infinite, Sliding, Tumbling
from headrace.measure.aggregator import Aggregator, clear_all, dump_all, put_all, restore_all, take_all
from headrace.measure.convert import has_column
from headrace.measure.events import NUMBER_ROW, TIME_ROW, EventEncoder, EventLayout
from headrace.measure.plan import Leaf
from headrace.measure.replay import replay
from headrace.measure.reservoir import EventReservoir, Position
from headrace.measure.residents import Residents
from headrace.measure.steps import (
    ADD,
    COUNTED,
    HEAD,
    HISTORY_FROM,
    HISTORY_TO,
    INFINITE,
    KIND,
    NEVER,
    NUMBER,
    PART_SHIFT,
    REPLAY,
    REWIND,
    SLIDING,
    SLOT,
    SOURCE,
    STEP_SLOT,
    TIME,
    TUMBLING,
    tail_edge,
    write_steps,
)
from headrace.model.jit import Ints
from headrace.state.ragged import Ragged
from headrace.state.tables import Tables

SLICE_EVENTS = 1 << 16
_STEP_ROOM = 1 << 17
_INCOMING_ROWS = 5


@dataclass
class Batch:
    """The rows being answered: their events in the order of arrival, and where the late ones are."""

    events: Ints
    first_number: int
    latest: int
    """The latest of their times."""
    late: Ints
    """Indices of the rows that are late."""

    @property
    def rows(self) -> int:
        return int(self.events.shape[1])


@dataclass
class Stretch:
    """A stretch of the reservoir that an iterator reads, in pieces."""

    reservoir: EventReservoir
    leaf: WindowLeaf
    at: Position
    up_to: int

    def __post_init__(self) -> None:
        self.advance()

    def advance(self) -> None:
        self.events, self.at, self.ends = self.reservoir.slice(self.at, self.up_to, SLICE_EVENTS)
        self.matrix = self.leaf.view(self.events)
        self.read = 0

    @property
    def used_up(self) -> bool:
        return self.read == self.matrix.shape[1] and not self.ends


class WindowLeaf:
    """A time window with the aggregators below it, which all treat late events in the same way."""

    def __init__(self, leaf: Leaf, aggregators: list[Aggregator], encoder: EventEncoder, may_be_late: bool):
        self._leaf = leaf
        self._encoder = encoder
        self.aggregators = aggregators
        self._slot_row = encoder.slot_row(leaf.group_by)
        self._window = _window_of(leaf, aggregators[0])
        self._edges: tuple[int, int, int] = tuple(self._window[:3].tolist())
        self._newest = NEVER
        self._may_be_late = may_be_late
        self.residents: Residents | None = None
        """Where not all groups are in memory: those that are."""
        self.name = leaf_name(leaf, aggregators[0])
        self._steps: Ints = np.zeros((4, _STEP_ROOM), np.int64)

    def dump(self) -> Tables:
        return dump_all(self.aggregators)

    def restore(
        self, tables: Tables, newest: int, aggregators: Sequence[Aggregator], current: Callable[[Ints], Ints]
    ) -> None:
        """These aggregators go on; `newest` is the latest time that was answered."""
        self._newest = newest
        restore_all(aggregators, tables)

    def backfill(
        self, aggregators: Sequence[Aggregator], reservoir: EventReservoir, layouts: Sequence[EventLayout]
    ) -> int | None:
        """Aggregators that are new take what is in the window now.

        Gives the time up to which events are missing for them, None if none are.
        """
        after, up_to = self._tail_edge(self._newest), self._head_edge(self._newest)
        for events in reservoir.between(after, up_to):
            for aggregator in aggregators:
                aggregator.grow(self._encoder.groupings[self._leaf.group_by].slots)
            add_all(np.ascontiguousarray(events), self.view(events), aggregators, self._encoder)
        missing = missing_until(self._leaf, reservoir, layouts)
        return None if missing is None or missing <= after else missing

    # ------------------------------------------------------------------ edges

    def _head_edge(self, t: int) -> int:
        return t - self._edges[2] if t != NEVER else NEVER

    def _tail_edge(self, t: int) -> int:
        return int(tail_edge(t, *self._edges))

    def needed_after(self, earliest: int) -> int:
        """Events up to this time will not be read again, if no event comes with a time before `earliest`."""
        if self._window[0] != INFINITE:
            return self._tail_edge(earliest)
        # To rewind an infinite window takes the events since; to replay it takes all.
        return NEVER if self._may_be_late and self._window[3] == REPLAY else self._head_edge(earliest)

    # ------------------------------------------------------------------- push

    def push(self, batch: Batch, reservoir: EventReservoir) -> None:
        """Answer the rows of the batch; the reservoir holds their events already."""
        slots = (
            self.residents.slots if self.residents is not None else self._encoder.groupings[self._leaf.group_by].slots
        )
        for aggregator in self.aggregators:
            aggregator.begin(batch.rows, slots)
        rows = self._incoming(batch)
        history = self._late_history(batch, reservoir, rows)
        last = max(self._newest, batch.latest)
        # At the very newest time the head has passed only what had arrived; with a delay, or at the tail, all of it.
        undelayed = self._edges[2] == 0
        head_at = reservoir.after(self._head_edge(self._newest), batch.first_number if undelayed else None)
        head = Stretch(reservoir, self, head_at, self._head_edge(last))
        tail = Stretch(reservoir, self, reservoir.after(self._tail_edge(self._newest)), self._tail_edge(last))
        self._write_and_replay(rows, batch.first_number, head, tail, history)

    def _write_and_replay(self, rows: Ints, first_number: int, head: Stretch, tail: Stretch, history: Ints) -> None:
        row, late = 0, self.view(history)
        while row < rows.shape[1]:
            written, row, self._newest, head.read, tail.read = write_steps(
                rows, first_number, row, self._newest, self._window,
                head.matrix, head.read, head.ends, tail.matrix, tail.read, tail.ends, late, self._steps,
            )  # fmt: skip
            replay(self._steps[:, :written], (head.events, tail.events, history), self.aggregators, self._encoder)
            if row == rows.shape[1]:
                return
            if head.used_up:
                head.advance()
            elif tail.used_up:
                tail.advance()
            elif not written:
                self._steps = np.zeros((4, 2 * self._steps.shape[1]), np.int64)

    def view(self, events: Ints) -> Ints:
        """What the window needs to know of events: time, number, slot, whether they count."""
        matrix = np.ones((4, events.shape[1]), np.int64)
        if matrix.shape[1]:
            matrix[TIME] = events[TIME_ROW]
            matrix[NUMBER] = events[NUMBER_ROW]
            matrix[SLOT] = self._slots(events)
            if self._leaf.where is not None:
                matrix[COUNTED] = self._encoder.counted(events, self._leaf.where)
        return matrix

    def _incoming(self, batch: Batch) -> Ints:
        rows = np.zeros((_INCOMING_ROWS, batch.rows), np.int64)
        rows[TIME] = batch.events[TIME_ROW]
        rows[SLOT] = self._slots(batch.events)
        return rows

    def _slots(self, events: Ints) -> Ints:
        """Where the groups of events are in memory."""
        slots = events[self._slot_row]
        return slots if self.residents is None else self.residents.local(slots)

    def take_groups(self, slots: Ints) -> list[Ragged]:
        return take_all(self.aggregators, slots)

    def put_groups(self, slots: Ints, groups: Sequence[Ragged]) -> None:
        put_all(self.aggregators, slots, groups)

    def clear_groups(self) -> None:
        clear_all(self.aggregators)

    # ------------------------------------------------------------------- late

    def _late_history(self, batch: Batch, reservoir: EventReservoir, rows: Ints) -> Ints:
        """The events that late rows need: those of their groups, together by group, each in the order of time.

        Fills in where in it each late row finds its group.
        """
        if not len(batch.late):
            return np.zeros((self._encoder.rows, 0), np.int64)
        own = batch.events[self._slot_row]
        wanted = np.zeros(int(own.max()) + 1, np.bool_)
        wanted[own[batch.late]] = True
        pieces = [np.zeros((self._encoder.rows, 0), np.int64)]
        for after, up_to in self._late_ranges(batch, rows):
            for events in reservoir.between(after, up_to):
                slots = events[self._slot_row]
                known = slots < len(wanted)
                pieces.append(events[:, known & wanted[np.where(known, slots, 0)]])
        history = np.concatenate(pieces, axis=1)
        history = np.ascontiguousarray(history[:, np.argsort(history[self._slot_row], kind="stable")])
        rows[HISTORY_FROM] = np.searchsorted(history[self._slot_row], own, side="left")
        rows[HISTORY_TO] = np.searchsorted(history[self._slot_row], own, side="right")
        return history

    def _late_ranges(self, batch: Batch, rows: Ints) -> list[tuple[int, int]]:
        """Stretches of time, in order and apart: to rewind needs both edges only, to replay all between them."""
        earliest = int(rows[TIME, batch.late].min())
        last = max(self._newest, int(rows[TIME].max()))
        own_tail, own_head = self._tail_edge(earliest), self._head_edge(earliest) - 1
        now_tail, now_head = self._tail_edge(last), self._head_edge(last)
        if self._window[3] == REWIND and self._window[0] == INFINITE:
            return [(own_head, now_head)]
        if self._window[3] == REWIND and now_tail < own_head:
            return [(own_tail, now_tail), (own_head, now_head)]
        return [(own_tail, now_head)]


def leaf_name(leaf: Leaf, aggregator: Aggregator) -> str:
    """What the state of a leaf is called: it stays the same whatever other metrics there are."""
    where = None if leaf.where is None else format_expr(leaf.where)
    said = [format_window(leaf.window), where, list(leaf.group_by), aggregator.late_mode, aggregator.late_keep]
    return json.dumps(said).replace("/", "\\u002f")


def add_all(events: Ints, view: Ints, aggregators: Sequence[Aggregator], encoder: EventEncoder) -> None:
    """Every event that counts enters the window of its group."""
    counted = np.flatnonzero(view[COUNTED])
    steps: Ints = np.full((4, len(counted)), -1, np.int64)
    steps[KIND] = ADD
    steps[STEP_SLOT] = view[SLOT, counted]
    steps[SOURCE] = (HEAD << PART_SHIFT) | counted
    replay(steps, (events, events, events), aggregators, encoder)


def missing_until(leaf: Leaf, reservoir: EventReservoir, layouts: Sequence[EventLayout]) -> int | None:
    """The latest time of an event that is not remembered, or not with all columns that the leaf reads."""
    wanted = set(leaf.group_by)
    for expr in (leaf.where, *(metric.argument for metric in leaf.metrics)):
        wanted.update(columns_of(expr) if expr is not None else ())
    found = [] if reservoir.dropped_until is None else [reservoir.dropped_until]
    for layout, last in reservoir.layout_ends.items():
        if not all(has_column(layouts[layout:], name) for name in wanted):
            found.append(last)
    return max(found, default=None)


def _window_of(leaf: Leaf, aggregator: Aggregator) -> Ints:
    """The window as the kernel takes it: kind, width, delay, late mode, keep."""
    window = leaf.window
    late = (aggregator.late_mode, aggregator.late_keep)
    match window:
        case Sliding():
            return np.array([SLIDING, window.width, window.delay, *late], np.int64)
        case Tumbling():
            return np.array([TUMBLING, window.width, window.delay, *late], np.int64)
        case Infinite():
            return np.array([INFINITE, 0, window.delay, *late], np.int64)
    raise AssertionError(f"{window} is not a window of time")
