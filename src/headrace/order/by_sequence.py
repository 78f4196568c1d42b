"""`BySequence`: inputs that are each in order become one stream in order. Columnar; no record waits for nothing.

An input is a data path. Its *frontier* is a tick up to which all of its records have come: raised by heartbeats, and by
the records themselves, for a path is FIFO. What is at or below the lowest frontier of all is released, in the order of
(tick, source, sequence, part), and of the inputs where these are equal, as they are for copies of one record only.

In a relaxed merge a promise may be broken: somebody has lost patience, and said of an input that it has come further
than it has. A record that then comes late gets the tick after the promise. So the order is a function of what the
inputs hold, promises included, and of nothing else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import OrderBroken
from headrace.order.columns import Keys, numbers, with_numbers

Ints = npt.NDArray[np.int64]
NEVER: Final = -(1 << 63)
ALWAYS: Final = (1 << 63) - 1


@dataclass
class _Held:
    """A batch of which rows from `start` on are still here."""

    batch: pa.RecordBatch
    ticks: Ints
    late: npt.NDArray[np.bool_] | None = None
    start: int = 0


@dataclass
class _Input:
    held: deque[_Held] = field(default_factory=deque)
    rows: int = 0
    size_bytes: int = 0


class BySequence:
    """The merge at work. It keeps what is not released yet, and nothing else."""

    def __init__(self, names: list[str], keys: Keys):
        """`names` are for messages: where each input comes from."""
        self._names, self._keys = names, keys
        self._inputs = [_Input() for _ in names]
        count = len(names)
        self._promised: Ints = np.full(count, NEVER, np.int64)
        """By heartbeats."""
        self._last: Ints = np.full(count, NEVER, np.int64)
        """The tick of the newest row."""
        self._heads: Ints = np.full(count, ALWAYS, np.int64)
        """The tick of the oldest row that is here."""
        self.released: Ints = np.zeros(count, np.int64)
        """How many rows of each input have left."""
        self.inversions = 0
        """How many of them were late."""

    def push(self, at: int, batch: pa.RecordBatch) -> None:
        """Rows of an input. Raises OrderBroken where they are not in order, or were said not to come."""
        ticks, late = numbers(batch, self._keys.tick), None
        if not len(ticks):
            return
        if self._keys.is_relaxed and ticks[0] <= self._promised[at] < ALWAYS:
            late = ticks <= self._promised[at]
            ticks = np.maximum(ticks, self._promised[at] + 1)
            batch = with_numbers(batch, self._keys.tick, ticks)
        first, last = int(ticks[0]), int(ticks[-1])
        steps = np.diff(ticks)
        broken = (steps <= 0).any() if self._keys.is_strict else (steps < 0).any()
        known = int(self._last[at])
        if broken or first < known or (first == known and self._keys.is_strict and known != NEVER):
            where = int(np.flatnonzero(steps <= 0 if self._keys.is_strict else steps < 0)[0]) if broken else -1
            before = int(ticks[where]) if broken else known
            raise OrderBroken(self._names[at], f"{int(ticks[where + 1])} comes after {before}")
        if first <= self._promised[at]:
            raise OrderBroken(
                self._names[at], f"{first} comes after it was said that all up to {int(self._promised[at])} had come"
            )
        mine = self._inputs[at]
        if not mine.held:
            self._heads[at] = first
        mine.held.append(_Held(batch, ticks, late))
        mine.rows += len(ticks)
        mine.size_bytes += batch.nbytes
        self._last[at] = last

    def promise(self, at: int, tick: int) -> None:
        """No more rows with ticks up to this one will come. What is less than was promised before says nothing."""
        self._promised[at] = max(self._promised[at], tick)

    def end(self, at: int) -> None:
        self._promised[at] = ALWAYS

    def go_on(self, at: int, released: int, promised: int) -> None:
        """As it was when so many rows of the input had left."""
        self.released[at], self._promised[at] = released, promised

    @property
    def frontier(self) -> int:
        """All rows with ticks up to here have come."""
        return int(self.frontiers().min())

    @property
    def last(self) -> set[int]:
        """The inputs that all others wait for."""
        frontiers = self.frontiers()
        return set(np.flatnonzero(frontiers == frontiers.min()).tolist())

    def frontiers(self) -> Ints:
        """For each input, the tick up to which all of its rows have come."""
        seen = self._last if self._keys.is_strict else np.where(self._last == NEVER, NEVER, self._last - 1)
        return np.maximum(self._promised, seen)

    def bytes_of(self, at: int) -> int:
        return self._inputs[at].size_bytes

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self._inputs)

    # ----------------------------------------------------------------- release

    def release(self) -> pa.RecordBatch | None:
        """All that can leave, in order; None where nothing can."""
        limit = min(self.frontier, ALWAYS - 1)
        ready = np.flatnonzero(self._heads <= limit)
        if not len(ready):
            return None
        parts: list[pa.RecordBatch] = []
        for at in ready.tolist():
            self._take(at, limit, parts)
        if len(parts) == 1:
            return parts[0]
        joined = pa.concat_batches(parts)
        order = self._order(joined)
        return joined if order is None else joined.take(pa.array(order))

    def _take(self, at: int, limit: int, parts: list[pa.RecordBatch]) -> None:
        mine = self._inputs[at]
        while mine.held:
            held = mine.held[0]
            stop = int(held.ticks.searchsorted(limit, "right"))
            if stop > held.start:
                parts.append(held.batch.slice(held.start, stop - held.start))
                if held.late is not None:
                    self.inversions += int(held.late[held.start : stop].sum())
                mine.rows -= stop - held.start
                self.released[at] += stop - held.start
            if stop < len(held.ticks):
                held.start = stop
                self._heads[at] = held.ticks[stop]
                return
            mine.size_bytes -= held.batch.nbytes
            mine.held.popleft()
        self._heads[at] = ALWAYS

    def _order(self, joined: pa.RecordBatch) -> Ints | None:
        """None where it is in order already."""
        columns = [numbers(joined, name) for name in self._keys.names]
        columns = [columns[0], *(column for column in columns[1:] if column.any())]
        if len(columns) == 1:
            if (np.diff(columns[0]) >= 0).all():
                return None
            return np.argsort(columns[0], kind="stable")
        return np.lexsort(columns[::-1])
