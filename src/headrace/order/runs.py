"""Micro-batches of a query, merged: the runs that its tasks wrote to the partitions of a topic, one after the other.

A run of a micro-batch has a *token*: the offset, in partition 0, of the mark that it begins with. What carries another
one than the newest is left over from a run that failed. A mark in every partition says that a run is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.errors import FlowError, OrderBroken, QueueDamaged
from headrace.order.by_sequence import NEVER, BySequence, Ints
from headrace.order.columns import SEQUENCE, Keys, numbers

BEGIN: Final = -1
END: Final = -2
"""The kinds of marks, in the place of the number of a row."""


@dataclass(frozen=True)
class Piece:
    """Messages of a path next to each other: rows of one run, or a mark (with the number of the micro-batch)."""

    token: int
    mark: int
    batch: int
    numbers: Ints
    rows: pa.RecordBatch
    after: int
    """The offset behind it."""


@dataclass(frozen=True)
class Done:
    """The last sequence that has left; the last complete micro-batch, and the highest sequence that it had."""

    released: int = NEVER
    batch: int | None = None
    highest: int = NEVER


class PathsMerge:
    """Decides what can leave: pieces in, rows in order out. It knows no Kafka."""

    def __init__(self, paths: list[str], done: Done, offsets: list[int]):
        self.done, self.dropped = done, 0
        self.offsets = offsets
        """Behind the last complete micro-batch: where to read from after a restart."""
        self._ends = [*offsets]
        self._paths, self._token, self._batch = paths, -1, done.batch
        self._clear()
        self._ended: set[int] = set(range(len(paths)))

    def _clear(self) -> None:
        self.merge = BySequence(self._paths, Keys())
        self._next, self._seen = [0] * len(self._paths), [-1] * len(self._paths)
        self._ended = set()
        # A query with a new checkpoint begins at 0 again, and what it reads again is dropped.
        self._follows = self.done.batch is not None and self._batch == self.done.batch + 1
        self._highest = self.done.highest if self._follows else NEVER

    @property
    def held(self) -> int:
        return self.merge.rows

    @property
    def waits_for(self) -> tuple[int, ...]:
        """The paths, by their numbers."""
        return tuple(sorted(self.merge.last)) if self.merge.rows else ()

    @property
    def is_complete(self) -> bool:
        """Has all of the micro-batch come?"""
        return len(self._ended) == len(self._paths)

    def take(self, at: int, piece: Piece) -> bool:
        """False where its turn has not come: then keep it, and what follows it."""
        if piece.mark == BEGIN:
            return self._begin(piece)
        if piece.token == self._token and at not in self._ended:
            if piece.mark == END:
                self._end(at, piece)
            else:
                self._push(at, piece)
        # In partition 0 a run begins with its mark: what has none there is left over from before.
        return at == 0 or piece.token <= self._token

    def _begin(self, piece: Piece) -> bool:
        if self.is_complete and self.merge.rows:
            return False  # these leave first
        if self._batch is not None and piece.batch > self._batch:
            if piece.batch > self._batch + 1 or 0 not in self._ended:
                raise FlowError(
                    f"{self._paths[0]}: micro-batch {piece.batch} begins, and {self._batch} is not complete, so two "
                    f"queries write to these paths; stop both, delete the topic, and start one with a new checkpoint: "
                    f"what has left does not leave again"
                )
            if not self.is_complete:
                return False  # a query begins it when the one before is written: the rest will come
        # Else it is run again: what is left of the other run is not wanted.
        self.dropped += self.merge.rows
        self._token, self._batch = piece.token, piece.batch
        self._clear()
        return True

    def _end(self, at: int, piece: Piece) -> None:
        if self._seen[at] >= self._next[at]:
            raise QueueDamaged(self._paths[at], f"row {self._next[at]} of micro-batch {self._batch} is missing")
        self.merge.end(at)
        self._ended.add(at)
        self._ends[at] = piece.after
        if self.is_complete:
            self.offsets = [*self._ends]
            self.done = replace(self.done, batch=self._batch, highest=self._highest)

    def _push(self, at: int, piece: Piece) -> None:
        self._seen[at] = max(self._seen[at], int(piece.numbers.max()))
        turn = _in_turn(piece.numbers, self._next[at])
        rows = piece.rows if turn is None else piece.rows.take(pa.array(turn, pa.int64()))
        self._next[at] += rows.num_rows
        self.dropped += piece.rows.num_rows - rows.num_rows
        if not rows.num_rows:
            return
        ticks = numbers(rows, SEQUENCE)
        if self._follows and ticks[0] <= self.done.highest:
            had = f"micro-batch {self.done.batch} had {self.done.highest}"
            raise OrderBroken(self._paths[at], f"{ticks[0]} comes after {had}")
        self._highest = max(self._highest, int(ticks[-1]))
        start = int(ticks.searchsorted(self.done.released, "right"))
        if start:
            self.dropped += start
            self.merge.promise(at, int(ticks[start - 1]))
        self.merge.push(at, rows.slice(start))

    def release(self) -> pa.RecordBatch | None:
        rows = self.merge.release()
        if rows is not None:
            ticks = numbers(rows, SEQUENCE)
            if len(twice := np.flatnonzero(np.diff(ticks) <= 0)):
                problem = f"two rows have the sequence {ticks[twice[0]]}, and each must have its own"
                raise OrderBroken(self._paths[0], problem)
            self.done = replace(self.done, released=int(ticks[-1]))
        return rows


def _in_turn(found: Ints, expected: int) -> list[int] | None:
    """Where the rows are that come next; None if all do. Tasks that are run again write some twice, and leave gaps."""
    if (found == np.arange(expected, expected + len(found))).all():
        return None
    turn: list[int] = []
    for at, number in enumerate(found.tolist()):
        if number == expected + len(turn):
            turn.append(at)
    return turn
