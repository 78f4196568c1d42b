"""Waiting until one of some files is written: inotify where there is one, otherwise looking again and again.

A wait may end early, and for nothing: whoever waits looks at what the wait was for, before and after. Nothing is lost,
as a file that is written after `add` ends the next wait even if nobody was waiting yet.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

_IN_MODIFY: Final = 0x2
_IN_DELETE_SELF: Final = 0x400
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 4096 * _EVENT.size
_REMOTE: Final = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "lustre", "gluster", "afs", "gpfs", "beegfs", "virtiofs")
_SHORTEST_S: Final = 50e-6
_LONGEST_S: Final = 2e-3
_LONGEST_WAIT_S: Final = 1.0
"""Inotify has not been seen to fail, but a queue that stands still for ever would be worse than a look a second."""


class Watch(ABC):
    """The files of one reader, each under a key. One thread adds and waits; any thread wakes it."""

    @abstractmethod
    def add(self, key: str, path: str) -> bool:
        """True if it was not watched: look again before you wait, it may just have been written."""

    @abstractmethod
    def wait(self, timeout_s: float, wanted: Collection[str]) -> bool:
        """Until a file is written or `wake` is called; true for the latter."""

    @abstractmethod
    def found(self) -> None:
        """There was something: more may come soon."""

    @abstractmethod
    def wake(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


def watch_files_in(root: Path) -> Watch:
    """The best that works for a folder."""
    if sys.platform != "linux" or os.environ.get("HEADRACE_NO_INOTIFY") == "1" or _is_remote(root):
        return PollingWatch()
    try:
        return InotifyWatch()
    except OSError:  # a user may have 128 of them
        return PollingWatch()


def _is_remote(root: Path) -> bool:
    """Is the folder on a file system where others write without this kernel knowing?"""
    try:
        device = os.stat(root).st_dev
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    name = f"{os.major(device)}:{os.minor(device)}"
    kinds = [line.partition(" - ")[2].split(" ")[0] for line in mounts if line.split(" ")[2] == name]
    return any(kind.startswith(_REMOTE) for kind in kinds)


class InotifyWatch(Watch):
    """One inotify for all files, one eventfd for `wake`."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._bell, select.POLLIN)
        self._numbers: dict[str, int] = {}
        self._keys: dict[int, str] = {}

    def add(self, key: str, path: str) -> bool:
        if key in self._numbers:
            return False
        added = self._libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_MODIFY | _IN_DELETE_SELF)
        number = self._checked(added)
        self._numbers[key], self._keys[number] = number, key
        return True

    def wait(self, timeout_s: float, wanted: Collection[str]) -> bool:
        ready = self._poll.poll(min(timeout_s, _LONGEST_WAIT_S) * 1000 + 0.999)
        for fd, _ in ready:
            if fd == self._fd:
                self._read_events(wanted)
        if not any(fd == self._bell for fd, _ in ready):
            return False
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        return True

    def _read_events(self, wanted: Collection[str]) -> None:
        """Files that are written and not wanted now would end each wait: they are added again when wanted."""
        try:
            events = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        # An event on a file, not a folder, has no name behind it: all are of one size.
        for number in set(memoryview(events).cast("i")[::4].tolist()):
            key = self._keys.get(number)
            if key is not None and key not in wanted:
                del self._keys[number], self._numbers[key]
                self._libc.inotify_rm_watch(self._fd, number)

    def found(self) -> None:
        pass

    def wake(self) -> None:
        with suppress(BlockingIOError):  # it has been rung 2^64 times
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self._bell)
            self._fd = self._bell = -1

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


class PollingWatch(Watch):
    """Sleeps a tenth of the time for which nothing has come, within bounds."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._is_woken = False

    def add(self, key: str, path: str) -> bool:
        return False

    def wait(self, timeout_s: float, wanted: Collection[str]) -> bool:
        idle = time.monotonic() - self._last
        time.sleep(max(0.0, min(timeout_s, _LONGEST_S, max(_SHORTEST_S, idle / 10))))
        woken, self._is_woken = self._is_woken, False
        return woken

    def found(self) -> None:
        self._last = time.monotonic()

    def wake(self) -> None:
        self._is_woken = True

    def close(self) -> None:
        pass
