"""Lines between tasks that have met: whole messages over TCP, read by the one who wants to hear.

There are no threads. Who waits for a message waits for the sockets themselves, so a message wakes one thread, once; and
who is at work and only looks finds what has come, at once, where a thread that listens would wait for its turn.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import struct
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

BYE: Final = b""
_LENGTH: Final = struct.Struct("<I")
_MOST_BYTES: Final = 1 << 18
"""That are read at a time."""
_SPIN_S: Final = 0.0002
"""So long it looks again and again, before it sleeps: to wake up takes about as long, and answers come sooner.
Two tasks on a core each synchronize in 0.12 ms, and in 0.26 without."""
_let_others: Final = getattr(os, "sched_yield", lambda: None)
"""Where there are more tasks than cores, the one that is waited for may need this core."""


@dataclass(frozen=True)
class Said:
    """What another task said; None where it went away without a word."""

    sender: int
    content: bytes | None


class Lines:
    """The lines of one task, by the numbers of the others."""

    def __init__(self, lines: dict[int, socket.socket]):
        self._lines = lines
        self._parts = {number: bytearray() for number in lines}
        """What has come of the message that is not whole yet."""
        self._over: set[int] = set()
        """Those that nothing more comes from."""
        self._heard: deque[Said] = deque()
        self._selector = selectors.DefaultSelector()
        for number, line in lines.items():
            line.setblocking(False)
            self._selector.register(line, selectors.EVENT_READ, number)

    def say(self, to: int, *contents: bytes) -> None:
        """Returns when all of it is on its way. Until then it listens: two that say much do not wait for each other."""
        left = memoryview(b"".join(_LENGTH.pack(len(content)) + content for content in contents))
        line = self._lines[to]
        try:
            while left:
                try:
                    left = left[line.send(left) :]
                except BlockingIOError:
                    self._wait_to_write(to)
        except (OSError, ValueError):
            self._heard.append(Said(to, None))

    def hear(self, wait_s: float) -> Said | None:
        """The next that somebody said, a good-bye too; None where nobody says anything for so long."""
        if not self._heard:
            self._look(0)
        if not self._heard and wait_s > 0:
            self._wait(wait_s)
        return self._heard.popleft() if self._heard else None

    def close(self) -> None:
        self._selector.close()
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    # -------------------------------------------------------------------- read

    def _wait(self, wait_s: float) -> None:
        start = now = time.monotonic()
        while not self._heard and now - start < wait_s:
            is_awake = now - start < _SPIN_S
            if is_awake:
                _let_others()
            self._look(0 if is_awake else wait_s - (now - start))
            now = time.monotonic()

    def _look(self, wait_s: float | None) -> None:
        for key, events in self._selector.select(wait_s):
            if events & selectors.EVENT_READ and key.data not in self._over:
                self._read(key.data)

    def _read(self, number: int) -> None:
        part = self._parts[number]
        try:
            came = self._lines[number].recv(_MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            came = b""
        part += came
        for content in _whole(part):
            self._heard.append(Said(number, content))
            if content == BYE:
                self._end(number)
                return
        if not came:
            self._heard.append(Said(number, None))
            self._end(number)

    def _end(self, number: int) -> None:
        self._over.add(number)
        self._selector.unregister(self._lines[number])

    def _wait_to_write(self, to: int) -> None:
        line, reads = self._lines[to], 0 if to in self._over else selectors.EVENT_READ
        if reads:
            self._selector.modify(line, reads | selectors.EVENT_WRITE, to)
        else:
            self._selector.register(line, selectors.EVENT_WRITE, to)
        self._look(None)
        if to not in self._over:
            self._selector.modify(line, selectors.EVENT_READ, to)
        elif not reads:
            self._selector.unregister(line)


def _whole(part: bytearray) -> list[bytes]:
    """The whole messages of what has come, which are taken from it."""
    found, at, size = [], 0, len(part)
    while size - at >= _LENGTH.size:
        start = at + _LENGTH.size
        stop = start + int(_LENGTH.unpack_from(part, at)[0])
        if stop > size:
            break
        found.append(bytes(part[start:stop]))
        at = stop
    del part[:at]
    return found
