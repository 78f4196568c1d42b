"""Queues in files of this machine: the embedded kind, without a server.

Any number of processes append to a queue, under its lock, and any number read it, without one; see `segments` for what
the files are. What a process has appended, other processes see at once, and it survives that process however it ends.
When it survives the machine depends on the policy:

| fsync | a frame survives a power loss |
|---|---|
| `always` | when `append` returns |
| `interval` | about a second after `append`, or when `sync` returns |
| `never` | when `sync` returns |
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from headrace.errors import QueueError
from headrace.model.folders import sync_folder
from headrace.queues.ends import AppendEnd, Cursor, ReadEnd
from headrace.queues.protocol import Entry, Queues, Reader, Writer
from headrace.queues.recovery import recover
from headrace.queues.segments import QueueFiles, refused
from headrace.queues.tail import boot_id
from headrace.queues.watch import PollingWatch, watch_files_in

Fsync = Literal["always", "interval", "never"]
SEGMENT_BYTES: Final = 64 << 20
INTERVAL_S: Final = 1.0
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in (".", ".."):
        raise QueueError(f"{name!r} is not a name: use 1 to 200 letters, digits, '-', '_' and '.', not just dots")


@dataclass(frozen=True)
class LogQueues(Queues):
    """All queues below a folder."""

    root: str | Path
    fsync: Fsync = "interval"
    segment_bytes: int = SEGMENT_BYTES

    def __post_init__(self) -> None:
        if self.fsync not in get_args(Fsync):
            raise QueueError(f"fsync={self.fsync!r}: use one of {', '.join(map(repr, get_args(Fsync)))}")
        if self.segment_bytes < 1:
            raise QueueError(f"segment_bytes={self.segment_bytes}: use a positive number")
        # Absolute, so that it is the same place in a process that was started elsewhere.
        object.__setattr__(self, "root", Path(self.root).absolute())

    @property
    def folder(self) -> Path:
        return Path(self.root)

    def files(self, queue: str, create: bool = False) -> QueueFiles:
        """An open queue, for those who work on its files. Close it."""
        _check_name(queue)
        return QueueFiles(self.folder, queue, recover, create)

    def create(self, names: Sequence[str]) -> None:
        for name in names:
            _check_name(name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                self.files(name, create=True).close()
            sync_folder(self.folder)
        except OSError as error:
            raise refused(self.root, error) from None

    def writer(self) -> LogWriter:
        return LogWriter(self)

    def reader(self, name: str, positions: Mapping[str, int]) -> LogReader:
        return LogReader(self, name, positions)

    def incarnation(self) -> str:
        return f"{boot_id():x}"

    def bounds(self, queue: str) -> tuple[int, int]:
        with self.files(queue) as files:
            start, _ = files.start_and_synced()
            return start, files.tail()[0]

    def truncate(self, queue: str, position: int) -> None:
        with self.files(queue) as files:
            files.truncate(position)

    def seal(self, queue: str) -> None:
        with self.files(queue) as files, files.locked():
            (files.folder / "sealed").touch()
            sync_folder(files.folder)
            files.record.seal()
            files.sync_record()

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            _check_name(name)
        for name in names:
            self._delete(name)

    def _delete(self, name: str) -> None:
        # `~` is in no name. The new name first: from then on another queue of the old one can be made.
        gone = self.folder / f"~deleted-{name}-{secrets.token_hex(4)}"
        try:
            (self.folder / name).rename(gone)
        except FileNotFoundError:
            return
        except OSError as error:
            raise refused(self.folder / name, error) from None
        try:
            with QueueFiles(self.folder, gone.name, recover) as files:
                files.record.delete()
                files.record.ring()
        except QueueError:
            pass  # too damaged for anyone to read or write it
        shutil.rmtree(gone, ignore_errors=True)


class LogWriter(Writer):
    """Belongs to the process that made it."""

    def __init__(self, queues: LogQueues):
        self._queues = queues
        self._ends: dict[str, AppendEnd] = {}
        self._to_sync: dict[str, QueueFiles] = {}
        self._syncing = threading.Lock()
        self._process = os.getpid()
        self._syncer = _Syncer(queues) if queues.fsync == "interval" else None

    def append(self, queue: str, frames: Sequence[bytes]) -> None:
        end = self._ends.get(queue) or self._open(queue)
        if not frames:
            return
        if os.getpid() != self._process:
            raise QueueError("a writer does not work in a forked process, with which it would share its lock: open one")
        end.append(frames)
        if self._syncer is not None:
            self._syncer.note(queue)

    def _open(self, queue: str) -> AppendEnd:
        files = self._queues.files(queue)
        end = AppendEnd(files, self._queues.segment_bytes, self._queues.fsync == "always")
        self._ends[queue] = end
        return end

    def sync(self, queues: Collection[str]) -> None:
        # Files of its own: another thread may be appending, whose lock would not keep this one out of the same files.
        with self._syncing:
            for queue in queues:
                files = self._to_sync.get(queue)
                if files is None:
                    files = self._to_sync[queue] = self._queues.files(queue)
                files.sync()
        if self._syncer is not None:
            self._syncer.raise_problem()

    def backlog(self, queue: str) -> int:
        return (self._ends.get(queue) or self._open(queue)).backlog()

    def close(self) -> None:
        """With the policy `interval`, what was appended is synced first."""
        if self._syncer is not None:
            self._syncer.stop()
        while self._ends:
            self._ends.popitem()[1].close()
        with self._syncing:
            while self._to_sync:
                self._to_sync.popitem()[1].close()


class _Syncer:
    """Syncs the queues that were appended to, a while later, in a thread that lives while there are such."""

    def __init__(self, queues: LogQueues):
        self._queues = queues
        self._dirty: set[str] = set()
        self._some = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._problem: QueueError | None = None

    def note(self, queue: str) -> None:
        if queue in self._dirty:
            return
        self.raise_problem()
        self._dirty.add(queue)
        self._some.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headrace-queue-sync", daemon=True)
            self._thread.start()

    def raise_problem(self) -> None:
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def stop(self) -> None:
        self._stopped.set()
        self._some.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._some.wait()
            self._stopped.wait(INTERVAL_S)
            self._some.clear()
            self._sync_dirty()
        self._sync_dirty()

    def _sync_dirty(self) -> None:
        # A queue leaves the set before it is synced: what is appended meanwhile notes it again, for the next time.
        for queue in list(self._dirty):
            self._dirty.discard(queue)
            self._sync(queue)

    def _sync(self, queue: str) -> None:
        try:
            # Files of its own: the lock of the writer's files would not keep this thread out.
            with self._queues.files(queue) as files:
                files.sync()
        except QueueError as error:
            if (self._queues.folder / queue).exists():
                self._problem = error


class LogReader(Reader):
    """Belongs to the process that made it."""

    def __init__(self, queues: LogQueues, name: str, positions: Mapping[str, int]):
        _check_name(name)
        self._name = name
        self._ends: dict[str, ReadEnd] = {}
        self._problem: tuple[str, QueueError] | None = None
        self._watch = watch_files_in(queues.folder)
        try:
            for queue, position in positions.items():
                files = queues.files(queue)
                self._ends[queue] = ReadEnd(files, position, Cursor(files, name, position))
        except BaseException:
            self.close()
            raise

    def poll(self, queues: Collection[str], timeout_s: float, most_bytes: int = 4 << 20) -> list[Entry]:
        entries = self._take(queues, most_bytes)
        if entries or timeout_s <= 0:
            return entries
        deadline = time.monotonic() + timeout_s
        if self._add_watches(queues):
            entries = self._take(queues, most_bytes)
        while not entries and (left := deadline - time.monotonic()) > 0:
            is_woken = self._watch.wait(left, queues)
            entries = self._take(queues, most_bytes)
            if is_woken:
                break
        return entries

    def _add_watches(self, queues: Collection[str]) -> bool:
        """True where one is new: a frame may have come before it."""
        are_new = False
        try:
            for queue in queues:
                are_new |= self._watch.add(queue, self._ends[queue].files.tail_path)
        except OSError:  # a user may have so many watches, and no more
            self._watch.close()
            self._watch = PollingWatch()
        return are_new

    def _take(self, queues: Collection[str], most_bytes: int) -> list[Entry]:
        if self._problem is not None and self._problem[0] in queues:
            _, problem = self._problem
            self._problem = None
            raise problem
        entries: list[Entry] = []
        for queue in queues:
            try:
                entries += self._end(queue).take(most_bytes)
            except QueueError as error:
                if not entries:
                    raise
                # What other queues have given must not be lost with it.
                self._problem = (queue, error)
                break
        if entries:
            self._watch.found()
        return entries

    def _end(self, queue: str) -> ReadEnd:
        try:
            return self._ends[queue]
        except KeyError:
            raise QueueError(f"reader {self._name} was not opened for queue {queue}: name its position") from None

    def acknowledge(self, queue: str, position: int) -> None:
        cursor = self._end(queue).cursor
        # Of readers of one name, the one that has come furthest counts.
        if position > cursor.position:
            cursor.position = position

    def wake(self) -> None:
        self._watch.wake()

    def close(self) -> None:
        while self._ends:
            self._ends.popitem()[1].close()
        self._watch.close()
