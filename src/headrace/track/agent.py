"""The agent: hears reports, and says when substreams have started and ended for those who want to know.

A substream has ended at a *point* when its end is promised and nothing of it is on the way to that point. What is on
the way is charged to groups: a group stands for the points that can be reached from there, and is what a point waits
for if it is one of them. So a loop needs no care of its own: all of it leads to the same points.

All that it does depends on the reports alone, in their order. A report counts as a whole.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import SubstreamBroken
from headrace.track import judging
from headrace.track.labels import as_numbers
from headrace.track.local import ALL, NO_TIME, NOTHING
from headrace.track.reports import ID, PRODUCER, numbers_of
from headrace.track.rows import Ints
from headrace.track.sums import Ended, Sums
from headrace.track.terms import Mode, Notice, Told, Tracking
from headrace.track.tokens import Words

_WORD: Final = (1 << 64) - 1


def drop_every(tasks: int) -> int:
    """After so many ended substreams all are told to forget them: the more there are to tell, the more at a time."""
    return max(256, 4 * tasks)


@dataclass
class Memory:
    """All of the state of an agent but its sums."""

    known: Ints
    """By task: the step as of which it has reported."""
    sources: Ints
    """By task: of a source, all labels below which it has promised, its coarse time, and whether it is over."""
    names: dict[int, Any] = field(default_factory=dict)
    ended: Ended = field(default_factory=Ended)
    dropping: list[int] = field(default_factory=list)
    up_to: list[int] = field(default_factory=list)
    over: list[bool] = field(default_factory=list)
    """By point: has it been told that this is all?"""
    count: int = 0
    """How many have ended at all points."""


@dataclass(frozen=True)
class _Taken:
    """Some reports, as far as nobody but the sums has to do with them."""

    broken: int
    """The row that is of an ended substream, or -1."""
    touched: Ints
    points: Ints
    ids: Words
    """What has ended, at which points."""
    gone: Words
    is_over: bool
    """Have all sources ended?"""


class Agent:
    """`take` reports: gives notices, in their order."""

    def __init__(self, tracking: Tracking):
        self.tracking = tracking
        self.sums = Sums(tracking.groups, tracking.counted)
        tasks, points = len(tracking.producers), len(tracking.points)
        sources: Ints = np.full((tasks, 3), NOTHING, np.int64)
        sources[:, 2] = 0
        known: Ints = np.full(tasks, -1, np.int64)
        self.memory = Memory(known, sources, up_to=[NOTHING] * points, over=[False] * points)
        self._is_source = np.isin(np.arange(tasks), tracking.sources)
        # Where nothing is forgotten, what is not open is new.
        inexact = range(tasks) if tracking.mode == Mode.WHENEVER else sorted(tracking.inexact)
        self._is_exact = ~np.isin(np.arange(tasks), np.array(inexact, np.int64))
        self._all_told, self._drop_every = (1 << points) - 1, drop_every(tasks)
        self._points: npt.NDArray[np.bool_] = np.zeros((points, tracking.groups), np.bool_)
        for number, point in enumerate(tracking.points):
            self._points[number, list(point.groups)] = True
        self._starting = [number for number, point in enumerate(tracking.points) if point.starts]
        # Ends in one order are for Python to judge, and starts come before ends: then it is one report at a time.
        self._is_plain = not tracking.consistent and not self._starting
        self._waiting: list[list[Any]] = [[] for _ in tracking.points]
        """By firm point: open substreams, by their labels."""
        self._ranked: list[list[Any]] = [[] for _ in tracking.points]
        """By point: open substreams, by the order in which they are to be told of, where there is one."""

    @property
    def size(self) -> int:
        """About how many rows its state has."""
        return len(self.sums.pairs) + 2 * len(self.sums) + len(self.memory.ended) // 8

    # -------------------------------------------------------------------- take

    def take(self, *reports: pa.RecordBatch) -> list[Notice]:
        """Raises SubstreamBroken where something comes of what has ended."""
        if self._is_plain and len(reports) > 1:
            return self._take(reports)
        return [notice for report in reports for notice in self._take([report])]

    def _take(self, reports: Sequence[pa.RecordBatch]) -> list[Notice]:
        rows, names = self._rows(reports)
        named, started = rows[0][:0, ID].view(np.uint64), dict[int, Any]()
        if names:
            named = rows[0][rows[2], ID].view(np.uint64)
            started = self._named(named, names)
        bounds = np.array([0, *accumulate(report.num_rows for report in reports)], np.int64)
        found, gone, at = list[Notice](), list[int](), 0
        while at < len(reports):
            at, taken = self._summed(bounds, rows, at)
            if taken.broken >= 0:
                raise self._broken(rows, names, taken.broken)
            found += self._told(taken, started)
            gone += taken.gone.tolist()
        for word in gone:
            self.memory.names.pop(word, None)
        if len(named):
            # What was told of again, and has ended long ago.
            for word in named[self.sums.index.rows_of(named) < 0].tolist():
                self.memory.names.pop(word, None)
        return found

    def _rows(self, reports: Sequence[pa.RecordBatch]) -> tuple[tuple[Any, ...], list[Any]]:
        """As kernels want them: numbers, ticks, and which rows have a name; and the names."""
        parts = [numbers_of(report, self.tracking.groups) for report in reports]
        numbers = parts[0] if len(parts) == 1 else np.concatenate(parts)
        numbers.flags.writeable = False  # as of a single one: for kernels it is another type
        ticks: Ints = np.zeros(len(numbers), np.int64)
        is_named: npt.NDArray[np.bool_] = np.zeros(len(numbers), np.bool_)
        names: list[Any] = []
        start = 0
        for report in reports:
            labels, stop = report.column(1), start + report.num_rows
            if labels.null_count < len(labels):
                names += labels.drop_null().to_pylist()
                is_named[start:stop] = labels.is_valid()
                if self.tracking.mode == Mode.RISING:
                    ticks[start:stop] = as_numbers(labels).fill_null(0)
            start = stop
        return (numbers, ticks, is_named), names

    def _named(self, ids: Words, names: list[Any]) -> dict[int, Any]:
        """Those that are new."""
        known, started = self.memory.names, dict[int, Any]()
        for word, name in zip(ids.tolist(), names, strict=True):
            if word not in known:
                known[word] = started[word] = name
        return started

    def _summed(self, bounds: Ints, rows: tuple[Any, ...], at: int) -> tuple[int, _Taken]:
        """The reports from a number on: how far it came, and what there is to do now."""
        sums, count = self.sums, int(bounds[-1] - bounds[at])
        opened, pairs = sums.arrays(count)
        most, points = count + len(sums), len(self._points)
        setting = np.array(
            [
                self.tracking.mode,
                not self.tracking.consistent,
                self._all_told,
                self._drop_every - len(self.memory.dropping),
            ]
        )
        touched: Ints = np.empty(count, np.int64)
        out = (np.empty(most * points, np.int64), np.empty(most * points, np.uint64), np.empty(most, np.uint64))
        results = np.array([0, -1, sums.opened, sums.reports, 0, 0, at, 0], np.int64)
        if not self._is_plain:
            bounds = bounds[: at + 2]
        judging.take_reports(
            bounds, rows, (self.memory.known, self.memory.sources, self._is_source, self._is_exact), opened, pairs,
            self.memory.ended.arrays(most), self._points, sums.counted, setting, touched, out, results,
        )  # fmt: skip
        sums.opened, sums.reports = int(results[judging.OPENED]), int(results[judging.REPORTS])
        told = slice(int(results[judging.ENDED]))
        return int(results[judging.NEXT]), _Taken(
            int(results[judging.BROKEN]), touched[: results[judging.TOUCHED]], out[0][told], out[1][told],
            out[2][: results[judging.GONE]], bool(results[judging.OVER]),
        )  # fmt: skip

    def _broken(self, rows: tuple[Any, ...], names: list[Any], at: int) -> SubstreamBroken:
        numbers, _, is_named = rows
        word, task = int(numbers[at, ID]), self.tracking.producers[int(numbers[at, PRODUCER])]
        found = [name for name, each in zip(names, numbers[is_named, ID].tolist(), strict=True) if each == word]
        label = repr(found[0]) if found else f"with id {word & _WORD:x}"
        is_open = self.sums.index.rows_of(np.array([word], np.int64).view(np.uint64))[0] >= 0
        after = (
            "the one that closed it; let the last one close it"
            if is_open
            else "the end of it was told: it is of a source that had closed it, or was given at that end by a stage "
            "whose output comes back to it, in a loop"
        )
        return SubstreamBroken(task, f"a record of substream {label} came after {after}")

    # ------------------------------------------------------------------- judge

    def _told(self, taken: _Taken, started: dict[int, Any]) -> Iterator[Notice]:
        """Notices of what was taken."""
        if started and not self._is_plain:
            yield from self._begun(started, taken)
        for number in range(len(self._points)) if len(taken.ids) else ():
            ids = taken.ids[taken.points == number]
            if len(ids):
                yield self._ended(number, ids)
        gone = taken.gone
        if self.tracking.consistent:
            self._rank(taken.touched)
            for number in range(len(self._points)):
                yield from self._next_in_order(number)
            for number, point in enumerate(self.tracking.points):
                if point.is_firm:
                    yield from self._up_to(number)
            gone = self._forget()
        yield from self._dropped(gone)
        if taken.is_over and not all(self.memory.over):
            yield from self._over()

    def _begun(self, started: dict[int, Any], taken: _Taken) -> Iterator[Notice]:
        """What a report named first; what is not open, and has not just ended, was told of again."""
        words = np.array(list(started), np.uint64)
        is_new = (self.sums.index.rows_of(words) >= 0) | np.isin(words, taken.gone)
        names = [name for name, new in zip(started.values(), is_new.tolist(), strict=True) if new]
        if names:
            for number in self._starting:
                yield Notice(number, Told.STARTED, words[is_new].tolist(), names)

    def _ended(self, number: int, ids: Words) -> Notice:
        words = ids.tolist()
        return Notice(number, Told.ENDED, words, [self.memory.names.get(word) for word in words])

    def _dropped(self, gone: Words) -> Iterator[Notice]:
        """What has ended for all is to be forgotten by all, many at a time."""
        memory = self.memory
        memory.dropping.extend(gone.tolist())
        memory.count += len(gone)
        if len(memory.dropping) >= self._drop_every:
            dropping, memory.dropping = memory.dropping, []
            yield Notice(-1, Told.GONE, dropping, [None] * len(dropping))

    def _over(self) -> Iterator[Notice]:
        rows = self.sums.index.live()
        for number in range(len(self._points)):
            if not self.memory.over[number]:
                is_empty = not self.sums.words[rows][:, self._points[number]].any()
                told = (self.sums.numbers[rows, 3] >> number) & 1 == 1
                if is_empty and (self.tracking.mode == Mode.WHENEVER or told.all()):
                    self.memory.over[number] = True
                    yield Notice(number, Told.OVER)

    def _below(self) -> int:
        sources = self.memory.sources[self._is_source]
        return int(sources[sources[:, 2] == 0, 0].min(initial=ALL))

    # ------------------------------------------------------------------ in order

    def _rank(self, rows: Ints) -> None:
        """Ends are told in one order: by the label where they rise; or by the coarse time, then by name."""
        by_label = self.tracking.mode == Mode.RISING
        for row in rows.tolist():
            word, numbers = int(self.sums.index.ids[row]), self.sums.numbers[row]
            if word not in self.memory.names:
                continue
            name, coarse = self.memory.names[word], int(numbers[0])
            if by_label and not numbers[judging.RANKED]:
                numbers[judging.RANKED] = 1
                self._rise(word, int(numbers[judging.TICK]))
            elif not by_label and coarse != NO_TIME:
                # Within one step of the clock a source knows better: what it told of first began first.
                for ranked in self._ranked:
                    heapq.heappush(ranked, (coarse, int(numbers[5]), _sortable(name), word))

    def _rise(self, word: int, number: int) -> None:
        for point, waiting, ranked in zip(self.tracking.points, self._waiting, self._ranked, strict=True):
            if point.is_firm:
                heapq.heappush(waiting, (number, word))
            heapq.heappush(ranked, (number, 0, "", word))

    def _next_in_order(self, number: int) -> Iterator[Notice]:
        """Nothing with an earlier time may still come, and none of it may be open."""
        ranked, sums = self._ranked[number], self.sums
        sources = self.memory.sources[self._is_source]
        clock = int(sources[sources[:, 2] == 0, 1].min(initial=NO_TIME))
        by_label = self.tracking.mode == Mode.RISING
        while ranked:
            rank, _, _, word = ranked[0]
            row = sums.row_of(word)
            numbers = sums.numbers[row]
            if row < 0 or int(numbers[3]) >> number & 1 or not (by_label or numbers[0] == rank):
                heapq.heappop(ranked)  # it was told, or has another rank by now
            elif (by_label or rank + 1 < clock) and self._is_complete(row, number):
                heapq.heappop(ranked)
                numbers[3] |= 1 << number
                yield self._ended(number, sums.index.ids[[row]])
            else:
                return

    def _is_complete(self, row: int, number: int) -> bool:
        # Of what no source has told yet there must be something on the way.
        is_promised = self.sums.numbers[row, 4] == 1
        return bool(is_promised and judging.is_empty(row, number, self.sums.words, self._points))

    def _up_to(self, number: int) -> Iterator[Notice]:
        """How far all has ended, for a point that holds back what is later."""
        waiting, below = self._waiting[number], self._below()
        while waiting:
            row = self.sums.row_of(waiting[0][1])
            if row >= 0 and not int(self.sums.numbers[row, 3]) >> number & 1:
                below = min(below, waiting[0][0])
                break
            heapq.heappop(waiting)
        if below > self.memory.up_to[number]:
            self.memory.up_to[number] = below
            yield Notice(number, Told.UP_TO, tick=below)

    def _forget(self) -> Words:
        """What has ended at all points. Gives the ids."""
        rows = self.sums.in_order(self.sums.index.live())
        rows = rows[self.sums.numbers[rows, 3] == self._all_told]
        ids: Words = self.sums.index.ids[rows].copy()
        if len(rows):
            judging.forget_all(rows, *self.sums.arrays(0), self.memory.ended.arrays(len(rows)))
        for word in ids.tolist():
            self.memory.names.pop(word, None)
        return ids

    def names_again(self, ids: list[int], names: list[Any], numbers: list[int] | None) -> None:
        """After a restart: the names of the open substreams, and so the order in which they are to be told of."""
        self.memory.names = dict(zip(ids, names, strict=True))
        rows = self.sums.index.rows_of(np.array(ids, np.uint64))
        if numbers is not None:
            self.sums.numbers[rows, judging.TICK], self.sums.numbers[rows, judging.HAS_TICK] = numbers, 1
        if self.tracking.consistent:
            self._rank(rows)

    # ------------------------------------------------------------------ for people

    def why(self, word: int) -> str:
        """What a substream still waits for, in words."""
        row = self.sums.row_of(word)
        if row < 0:
            return "it has ended" if word in self.memory.ended else "nothing of it was seen, or it ended long ago"
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
        sources = [n for n in self.tracking.sources if not self.memory.sources[n, 2]]
        if self.tracking.mode == Mode.EACH_MARKER:
            sources = [n for n in sources if not self.sums.has_promised(word, n)]
        return [self.tracking.producers[n] for n in sources]

    def waits_for(self) -> list[str]:
        """The sources that have not promised all there is, where that is what some substreams wait for."""
        return [self.tracking.producers[n] for n in self.tracking.sources if not self.memory.sources[n, 2]]

    def open_names(self, most: int) -> list[Any]:
        """The substreams that have been open for the longest."""
        rows = self.sums.in_order(self.sums.index.live())[:most]
        return [self.memory.names.get(int(word)) for word in self.sums.index.ids[rows]]


def _sortable(name: Any) -> Any:
    """Names of one type, and in one order with any other."""
    return (type(name).__name__, name)
