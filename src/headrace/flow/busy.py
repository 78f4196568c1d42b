"""A worker that is at one thing for long says so: it is at work, and not dead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from headrace.errors import HeadraceError

AFTER_S: Final = 2.0
"""One that is at the same thing for so long says so, and again as often."""


class BusyVoice:
    """Speaks from a thread of its own, so not where the process is stopped, or gone, or nobody can be reached.

    `begin` and `end` frame each thing that a worker does for a task: a stage, a sink or a source may take long.
    """

    def __init__(self, say: Callable[[Mapping[str, Any]], None], after_s: float = AFTER_S):
        self._say, self._after_s = say, after_s
        self._doing: tuple[str, float] | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-busy", daemon=True)
        self._thread.start()

    def begin(self, task: str) -> None:
        self._doing = task, time.monotonic()

    def end(self) -> None:
        self._doing = None

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._after_s):
            doing = self._doing
            if doing is None:
                continue
            for_s = time.monotonic() - doing[1]
            if for_s >= self._after_s:
                with suppress(HeadraceError):  # the worker meets it as well, and tells
                    self._say({"task": doing[0], "for_s": round(for_s, 1)})
