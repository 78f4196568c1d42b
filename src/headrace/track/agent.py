"""The agent: hears reports, and says when substreams have started and ended for those who want to know.

A substream has ended at a *point* when its end is promised and nothing of it is on the way to that point. What is on
the way is charged to groups: a group stands for the points that can be reached from there, and is what a point waits
for if it is one of them. So a loop needs no care of its own: all of it leads to the same points.

All that it does depends on the reports alone, in their order. A report counts as a whole.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import SubstreamBroken
from headrace.track.local import ALL, NO_TIME, NOTHING, as_numbers
from headrace.track.rows import Ints, RowIndex, placed
from headrace.track.sums import Sums
from headrace.track.terms import Mode, Notice, Point, Told, Tracking
from headrace.track.tokens import Words

REMEMBERED: Final = 1 << 14
"""How many ended substreams an agent remembers, to tell a record that comes after the end from a new substream."""
_DROP_EVERY: Final = 256


@dataclass
class _Source:
    """What a source task has said of itself."""

    below: int = NOTHING
    coarse: int = NOTHING
    is_over: bool = False


@dataclass
class Memory:
    """All of the state of an agent but its sums."""

    known: Ints
    sources: dict[int, _Source]
    names: dict[int, Any] = field(default_factory=dict)
    ended: deque[int] = field(default_factory=deque)
    dropping: list[int] = field(default_factory=list)
    up_to: list[int] = field(default_factory=list)
    over: list[bool] = field(default_factory=list)
    """By point: has it been told that this is all?"""
    count: int = 0
    """How many have ended at all points."""


class Agent:
    """`take` a report: gives notices, in their order."""

    def __init__(self, tracking: Tracking):
        self.tracking = tracking
        self.sums = Sums(tracking.groups, tracking.counted)
        sources = {number: _Source() for number in tracking.sources}
        known: Ints = np.full(len(tracking.producers), -1, np.int64)
        points = len(tracking.points)
        self.memory = Memory(known, sources, up_to=[NOTHING] * points, over=[False] * points)
        self.ended = RowIndex()
        self._all_told = (1 << len(tracking.points)) - 1
        self._waiting: list[list[Any]] = [[] for _ in tracking.points]
        """By firm point: open substreams, by their labels."""
        self._ranked: list[list[Any]] = [[] for _ in tracking.points]
        """By point: open substreams, by the order in which they are to be told of, where there is one."""
        self._rising: list[tuple[int, int]] = []
        """Labels that are not promised yet."""

    @property
    def size(self) -> int:
        """About how many rows its state has."""
        return len(self.sums.pairs) + 2 * len(self.sums) + len(self.memory.ended) // 8

    # -------------------------------------------------------------------- take

    def take(self, report: pa.RecordBatch) -> list[Notice]:
        """Raises SubstreamBroken where something comes of what has ended."""
        columns = {name: report.column(name).to_numpy() for name in report.schema.names[:6]}
        is_task = columns["id"] == 0
        rows = {name: values[~is_task] for name, values in columns.items()}
        rows["id"] = rows["id"].view(np.uint64)
        groups = range(self.tracking.groups)
        values = [report.column(f"value_{group}").to_numpy().view(np.uint64)[~is_task] for group in groups]
        rows["values"] = np.ascontiguousarray(np.stack(values, axis=1))
        touched, broken = self.sums.take(rows, self.memory.known, self.ended)
        if broken >= 0:
            raise self._broken(report, rows, broken)
        notices = self._named(report, touched)
        candidates = self._sources_said({name: values[is_task] for name, values in columns.items()}, touched)
        np.maximum.at(self.memory.known, columns["producer"][is_task], columns["at"][is_task])
        return [*notices, *self._judged(candidates)]

    def _broken(self, report: pa.RecordBatch, rows: dict[str, Any], at: int) -> SubstreamBroken:
        word, task = int(rows["id"][at]), self.tracking.producers[int(rows["producer"][at])]
        named = report.filter(pa.array(report.column("id").to_numpy().view(np.uint64) == rows["id"][at]))
        found = named.column("name").drop_null().to_pylist()
        label = repr(found[0]) if found else f"with id {word:x}"
        return SubstreamBroken(task, f"a record of substream {label} came after the end of it was told")

    def _named(self, report: pa.RecordBatch, touched: Ints) -> list[Notice]:
        """Names that are new, and who wants to know of a start."""
        if report.column("name").null_count == report.num_rows:
            self._rank(touched)
            return []
        named = report.filter(report.column("name").is_valid())
        there = self.sums.index.rows_of(named.column("id").to_numpy().view(np.uint64))
        named = named.filter(pa.array(there >= 0)) if (there < 0).any() else named
        ids = named.column("id").to_numpy().view(np.uint64).tolist()
        known, started = self.memory.names, dict[int, Any]()
        numbers = as_numbers(named.column("name")).to_pylist() if self.tracking.mode == Mode.RISING else None
        for at, (word, name) in enumerate(zip(ids, named.column("name").to_pylist(), strict=True)):
            if word not in known:
                known[word] = started[word] = name
                if numbers is not None:
                    self._rise(word, numbers[at])
        self._rank(touched)
        starting = [number for number, point in enumerate(self.tracking.points) if point.starts]
        words, names = list(started), list(started.values())
        return [Notice(number, Told.STARTED, words, names) for number in starting] if started else []

    def _rise(self, word: int, number: int, is_promised: bool = False) -> None:
        """A label that is new: where they rise, that is their order, too."""
        if not is_promised:
            heapq.heappush(self._rising, (number, word))
        for point, waiting, ranked in zip(self.tracking.points, self._waiting, self._ranked, strict=True):
            if point.is_firm:
                heapq.heappush(waiting, (number, word))
            if self.tracking.consistent:
                heapq.heappush(ranked, (number, 0, "", word))

    def _rank(self, rows: Ints) -> None:
        """Where ends are told in one order: by the coarse time, then by name."""
        if not self.tracking.consistent or self.tracking.mode == Mode.RISING:
            return
        for row in rows.tolist():
            word, coarse = int(self.sums.index.ids[row]), int(self.sums.numbers[row, 0])
            if coarse != NO_TIME and word in self.memory.names:
                # Within one step of the clock a source knows better: what it told of first began first.
                first, name = int(self.sums.numbers[row, 5]), _sortable(self.memory.names[word])
                for waiting in self._ranked:
                    heapq.heappush(waiting, (coarse, first, name, word))

    def _sources_said(self, tasks: dict[str, Any], touched: Ints) -> Ints:
        """What sources say of themselves. Gives the rows that may be complete now."""
        was_over, was_below = self._over_count(), self._below()
        for producer, below, coarse, is_over in zip(
            *(tasks[name].tolist() for name in ("producer", "since", "coarse", "promised")), strict=True
        ):
            source = self.memory.sources.get(producer)
            if source is not None:
                source.below, source.coarse = max(source.below, below), max(source.coarse, coarse)
                source.is_over = source.is_over or bool(is_over)
        numbers, mode = self.sums.numbers, self.tracking.mode
        over = self._over_count()
        if mode == Mode.RISING:
            return self._risen(touched) if self._below() > was_below else touched
        if mode == Mode.WHENEVER:
            numbers[touched, 4] = 1
        elif over > was_over and (over == len(self.memory.sources) or mode == Mode.EACH_MARKER):
            touched = self.sums.index.live()
        if over == len(self.memory.sources):
            numbers[touched, 4] = 1
        elif mode == Mode.MARKER:
            numbers[touched, 4] |= numbers[touched, 2] > 0
        elif mode == Mode.EACH_MARKER:
            self._count_promises(touched)
        return touched

    def _count_promises(self, rows: Ints) -> None:
        over = [number for number, source in self.memory.sources.items() if source.is_over]
        for row in rows.tolist():
            word = int(self.sums.index.ids[row])
            ended_without = sum(not self.sums.has_promised(word, number) for number in over)
            if self.sums.numbers[row, 2] + ended_without >= len(self.memory.sources):
                self.sums.numbers[row, 4] = 1

    def _over_count(self) -> int:
        return sum(source.is_over for source in self.memory.sources.values())

    def _below(self) -> int:
        return min((ALL if s.is_over else s.below for s in self.memory.sources.values()), default=ALL)

    def _risen(self, touched: Ints) -> Ints:
        below, words = self._below(), list[int]()
        while self._rising and (self._rising[0][0] < below or below == ALL):
            words.append(heapq.heappop(self._rising)[1])
        rows = self.sums.index.rows_of(np.array(words, np.uint64))
        rows = rows[rows >= 0]
        self.sums.numbers[rows, 4] = 1
        return np.union1d(touched, rows)

    # ------------------------------------------------------------------- judge

    def _judged(self, rows: Ints) -> list[Notice]:
        found: list[Notice] = []
        rows = self.sums.in_order(rows)
        for number, point in enumerate(self.tracking.points):
            if self.tracking.consistent:
                found += self._next_in_order(number, point)
            else:
                found += self._told(number, rows[self._is_complete(rows, number, point)])
        for number, point in enumerate(self.tracking.points):
            if point.is_firm:
                found += self._up_to(number)
        if self.tracking.mode != Mode.WHENEVER:
            found += self._forget(rows)
        if self._over_count() == len(self.memory.sources) and not all(self.memory.over):
            found += self._over()
        return found

    def _over(self) -> Iterator[Notice]:
        rows = self.sums.index.live()
        for number, point in enumerate(self.tracking.points):
            if not self.memory.over[number]:
                is_empty = not self.sums.words[rows][:, list(point.groups)].any()
                told = (self.sums.numbers[rows, 3] >> number) & 1 == 1
                if is_empty and (self.tracking.mode == Mode.WHENEVER or told.all()):
                    self.memory.over[number] = True
                    yield Notice(number, Told.OVER)

    def _is_complete(self, rows: Ints, number: int, point: Point) -> Any:
        numbers = self.sums.numbers[rows]
        is_empty = (self.sums.words[rows][:, list(point.groups)] == 0).all(axis=1)
        # Of what no source has told yet there must be something on the way.
        return is_empty & (numbers[:, 4] == 1) & ((numbers[:, 3] >> number) & 1 == 0)

    def _told(self, number: int, rows: Ints) -> list[Notice]:
        if self.tracking.mode != Mode.WHENEVER:
            self.sums.numbers[rows, 3] |= 1 << number
        if not len(rows):
            return []
        ids = self.sums.index.ids[rows].tolist()
        return [Notice(number, Told.ENDED, ids, [self.memory.names.get(word) for word in ids])]

    def _next_in_order(self, number: int, point: Point) -> Iterator[Notice]:
        """Nothing with an earlier time may still come, and none of it may be open."""
        waiting = self._ranked[number]
        sources = [s for s in self.memory.sources.values() if not s.is_over]
        clock = min((source.coarse for source in sources), default=NO_TIME)
        by_label = self.tracking.mode == Mode.RISING
        while waiting:
            rank, _, _, word = waiting[0]
            row = self.sums.index.rows_of(np.array([word], np.uint64))
            numbers = self.sums.numbers[row[0]]
            if row[0] < 0 or int(numbers[3]) >> number & 1 or not (by_label or numbers[0] == rank):
                heapq.heappop(waiting)  # it was told, or has another rank by now
            elif (by_label or rank + 1 < clock) and self._is_complete(row, number, point)[0]:
                heapq.heappop(waiting)
                yield from self._told(number, row)
            else:
                return

    def _up_to(self, number: int) -> Iterator[Notice]:
        """How far all has ended, for a point that holds back what is later."""
        waiting, below = self._waiting[number], self._below()
        while waiting:
            row = self.sums.index.rows_of(np.array([waiting[0][1]], np.uint64))[0]
            if row >= 0 and not int(self.sums.numbers[row, 3]) >> number & 1:
                below = min(below, waiting[0][0])
                break
            heapq.heappop(waiting)
        if below > self.memory.up_to[number]:
            self.memory.up_to[number] = below
            yield Notice(number, Told.UP_TO, tick=below)

    def _forget(self, rows: Ints) -> Iterator[Notice]:
        memory = self.memory
        if self.tracking.consistent:
            rows = self.sums.in_order(self.sums.index.live())
        gone = rows[self.sums.numbers[rows, 3] == self._all_told]
        if not len(gone):
            return
        ids: Words = self.sums.index.ids[gone].copy()
        self.sums.drop(ids, len(self.tracking.producers))
        words = ids.tolist()
        for word in words:
            memory.names.pop(word, None)
        memory.ended.extend(words)
        memory.dropping.extend(words)
        memory.count += len(ids)
        remember(self.ended, ids)
        old = [memory.ended.popleft() for _ in range(len(memory.ended) - REMEMBERED)]
        if old:
            self.ended.drop(np.array(old, np.uint64))
        if len(memory.dropping) >= _DROP_EVERY:
            dropping, memory.dropping = memory.dropping, []
            yield Notice(-1, Told.GONE, dropping, [None] * len(dropping))

    def names_again(self, ids: list[int], names: list[Any], numbers: list[int] | None) -> None:
        """After a restart: the names of the open substreams, and so the order in which they are to be told of."""
        self.memory.names = dict(zip(ids, names, strict=True))
        rows = self.sums.index.rows_of(np.array(ids, np.uint64))
        for word, number, row in zip(ids, numbers, rows.tolist(), strict=True) if numbers is not None else ():
            self._rise(word, number, bool(self.sums.numbers[row, 4]))
        self._rank(rows)

    # ------------------------------------------------------------------ for people

    def why(self, word: int) -> str:
        """What a substream still waits for, in words."""
        row = int(self.sums.index.rows_of(np.array([word], np.uint64))[0])
        if row < 0:
            ended = self.ended.rows_of(np.array([word], np.uint64))[0] >= 0
            return "it has ended" if ended else "nothing of it was seen, or it ended long ago"
        found = []
        if not self.sums.numbers[row, 4]:
            found.append(f"its end is not promised by {', '.join(self._without_promise(word)) or 'any source'}")
        words = self.sums.words[row]
        found += [
            f"some of it is on the way to {point.name}, or held before it"
            for point in self.tracking.points
            if words[list(point.groups)].any()
        ]
        if not found:
            found.append(
                "it waits for those that began before it" if self.tracking.consistent else "it is about to end"
            )
        said = ", ".join(self.tracking.producers[n] for n in self.sums.of_tasks(word, len(self.tracking.producers)))
        return f"{'; '.join(found)} (it was seen by {said})"

    def _without_promise(self, word: int) -> list[str]:
        sources = [n for n, source in self.memory.sources.items() if not source.is_over]
        if self.tracking.mode == Mode.EACH_MARKER:
            sources = [n for n in sources if not self.sums.has_promised(word, n)]
        return [self.tracking.producers[n] for n in sources]

    def waits_for(self) -> list[str]:
        """The sources that have not promised all there is, where that is what some substreams wait for."""
        return [self.tracking.producers[n] for n, source in self.memory.sources.items() if not source.is_over]

    def open_names(self, most: int) -> list[Any]:
        """The substreams that have been open for the longest."""
        rows = self.sums.in_order(self.sums.index.live())[:most]
        return [self.memory.names.get(int(word)) for word in self.sums.index.ids[rows]]


def remember(index: RowIndex, ids: Words) -> None:
    """Puts ids into an index that has no columns."""
    index.reserve(len(ids))
    placed(index, ids)


def _sortable(name: Any) -> Any:
    """Names of one type, and in one order with any other."""
    return (type(name).__name__, name)
