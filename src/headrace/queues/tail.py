"""The tail record of a queue: a small file that every process maps, and that says how far the queue goes.

Words of 8 bytes in the order of the machine. Readers look at them without a lock, writers change them under the lock of
the queue. A value and its guard are written by one `pwrite`, which also wakes those who wait on the file; a look that
meets it halfway sees that the guard does not fit and looks again. A process that is killed cannot leave half of so
small a `pwrite` behind, and the flags are single aligned stores.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import uuid
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Final

RECORD_BYTES: Final = 4096
_MAGIC: Final = int.from_bytes(b"HRTAIL01", "little")
_GUARD: Final = 0x5DEECE66D1CE4E5B
_YES: Final = 0x9E3779B97F4A7C15
_ID, _BOOT, _TAIL, _WRITING, _SYNCED, _START = 1, 2, 4, 7, 8, 10
_SEALED, _DELETED, _CHECKSUM = 12, 13, 14
_ADVANCE: Final = struct.Struct("=QQQQ")
_LOOKS: Final = 10_000


class RecordDamaged(Exception):
    """The record says nothing that can be trusted; it has to be made anew from the segments."""


@lru_cache(maxsize=1)
def boot_id() -> int:
    """A number that is another one after each start of the machine; 0 where the system does not tell."""
    try:
        return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).int or 1
    except (OSError, ValueError):
        return 0


class TailRecord:
    """A mapped record. Setters want the lock of the queue."""

    def __init__(self, fd: int):
        """`fd` is of a file of RECORD_BYTES, and stays its owner's."""
        self._fd = fd
        self._map = mmap.mmap(fd, RECORD_BYTES)
        self._words = memoryview(self._map).cast("Q")

    def close(self) -> None:
        self._words.release()
        self._map.close()

    # ------------------------------------------------------------------- looks

    def tail(self) -> tuple[int, int]:
        """The position after the last frame, and the first position of the segment that it is in."""
        words = self._words
        for _ in range(_LOOKS):
            tail, base = words[4], words[5]
            if tail ^ base << 1 ^ _GUARD == words[6] and base <= tail:
                return tail, base
        raise RecordDamaged

    @property
    def synced(self) -> int:
        """Everything before it survives the machine."""
        return self._guarded(_SYNCED)

    @property
    def start(self) -> int:
        """The first position that has not been truncated."""
        return self._guarded(_START)

    @property
    def is_interrupted(self) -> bool:
        """Has a writer died, or failed, between its frames and the tail?"""
        return self._words[_WRITING] != 0

    @property
    def is_sealed(self) -> bool:
        return self._words[_SEALED] != 0

    @property
    def is_deleted(self) -> bool:
        return self._words[_DELETED] != 0

    @property
    def boot(self) -> int:
        return self._words[_BOOT] | self._words[_BOOT + 1] << 64

    @property
    def is_foreign(self) -> bool:
        """Is it a sound record of a Headrace that numbers its formats otherwise?"""
        return self._words[0] != _MAGIC and self._words[_CHECKSUM] == self._checksum()

    def is_whole(self) -> bool:
        """Can every word be trusted?"""
        try:
            start, synced, (tail, _) = self.start, self.synced, self.tail()
        except RecordDamaged:
            return False
        flags = all(self._words[word] in (0, _YES) for word in (_SEALED, _DELETED))
        return flags and self._words[_CHECKSUM] == self._checksum() and start <= tail and synced <= tail

    # ----------------------------------------------------------------- changes

    def begin(self) -> None:
        """From here to `advance` there may be half a frame past the tail."""
        self._words[_WRITING] = 1

    def give_up(self) -> None:
        """What was past the tail is gone."""
        self._words[_WRITING] = 0

    def advance(self, tail: int, base: int) -> None:
        """Ends `begin`, and wakes whoever watches the file."""
        os.pwrite(self._fd, _ADVANCE.pack(tail, base, tail ^ base << 1 ^ _GUARD, 0), 8 * _TAIL)

    def ring(self) -> None:
        """Wakes whoever watches the file."""
        os.pwrite(self._fd, bytes(8), RECORD_BYTES - 8)

    def set_synced(self, position: int) -> None:
        self._set_guarded(_SYNCED, position)

    def set_start(self, position: int) -> None:
        self._set_guarded(_START, position)

    def seal(self) -> None:
        self._words[_SEALED] = _YES

    def delete(self) -> None:
        self._words[_DELETED] = _YES

    def renew(self, start: int, tail: int, base: int, sealed: bool) -> None:
        """The whole record, of a queue whose files are all on disk."""
        words = self._words
        words[0], words[_ID] = _MAGIC, words[_ID] or secrets.randbits(63)
        words[_BOOT], words[_BOOT + 1] = boot_id() & (1 << 64) - 1, boot_id() >> 64
        words[_SEALED], words[_DELETED] = _YES if sealed else 0, 0
        words[_CHECKSUM] = self._checksum()
        self.set_start(start)
        self.set_synced(tail)
        self.advance(tail, base)

    def _checksum(self) -> int:
        return zlib.crc32(self._map[: 8 * _TAIL]) ^ _GUARD

    def _guarded(self, word: int) -> int:
        for _ in range(_LOOKS):
            value = self._words[word]
            if value ^ _GUARD == self._words[word + 1]:
                return value
        raise RecordDamaged

    def _set_guarded(self, word: int, value: int) -> None:
        os.pwrite(self._fd, struct.pack("=QQ", value, value ^ _GUARD), 8 * word)
