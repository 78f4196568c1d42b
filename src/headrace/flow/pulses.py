"""The pulse of a flow whose copies take their inputs in turns: one beat after the other, to all that sources send to.

Beats are numbered in a log of their own, which all workers read. Who made the last one makes the next, and where nobody
does for two periods another worker goes on: no number is left out, and of two beats of one number the first counts.
Every worker passes them on to the inboxes of its own tasks, where their place among the records of sources is decided
once, for all copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headrace.flow.effects import Append, Effect
from headrace.model import frames
from headrace.queues.protocol import Entry

BEATS: Final = (1 << 32) - 1
"""The channel of beats in an inbox. Like a change, a beat says itself whether it is new."""
_SILENT_PERIODS: Final = 2.0
_LATER_PERIODS: Final = 0.5
"""How much later each of the others goes on, so that they rarely do at once."""

_AFTER_PAUSE: Final = 3
"""So many beats after all sources have paused, all that they gave has been carried on, and there are no more."""


class Pulse:
    """What one worker does for it."""

    def __init__(self, log: str, worker: int, inboxes: Callable[[], Sequence[str]], period_s: float):
        """`inboxes`: of the tasks that take beats, and have not finished."""
        self.log = log
        self.position = 0
        self._worker, self._inboxes, self._period_s = worker, inboxes, period_s
        self.last = 0
        """Of the log, which is read from where it ends, and of what its tasks have had."""
        self._maker: int | None = None
        self._heard_s: float | None = None
        self._made = 0
        """The last beat that this worker made."""
        self._made_s = 0.0
        self._now_s = 0.0
        self._stops_at: int | None = None

    def take(self, entries: Sequence[Entry]) -> list[Effect]:
        """Beats of the log: they are passed on."""
        before = self.last
        for entry in entries:
            message = frames.decode(entry.frame).message
            self.position = entry.next
            if message is not None and message["beat"] > self.last:
                self.last, self._maker = message["beat"], message["by"]
        if self.last == before:
            return []
        self._heard_s = self._now_s
        frame = frames.encode(frames.control(BEATS, 0, {"beat": self.last}))
        return [Append(inbox, [frame]) for inbox in self._inboxes()]

    def stop_soon(self) -> None:
        """All sources have paused."""
        if self._stops_at is None:
            self._stops_at = self.last + _AFTER_PAUSE

    def tick(self, now_s: float) -> list[Effect]:
        """The next beat, if it is due and this worker is to make it. A clock that went back begins anew."""
        self._now_s = now_s
        if self._stops_at is not None and self.last >= self._stops_at:
            return []
        if self._heard_s is None or now_s < self._heard_s:
            self._heard_s = now_s
            return []
        periods = 1.0 if self._maker == self._worker else _SILENT_PERIODS + _LATER_PERIODS * self._worker
        # One that does not come back was lost with the broker, or is late: it is made again.
        is_under_way = self._made > self.last and 0 <= now_s - self._made_s < 10 * self._period_s
        if now_s - self._heard_s < periods * self._period_s or is_under_way:
            return []
        self._made, self._made_s = self.last + 1, now_s
        return [Append(self.log, [frames.encode(frames.control(0, 0, {"beat": self._made, "by": self._worker}))])]
