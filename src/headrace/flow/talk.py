"""What the driver and the workers of a flow tell each other: two queues, of which what is old goes."""

from __future__ import annotations

from collections import deque
from typing import Final

from headrace.queues.protocol import Queues

_EVERY_S: Final = 60.0
_HEARD_AFTER_S: Final = 1200.0
"""A worker that hears nothing for much less leaves, or is replaced: it has read what is older, or never will."""


def control_queue(flow: str) -> str:
    return f"{flow}.control"


def report_queue(flow: str) -> str:
    return f"{flow}.reports"


class OldTalk:
    """Truncates both queues from time to time: a flow that never ends must not fill its disk with what was said."""

    def __init__(self, flow: str, queues: Queues, read: int):
        """`read`: up to where the driver has read what workers report."""
        self._flow, self._queues = flow, queues
        self.read = read
        self._looked_s: float | None = None
        self._ends: deque[tuple[float, int]] = deque()
        """When the driver's own queue ended where."""

    def look(self, now_s: float) -> None:
        if self._looked_s is not None and now_s - self._looked_s < _EVERY_S:
            return
        self._looked_s = now_s
        control = control_queue(self._flow)
        self._ends.append((now_s, self._queues.bounds(control)[1]))
        self._queues.truncate(report_queue(self._flow), self.read)
        heard = 0
        while self._ends and now_s - self._ends[0][0] >= _HEARD_AFTER_S:
            heard = self._ends.popleft()[1]
        if heard:
            self._queues.truncate(control, heard)
