"""How often each value occurs in each group: a hash table from (slot, code) to a count.

Open addressing with deletion by shifting back, so that values that left the window leave no trace.
"""

from __future__ import annotations

import numpy as np

from headrace.measure.keys import mix
from headrace.model.jit import Ints, Word, kernel
from headrace.state.ragged import Ragged, reach
from headrace.state.tables import Tables

# Columns of the table; a count of 0 is a free place.
SLOT, CODE, COUNT = 0, 1, 2


@kernel
def _home(slot: int, code: int, size: int) -> Word:
    return np.int64(mix(np.int64(mix(slot)) ^ code) & np.uint64(size - 1))


@kernel
def find(table: Ints, slot: int, code: int) -> Word:
    """The place of (slot, code), or the free place where it would go."""
    at = _home(slot, code, len(table))
    while table[at, COUNT] and (table[at, SLOT] != slot or table[at, CODE] != code):
        at = (at + 1) & (len(table) - 1)
    return at


@kernel
def raise_count(table: Ints, used: Ints, slot: int, code: int) -> Word:
    """One more of this value; gives how many there were before."""
    at = find(table, slot, code)
    had = table[at, COUNT]
    if had == 0:
        table[at, SLOT] = slot
        table[at, CODE] = code
        used[0] += 1
    table[at, COUNT] = had + 1
    return had


@kernel
def lower_count(table: Ints, used: Ints, slot: int, code: int) -> Word:
    """One less of this value; gives how many there were before."""
    at = find(table, slot, code)
    had = table[at, COUNT]
    table[at, COUNT] = had - 1
    if had > 1:
        return had
    used[0] -= 1
    mask = len(table) - 1
    hole, look = at, (at + 1) & mask
    while table[look, COUNT]:
        home = _home(table[look, SLOT], table[look, CODE], len(table))
        # An entry may move back into the hole only if the hole lies between its home and where it is.
        if ((look - home) & mask) >= ((look - hole) & mask):
            for j in range(3):
                table[hole, j] = table[look, j]
            table[look, COUNT] = 0
            hole = look
        look = (look + 1) & mask
    return had


@kernel
def _move(old: Ints, new: Ints) -> None:
    for i in range(len(old)):
        if old[i, COUNT]:
            at = find(new, old[i, SLOT], old[i, CODE])
            for j in range(3):
                new[at, j] = old[i, j]


@kernel
def _put(table: Ints, slots: Ints, lengths: Ints, words: Ints) -> None:
    at = 0
    for i in range(len(slots)):
        for _ in range(lengths[i] // 2):
            place = find(table, slots[i], words[at])
            table[place, SLOT] = slots[i]
            table[place, CODE] = words[at]
            table[place, COUNT] = words[at + 1]
            at += 2


class Tally:
    """The table and how many places of it are used."""

    def __init__(self) -> None:
        self.clear_groups()

    def clear_groups(self) -> None:
        self.table: Ints = np.zeros((256, 3), np.int64)
        self.used: Ints = np.zeros(1, np.int64)

    def dump(self) -> Tables:
        return {"table": self.table, "used": self.used}

    def restore(self, tables: Tables) -> None:
        self.table, self.used = tables["table"], tables["used"]

    def reserve(self, count: int) -> None:
        """Have room for `count` more values."""
        needed = 2 * (int(self.used[0]) + count)
        if needed > len(self.table):
            bigger = np.zeros((1 << (needed - 1).bit_length(), 3), np.int64)
            _move(self.table, bigger)
            self.table = bigger

    def take_groups(self, slots: Ints) -> Ragged:
        """(code, count) of every value of each slot, by code. It looks at the whole table."""
        place_of = np.full(reach(slots), -1, np.int64)
        place_of[slots] = np.arange(len(slots))
        entries = self.table[self.table[:, COUNT] != 0]
        entries = entries[entries[:, SLOT] < len(place_of)]
        place = place_of[entries[:, SLOT]]
        entries, place = entries[place >= 0], place[place >= 0]
        order = np.lexsort((entries[:, CODE], place))
        lengths = 2 * np.bincount(place, minlength=len(slots)).astype(np.int64)
        return Ragged(lengths, entries[order][:, [CODE, COUNT]].reshape(-1))

    def put_groups(self, slots: Ints, groups: Ragged) -> None:
        values = len(groups.words) // 2
        self.reserve(values)
        _put(self.table, slots, groups.lengths, groups.words)
        self.used[0] += values
