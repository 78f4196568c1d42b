"""The events a stage remembers, in the order of (time, arrival), in chunks; a bounded part of them is in memory.

Chunks that have not been touched for longest are written to files and read back when a window reaches them, so memory
does not grow with the length of the window. A late event goes into the chunk that covers its time.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.measure.events import NUMBER_ROW, TIME_ROW
from headrace.measure.jit import Ints
from headrace.state.tables import StateFile, Tables, read_checked, write_new

CHUNK_EVENTS = 1 << 16
MEMORY_BYTES = 256 << 20


@dataclass(frozen=True, order=True)
class Position:
    """Between two events: `offset` events of the chunk are before it, and all chunks before that one."""

    chunk: int
    offset: int


@dataclass
class _Chunk:
    """Events in order. `matrix` has spare columns at the end while the chunk is the open one; None if on disk."""

    matrix: Ints | None
    size: int
    first: int
    last: int
    touched: int = 0
    file: StateFile | None = None


class EventReservoir:
    """Append events, insert late ones, and read any stretch in order."""

    def __init__(
        self,
        rows: int,
        memory_bytes: int = MEMORY_BYTES,
        chunk_events: int = CHUNK_EVENTS,
        folder: Path | None = None,
    ):
        """With a `folder`, chunks that are full belong to whoever keeps versions there, and are never deleted here."""
        self._rows = rows
        self.chunk_events = chunk_events
        self._resident = max(4, memory_bytes // (8 * rows * chunk_events))
        self._chunks: list[_Chunk] = []
        self._clock = 0
        self._folder = folder
        self._own_folder = folder is None

    def __len__(self) -> int:
        return sum(chunk.size for chunk in self._chunks)

    @property
    def spilled_chunks(self) -> int:
        return sum(chunk.matrix is None for chunk in self._chunks)

    # ------------------------------------------------------------------ write

    def push(self, events: Ints) -> None:
        """Take the events of a batch, in any order of time; among equal times they come in the order of arrival."""
        times = events[TIME_ROW]
        if len(times) > 1 and (times[1:] < times[:-1]).any():
            events = np.ascontiguousarray(events[:, np.argsort(times, kind="stable")])
        start = 0
        if self._chunks:
            start = int(np.searchsorted(events[TIME_ROW], self._chunks[-1].last, side="left"))
            self._insert(events[:, :start])
        self._append(events[:, start:])
        self._spill()

    def _append(self, events: Ints) -> None:
        done, count = 0, events.shape[1]
        while done < count:
            if not self._chunks or self._chunks[-1].size >= self.chunk_events:
                self._chunks.append(_Chunk(np.empty((self._rows, self.chunk_events), np.int64), 0, 0, 0))
            chunk = self._chunks[-1]
            matrix = self._load(chunk)
            if matrix.shape[1] < self.chunk_events:
                matrix = np.concatenate(
                    [matrix, np.empty((self._rows, self.chunk_events - matrix.shape[1]), np.int64)], 1
                )
                chunk.matrix = matrix
            take = min(count - done, self.chunk_events - chunk.size)
            matrix[:, chunk.size : chunk.size + take] = events[:, done : done + take]
            if chunk.size == 0:
                chunk.first = int(events[TIME_ROW, done])
            chunk.size += take
            chunk.last = int(events[TIME_ROW, done + take - 1])
            chunk.file = None
            done += take

    def _insert(self, late: Ints) -> None:
        """Late events, in order: each goes into the last chunk that starts no later than it (or the first one)."""
        while late.shape[1]:
            firsts = np.array([chunk.first for chunk in self._chunks])
            index = max(0, int(np.searchsorted(firsts, late[TIME_ROW, -1], side="right")) - 1)
            mine = 0 if index == 0 else int(np.searchsorted(late[TIME_ROW], firsts[index], side="left"))
            self._merge(index, late[:, mine:])
            late = late[:, :mine]

    def _merge(self, index: int, late: Ints) -> None:
        chunk = self._chunks[index]
        matrix = np.concatenate([self._load(chunk)[:, : chunk.size], late], axis=1)
        matrix = np.ascontiguousarray(matrix[:, np.argsort(matrix[TIME_ROW], kind="stable")])
        pieces = -(-matrix.shape[1] // (2 * self.chunk_events))
        merged = []
        for part in np.array_split(matrix, pieces, axis=1):
            part = np.ascontiguousarray(part)
            merged.append(
                _Chunk(part, part.shape[1], int(part[TIME_ROW, 0]), int(part[TIME_ROW, -1]), touched=self._clock)
            )
        self._chunks[index : index + 1] = merged
        self._forget_file(chunk)

    def drop_until(self, edge: int) -> None:
        """Forget chunks all of whose events have times up to the edge."""
        keep = 0
        while keep < len(self._chunks) - 1 and self._chunks[keep].last <= edge:
            self._forget_file(self._chunks[keep])
            keep += 1
        del self._chunks[:keep]

    # ------------------------------------------------------------------- read

    def after(self, edge: int, before_number: int | None = None) -> Position:
        """Past all events with times up to the edge; at the edge itself only those numbered below `before_number`."""
        low, high = 0, len(self._chunks)
        while low < high:
            middle = (low + high) // 2
            if self._chunks[middle].last < edge or (before_number is None and self._chunks[middle].last <= edge):
                low = middle + 1
            else:
                high = middle
        if low == len(self._chunks):
            return Position(low, 0)
        chunk = self._chunks[low]
        matrix = self._load(chunk)
        times = matrix[TIME_ROW, : chunk.size]
        if before_number is None:
            return Position(low, int(np.searchsorted(times, edge, side="right")))
        start, end = np.searchsorted(times, edge, side="left"), np.searchsorted(times, edge, side="right")
        passed = int((matrix[NUMBER_ROW, start:end] < before_number).sum())
        if start + passed == chunk.size and low + 1 < len(self._chunks) and self._chunks[low + 1].first == edge:
            return self._after_ties(low + 1, edge, before_number)
        return Position(low, int(start) + passed)

    def _after_ties(self, index: int, edge: int, before_number: int) -> Position:
        """Equal times may go on over many chunks."""
        while index < len(self._chunks) and self._chunks[index].first == edge:
            chunk = self._chunks[index]
            matrix = self._load(chunk)
            end = int(np.searchsorted(matrix[TIME_ROW, : chunk.size], edge, side="right"))
            passed = int((matrix[NUMBER_ROW, :end] < before_number).sum())
            if passed < chunk.size:
                return Position(index, passed)
            index += 1
        return Position(index, 0)

    def slice(self, start: Position, up_to: int, limit: int) -> tuple[Ints, Position, bool]:
        """Events from `start` with times up to `up_to`, at most `limit`; where they end; whether those are all."""
        pieces: list[Ints] = []
        at, count = start, 0
        while at.chunk < len(self._chunks) and count < limit:
            chunk = self._chunks[at.chunk]
            if chunk.first > up_to:
                break
            matrix = self._load(chunk)
            end = int(np.searchsorted(matrix[TIME_ROW, : chunk.size], up_to, side="right"))
            stop = max(at.offset, min(end, at.offset + limit - count))
            pieces.append(matrix[:, at.offset : stop])
            count += stop - at.offset
            if stop < chunk.size:
                at = Position(at.chunk, stop)
                break
            at = Position(at.chunk + 1, 0)
        return self._joined(pieces), at, self._is_past(at, up_to)

    def _joined(self, pieces: list[Ints]) -> Ints:
        if len(pieces) == 1:
            return np.ascontiguousarray(pieces[0])
        return np.concatenate(pieces, axis=1) if pieces else np.zeros((self._rows, 0), np.int64)

    def _is_past(self, at: Position, up_to: int) -> bool:
        if at.chunk >= len(self._chunks):
            return True
        chunk = self._chunks[at.chunk]
        if chunk.first > up_to or chunk.last <= up_to:
            return chunk.first > up_to
        return int(self._load(chunk)[TIME_ROW, at.offset]) > up_to

    def between(self, after: int, up_to: int) -> Iterator[Ints]:
        """All events with times in (after, up_to], a chunk at a time."""
        at = self.after(after)
        for index in range(at.chunk, len(self._chunks)):
            chunk = self._chunks[index]
            if chunk.first > up_to:
                return
            matrix = self._load(chunk)
            end = int(np.searchsorted(matrix[TIME_ROW, : chunk.size], up_to, side="right"))
            yield matrix[:, at.offset if index == at.chunk else 0 : end]

    # ------------------------------------------------------------------- disk

    def dump(self) -> tuple[Tables, list[dict[str, int | str]]]:
        """The open chunk, and the files of all others; what is not in a file yet is written."""
        closed = []
        for chunk in self._chunks[:-1]:
            file = chunk.file = chunk.file or self._write(chunk)
            closed.append({**vars(file), "events": chunk.size, "first": chunk.first, "last": chunk.last})
        if not self._chunks:
            return {"open": np.zeros((0, self._rows), np.int64)}, closed
        last = self._chunks[-1]
        return {"open": np.ascontiguousarray(self._load(last)[:, : last.size].T)}, closed

    def restore(self, tables: Tables, closed: Sequence[Mapping[str, Any]]) -> None:
        self._chunks = []
        for entry in closed:
            file = StateFile(entry["name"], entry["size_bytes"], entry["crc"])
            self._chunks.append(_Chunk(None, entry["events"], entry["first"], entry["last"], file=file))
        events = np.ascontiguousarray(tables["open"].T)
        if events.shape[1]:
            times = events[TIME_ROW]
            self._chunks.append(_Chunk(events, events.shape[1], int(times[0]), int(times[-1])))

    def _load(self, chunk: _Chunk) -> Ints:
        self._clock += 1
        chunk.touched = self._clock
        if chunk.matrix is None:
            assert chunk.file is not None
            assert self._folder is not None
            content = read_checked(self._folder / chunk.file.name, chunk.file.crc)
            with pa.ipc.open_file(pa.BufferReader(content)) as reader:
                columns = reader.read_all().columns
            chunk.matrix = np.stack([column.to_numpy() for column in columns])
            self._spill()
        assert chunk.matrix is not None
        return chunk.matrix

    def _spill(self) -> None:
        """Write the chunks that were not touched for longest; the open one stays."""
        resident = [chunk for chunk in self._chunks[:-1] if chunk.matrix is not None]
        excess = len(resident) + 1 - self._resident
        if excess <= 0:
            return
        for chunk in sorted(resident, key=lambda c: c.touched)[:excess]:
            chunk.file = chunk.file or self._write(chunk)
            chunk.matrix = None

    def _write(self, chunk: _Chunk) -> StateFile:
        assert chunk.matrix is not None
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="headrace-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        table = pa.table([pa.array(row[: chunk.size]) for row in chunk.matrix], [str(i) for i in range(self._rows)])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        return write_new(self._folder, "chunk", sink.getvalue())

    def _forget_file(self, chunk: _Chunk) -> None:
        if chunk.file is not None and self._own_folder:
            assert self._folder is not None
            (self._folder / chunk.file.name).unlink()
