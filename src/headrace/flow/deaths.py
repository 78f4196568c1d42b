"""How often workers may die, hang and raise before the coordinator gives up: starting them again would not help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MOST_DEATHS: Final = 20
_DEATHS_WINDOW_S: Final = 60.0
HUNG_S: Final = 300.0
"""One that is at the same thing for so long is replaced: it may be waiting for something that never comes."""
_MOST_HUNG: Final = 3
_HUNG_WINDOW_S: Final = 4 * HUNG_S
_MOST_RAISED: Final = 3
_RAISED_WINDOW_S: Final = 600.0


class Deaths:
    """Each method notes one, and gives what the flow ends with, or None if it is not too much."""

    def __init__(self) -> None:
        self._died: list[float] = []
        self._hung: list[float] = []
        self._raised: list[tuple[float, str]] = []

    @property
    def count(self) -> int:
        """Of the last minute."""
        return len(self._died)

    def died(self, now_s: float, problem: str | None) -> str | None:
        self._died = [*(at for at in self._died if now_s - at < _DEATHS_WINDOW_S), now_s]
        if len(self._died) <= _MOST_DEATHS:
            return None
        return (
            f"workers died {len(self._died)} times within {_DEATHS_WINDOW_S:.0f} seconds; the last one said: "
            f"{problem or 'nothing'}"
        )

    def hung(self, now_s: float, busy: Mapping[str, Any]) -> str | None:
        self._hung = [*(at for at in self._hung if now_s - at < _HUNG_WINDOW_S), now_s]
        if len(self._hung) < _MOST_HUNG:
            return None
        return (
            f"task {busy['task']} was at one thing for {busy['for_s']:.0f} seconds, for the third time within "
            f"{_HUNG_WINDOW_S / 60:.0f} minutes: its stage hangs, or is slow; give what it waits for a time limit, or "
            f"let it take less at a time: flow.start(..., batch_records=)"
        )

    def raised(self, now_s: float, problem: str) -> str | None:
        self._raised = [*(each for each in self._raised if now_s - each[0] < _RAISED_WINDOW_S), (now_s, problem)]
        times = sum(said == problem for _, said in self._raised)
        if times < _MOST_RAISED:
            return None
        return f"workers were started again, and raised the same {times} times: {problem}"
