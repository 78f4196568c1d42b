"""`BySequence`: data paths that are each in order become one stream in order. Columnar; no record waits for nothing.

An input brings the records of one or several paths, mixed; along a path they are in order. The *frontier* of a path is
a tick up to which all of its records have come: raised by heartbeats, and by the records themselves, for it is FIFO.
What is at or below the lowest frontier of all is released, in the order of (tick, source, sequence, part), and of the
inputs where these are equal, as they are for copies of one record only. So at any moment all that has been released is
all that there is up to some tick, which is all that a restart needs to know.

In a relaxed merge a promise may be broken: somebody has lost patience, and said of an input that it has come further
than it has. A record that then comes late gets the tick after the promise. So the order is a function of what the
inputs hold, promises included, and of nothing else.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import OrderBroken, QueueDamaged
from headrace.order.columns import PATH, Keys, numbers, with_numbers

Ints = npt.NDArray[np.int64]
NEVER: Final = -(1 << 63)
ALWAYS: Final = (1 << 63) - 1


@dataclass
class _Held:
    """A batch of which nothing has left, in the order of its ticks."""

    batch: pa.RecordBatch
    ticks: Ints
    late: npt.NDArray[np.bool_] | None
    low: int
    high: int
    size_bytes: int

    def cut(self, at: int) -> tuple[_Held, _Held]:
        """Before a row, and from it on."""
        ticks, late, size = self.ticks, self.late, self.size_bytes * at // len(self.ticks)
        before, after = (None, None) if late is None else (late[:at], late[at:])
        return (
            _Held(self.batch.slice(0, at), ticks[:at], before, self.low, int(ticks[at - 1]), size),
            _Held(self.batch.slice(at), ticks[at:], after, int(ticks[at]), self.high, self.size_bytes - size),
        )


class BySequence:
    """The merge at work. It keeps what is not released yet, and nothing else."""

    def __init__(self, names: list[str], keys: Keys, paths: Sequence[int] | None = None):
        """`names` are for messages: where each input comes from. `paths`: how many it brings, one unless said."""
        self._names, self._keys = names, keys
        widths = [1] * len(names) if paths is None else list(paths)
        self._firsts = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
        self._held: list[deque[_Held]] = [deque() for _ in names]
        self._bytes = [0] * len(names)
        self._promised: Ints = np.full(len(names), NEVER, np.int64)
        """By heartbeats, of all paths of an input."""
        self._last: Ints = np.full(sum(widths), NEVER, np.int64)
        """The tick of the newest row of a path."""
        self._lows: Ints = np.full(len(names), ALWAYS, np.int64)
        """The lowest tick that is here."""
        self.released_to = NEVER
        """All rows with ticks up to here have left."""
        self.inversions = 0
        """How many of them were late."""

    def push(self, at: int, batch: pa.RecordBatch) -> int:
        """Rows of an input; gives the highest of their ticks. What left before a restart does not leave again.

        Raises OrderBroken where a path is not in order, or rows were said not to come.
        """
        ticks, late = numbers(batch, self._keys.tick), None
        if not len(ticks):
            return NEVER
        promised = int(self._promised[at])
        low = int(ticks.min())
        if self._keys.is_relaxed and low <= promised < ALWAYS:
            late = ticks <= promised
            ticks = np.maximum(ticks, promised + 1)
            batch, low = with_numbers(batch, self._keys.tick, ticks), promised + 1
        if low <= promised:
            raise OrderBroken(self._names[at], f"{low} comes after it was said that all up to {promised} had come")
        self._follow(at, batch, ticks)
        if PATH in batch.schema.names:
            batch = batch.drop_columns([PATH])
        held = _sorted(batch, ticks, late)
        if low <= self.released_to < held.high:
            held = held.cut(int(np.searchsorted(held.ticks, self.released_to, "right")))[1]
        if held.high > self.released_to:
            self._held[at].append(held)
            self._bytes[at] += held.size_bytes
            self._lows[at] = min(self._lows[at], held.low)
        return held.high

    def _follow(self, at: int, batch: pa.RecordBatch, ticks: Ints) -> None:
        """The newest tick of each path; along each of them, ticks rise."""
        first, end = int(self._firsts[at]), int(self._firsts[at + 1])
        if end == first + 1:
            paths, ordered = None, ticks
            before = np.concatenate([self._last[first : first + 1], ticks[:-1]])
        else:
            paths = numbers(batch, PATH) + first
            if not first <= int(paths.min()) <= int(paths.max()) < end:
                raise QueueDamaged(
                    self._names[at], f"a record of path {int(paths.max()) - first} came, and there are {end - first}"
                )
            order = np.argsort(paths.astype(np.uint16) if end < 1 << 16 else paths, kind="stable")
            ordered, along = ticks[order], paths[order]
            begins = np.concatenate([[True], along[1:] != along[:-1]])
            before = np.where(begins, self._last[along], np.concatenate([ordered[:1], ordered[:-1]]))
        back = ordered <= before if self._keys.is_strict else ordered < before
        if back.any():
            where = int(np.flatnonzero(back)[0])
            raise OrderBroken(self._names[at], f"{int(ordered[where])} comes after {int(before[where])}")
        if paths is None:
            self._last[first] = ticks[-1]
        else:
            self._last[paths] = ticks  # the last of equal paths stays

    def promise(self, at: int, tick: int) -> bool:
        """No more rows with ticks up to this one will come. False where more was promised before, which holds."""
        goes_on = bool(tick >= self._promised[at])
        self._promised[at] = max(self._promised[at], tick)
        return goes_on

    def end(self, at: int) -> None:
        self._promised[at] = ALWAYS

    def go_on(self, released_to: int, promised: Sequence[int]) -> None:
        """As it was: what has left comes again, and does not count; what was promised holds."""
        self.released_to = released_to
        self._promised[:] = promised

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
        slowest = np.minimum.reduceat(seen, self._firsts[:-1])
        return np.maximum(self._promised, slowest)

    def bytes_of(self, at: int) -> int:
        return self._bytes[at]

    @property
    def rows(self) -> int:
        return sum(len(held.ticks) for held in self._all())

    def _all(self) -> Iterator[_Held]:
        return itertools.chain.from_iterable(self._held)

    # ----------------------------------------------------------------- release

    def release(self) -> pa.RecordBatch | None:
        """All that can leave, in order; None where nothing can."""
        limit = min(self.frontier, ALWAYS - 1)
        self.released_to = max(self.released_to, limit)
        ready = np.flatnonzero(self._lows <= limit)
        if not len(ready):
            return None
        parts: list[pa.RecordBatch] = []
        for at in ready.tolist():
            self._take(at, limit, parts)
        joined = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        order = self._order(joined)
        return joined if order is None else joined.take(pa.array(order))

    def _take(self, at: int, limit: int, parts: list[pa.RecordBatch]) -> None:
        left: deque[_Held] = deque()
        for held in self._held[at]:
            if held.low > limit:
                left.append(held)
                continue
            self._bytes[at] -= held.size_bytes
            if held.high <= limit:
                parts.append(held.batch)
                self.inversions += 0 if held.late is None else int(held.late.sum())
                continue
            leaving, kept = held.cut(int(np.searchsorted(held.ticks, limit, "right")))
            parts.append(leaving.batch)
            self.inversions += 0 if leaving.late is None else int(leaving.late.sum())
            self._bytes[at] += kept.size_bytes
            left.append(kept)
        self._held[at] = left
        self._lows[at] = min((held.low for held in left), default=ALWAYS)

    def _order(self, joined: pa.RecordBatch) -> Ints | None:
        """None where it is in order already."""
        found = [numbers(joined, name) for name in self._keys.names]
        found = [found[0], *(column for column in found[1:] if column.any())]
        if len(found) == 1:
            return None if (np.diff(found[0]) >= 0).all() else np.argsort(found[0], kind="stable")
        return np.lexsort(found[::-1])


def _sorted(batch: pa.RecordBatch, ticks: Ints, late: npt.NDArray[np.bool_] | None) -> _Held:
    """By ticks: a path is in order already, several of them are one after the other."""
    if (ticks[1:] < ticks[:-1]).any():
        order = np.argsort(ticks, kind="stable")
        batch, ticks, late = batch.take(pa.array(order)), ticks[order], None if late is None else late[order]
    return _Held(batch, ticks, late, int(ticks[0]), int(ticks[-1]), batch.nbytes)
