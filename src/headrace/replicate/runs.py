"""What a merge gives, and what its inputs hold until then: batches go in, runs of rows come out, by one take."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.model.jit import Ints, kernel

_NO_INPUTS: Final[Ints] = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Run:
    """Rows that leave one after the other, or a beat that is sent on."""

    records: pa.RecordBatch | None = None
    inputs: Ints = field(default_factory=lambda: _NO_INPUTS)
    """For each row, the input that it came from."""
    beat: int | None = None
    """The number of the beat; then there are no records."""


class Shelf:
    """The rows that wait in one input: first in, first out."""

    def __init__(self) -> None:
        self._held: deque[tuple[pa.RecordBatch, int]] = deque()
        self.rows = 0
        self.size_bytes = 0

    def push(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            size = batch.nbytes
            self._held.append((batch, size))
            self.rows += batch.num_rows
            self.size_bytes += size

    def take(self, rows: int) -> list[pa.RecordBatch]:
        """The first so many rows: they must be here."""
        found = []
        self.rows -= rows
        while rows:
            batch, size = self._held.popleft()
            if batch.num_rows > rows:
                leaving = size * rows // batch.num_rows
                self._held.appendleft((batch.slice(rows), size - leaving))
                batch, size = batch.slice(0, rows), leaving
            found.append(batch)
            self.size_bytes -= size
            rows -= batch.num_rows
        return found


def gathered(shelves: Sequence[Shelf], inputs: Ints, beats: Sequence[tuple[int, int]] = ()) -> list[Run]:
    """Take the rows off the shelves: row by row the first of the input that is named.

    `beats` are (row, number): a beat is sent on before that row. There is one run between two beats, and more only
    where the schemas of the rows differ.
    """
    if not len(inputs):
        return [Run(beat=number) for _, number in beats]
    leaving = np.bincount(inputs, minlength=len(shelves))
    pieces = [piece for at in np.flatnonzero(leaving).tolist() for piece in shelves[at].take(int(leaving[at]))]
    places = None
    if int(leaving.max()) < len(inputs):
        places = np.empty(len(inputs), np.int64)
        _place(inputs, np.cumsum(leaving) - leaving, places)
    return list(_cut(_in_order(pieces, places), inputs, deque(beats)))


@kernel
def _place(inputs: Ints, nexts: Ints, places: Ints) -> None:
    """Where each row is when the inputs are laid one after the other."""
    for row in range(len(inputs)):
        at = inputs[row]
        places[row] = nexts[at]
        nexts[at] += 1


def _in_order(pieces: list[pa.RecordBatch], places: Ints | None) -> list[pa.RecordBatch]:
    """All rows, in as few batches as their schemas allow."""
    kinds, schemas = _kinds(pieces)
    if len(schemas) == 1:
        joined = pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)
        return [joined if places is None else joined.take(pa.array(places))]
    of_row = np.repeat(kinds, [piece.num_rows for piece in pieces])
    ordered = of_row if places is None else of_row[places]
    within: Ints = np.empty(len(of_row), np.int64)
    taken = []
    for kind in range(len(schemas)):
        mine = of_row == kind
        within[mine] = np.arange(np.count_nonzero(mine))
        rows = within[mine] if places is None else within[places[ordered == kind]]
        joined = pa.concat_batches([piece for piece, its in zip(pieces, kinds, strict=True) if its == kind])
        taken.append(joined.take(pa.array(rows)))
    bounds = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    found, nexts = [], [0] * len(schemas)
    for first, end in pairwise(bounds):
        kind = int(ordered[first])
        found.append(taken[kind].slice(nexts[kind], end - first))
        nexts[kind] += end - first
    return found


def _kinds(pieces: list[pa.RecordBatch]) -> tuple[list[int], list[pa.Schema]]:
    """For each piece, which of the schemas it has."""
    kinds: list[int] = []
    schemas: list[pa.Schema] = []
    for piece in pieces:
        kind = next((at for at, schema in enumerate(schemas) if schema.equals(piece.schema)), len(schemas))
        if kind == len(schemas):
            schemas.append(piece.schema)
        kinds.append(kind)
    return kinds, schemas


def _cut(batches: list[pa.RecordBatch], inputs: Ints, beats: deque[tuple[int, int]]) -> Iterator[Run]:
    first = 0
    for batch in batches:
        begin, end = first, first + batch.num_rows
        while beats and beats[0][0] < end:
            row, number = beats.popleft()
            if row > first:
                yield Run(batch.slice(first - begin, row - first), inputs[first:row])
                first = row
            yield Run(beat=number)
        yield Run(batch.slice(first - begin), inputs[first:end])
        first = end
    yield from (Run(beat=number) for _, number in beats)


def numbers_where(flags: Sequence[object]) -> list[int]:
    """The inputs of which it is true."""
    return [at for at, flag in enumerate(flags) if flag]
