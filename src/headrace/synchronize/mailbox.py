"""`ByDependence`: events are let through in order where the order matters, and as they come where it does not.

A *key* is (time, rank): the order of events, the same for everybody. A *lane* is a source of events that comes in the
order of its keys. The frontier of a lane is a key below which all of its events have come: raised by the events
themselves, and by heartbeats. An event may leave when all events before it on lanes that it depends on have left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import OrderBroken

Ints = npt.NDArray[np.int64]
Key: TypeAlias = tuple[int, int]
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
FIRST: Final[Key] = (_LEAST, _LEAST)
LAST: Final[Key] = (_MOST, _MOST)


def after(time: int) -> Key:
    """Behind all events of a time."""
    return (time, _MOST)


@dataclass
class Events:
    """Rows in the order of their keys."""

    batch: pa.RecordBatch
    times: Ints
    ranks: Ints
    tags: Ints
    """The numbers of their implementation tags."""

    def __len__(self) -> int:
        return len(self.times)

    def key(self, row: int) -> Key:
        return int(self.times[row]), int(self.ranks[row])

    def below(self, key: Key) -> int:
        """How many rows are before a key."""
        time, rank = key
        low = int(np.searchsorted(self.times, time, "left"))
        high = int(np.searchsorted(self.times, time, "right"))
        return low if low == high else low + int(np.searchsorted(self.ranks[low:high], rank, "left"))

    def slice(self, start: int, stop: int) -> Events:
        cut = slice(start, stop)
        return Events(self.batch.slice(start, stop - start), self.times[cut], self.ranks[cut], self.tags[cut])

    def take(self, rows: Ints) -> Events:
        return Events(self.batch.take(pa.array(rows)), self.times[rows], self.ranks[rows], self.tags[rows])

    def is_ordered_after(self, key: Key) -> int | None:
        """The first row that is before the one before it, or before the key; None where there is none."""
        times, ranks = self.times, self.ranks
        if len(times) and self.key(0) < key:
            return 0
        if (times[1:] > times[:-1]).all():
            return None
        found = np.flatnonzero((times[1:] < times[:-1]) | ((times[1:] == times[:-1]) & (ranks[1:] < ranks[:-1])))
        return int(found[0]) + 1 if len(found) else None


def merged(parts: Sequence[Events], is_ordered: bool = True) -> Events:
    """Several in one, in the order of keys if that is wanted."""
    if len(parts) == 1:
        return parts[0]
    batch = pa.concat_batches([part.batch for part in parts])
    times = np.concatenate([part.times for part in parts])
    ranks = np.concatenate([part.ranks for part in parts])
    joined = Events(batch, times, ranks, np.concatenate([part.tags for part in parts]))
    return joined.take(np.lexsort((ranks, times))) if is_ordered else joined


class ByDependence:
    """The lanes of one worker."""

    def __init__(self, names: Sequence[str], dependence: npt.NDArray[np.bool_]):
        """`dependence` says for any two lanes whether the order between them matters."""
        self.names = list(names)
        self._near = [
            [other for other in range(len(names)) if other != lane and dependence[lane, other]]
            for lane in range(len(names))
        ]
        self.frontiers: list[Key] = [FIRST] * len(names)
        self._held: list[deque[Events]] = [deque() for _ in names]
        self.rows = 0

    def push(self, lane: int, events: Events) -> None:
        """Raises OrderBroken where a lane goes back."""
        if not len(events):
            return
        frontier = self.frontiers[lane]
        back = events.is_ordered_after(frontier)
        if back is not None:
            before = frontier if back == 0 else events.key(back - 1)
            raise OrderBroken(
                self.names[lane], f"an event of time {events.times[back]} comes after one of time {before[0]}"
            )
        self._held[lane].append(events)
        self.frontiers[lane] = events.key(len(events) - 1)
        self.rows += len(events)

    def complete(self, lane: int, key: Key) -> None:
        """No event below this key will come any more."""
        self.frontiers[lane] = max(self.frontiers[lane], key)

    @property
    def frontier(self) -> Key:
        """All events below have come."""
        return min(self.frontiers, default=LAST)

    @property
    def tags(self) -> Ints:
        """Those of the events that are here."""
        found: Ints = np.concatenate([np.zeros(0, np.int64), *(each.tags for held in self._held for each in held)])
        return np.unique(found)

    def head(self, lane: int) -> Key | None:
        """The first event that is here."""
        return self._held[lane][0].key(0) if self._held[lane] else None

    def first(self) -> Key | None:
        return min((head for head in map(self.head, range(len(self.names))) if head is not None), default=None)

    def next_of(self, lane: int) -> Key:
        """The first event that has not left, or may come."""
        head = self.head(lane)
        return self.frontiers[lane] if head is None else min(head, self.frontiers[lane])

    def limits(self, outer: Sequence[Key]) -> list[Key]:
        """For each lane the key below which its events may leave, where `outer` is what others say of it."""
        limits = list(outer)
        is_new = len(limits) > 1
        while is_new:
            is_new = False
            blocked = [self._blocked(lane, limit) for lane, limit in enumerate(limits)]
            for lane, near in enumerate(self._near):
                least = min((blocked[other] for other in near), default=LAST)
                if least < limits[lane]:
                    limits[lane], is_new = least, True
        return limits

    def _blocked(self, lane: int, limit: Key) -> Key:
        """The first event of a lane that does not leave with this limit, or may come."""
        for events in self._held[lane]:
            count = events.below(limit)
            if count < len(events):
                return events.key(count)
        return self.frontiers[lane]

    def release(self, limits: Sequence[Key]) -> list[Events]:
        """What is below the limits, in order."""
        found: list[Events] = []
        used: list[int] = []
        for lane, limit in enumerate(limits):
            parts = self._taken(lane, limit)
            found += parts
            used += [lane] if parts else []
        self.rows -= sum(map(len, found))
        is_mixed = any(other in self._near[lane] for lane in used for other in used)
        return [merged(found)] if is_mixed else found

    def _taken(self, lane: int, limit: Key) -> list[Events]:
        held, found = self._held[lane], []
        while held and held[0].key(0) < limit:
            count = held[0].below(limit)
            if count == len(held[0]):
                found.append(held.popleft())
            else:
                found.append(held[0].slice(0, count))
                held[0] = held[0].slice(count, len(held[0]))
        return found

    # ------------------------------------------------------------------- state

    def content(self) -> list[Events | None]:
        """For each lane what has not left."""
        return [merged(list(held), is_ordered=False) if held else None for held in self._held]

    def put_back(self, lane: int, events: Events) -> None:
        """As it was: events that have not left."""
        if len(events):
            self._held[lane].appendleft(events)
            self.rows += len(events)
