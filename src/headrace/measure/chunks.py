"""Chunks of events, and how full ones get into files: packed in the background, many in a file, small files joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.measure.chunk_files import ChunkFiles, chunk_bytes, in_background
from headrace.measure.events import TIME_ROW
from headrace.model.jit import Ints
from headrace.state.store import StoredPart

CLOSURE: Final = 600_000_000
_MOST_IN_TRANSITION: Final = 4
_FILES_TO_JOIN: Final = 8
_LARGE_FILE: Final = 128 << 20
_ENTRY_WORDS: Final = 9


@dataclass
class Chunk:
    """Events in order. `matrix` has spare columns at the end while the chunk is the open one; None if on disk only.

    `size`, `first` and `last` count late events that are kept beside the file.
    """

    serial: int
    matrix: Ints | None
    size: int
    first: int
    last: int
    layout: int
    touched: int = 0
    stored: StoredPart | None = None
    in_file: tuple[int, int, int] = (0, 0, 0)
    """Events, first and last time of what is stored."""
    packing: Future[bytes] | None = None
    loading: Future[Ints] | None = None
    passed: bool = False

    @property
    def events(self) -> Ints:
        assert self.matrix is not None
        return self.matrix[:, : self.size]

    def add_late(self, times: Ints) -> None:
        """Events with these times are kept beside the file."""
        self.size += len(times)
        self.first = min(self.first, int(times.min()))
        self.last = max(self.last, int(times.max()))


def merged(matrix: Ints, late: Ints) -> Ints:
    """Both in the order of time; among equal times the late ones come last, as they came."""
    both = np.concatenate([matrix, late], axis=1)
    return np.ascontiguousarray(both[:, np.argsort(both[TIME_ROW], kind="stable")])


@dataclass
class _Writing:
    """Chunks on their way into a file."""

    chunks: list[Chunk]
    done: Future[tuple[StoredPart, list[StoredPart]]]
    is_old: bool = False


class ChunkWriter:
    """Closes chunks: what is closed is in a file, and its matrix can be forgotten."""

    def __init__(self, files: ChunkFiles, closure: int):
        self.files = files
        self.closure = closure
        self._writing: list[_Writing] = []
        self._whole: dict[str, StoredPart] = {}

    def close(self, chunks: Sequence[Chunk]) -> None:
        """Full chunks are packed in the background: they are in transition until they may leave memory."""
        for chunk in reversed(chunks[:-1]):
            if chunk.stored is None and chunk.packing is None:
                chunk.packing = in_background(chunk_bytes, chunk.events)

    def in_transition(self, chunks: Sequence[Chunk]) -> set[int]:
        """The chunks that late events are likely to come for: those within the closure delay, if they are not many."""
        newest = chunks[-1].last if chunks else 0
        last = [chunk for chunk in chunks[-1 - _MOST_IN_TRANSITION : -1] if newest - chunk.last <= self.closure]
        return {chunk.serial for chunk in last}

    def flush(self, chunks: Sequence[Chunk]) -> None:
        """Begin to write the chunks that are closed; `finish` waits for it. Small files are joined on the way."""
        under_way = {chunk.serial for writing in self._writing for chunk in writing.chunks}
        packed = [chunk for chunk in chunks if chunk.packing is not None and chunk.serial not in under_way]
        small = _small_files(chunks) if not under_way else set()
        joining = [chunk for chunk in chunks if chunk.stored is not None and chunk.stored.file in small]
        if packed or joining:
            self._writing.append(_Writing([*joining, *packed], in_background(self._write, joining, packed)))

    def _write(self, joining: Sequence[Chunk], packed: Sequence[Chunk]) -> tuple[StoredPart, list[StoredPart]]:
        contents = [self.files.read(chunk.stored) for chunk in joining if chunk.stored is not None]
        contents += [chunk.packing.result() for chunk in packed if chunk.packing is not None]
        return self.files.write(contents)

    def finish(self, wait: bool = True) -> None:
        """What is in files now. Without waiting for what has only begun since the last time: it stays in memory."""
        left = []
        for writing in self._writing:
            if wait or writing.is_old or writing.done.done():
                self._take_over(writing)
            else:
                writing.is_old = True
                left.append(writing)
        self._writing = left

    def _take_over(self, writing: _Writing) -> None:
        whole, parts = writing.done.result()
        self._whole[whole.file] = whole
        for chunk, part in zip(writing.chunks, parts, strict=True):
            if chunk.stored is None:
                chunk.in_file = (chunk.size, chunk.first, chunk.last)
            chunk.stored, chunk.packing = part, None

    def index(self, chunks: Sequence[Chunk]) -> tuple[Ints, list[StoredPart]]:
        """Where closed chunks are: rows for `found`, and the files they point to."""
        closed = [chunk for chunk in chunks if chunk.stored is not None]
        numbers = {name: i for i, name in enumerate(dict.fromkeys(c.stored.file for c in closed if c.stored))}
        self._whole = {name: self._whole[name] for name in numbers}
        entries = [_entry(chunk, numbers) for chunk in closed]
        return np.array(entries, np.int64).reshape(-1, _ENTRY_WORDS), list(self._whole.values())

    def found(self, index: Ints, files: Sequence[StoredPart]) -> list[Chunk]:
        """The closed chunks of an index."""
        self._whole = {file.file: file for file in files}
        return [_closed(row, files) for row in index.tolist()]


def _small_files(chunks: Sequence[Chunk]) -> set[str]:
    """The newest files, if there are enough of about the same size: joining them keeps files few."""
    sizes: dict[str, int] = {}
    for chunk in chunks:
        if chunk.stored is not None:
            sizes[chunk.stored.file] = sizes.get(chunk.stored.file, 0) + chunk.stored.size_bytes
    newest = list(sizes.items())[-_FILES_TO_JOIN:]
    if len(newest) < _FILES_TO_JOIN or sum(size for _, size in newest) > _LARGE_FILE:
        return set()
    largest, smallest = max(size for _, size in newest), min(size for _, size in newest)
    return {file for file, _ in newest} if largest < _FILES_TO_JOIN * smallest else set()


def _entry(chunk: Chunk, files: Mapping[str, int]) -> list[int]:
    part = chunk.stored
    assert part is not None
    return [chunk.serial, files[part.file], part.offset, part.size_bytes, part.crc, *chunk.in_file, chunk.layout]


def _closed(row: Sequence[int], files: Sequence[StoredPart]) -> Chunk:
    serial, file, offset, size_bytes, crc, events, first, last, layout = row
    part = StoredPart(files[file].file, offset, size_bytes, crc)
    return Chunk(serial, None, events, first, last, layout, stored=part, in_file=(events, first, last))
