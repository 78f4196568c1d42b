"""A worker that is at one thing for long says so: it is at work, and not dead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from headrace.errors import HeadraceError
from headrace.model.progress import PROGRESS

AFTER_S: Final = 2.0
"""One that is at the same thing for so long says so, and again as often."""


class BusyVoice:
    """Speaks from a thread of its own, so not where the process is stopped, or gone, or nobody can be reached.

    `begin` and `end` frame each thing that a worker does: a stage, a sink or a source may take long. What it says is
    `what` it does, `for_s`, since when, and `still_s`, since when no function of the user was called anew.
    """

    def __init__(self, say: Callable[[Mapping[str, Any]], None], after_s: float = AFTER_S):
        self._say, self._after_s = say, after_s
        self._doing: tuple[Callable[[], str], float] | None = None
        self._moved = 0, 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-busy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()

    def begin(self, what: Callable[[], str]) -> None:
        """`what` is asked for when it is to be said."""
        self._doing = what, time.monotonic()

    def end(self) -> None:
        self._doing = None

    def _run(self) -> None:
        while not self._is_over.wait(self._after_s):
            doing, now = self._doing, time.monotonic()
            if PROGRESS.calls != self._moved[0]:
                self._moved = PROGRESS.calls, now
            if doing is None or now - doing[1] < self._after_s:
                continue
            still_s = now - max(doing[1], self._moved[1])
            with suppress(HeadraceError):  # the worker meets it as well, and tells
                self._say({"what": doing[0](), "for_s": round(now - doing[1], 1), "still_s": round(still_s, 1)})
