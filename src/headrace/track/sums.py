"""The sums of an agent: for each open substream the words of all tasks together, and what each task last said of it.

A report replaces what its task said before, and the sum changes by the difference. What is not newer than the last
report of its task was said before, by an earlier life of the task, and is left aside.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from headrace.model.jit import kernel
from headrace.track.local import NO_TIME
from headrace.track.rows import Ints, RowIndex, find, row_for
from headrace.track.tokens import Words, mixed

_PRODUCER = np.uint64(0xD6E8FEB86659FD93)
OPEN_COLUMNS: Final = ("coarse", "order", "promises", "told", "is_promised", "first", "touched")
"""`first` is the step of a source at which it was told of first; `touched` the last report that was of it."""


@kernel
def _pair(word: Any, producer: Any) -> Any:
    found = mixed(word ^ mixed(np.uint64(producer) + _PRODUCER))
    return found if found else _PRODUCER


class Sums:
    """`numbers[row]` of an open substream: see OPEN_COLUMNS."""

    def __init__(self, groups: int, counted: Collection[int] = ()):
        """`counted`: the groups in which words are added up."""
        self.groups = groups
        self._counted = np.array([group in counted for group in range(groups)], np.bool_)
        self.index = RowIndex()
        self.words: Words = np.zeros((len(self.index.ids), groups), np.uint64)
        self.numbers: Ints = np.zeros((len(self.index.ids), len(OPEN_COLUMNS)), np.int64)
        self.pairs = RowIndex()
        self._said: Words = np.zeros((len(self.pairs.ids), groups), np.uint64)
        self._of: Ints = np.zeros((len(self.pairs.ids), 3), np.int64)
        """For each pair: the substream, the task, and whether it is a source that promised its end."""
        self.reports = 0
        self.opened = 0
        """How many substreams were ever opened: the order in which they were."""

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: dict[str, Any], known: Ints, ended: RowIndex) -> tuple[Ints, int]:
        """Rows of substreams of a report. Gives the rows that changed here, and the first of the report that is of an
        ended substream, or -1."""
        count = len(rows["id"])
        self._grow(count)
        touched: Ints = np.empty(count, np.int64)
        self.reports += 1
        results: Ints = np.array([0, -1, self.opened, self.reports], np.int64)
        index, pairs = self.index, self.pairs
        _take(
            rows["id"], rows["producer"], rows["at"], rows["since"], rows["coarse"], rows["promised"], rows["values"],
            known, ended.slots, ended.ids, index.slots, index.ids, index.free, index.counts, self.words, self.numbers,
            pairs.slots, pairs.ids, pairs.free, pairs.counts, self._said, self._of, self._counted, touched, results,
        )  # fmt: skip
        self.opened = int(results[2])
        return touched[: results[0]], int(results[1])

    def _grow(self, more: int) -> None:
        size = self.index.reserve(more)
        if size > len(self.words):
            extra = size - len(self.words)
            self.words = np.concatenate([self.words, np.zeros((extra, self.groups), np.uint64)])
            self.numbers = np.concatenate([self.numbers, np.zeros((extra, len(OPEN_COLUMNS)), np.int64)])
        size = self.pairs.reserve(more)
        if size > len(self._said):
            extra = size - len(self._said)
            self._said = np.concatenate([self._said, np.zeros((extra, self.groups), np.uint64)])
            self._of = np.concatenate([self._of, np.zeros((extra, 3), np.int64)])

    def in_order(self, rows: Ints) -> Ints:
        """Rows in the order in which their substreams were opened: row numbers are another thing after a restart."""
        found: Ints = rows[np.argsort(self.numbers[rows, 1], kind="stable")]
        return found

    def has_promised(self, word: int, producer: int) -> bool:
        row = int(self.pairs.rows_of(np.array([_pair(np.uint64(word), producer)], np.uint64))[0])
        return row >= 0 and bool(self._of[row, 2])

    def of_tasks(self, word: int, producers: int) -> dict[int, list[int]]:
        """What each task last said of a substream."""
        keys = np.array([_pair(np.uint64(word), producer) for producer in range(producers)], np.uint64)
        rows = self.pairs.rows_of(keys)
        return {task: self._said[row].tolist() for task, row in enumerate(rows.tolist()) if row >= 0}

    def drop(self, ids: Words, producers: int) -> None:
        """Substreams that have ended."""
        rows = self.index.drop(ids)
        self.words[rows], self.numbers[rows] = 0, 0
        if len(ids):
            keys: Words = np.empty(len(ids) * producers, np.uint64)
            _all_pairs(ids, producers, keys)
            gone = self.pairs.drop(keys)
            self._said[gone], self._of[gone] = 0, 0

    # ------------------------------------------------------------------- state

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Open substreams, and what tasks said of them, by their columns."""
        rows, pairs = self.in_order(self.index.live()), self.pairs.live()
        opened = {"id": self.index.ids[rows], **{n: self.numbers[rows, at] for at, n in enumerate(OPEN_COLUMNS)}}
        said = {"id": self._of[pairs, 0], "producer": self._of[pairs, 1], "promised": self._of[pairs, 2]}
        said |= {f"value_{group}": self._said[pairs, group] for group in range(self.groups)}
        return opened, said

    def restore(self, opened: dict[str, Any], said: dict[str, Any]) -> None:
        everything = {
            "id": said["id"].view(np.uint64), "producer": said["producer"], "promised": said["promised"],
            "values": np.stack([said[f"value_{group}"] for group in range(self.groups)], axis=1),
            "at": np.ones(len(said["id"]), np.int64), "since": np.zeros(len(said["id"]), np.int64),
            "coarse": np.full(len(said["id"]), NO_TIME, np.int64),
        }  # fmt: skip
        producers = int(said["producer"].max(initial=0)) + 1
        self.take(everything, np.zeros(producers, np.int64), RowIndex())
        self._grow(len(opened["id"]))
        rows = self.index.rows_of(opened["id"])
        for at, name in enumerate(OPEN_COLUMNS):
            self.numbers[rows, at] = opened[name]
        self.reports = int(self.numbers[rows, 6].max(initial=self.reports))


@kernel
def _all_pairs(ids: Any, producers: Any, found: Any) -> None:
    at = 0
    for word in ids:
        for producer in range(producers):
            found[at] = _pair(word, producer)
            at += 1


@kernel
def _take(
    words: Any, producer: Any, at: Any, since: Any, coarse: Any, promised: Any, values: Any, known: Any,
    ended_slots: Any, ended_ids: Any, slots: Any, ids: Any, free: Any, counts: Any, sums: Any, numbers: Any,
    pair_slots: Any, pair_ids: Any, pair_free: Any, pair_counts: Any, said: Any, of: Any, counted: Any, touched: Any,
    results: Any,
) -> None:  # fmt: skip
    """`results`: how many rows were touched; the first row of an ended substream; how many were ever opened."""
    for r in range(len(words)):
        task, word = producer[r], words[r]
        if at[r] <= known[task]:
            continue
        if find(ended_slots, ended_ids, word) >= 0:
            # Where it is not certain that this is newer than the last report, it is taken for the same.
            if since[r] >= known[task] and results[1] < 0:
                results[1] = r
            continue
        row = row_for(slots, ids, free, counts, word)
        if row < 0:
            row = ~row
            sums[row, :] = np.uint64(0)
            numbers[row, :] = 0
            numbers[row, 0] = NO_TIME
            numbers[row, 1] = results[2]
            results[2] += 1
        pair = row_for(pair_slots, pair_ids, pair_free, pair_counts, _pair(word, task))
        if pair < 0:
            pair = ~pair
            said[pair, :] = np.uint64(0)
            of[pair, 0], of[pair, 1], of[pair, 2] = np.int64(word), task, 0
        for group in range(values.shape[1]):
            if counted[group]:
                sums[row, group] += values[r, group] - said[pair, group]
            else:
                sums[row, group] ^= said[pair, group] ^ values[r, group]
            said[pair, group] = values[r, group]
        if promised[r] and of[pair, 2] == 0:
            of[pair, 2] = 1
            numbers[row, 2] += 1
        if coarse[r] != NO_TIME and numbers[row, 5] == 0:
            numbers[row, 5] = at[r]
        numbers[row, 0] = min(numbers[row, 0], coarse[r])
        if numbers[row, 6] != results[3]:
            numbers[row, 6] = results[3]
            touched[results[0]] = row
            results[0] += 1
