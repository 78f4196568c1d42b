"""The sums of an agent: for each open substream the words of all tasks together, and what each task last said of it.

A report replaces what its task said before, and the sum changes by the difference. What is not newer than the last
report of its task was said before, by an earlier life of the task, and is left aside.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from headrace.model.jit import grown
from headrace.track import judging
from headrace.track.local import NO_TIME
from headrace.track.reports import AT, COARSE, ID, PRODUCER, PROMISED, VALUES
from headrace.track.rows import Ints, RowIndex
from headrace.track.tokens import Words

OPEN_COLUMNS: Final = ("coarse", "order", "promises", "told", "is_promised", "first", "touched")
"""`first` is the step of a source at which it was told of first; `touched` the last report that was of it."""
_COLUMNS: Final = len(OPEN_COLUMNS) + 4
REMEMBERED: Final = 1 << 14
"""How many ended substreams an agent remembers, to tell a record that comes after the end from a new substream.

Where `Tracking.inexact` sources start again, it is also how many may end meanwhile."""


class Ended:
    """The last substreams that ended, by their ids."""

    def __init__(self) -> None:
        self._index = RowIndex()
        self._ring: Words = np.zeros(REMEMBERED, np.uint64)
        self._place: Ints = np.zeros(2, np.int64)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, word: int) -> bool:
        return bool(self._index.rows_of(np.array([word], np.uint64))[0] >= 0)

    @property
    def ids(self) -> Words:
        """From the oldest on."""
        found: Words = np.roll(self._ring, -int(self._place[0]))[: int(self._place[1])]
        return found

    def arrays(self, more: int) -> tuple[Any, ...]:
        """For kernels, with room for so many more."""
        index = self._index
        index.reserve(more)
        return index.slots, index.ids, index.free, index.counts, self._ring, self._place

    def extend(self, ids: Words) -> None:
        judging.remember_all(ids, self.arrays(len(ids)))


class Sums:
    """`numbers[row]` of an open substream: see OPEN_COLUMNS."""

    def __init__(self, groups: int, counted: Collection[int] = ()):
        """`counted`: the groups in which words are added up."""
        self.groups = groups
        self.counted = np.array([group in counted for group in range(groups)], np.bool_)
        self.index = RowIndex()
        self.words: Words = np.zeros((len(self.index.ids), groups), np.uint64)
        self.numbers: Ints = np.zeros((len(self.index.ids), _COLUMNS), np.int64)
        self.pairs = RowIndex()
        self._said: Words = np.zeros((len(self.pairs.ids), groups), np.uint64)
        self._of: Ints = np.zeros((len(self.pairs.ids), 4), np.int64)
        """For each pair: the substream, the task, whether it is a source that promised its end, and the next pair of
        the substream."""
        self.reports = 0
        self.opened = 0
        """How many substreams were ever opened: the order in which they were."""

    def __len__(self) -> int:
        return len(self.index)

    def arrays(self, more: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """For kernels, with room for so many more: of open substreams, and of what tasks said of them."""
        index, pairs = self.index, self.pairs
        size = index.reserve(more)
        self.words, self.numbers = grown(self.words, size), grown(self.numbers, size)
        size = pairs.reserve(more)
        self._said, self._of = grown(self._said, size), grown(self._of, size)
        return (
            (index.slots, index.ids, index.free, index.counts, self.words, self.numbers),
            (pairs.slots, pairs.ids, pairs.free, pairs.counts, self._said, self._of),
        )

    def in_order(self, rows: Ints) -> Ints:
        """Rows in the order in which their substreams were opened: row numbers are another thing after a restart."""
        found: Ints = rows[np.argsort(self.numbers[rows, 1], kind="stable")]
        return found

    def row_of(self, word: int) -> int:
        """-1 where it is not open."""
        return int(self.index.rows_of(np.array([word], np.uint64))[0])

    def has_promised(self, word: int, producer: int) -> bool:
        row = int(self.pairs.rows_of(np.array([judging.pair_of(np.uint64(word), producer)], np.uint64))[0])
        return row >= 0 and bool(self._of[row, 2])

    def of_tasks(self, word: int, producers: int) -> dict[int, list[int]]:
        """What each task last said of a substream."""
        keys = np.array([judging.pair_of(np.uint64(word), producer) for producer in range(producers)], np.uint64)
        rows = self.pairs.rows_of(keys)
        return {task: self._said[row].tolist() for task, row in enumerate(rows.tolist()) if row >= 0}

    # ------------------------------------------------------------------- state

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Open substreams, and what tasks said of them, by their columns."""
        rows, pairs = self.in_order(self.index.live()), self.pairs.live()
        opened = {"id": self.index.ids[rows], **{n: self.numbers[rows, at] for at, n in enumerate(OPEN_COLUMNS)}}
        said = {"id": self._of[pairs, 0], "producer": self._of[pairs, 1], "promised": self._of[pairs, 2]}
        said |= {f"value_{group}": self._said[pairs, group] for group in range(self.groups)}
        return opened, said

    def restore(self, opened: dict[str, Any], said: dict[str, Any]) -> None:
        count = len(said["id"])
        rows: Ints = np.zeros((count, VALUES + self.groups), np.int64)
        rows[:, PRODUCER], rows[:, ID], rows[:, PROMISED] = said["producer"], said["id"], said["promised"]
        rows[:, AT], rows[:, COARSE] = 1, NO_TIME
        for group in range(self.groups):
            rows[:, VALUES + group] = said[f"value_{group}"].view(np.int64)
        rows.flags.writeable = False  # as those of a report: for kernels it is another type
        report = (rows, np.zeros(count, np.int64), np.zeros(count, np.bool_))
        known: Ints = np.zeros(int(said["producer"].max(initial=0)) + 1, np.int64)
        no_tasks = np.zeros(len(known), np.bool_)
        sources = (known, np.zeros((len(known), 3), np.int64), no_tasks, no_tasks)
        judging.take_reports(
            np.array([0, count], np.int64), report, sources, *self.arrays(count), Ended().arrays(0),
            np.zeros((0, self.groups), np.bool_), self.counted, np.zeros(4, np.int64), np.empty(count, np.int64),
            (np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.uint64)),
            np.array([0, -1, 0, 0, 0, 0, 0, 0], np.int64),
        )  # fmt: skip
        found = self.index.rows_of(opened["id"])
        for at, name in enumerate(OPEN_COLUMNS):
            self.numbers[found, at] = opened[name]
        self.reports = int(self.numbers[found, 6].max(initial=0))
