"""What a window does to its groups, as a list of steps that every aggregator below it replays.

For every event a window moves its head (events come in), its tail (events go out) and then answers. That is
decided once for each (window, filter, grouping) and written down; the aggregators are loops over the list.

An event is *late* if one with a later time came before it. It is answered at its own time over what has arrived.
Two ways, chosen by what the aggregators can do:

- `REWIND`: take the events after its window out of its group, put those back that have left since, answer, undo.
  It costs what has moved since; it is for aggregators that do not care for order.
- `REPLAY`: build its window anew in a slot that belongs to no group. It costs the window of the group.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from headrace.model.jit import Flags, Ints, kernel

ADD = 0  # the event is the newest of its group's window
INSERT = 1  # the event is late and takes its place in time
REMOVE = 2  # the event is the oldest of its group's window
ANSWER = 3  # write the group's result into the row

SCRATCH_SLOT = 0
"""Belongs to no group: late windows are replayed in it, and it is empty between any two rows."""

SLIDING, TUMBLING, INFINITE = 0, 1, 2
REWIND, REPLAY = 0, 1

NEVER = -(1 << 62)
"""Before every event."""

# Rows of a matrix of events, which are its columns, in the order of (time, arrival); the first two are so in all.
TIME, NUMBER, SLOT, COUNTED = 0, 1, 2, 3
# Rows of a matrix of incoming events (TIME and SLOT as above) and where the history of a late one lies.
HISTORY_FROM, HISTORY_TO = 3, 4
# Rows of the step matrix.
KIND, STEP_SLOT, SOURCE, ROW = 0, 1, 2, 3
# Sources: which matrix an event is in, and where.
HEAD, TAIL, LATE = 0, 1, 2
PART_SHIFT = 48


class Steps:
    """One list of steps, with the time and the arrival number of the event that each is about, for who asks."""

    def __init__(self, written: Ints, parts: tuple[Ints, Ints, Ints]):
        """`parts` are the event matrices that the sources of the steps point into."""
        self.kind, self.slot, self.source, self.row = written
        self._parts = parts

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def time(self) -> Ints:
        return self.gathered(TIME)

    @cached_property
    def number(self) -> Ints:
        return self.gathered(NUMBER)

    def gathered(self, column: int) -> Ints:
        """One row of the event matrices."""
        return gather(column, self.source, *self._parts)

    def argument(self, column: int, flag_row: int, flag: int) -> tuple[Ints, Flags]:
        """The words of a row of the event matrices, and where a flag is set."""
        word, valid = np.empty(len(self.source), np.int64), np.empty(len(self.source), np.uint8)
        _gather_flagged(column, flag_row, flag, self.source, *self._parts, word, valid)
        return word, valid


@kernel
def tail_edge(t: int, kind: int, width: int, delay: int) -> int:
    """Events up to and including this time are behind the window of an event at t."""
    if t == NEVER or kind == INFINITE:
        return NEVER
    if kind == SLIDING:
        return t - delay - width
    return ((t - delay) // width) * width - 1


@kernel
def _after(times: Ints, start: int, end: int, edge: int) -> int:
    """The first position in start … end whose time is past the edge."""
    while start < end:
        middle = (start + end) // 2
        if times[middle] <= edge:
            start = middle + 1
        else:
            end = middle
    return start


@kernel
def _write(steps: Ints, at: int, kind: int, slot: int, source: int, row: int) -> int:
    steps[KIND, at] = kind
    steps[STEP_SLOT, at] = slot
    steps[SOURCE, at] = source
    steps[ROW, at] = row
    return at + 1


@kernel
def _write_span(steps: Ints, at: int, kind: int, slot: int, late: Ints, first: int, last: int, number: int) -> int:
    """One step for every counted event in first … last that arrived no later than `number`."""
    for i in range(first, last):
        if late[COUNTED, i] and late[NUMBER, i] <= number:
            at = _write(steps, at, kind, slot, (LATE << PART_SHIFT) | i, -1)
    return at


@kernel
def _kept(late: Ints, first: int, last: int, number: int, keep: int) -> tuple[int, int]:
    """The part of first … last with the newest `keep` (or the oldest `-keep`) arrived, counted events; 0 keeps all."""
    left = abs(keep)
    if keep > 0:
        i = last
        while i > first and left > 0:
            i -= 1
            left -= late[COUNTED, i] != 0 and late[NUMBER, i] <= number
        return i, last
    if keep < 0:
        i = first
        while i < last and left > 0:
            left -= late[COUNTED, i] != 0 and late[NUMBER, i] <= number
            i += 1
        return first, i
    return first, last


@kernel
def _own(late: Ints, first: int, last: int, t: int, number: int) -> int:
    """Where event `number` at time t is."""
    start, end = _after(late[TIME], first, last, t - 1), last
    while start < end:
        middle = (start + end) // 2
        if late[TIME, middle] == t and late[NUMBER, middle] < number:
            start = middle + 1
        else:
            end = middle
    return start


@kernel
def _write_late(steps: Ints, at: int, row: int, rows: Ints, number: int, newest: int, window: Ints, late: Ints) -> int:
    """The steps of a late event, or -1 where there is no room for them."""
    kind, width, delay, mode, keep = window[0], window[1], window[2], window[3], window[4]
    t, slot = rows[TIME, row], rows[SLOT, row]
    first, last = rows[HISTORY_FROM, row], rows[HISTORY_TO, row]
    times = late[TIME]
    own_from = _after(times, first, last, tail_edge(t, kind, width, delay))
    own_to = _after(times, first, last, t - delay)
    now_from = _after(times, first, last, tail_edge(newest, kind, width, delay))
    now_to = _after(times, first, last, newest - delay)
    if mode == REPLAY:
        own_from, own_to = _kept(late, own_from, own_to, number, keep)
        needed = 2 * (own_to - own_from)
    else:
        needed = 2 * (min(now_from, own_to) - own_from + now_to - max(now_from, own_to))
    if steps.shape[1] - at < needed + 2:
        return -1
    own = _own(late, first, last, t, number)
    if now_from <= own < now_to and late[NUMBER, own] == number and late[COUNTED, own]:
        at = _write(steps, at, INSERT, slot, (LATE << PART_SHIFT) | own, -1)
    if mode == REPLAY:
        at = _write_span(steps, at, ADD, SCRATCH_SLOT, late, own_from, own_to, number)
        at = _write(steps, at, ANSWER, SCRATCH_SLOT, -1, row)
        return _write_span(steps, at, REMOVE, SCRATCH_SLOT, late, own_from, own_to, number)
    left, entered = min(now_from, own_to), max(now_from, own_to)
    at = _write_span(steps, at, REMOVE, slot, late, entered, now_to, number)
    at = _write_span(steps, at, ADD, slot, late, own_from, left, number)
    at = _write(steps, at, ANSWER, slot, -1, row)
    at = _write_span(steps, at, REMOVE, slot, late, own_from, left, number)
    return _write_span(steps, at, ADD, slot, late, entered, now_to, number)


@kernel
def write_steps(
    rows: Ints, first_number: int, row: int, newest: int, window: Ints,
    head: Ints, h: int, head_ends: bool, tail: Ints, o: int, tail_ends: bool, late: Ints, steps: Ints,
) -> tuple[int, int, int, int, int]:  # fmt: skip
    """Go on at `row` until the rows, a part or the space for steps come to an end.

    `window` is (kind, width, delay, late mode, keep). `head` and `tail` are event matrices; one that `ends` holds all
    the events there are, one that does not must be followed by the next when it is used up, and the row tried again.
    Gives (steps written, next row, newest time so far, position in head, position in tail).
    """
    kind, width, delay = window[0], window[1], window[2]
    at, room = 0, steps.shape[1]
    while row < rows.shape[1]:
        t, number = rows[TIME, row], first_number + row
        if t < newest:
            written = _write_late(steps, at, row, rows, number, newest, window, late)
            if written < 0:
                return at, row, newest, h, o
            at = written
            row += 1
            continue
        newest = t
        while h < head.shape[1] and head[TIME, h] <= t - delay and at < room:
            if head[TIME, h] == t and head[NUMBER, h] > number:
                break  # it arrives later at the very same time
            # What has not arrived yet will be late when it does, and is inserted then.
            if head[COUNTED, h] and head[NUMBER, h] <= number:
                at = _write(steps, at, ADD, head[SLOT, h], (HEAD << PART_SHIFT) | h, -1)
            h += 1
        if h == head.shape[1] and not head_ends:
            return at, row, newest, h, o
        edge = tail_edge(t, kind, width, delay)
        while o < tail.shape[1] and tail[TIME, o] <= edge and at < room:
            if tail[COUNTED, o] and tail[NUMBER, o] <= number:
                at = _write(steps, at, REMOVE, tail[SLOT, o], (TAIL << PART_SHIFT) | o, -1)
            o += 1
        if at == room or (o == tail.shape[1] and not tail_ends):
            return at, row, newest, h, o
        at = _write(steps, at, ANSWER, rows[SLOT, row], -1, row)
        row += 1
    return at, row, newest, h, o


@kernel
def gather(column: int, source: Ints, head: Ints, tail: Ints, late: Ints) -> Ints:
    """One row of the three matrices, picked by source."""
    out = np.zeros(len(source), np.int64)
    where = (1 << PART_SHIFT) - 1
    for i in range(len(source)):
        if source[i] >= 0:
            part, at = source[i] >> PART_SHIFT, source[i] & where
            if part == HEAD:
                out[i] = head[column, at]
            elif part == TAIL:
                out[i] = tail[column, at]
            else:
                out[i] = late[column, at]
    return out


@kernel
def _gather_flagged(
    column: int, flag_row: int, flag: int, source: Ints, head: Ints, tail: Ints, late: Ints, word: Ints, valid: Flags
) -> None:
    """`gather` of a row, and of a bit of another one."""
    where = (1 << PART_SHIFT) - 1
    for i in range(len(source)):
        word[i], valid[i] = 0, 0
        if source[i] >= 0:
            part, at = source[i] >> PART_SHIFT, source[i] & where
            if part == HEAD:
                word[i], valid[i] = head[column, at], (head[flag_row, at] >> flag) & 1
            elif part == TAIL:
                word[i], valid[i] = tail[column, at], (tail[flag_row, at] >> flag) & 1
            else:
                word[i], valid[i] = late[column, at], (late[flag_row, at] >> flag) & 1
