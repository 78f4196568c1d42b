"""How often workers may die, hang and raise before the coordinator gives up: starting them again would not help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_MOST_DEATHS: Final = 20
_MOST_OF_EACH: Final = 4
"""So many workers may be in one process that dies, and then in the next one."""
_DEATHS_WINDOW_S: Final = 60.0
HUNG_S: Final = 300.0
"""One that is at the same thing for so long is replaced: it may be waiting for something that never comes."""
_MOST_STUCK: Final = 12
"""Deaths of a worker that got no further than the one before it. One that is silent, or hangs, counts for more: what
it took so long for it would do again."""
_OF_SILENCE: Final = 4
_STUCK_WINDOW_S: Final = 1200.0
_MOST_RAISED: Final = 3
_RAISED_WINDOW_S: Final = 600.0
_MOST_NAMED: Final = 5


class Deaths:
    """Methods note one, and give what the flow ends with, or None if it is not too much."""

    def __init__(self, workers: int) -> None:
        self._most = max(_MOST_DEATHS, _MOST_OF_EACH * workers)
        self._died: list[float] = []
        self._raised: list[tuple[float, str]] = []
        self._furthest: dict[int, int] = {}
        """How many records the tasks of a worker have taken at most, in all its lives."""
        self._stuck: dict[int, list[tuple[float, int]]] = {}
        """By worker: when it died since it last got further, and what that counts."""

    @property
    def count(self) -> int:
        """Of the last minute."""
        return len(self._died)

    def reported(self, worker: int, tasks: Mapping[str, Mapping[str, Any]]) -> None:
        """How far a worker is."""
        records = sum(task["records_in"] for task in tasks.values())
        if records > self._furthest.get(worker, -1):
            self._furthest[worker] = records
            self._stuck.pop(worker, None)

    def died(
        self, now_s: float, worker: int, tasks: Sequence[str], problem: str | None, *, is_silent: bool, was_up: bool
    ) -> str | None:
        """`is_silent`: it was replaced, as it said nothing, or hung. `was_up`: it had begun."""
        self._died = [*(at for at in self._died if now_s - at < _DEATHS_WINDOW_S), now_s]
        said = problem or "nothing"
        if len(self._died) > self._most:
            return (
                f"workers died {len(self._died)} times within {_DEATHS_WINDOW_S:.0f} seconds; the last one said: {said}"
            )
        if not (was_up or is_silent):
            return None  # it may have been a place that it could not reach, and another time can
        stuck = [each for each in self._stuck.get(worker, []) if now_s - each[0] < _STUCK_WINDOW_S]
        self._stuck[worker] = [*stuck, (now_s, _OF_SILENCE if is_silent else 1)]
        if sum(count for _, count in self._stuck[worker]) < _MOST_STUCK:
            return None
        shown = ", ".join(tasks[:_MOST_NAMED]) + (", …" if len(tasks) > _MOST_NAMED else "")
        return (
            f"worker {worker} (tasks {shown}) was started again {len(self._stuck[worker])} times, and got no further; "
            f"the last time: {said}. What it is given next may kill it, or take too long: look at its records, give "
            f"what it waits for a time limit, or let it take less at a time, flow.start(..., batch_records=)"
        )

    def raised(self, now_s: float, problem: str) -> str | None:
        self._raised = [*(each for each in self._raised if now_s - each[0] < _RAISED_WINDOW_S), (now_s, problem)]
        times = sum(said == problem for _, said in self._raised)
        if times < _MOST_RAISED:
            return None
        return f"workers were started again, and raised the same {times} times: {problem}"
