"""Rows that come in any order, each with the offset of the record that it was made of: what can leave, and when.

A query in Real-Time Mode puts no marks between its rows. So a row leaves at once where all offsets before it have.
Where one is missing, because its row was filtered away or is still on its way, those behind it wait until the query has
committed that offset, and all that was written before the commit has been read: then it does not come any more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.errors import OrderBroken
from headrace.order.by_sequence import NEVER, Ints
from headrace.order.columns import SEQUENCE, numbers
from headrace.order.runs import Done

_TICK, _PLACE, _PATH, _OFFSET, _HASH = range(5)
"""What is known of a row that waits: its sequence, where it is in memory, where it came from, and what it says."""
_ROW_BITS: Final = 24
_REMEMBERED: Final = 1 << 16
"""Of so many rows that have left it is known what they said."""


class OffsetsMerge:
    """Rows in, rows in order out. It knows no Kafka."""

    def __init__(self, paths: list[str], done: Done, offsets: list[int]):
        self.done, self.dropped = done, 0
        self.offsets = offsets
        """Where to read from after a restart: before all that waits."""
        self._paths, self._read = paths, [*offsets]
        self._waiting: Ints = np.zeros((5, 0), np.int64)
        self._batches: dict[int, pa.RecordBatch] = {}
        self._taken = 0
        self._left: Ints = np.zeros((5, 0), np.int64)
        self._committed = NEVER

    @property
    def held(self) -> int:
        return int(self._waiting.shape[1])

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The offset that is missing."""
        return (self.done.released + 1,) if self.held and self.done.released != NEVER else ()

    def take(self, at: int, first: int, rows: pa.RecordBatch, hashes: Ints) -> None:
        """Rows of a path, from an offset of it on. Raises OrderBroken where two that differ have one sequence."""
        self._read[at] = first + rows.num_rows
        new: Ints = np.empty((5, rows.num_rows), np.int64)
        new[_TICK], new[_HASH], new[_PATH] = numbers(rows, SEQUENCE), hashes, at
        new[_PLACE] = np.arange(rows.num_rows) + (self._taken << _ROW_BITS)
        new[_OFFSET] = np.arange(first, first + rows.num_rows)
        self._batches[self._taken] = rows
        self._taken += 1
        is_late = new[_TICK] <= self.done.released
        self._once(np.concatenate([self._left, new[:, is_late]], axis=1), at)
        self.dropped += int(is_late.sum())
        waiting = self._once(np.concatenate([self._waiting, new[:, ~is_late]], axis=1), at)
        self.dropped += self.held + int((~is_late).sum()) - waiting.shape[1]
        self._waiting = waiting

    def _once(self, found: Ints, at: int) -> Ints:
        """In their order, and what comes again left out: Spark's tasks write rows twice where they fail."""
        found = found[:, np.argsort(found[_TICK], kind="stable")]
        is_again = np.zeros(found.shape[1], np.bool_)
        is_again[1:] = found[_TICK, 1:] == found[_TICK, :-1]
        differs = np.flatnonzero(is_again[1:] & (found[_HASH, 1:] != found[_HASH, :-1]))
        if len(differs):
            problem = f"two rows have the sequence {found[_TICK, differs[0]]}, and each must have its own"
            raise OrderBroken(self._paths[at], problem)
        return found[:, ~is_again]

    def commit(self, end: int) -> None:
        """Of the offsets before this one, no row comes that has not come."""
        self._committed = max(self._committed, end)

    def release(self) -> pa.RecordBatch | None:
        ticks = self._waiting[_TICK]
        released = max(self.done.released, self._committed - 1 if self._committed != NEVER else NEVER)
        count = int(ticks.searchsorted(released, "right"))
        if released != NEVER:
            in_turn = ticks[count:] == np.arange(released + 1, released + 1 + len(ticks) - count)
            more = len(in_turn) if in_turn.all() else int(in_turn.argmin())
            count, released = count + more, released + more
        rows = self._gathered(self._waiting[_PLACE, :count]) if count else None
        self._left = np.concatenate([self._left, self._waiting[:, :count]], axis=1)[:, -_REMEMBERED:]
        self._waiting = self._waiting[:, count:]
        self.done = replace(self.done, released=released)
        self._forget()
        return rows

    def _gathered(self, places: Ints) -> pa.RecordBatch:
        wanted, index = np.unique(places >> _ROW_BITS, return_inverse=True)
        batches = [self._batches[each] for each in wanted.tolist()]
        starts = np.concatenate([[0], np.cumsum([batch.num_rows for batch in batches])])
        rows = starts[index] + (places & ((1 << _ROW_BITS) - 1))
        return pa.concat_batches(batches).take(pa.array(rows))

    def _forget(self) -> None:
        """What nothing waits in any more; and where to read from."""
        needed = set(np.unique(self._waiting[_PLACE] >> _ROW_BITS).tolist())
        self._batches = {number: batch for number, batch in self._batches.items() if number in needed}
        offsets = [*self._read]
        for at in range(len(offsets)):
            waiting = self._waiting[_OFFSET, self._waiting[_PATH] == at]
            if len(waiting):
                offsets[at] = int(waiting.min())
        if offsets != self.offsets:
            self.offsets = offsets
