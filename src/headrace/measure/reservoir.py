"""The events a stage remembers, in the order of (time, arrival), in chunks; a bounded part of them is in memory.

A chunk is *open* (the newest), then in *transition* (full and compressed in the background, in memory for the events
that are late for it), then *closed*: in a file, read back when a window reaches it. Memory does not grow with the
length of the window. An event that is late for a full chunk is kept beside its file and merged when it is read; when
there are many of those, the chunks they belong to are written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from headrace.measure.chunk_files import ChunkFiles, ScratchFiles, chunk_bytes, chunk_of, in_background
from headrace.measure.chunks import CLOSURE, Chunk, ChunkWriter, merged
from headrace.measure.events import NUMBER_ROW, TIME_ROW
from headrace.measure.late_events import LateEvents
from headrace.model.jit import Ints
from headrace.state.store import StoredPart
from headrace.state.tables import AppendOnly, Tables, part_of, under

CHUNK_EVENTS: Final = 1 << 16
MEMORY_BYTES: Final = 256 << 20
_AHEAD: Final = 2

Slice = tuple[Ints, "Position", bool]


class Position(NamedTuple):
    """Between two events: `offset` events of the chunk are before it, and all chunks before that one."""

    chunk: int
    offset: int


class EventReservoir:
    """Append events, insert late ones, and read any stretch in order."""

    def __init__(
        self,
        rows: int,
        memory_bytes: int = MEMORY_BYTES,
        chunk_events: int = CHUNK_EVENTS,
        files: ChunkFiles | None = None,
        closure: int = CLOSURE,
    ):
        """With `files`, full chunks are kept there for good; else they go to scratch files where memory ends."""
        self._rows = rows
        self.chunk_events = chunk_events
        self._resident = max(4, memory_bytes // (8 * rows * chunk_events))
        self._chunks: list[Chunk] = []
        self.writer = None if files is None else ChunkWriter(files, closure)
        self._scratch: ScratchFiles | None = None
        self._clock = self._serial = 0
        self._late = LateEvents(rows)
        self._shared: dict[tuple[Position, int, int], Slice] = {}
        self._standing: set[int] = set()
        self._loads = 0
        self._settled: tuple[int, int, set[int]] | None = None
        self.layout = 0
        self.convert: Callable[[int, Ints], Ints] | None = None
        self.reads = self.misses = 0
        self.dropped_until: int | None = None
        self.layout_ends: dict[int, int] = {}
        """For each layout that was found on `restore`, the latest time of its events."""

    def __len__(self) -> int:
        return sum(chunk.size for chunk in self._chunks)

    @property
    def layouts(self) -> set[int]:
        return {chunk.layout for chunk in self._chunks}

    @property
    def spilled_chunks(self) -> int:
        return sum(chunk.matrix is None for chunk in self._chunks)

    @property
    def resident_chunks(self) -> int:
        return len(self._chunks) - self.spilled_chunks

    # ------------------------------------------------------------------ write

    def push(self, events: Ints) -> None:
        """Take the events of a batch, in any order of time; among equal times they come in the order of arrival."""
        self._shared.clear()
        self._standing.clear()
        times, chunks = events[TIME_ROW], len(self._chunks)
        if len(times) > 1 and (times[1:] < times[:-1]).any():
            events = np.ascontiguousarray(events[:, np.argsort(times, kind="stable")])
        start = 0
        if self._chunks:
            start = int(events[TIME_ROW].searchsorted(self._chunks[-1].last, "left"))
            self._insert(events[:, :start])
        self._append(events[:, start:])
        if len(self._chunks) != chunks:
            if self.writer is not None:
                self.writer.close(self._chunks)
            self._evict()

    def settle(self) -> None:
        """After all windows have moved: forget what no iterator stands on, if anything has changed about that."""
        self._shared.clear()
        standing = (len(self._chunks), self._loads, self._standing)
        if standing != self._settled:
            self._evict()
            self._settled = (len(self._chunks), self._loads, set(self._standing))

    def _append(self, events: Ints) -> None:
        done, count = 0, events.shape[1]
        while done < count:
            chunk = self._chunks[-1] if self._chunks else None
            if chunk is None or chunk.size >= self.chunk_events or chunk.stored or chunk.layout != self.layout:
                chunk = self._new_chunk(np.empty((self._rows, self.chunk_events), np.int64), 0)
                self._chunks.append(chunk)
            matrix = self._load(chunk)
            if matrix.shape[1] < self.chunk_events:
                spare = np.empty((self._rows, self.chunk_events - matrix.shape[1]), np.int64)
                matrix = chunk.matrix = np.concatenate([matrix, spare], axis=1)
            take = min(count - done, self.chunk_events - chunk.size)
            matrix[:, chunk.size : chunk.size + take] = events[:, done : done + take]
            if chunk.size == 0:
                chunk.first = int(events[TIME_ROW, done])
            chunk.size += take
            chunk.last = int(events[TIME_ROW, done + take - 1])
            done += take

    def _new_chunk(self, matrix: Ints, size: int) -> Chunk:
        self._serial += 1
        first, last = (int(matrix[TIME_ROW, 0]), int(matrix[TIME_ROW, size - 1])) if size else (0, 0)
        return Chunk(self._serial, matrix, size, first, last, self.layout, touched=self._clock)

    def _insert(self, late: Ints) -> None:
        """Late events, in order: each goes into the last chunk that starts no later than it (or the first one)."""
        while late.shape[1]:
            firsts = np.array([chunk.first for chunk in self._chunks])
            index = max(0, int(np.searchsorted(firsts, late[TIME_ROW, -1], side="right")) - 1)
            mine = 0 if index == 0 else int(np.searchsorted(late[TIME_ROW], firsts[index], side="left"))
            if self.writer is not None and self._chunks[index].stored is not None:
                self._keep_beside(self._chunks[index], late[:, mine:])
            else:
                self._merge(index, late[:, mine:])
            late = late[:, :mine]
        if len(self._late) > self.chunk_events:
            self._fold()

    def _keep_beside(self, chunk: Chunk, late: Ints) -> None:
        self._late.add(chunk, late)
        chunk.loading = None
        if chunk.matrix is not None:
            chunk.matrix = merged(chunk.matrix, late)

    def _merge(self, index: int, late: Ints) -> None:
        chunk = self._chunks[index]
        matrix = merged(self._load(chunk)[:, : chunk.size], late)
        self._replace(index, matrix)

    def _replace(self, index: int, matrix: Ints) -> None:
        """A chunk with other events in it, or two if it has become large."""
        chunk = self._chunks[index]
        pieces = np.array_split(matrix, -(-matrix.shape[1] // (2 * self.chunk_events)), axis=1)
        self._chunks[index : index + 1] = [self._new_chunk(np.ascontiguousarray(p), p.shape[1]) for p in pieces]
        self._forget(chunk)

    def _forget(self, chunk: Chunk) -> None:
        if chunk.stored is not None and self._scratch is not None:
            self._scratch.forget(chunk.stored)

    def _fold(self) -> None:
        """Write the chunks that have late events beside them anew."""
        serials = self._late.chunks
        for serial in serials:
            index = next(i for i, chunk in enumerate(self._chunks) if chunk.serial == serial)
            self._replace(index, self._load(self._chunks[index])[:, : self._chunks[index].size])
        self._late.take_out(serials)

    def drop_until(self, edge: int) -> None:
        """Forget chunks all of whose events have times up to the edge."""
        keep = 0
        while keep < len(self._chunks) - 1 and self._chunks[keep].last <= edge:
            chunk = self._chunks[keep]
            self.dropped_until = chunk.last
            self._forget(chunk)
            keep += 1
        if keep:
            self._late.take_out([chunk.serial for chunk in self._chunks[:keep]])
            del self._chunks[:keep]
            self._shared.clear()

    @property
    def oldest(self) -> int | None:
        """The time of the oldest event that is still here."""
        return self._chunks[0].first if self._chunks else None

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
        if chunk.first > edge:
            return Position(low, 0)
        matrix = self._load(chunk)
        times = matrix[TIME_ROW, : chunk.size]
        if before_number is None:
            return Position(low, int(times.searchsorted(edge, "right")))
        start, end = int(times.searchsorted(edge, "left")), int(times.searchsorted(edge, "right"))
        passed = int(np.count_nonzero(matrix[NUMBER_ROW, start:end] < before_number))
        if start + passed == chunk.size and low + 1 < len(self._chunks) and self._chunks[low + 1].first == edge:
            return self._after_ties(low + 1, edge, before_number)
        return Position(low, start + passed)

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

    def slice(self, start: Position, up_to: int, limit: int) -> Slice:
        """Events from `start` with times up to `up_to`, at most `limit`; where they end; whether those are all.

        Iterators with equal edges share what is read.
        """
        key = (start, up_to, limit)
        if key not in self._shared:
            self._shared[key] = self._slice(start, up_to, limit)
        return self._shared[key]

    def _slice(self, start: Position, up_to: int, limit: int) -> Slice:
        pieces: list[Ints] = []
        at, count = start, 0
        while at.chunk < len(self._chunks) and count < limit:
            chunk = self._chunks[at.chunk]
            if chunk.first > up_to:
                break
            self._prefetch(at.chunk + 1)
            matrix = self._load(chunk)
            end = int(matrix[TIME_ROW, : chunk.size].searchsorted(up_to, "right"))
            stop = max(at.offset, min(end, at.offset + limit - count))
            pieces.append(matrix[:, at.offset : stop])
            count += stop - at.offset
            if stop < chunk.size:
                at = Position(at.chunk, stop)
                break
            chunk.passed = True
            at = Position(at.chunk + 1, 0)
        self._stand(at)
        return self._joined(pieces), at, self._is_past(at, up_to)

    def _stand(self, at: Position) -> None:
        """An iterator is here: the chunk stays in memory, and the next ones, which are fetched until it comes back."""
        for index in range(at.chunk, min(at.chunk + 1 + _AHEAD, len(self._chunks))):
            self._standing.add(self._chunks[index].serial)
            self._prefetch(index)

    def _prefetch(self, index: int) -> None:
        """Who enters a chunk will come to the next."""
        if index < len(self._chunks):
            chunk = self._chunks[index]
            # To read an older layout may bring new groups, which is nothing for a thread.
            if chunk.matrix is None and chunk.loading is None and chunk.layout == self.layout:
                chunk.loading = in_background(self._read, chunk, self._late.of(chunk))

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

    # ------------------------------------------------------------------ memory

    def _load(self, chunk: Chunk) -> Ints:
        self._clock += 1
        self.reads += 1
        chunk.touched = self._clock
        if chunk.matrix is None:
            self.misses += chunk.loading is None
            chunk.matrix = self._read(chunk, self._late.of(chunk)) if chunk.loading is None else chunk.loading.result()
            chunk.loading = None
            chunk.passed = False
            self._loads += 1
        return chunk.matrix

    def _read(self, chunk: Chunk, late: Ints) -> Ints:
        files: ChunkFiles | None = self._scratch if self.writer is None else self.writer.files
        assert chunk.stored is not None
        assert files is not None
        matrix = chunk_of(files.read(chunk.stored))
        if chunk.layout != self.layout:
            assert self.convert is not None
            matrix = self.convert(chunk.layout, matrix)
        return merged(matrix, late) if late.shape[1] else matrix

    def _evict(self) -> None:
        """What all iterators have passed goes at once; of the rest, what was not touched for longest."""
        resident = [chunk for chunk in self._chunks[:-1] if chunk.matrix is not None]
        left = []
        needed = self._standing if self.writer is None else self._standing | self.writer.in_transition(self._chunks)
        for chunk in resident:
            if self.writer is not None and chunk.stored is not None and chunk.passed and chunk.serial not in needed:
                chunk.matrix = None
            else:
                left.append(chunk)
        excess = len(left) + 1 - self._resident
        if excess <= 0:
            return
        for chunk in sorted(left, key=lambda c: c.touched)[:excess]:
            if chunk.stored is None and self.writer is None:
                self._scratch = self._scratch or ScratchFiles()
                _, [chunk.stored] = self._scratch.write([chunk_bytes(chunk.events)])
            if chunk.stored is not None:
                chunk.matrix = None

    # -------------------------------------------------------------------- keep

    def flush(self) -> None:
        """Begin to write the chunks that are closed; `dump` waits for it."""
        if self.writer is not None:
            self.writer.flush(self._chunks)

    def dump(self, wait: bool = True) -> tuple[Tables, list[StoredPart]]:
        """Tables: the chunks that are not closed, late events beside closed ones, where closed ones are. And files."""
        assert self.writer is not None
        self.writer.finish(wait)
        index, files = self.writer.index(self._chunks)
        tables: Tables = {
            "order": np.array([chunk.serial for chunk in self._chunks], np.int64),
            "index": index,
            "counters": np.array([self._serial, *self._dropped()], np.int64),
            **under("late", self._late.dump()),
        }
        for chunk in self._chunks:
            if chunk.stored is None:
                tables[f"chunk-{chunk.serial}"] = AppendOnly(chunk.events.T)
        return tables, files

    def _dropped(self) -> tuple[int, int]:
        return (0, 0) if self.dropped_until is None else (1, self.dropped_until)

    def restore(self, tables: Tables, files: Sequence[StoredPart], layout: int = 0) -> None:
        """`layout` is that of the chunks in the tables; closed ones know their own."""
        self._serial, has_dropped, until = (int(value) for value in tables["counters"])
        self.dropped_until = until if has_dropped else None
        assert self.writer is not None
        chunks = {chunk.serial: chunk for chunk in self.writer.found(tables["index"], files)}
        for name, table in tables.items():
            if name.startswith("chunk-"):
                serial, matrix = int(name.removeprefix("chunk-")), np.ascontiguousarray(table.T)
                times = matrix[TIME_ROW]
                chunk = chunks[serial] = Chunk(serial, matrix, len(times), int(times[0]), int(times[-1]), layout)
                if layout != self.layout:  # a change of layout closes all chunks; what is dumped has another name
                    chunk.serial = self._serial = self._serial + 1
                    chunk.packing = in_background(chunk_bytes, matrix)
                    chunk.matrix = self.current(matrix, layout)
        for chunk in chunks.values():
            self.layout_ends[chunk.layout] = max(chunk.last, self.layout_ends.get(chunk.layout, chunk.last))
        self._chunks = [chunks[serial] for serial in tables["order"].tolist()]
        self._late.restore(part_of("late", tables), chunks, lambda events: self.current(events, layout))

    def current(self, matrix: Ints, layout: int) -> Ints:
        """Events of some layout as they are read now."""
        if layout == self.layout:
            return matrix
        assert self.convert is not None
        return self.convert(layout, matrix)
