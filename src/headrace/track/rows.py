"""An index from 64-bit ids to dense rows: what tables of substreams are kept by. Rows of ids that leave are used again.

Ids are never zero: that is no substream.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.model.jit import kernel
from headrace.track.tokens import Words, mixed

Ints = npt.NDArray[np.int64]
_LEAST = 64


@kernel
def find(slots: Any, ids: Any, wanted: Any) -> Any:
    """The row of an id, or -1."""
    mask = np.uint64(len(slots) - 1)
    at = mixed(wanted) & mask
    while True:
        row = slots[at]
        if row == -1:
            return np.int64(-1)
        if row >= 0 and ids[row] == wanted:
            return row
        at = (at + np.uint64(1)) & mask


@kernel
def put(slots: Any, wanted: Any, row: Any) -> Any:
    """An id that is not there yet. Gives whether it took a slot that was empty before."""
    mask = np.uint64(len(slots) - 1)
    at = mixed(wanted) & mask
    while slots[at] >= 0:
        at = (at + np.uint64(1)) & mask
    was = slots[at]
    slots[at] = row
    return was == -1


@kernel
def _rehash(slots: Any, ids: Any, used: Any) -> Any:
    for row in range(used):
        if ids[row] != np.uint64(0):
            put(slots, ids[row], np.int64(row))


@kernel
def _drop(slots: Any, ids: Any, wanted: Any) -> Any:
    mask = np.uint64(len(slots) - 1)
    at = mixed(wanted) & mask
    while True:
        row = slots[at]
        if row == -1:
            return np.int64(-1)
        if row >= 0 and ids[row] == wanted:
            slots[at] = -2
            ids[row] = np.uint64(0)
            return row
        at = (at + np.uint64(1)) & mask


@kernel
def leave(slots: Any, ids: Any, free: Any, counts: Any, wanted: Any) -> Any:
    """An id leaves. Gives its row, which is free now, or -1."""
    row = _drop(slots, ids, wanted)
    if row >= 0:
        free[counts[1]] = row
        counts[1] += 1
    return row


@kernel
def _find_all(slots: Any, ids: Any, wanted: Any, found: Any) -> None:
    for at in range(len(wanted)):
        found[at] = find(slots, ids, wanted[at])


@kernel
def _drop_all(slots: Any, ids: Any, free: Any, counts: Any, wanted: Any, found: Any) -> None:
    for at in range(len(wanted)):
        found[at] = leave(slots, ids, free, counts, wanted[at])


class RowIndex:
    """`ids[row]` is the id of a row, 0 where the row is free. Kernels take `slots`, `ids`, `free` and `counts`."""

    def __init__(self) -> None:
        self.slots: Ints = np.full(2 * _LEAST, -1, np.int64)
        self.ids: Words = np.zeros(_LEAST, np.uint64)
        self.free: Ints = np.zeros(_LEAST, np.int64)
        """A stack of rows that have left."""
        self.counts: Ints = np.zeros(3, np.int64)
        """Rows ever used; free ones among them; slots that are not empty, with those of rows that have left."""

    def __len__(self) -> int:
        return int(self.counts[0] - self.counts[1])

    @property
    def used(self) -> int:
        """All rows are below it."""
        return int(self.counts[0])

    def reserve(self, more: int) -> int:
        """Room for so many more ids. Gives how many rows there is room for."""
        rows = self.used + more
        if rows > len(self.ids):
            size = max(rows, 2 * len(self.ids))
            self.ids = np.concatenate([self.ids, np.zeros(size - len(self.ids), np.uint64)])
            self.free = np.concatenate([self.free, np.zeros(size - len(self.free), np.int64)])
        if 2 * (int(self.counts[2]) + more) > len(self.slots):
            size = 1 << int(4 * (len(self) + more) - 1).bit_length()
            self.slots = np.full(max(size, 2 * _LEAST), -1, np.int64)
            self.counts[2] = len(self)
            _rehash(self.slots, self.ids, self.used)
        return len(self.ids)

    def rows_of(self, wanted: Words) -> Ints:
        """-1 for ids that are not there."""
        found: Ints = np.empty(len(wanted), np.int64)
        _find_all(self.slots, self.ids, wanted, found)
        return found

    def drop(self, wanted: Words) -> Ints:
        """Ids leave. Gives the rows of those that were there, which are free now."""
        found: Ints = np.empty(len(wanted), np.int64)
        _drop_all(self.slots, self.ids, self.free, self.counts, wanted, found)
        gone: Ints = found[found >= 0]
        return gone

    def live(self) -> Ints:
        """The rows that have an id."""
        found: Ints = np.flatnonzero(self.ids[: self.used])
        return found


@kernel
def row_for(slots: Any, ids: Any, free: Any, counts: Any, wanted: Any) -> Any:
    """The row of an id; a new one (as ~row, below 0) where it is not there. There must be room: `reserve`."""
    row = find(slots, ids, wanted)
    if row >= 0:
        return row
    if counts[1] > 0:
        counts[1] -= 1
        row = free[counts[1]]
    else:
        row = counts[0]
        counts[0] += 1
    ids[row] = wanted
    if put(slots, wanted, row):
        counts[2] += 1
    return ~row


def placed(index: RowIndex, ids: Words) -> Ints:
    """The rows of ids, new ones where they are not there. There must be room: `reserve`."""
    found: Ints = np.empty(len(ids), np.int64)
    _place_all(index.slots, index.ids, index.free, index.counts, ids, found)
    return found


@kernel
def _place_all(slots: Any, ids: Any, free: Any, counts: Any, wanted: Any, found: Any) -> None:
    for at in range(len(wanted)):
        row = row_for(slots, ids, free, counts, wanted[at])
        found[at] = row if row >= 0 else ~row
