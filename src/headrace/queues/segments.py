"""The files of one queue: segments of frames, and the tail record.

    ROOT/QUEUE/tail                        how far it goes; its lock is the lock of the queue
    ROOT/QUEUE/00000000000000000000.seg    frames, one after the other; named by the position of the first
    ROOT/QUEUE/readers/NAME                how far a reader has come, for backpressure
    ROOT/QUEUE/sealed                      nothing may be appended any more

A position is a number of bytes over all segments. Only what is before the tail counts: past it there may be the rest of
a writer that died. All processes must be on one machine, as they share the mapped tail record.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

from headrace.errors import FrameDamaged, QueueDamaged, QueueError
from headrace.model import frames
from headrace.model.folders import sync_folder
from headrace.queues.tail import RECORD_BYTES, RecordDamaged, TailRecord

_SUFFIX: Final = ".seg"
_BODY_CHECKSUM: Final = 40
"""Where a frame's header has the checksum of all that follows the header."""
_ADVICE: Final = {
    errno.ENOSPC: "the disk is full; free some space there, or put the queues on another disk",
    errno.EDQUOT: "the quota is used up; free some space there, or put the queues on another disk",
    errno.EACCES: "this user may not write there; change the rights of the folder, or choose another one",
    errno.EPERM: "this user may not write there; change the rights of the folder, or choose another one",
    errno.EROFS: "the file system is read-only; mount it writable, or choose another folder",
    errno.ENOTDIR: "it is a file, or below one; choose a folder",
    errno.EEXIST: "it is a file; choose a folder",
    errno.EMFILE: "this process has too many files open; raise the limit (ulimit -n)",
    errno.ENFILE: "this machine has too many files open; raise the limit (fs.file-max)",
    errno.ENAMETOOLONG: "the path is too long; choose a shorter one",
    errno.EIO: "the disk fails; see the log of the system, and move the queues to another disk",
}


def refused(place: str | Path, error: OSError) -> QueueError:
    """An error of the system, with what to do."""
    known = _ADVICE.get(error.errno or 0, f"{error.strerror}; see that the folder is there, local and writable")
    return QueueError(f"queues at {place}: {known}")


def checked_size(view: memoryview, at: int) -> int:
    """The length of the whole frame that begins there. Raises FrameDamaged if it is not whole and unchanged."""
    header = view[at : at + frames.HEADER_BYTES]
    size = frames.size_of(header)
    if at + size > len(view):
        raise FrameDamaged(f"it has {len(view) - at} of {size} bytes")
    (crc,) = struct.unpack_from("<I", header, _BODY_CHECKSUM)
    if size > frames.HEADER_BYTES and zlib.crc32(view[at + frames.HEADER_BYTES : at + size]) != crc:
        raise FrameDamaged("its checksum is wrong")
    return size


class QueueFiles:
    """An open queue, of one process. Recovers it if the machine went down, or the tail record is bad."""

    def __init__(self, root: Path, name: str, recover: Callable[[QueueFiles], None], create: bool = False):
        self.name = name
        self.folder = root / name
        self._recover = recover
        try:
            self._fd = self._open(create)
        except OSError as error:
            raise refused(self.folder, error) from None
        self._mapped: TailRecord | None = None
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _open(self, create: bool) -> int:
        tail = self.folder / "tail"
        if create:
            self.folder.mkdir(exist_ok=True)
        elif not tail.exists() and not self.bases():
            raise QueueError(f"queues at {self.folder.parent}: there is no queue {self.name}; create it first")
        return os.open(tail, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def _begin(self) -> None:
        with self.locked():
            # Blocks for the whole record now: a store to a mapped page must not find a full disk.
            size = os.fstat(self._fd).st_size
            if size < RECORD_BYTES and os.pwrite(self._fd, bytes(RECORD_BYTES), 0) < RECORD_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._mapped = TailRecord(self._fd)
            self._recover(self)
        self.check_alive()

    def close(self) -> None:
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def record(self) -> TailRecord:
        assert self._mapped is not None
        return self._mapped

    @property
    def place(self) -> str:
        return str(self.folder)

    @property
    def tail_path(self) -> str:
        return str(self.folder / "tail")

    # -------------------------------------------------------------------- lock

    def lock(self) -> None:
        """Of all processes and threads, for those who change something. Gone when its owner is."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def unlock(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    @contextmanager
    def locked(self) -> Iterator[None]:
        try:
            self.lock()
            try:
                yield
            finally:
                self.unlock()
        except OSError as error:
            raise refused(self.folder, error) from None

    def tail(self, is_locked: bool = False) -> tuple[int, int]:
        """As the record has it; a bad record is mended first."""
        try:
            return self.record.tail()
        except RecordDamaged:
            self._mend(is_locked)
            return self.record.tail()

    def start_and_synced(self, is_locked: bool = False) -> tuple[int, int]:
        try:
            return self.record.start, self.record.synced
        except RecordDamaged:
            self._mend(is_locked)
            return self.record.start, self.record.synced

    def _mend(self, is_locked: bool) -> None:
        if is_locked:
            self._recover(self)
            return
        with self.locked():
            self._recover(self)

    def check_alive(self) -> None:
        if self.record.is_deleted:
            raise QueueError(f"queues at {self.folder.parent}: queue {self.name} has been deleted")
        if not os.fstat(self._fd).st_nlink:
            raise QueueError(
                f"queues at {self.folder.parent}: the files of queue {self.name} are gone, while it is in use: "
                f"somebody removed its folder; put it back from a copy, or start the flow anew under another name"
            )

    def check_open(self) -> None:
        """Raises QueueError where nothing can be appended. Under the lock."""
        if not self.record.is_whole():
            self._recover(self)
        self.check_alive()
        if self.record.is_sealed:
            raise QueueError(f"queue {self.name} is sealed: nothing can be appended to it any more")

    # ---------------------------------------------------------------- segments

    def bases(self) -> list[int]:
        """The first positions of the segments that are there."""
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        stems = (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def path(self, base: int) -> Path:
        return self.folder / f"{base:020d}{_SUFFIX}"

    def open_new(self, base: int) -> int:
        """A segment for what comes after the tail: if there is a file already, its writer died before it counted."""
        return os.open(self.path(base), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def open_tail(self, tail: int, base: int) -> int:
        """The segment that the tail is in, for writing."""
        path = self.path(base)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            raise self.missing(base) from None
        size = os.fstat(fd).st_size
        if size < tail - base:
            os.close(fd)
            raise self.damaged(base, size, f"the file ends here, and should have {tail - base} bytes")
        return fd

    def holding(self, position: int) -> tuple[int, int, int]:
        """The segment that goes on at a position: its file, its first position and that of the next (or -1)."""
        bases = self.bases()
        index = bisect_right(bases, position) - 1
        if index < 0:
            raise self.missing(position)
        after = bases[index + 1] if index + 1 < len(bases) else -1
        try:
            return os.open(self.path(bases[index]), os.O_RDONLY | os.O_CLOEXEC), bases[index], after
        except FileNotFoundError:
            raise self.missing(position) from None

    # ------------------------------------------------------------------- disks

    def sync(self) -> None:
        """All that is in the queue now survives the machine when this returns."""
        self.check_alive()
        try:
            tail, _ = self.tail()
            _, synced = self.start_and_synced()
            if synced >= tail:
                return
            self.flush(synced)
            with self.locked():
                self.record.set_synced(max(tail, self.start_and_synced(is_locked=True)[1]))
            self.sync_record()
        except OSError as error:
            raise refused(self.folder, error) from None

    def flush(self, position: int) -> None:
        """Every segment that has something from the position on, and then the names of new ones."""
        bases = self.bases()
        first = max(0, bisect_right(bases, position) - 1)
        for base in bases[first:]:
            with suppress(FileNotFoundError):  # truncated meanwhile
                fd = os.open(self.path(base), os.O_RDWR | os.O_CLOEXEC)
                try:
                    os.fdatasync(fd)
                finally:
                    os.close(fd)
        if bases and bases[-1] >= position:
            sync_folder(self.folder)

    def sync_record(self) -> None:
        os.fdatasync(self._fd)

    def truncate(self, position: int) -> None:
        """Drops the segments that end at or before a position."""
        with self.locked():
            bases = self.bases()
            tail, _ = self.tail(is_locked=True)
            gone = [base for base, after in pairwise(bases) if after <= min(position, tail)]
            if not gone:
                return
            # The record first: otherwise a power loss would leave segments missing that nobody says were dropped.
            self.record.set_start(max(self.start_and_synced(is_locked=True)[0], bases[len(gone)]))
            self.sync_record()
            for base in gone:
                self.path(base).unlink(missing_ok=True)

    # ------------------------------------------------------------------ damage

    def damaged(self, base: int, offset: int, problem: str) -> QueueDamaged:
        return QueueDamaged(
            self.name,
            f"{self.path(base)} is damaged at byte {offset} (position {base + offset}): {problem}; put the file back "
            f"from a copy, or delete the queue and let its flow start again from its sources",
        )

    def missing(self, position: int) -> QueueDamaged:
        """Why there is no segment with a position."""
        self.check_alive()
        start, _ = self.start_and_synced()
        if position < start:
            return QueueDamaged(
                self.name,
                f"position {position} has been truncated: the queue begins at {start} now; read from there on",
            )
        return QueueDamaged(
            self.name,
            f"the segment with position {position} is missing in {self.folder}; put the file back from a copy, or "
            f"delete the queue and let its flow start again from its sources",
        )
