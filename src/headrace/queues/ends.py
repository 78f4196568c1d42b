"""The two ends of one queue in one process: where frames go in, and where they come out."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from typing import Final

from headrace.errors import FrameDamaged, QueueDamaged
from headrace.model.folders import sync_folder
from headrace.model.frames import HEADER_BYTES, size_of, stamped
from headrace.queues.protocol import Entry
from headrace.queues.segments import QueueFiles, checked_size, refused

_CURSORS_S: Final = 1.0
"""How long it may take until a new reader is noticed."""


class AppendEnd:
    """Appends to a queue. For one thread of one process."""

    def __init__(self, files: QueueFiles, segment_bytes: int, durable: bool):
        self.files = files
        self._segment_bytes = segment_bytes
        self._durable = durable
        self._fd = -1
        self._base = -1
        self._cursors: dict[str, Cursor] = {}
        self._looked = -_CURSORS_S

    def close(self) -> None:
        self._close_segment()
        for cursor in self._cursors.values():
            cursor.close()
        self.files.close()

    def append(self, frames: Sequence[bytes]) -> None:
        for frame in frames:
            if size_of(frame) != len(frame):
                raise FrameDamaged("its length is not the one in its header")
        files = self.files
        try:
            files.lock()
            try:
                # Under the lock: what is stamped earlier is there earlier.
                now = time.monotonic_ns()
                self._append(b"".join([stamped(frame, now) for frame in frames]))
            finally:
                files.unlock()
        except OSError as error:
            raise refused(files.folder, error) from None

    def _append(self, content: bytes) -> None:
        files, record = self.files, self.files.record
        tail, base = files.tail(is_locked=True)
        if record.is_deleted or record.is_sealed:
            files.check_open()
            tail, base = files.tail(is_locked=True)
        if record.is_interrupted or base != self._base:
            self._take_over(tail, base)
        if tail == base or tail - base >= self._segment_bytes:
            base = self._begin_segment(tail)
        record.begin()
        try:
            _write(self._fd, content, tail - base)
            if self._durable:
                self._sync(tail, base)
        except OSError:
            self._drop_rest(tail - base)
            raise
        record.advance(tail + len(content), base)
        if self._durable:
            record.set_synced(tail + len(content))

    def _take_over(self, tail: int, base: int) -> None:
        """Another writer was here: go to its segment, and cut what it left behind if it died."""
        self._close_segment()
        if tail > base:
            self._fd = self.files.open_tail(tail, base)
            self._base = base
            if self.files.record.is_interrupted:
                os.ftruncate(self._fd, tail - base)
        self.files.record.give_up()

    def _begin_segment(self, tail: int) -> int:
        self._close_segment()
        self._fd = self.files.open_new(tail)
        self._base = tail
        return tail

    def _sync(self, tail: int, base: int) -> None:
        _, synced = self.files.start_and_synced(is_locked=True)
        if synced < tail:  # appended by a writer with another policy
            self.files.flush(synced)
            return
        os.fdatasync(self._fd)
        if tail == base:
            sync_folder(self.files.folder)

    def _drop_rest(self, length: int) -> None:
        """Of a write that failed. If even this fails, the next writer does it."""
        os.ftruncate(self._fd, length)
        self.files.record.give_up()

    def _close_segment(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = self._base = -1

    def backlog(self) -> int:
        now = time.monotonic()
        if now - self._looked >= _CURSORS_S:
            self._looked = now
            self._find_cursors()
        if not self._cursors:
            return 0
        tail, _ = self.files.tail()
        return max(0, tail - min(cursor.position for cursor in self._cursors.values()))

    def _find_cursors(self) -> None:
        for name in cursor_names(self.files):
            if name not in self._cursors:
                self._cursors[name] = Cursor(self.files, name)


def _write(fd: int, content: bytes, offset: int) -> None:
    written = os.pwrite(fd, content, offset)
    while written < len(content):
        written += os.pwrite(fd, memoryview(content)[written:], offset + written)


class ReadEnd:
    """Reads a queue from a position on. For one thread of one process."""

    def __init__(self, files: QueueFiles, position: int, cursor: Cursor):
        self.files = files
        self.position = position
        self.cursor = cursor
        self._fd = -1
        self._base = -1
        self._after = -1

    def close(self) -> None:
        self._close_segment()
        self.cursor.close()
        self.files.close()

    def take(self, most_bytes: int) -> list[Entry]:
        """The next frames, about so many bytes of them but at least one, if there is one."""
        tail, base = self.files.tail()
        if tail <= self.position:
            self._check_position(tail)
            return []
        try:
            self._go_to_segment(base)
            end = tail if self._after < 0 else min(tail, self._after)
            return self._read(min(end - self.position, max(most_bytes, HEADER_BYTES)), end)
        except OSError as error:
            raise refused(self.files.folder, error) from None

    def _check_position(self, tail: int) -> None:
        self.files.check_alive()
        if self.position > tail:
            problem = f"position {self.position} is past its end at {tail}; read from a position that an entry named"
            raise QueueDamaged(self.files.name, problem)

    def _go_to_segment(self, base: int) -> None:
        """Opens the segment that the position is in. `base` is that of the last one, where it has no end yet."""
        if self._fd >= 0 and self._after < 0 and base != self._base:
            # Kept open, and so readable even if it has been truncated by now.
            self._after = min(later for later in (*self.files.bases(), base) if later > self._base)
        if self._fd >= 0 and (self._after < 0 or self.position < self._after):
            return
        self._close_segment()
        self._fd, self._base, self._after = self.files.holding(self.position)
        if base <= self._base:
            self._after = -1  # what is behind it is a segment that a writer has begun, and that does not count yet

    def _read(self, length: int, end: int) -> list[Entry]:
        content = os.pread(self._fd, length, self.position - self._base)
        entries = self._cut(memoryview(content))
        if entries:
            return entries
        # Longer than asked for, or not yet whole to this core, or damaged.
        size = self._size_of_next(content, end)
        content = os.pread(self._fd, size, self.position - self._base)
        entries = self._cut(memoryview(content))
        if not entries:
            raise self._damage(content)
        return entries

    def _size_of_next(self, content: bytes, end: int) -> int:
        try:
            size = size_of(content)
        except FrameDamaged:
            return min(len(content), HEADER_BYTES)
        return min(size, end - self.position)

    def _cut(self, content: memoryview) -> list[Entry]:
        """All whole frames at its beginning; the position goes behind them."""
        entries: list[Entry] = []
        name, start, at, length = self.files.name, self.position, 0, len(content)
        try:
            while at < length:
                after = at + checked_size(content, at)
                entries.append(Entry(name, content[at:after], start + after))
                at = after
        except FrameDamaged:
            pass
        self.position = start + at
        return entries

    def _damage(self, content: bytes) -> QueueDamaged:
        offset = self.position - self._base
        if not content:
            in_gap = self.position == self._base + os.fstat(self._fd).st_size
            if in_gap and self.position <= self.files.tail()[1]:
                return self.files.missing(self.position)
            return self.files.damaged(self._base, offset, "the file ends here, and should not")
        try:
            checked_size(memoryview(content), 0)
        except FrameDamaged as error:
            return self.files.damaged(self._base, offset, error.problem)
        return self.files.damaged(self._base, offset, "it changes while it is read")

    def _close_segment(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = self._base = self._after = -1


# --------------------------------------------------------------------- cursors


class Cursor:
    """How far the readers of one name have come: 8 mapped bytes in a file of their own."""

    def __init__(self, files: QueueFiles, name: str, position: int | None = None):
        """With a position: begins there if the name is new."""
        path = files.folder / "readers" / name
        try:
            if position is not None:
                path.parent.mkdir(exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if position is not None else 0), 0o666)
            try:
                if os.fstat(fd).st_size < 8:
                    os.pwrite(fd, (position or 0).to_bytes(8, "little"), 0)
                self._map = mmap.mmap(fd, 8)
            finally:
                os.close(fd)
        except OSError as error:
            raise refused(path, error) from None
        self._words = memoryview(self._map).cast("Q")

    @property
    def position(self) -> int:
        return self._words[0]

    @position.setter
    def position(self, position: int) -> None:
        self._words[0] = position

    def close(self) -> None:
        self._words.release()
        self._map.close()


def cursor_names(files: QueueFiles) -> list[str]:
    """Of those that have been begun: a file that is still empty is of a reader that opens it right now."""
    try:
        return [entry.name for entry in os.scandir(files.folder / "readers") if entry.stat().st_size >= 8]
    except FileNotFoundError:
        return []
