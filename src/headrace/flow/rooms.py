"""How much may wait in a queue before those who send to it pause.

A queue that a merge reads is a matter of its own. What is in it counts until it has left the merge, and the merge may
be waiting for a record that is still with the sender, behind others that are far ahead: then no amount that was fixed
beforehand is enough. So where nothing has left such a queue for a while, it gets twice the room, and so on up to a
bound; it loses that again when it has emptied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

ROOM_BYTES: Final = 16 << 20
_LEAST_BYTES: Final = 64 << 10
_MOST_TIMES: Final = 256


@dataclass
class _Waiting:
    """A queue of a merge with more in it than it has room for at first."""

    backlog: int
    since_s: float
    times: int = 1


class Rooms:
    """Of all queues that a worker sends to."""

    def __init__(self, room_bytes: int, shares: Mapping[str, int], patience_s: float):
        """`shares`: for each queue that a merge reads, how many that one reads: they share the room."""
        self._room_bytes, self._shares, self._patience_s = room_bytes, shares, patience_s
        self._waiting: dict[str, _Waiting] = {}

    def is_full(self, queue: str, backlog: int, now_s: float) -> bool:
        if queue not in self._shares:
            return backlog > self._room_bytes
        room = max(self._room_bytes // self._shares[queue], _LEAST_BYTES)
        if backlog <= room:
            self._waiting.pop(queue, None)
            return False
        found = self._waiting.setdefault(queue, _Waiting(backlog, now_s))
        if backlog < found.backlog:
            found.since_s = now_s
        elif now_s - found.since_s >= self._patience_s:
            found.times, found.since_s = min(2 * found.times, _MOST_TIMES), now_s
        found.backlog = backlog
        return backlog > room * found.times
