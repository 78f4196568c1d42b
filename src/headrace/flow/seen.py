"""What the coordinator knows of workers, and what it asks them: are all channels empty?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Seen:
    """What is known of a worker."""

    epoch: int
    heard_at: float
    report: Mapping[str, Any] | None = None
    is_up: bool = False
    has_left: bool = False
    is_restoring: bool = False
    """It reads commits: the queues keep what it may want to read next."""
    busy: Mapping[str, Any] | None = None
    """What it is at, and since when, where that takes long: as `BusyVoice` says it."""
    finished: frozenset[str] = frozenset()
    """What of its tasks is finished, and safe."""


@dataclass
class Probe:
    """A round of questions: are all channels empty?"""

    number: int = 0
    sent_at: float = 0.0
    before: Any = None
    answers: dict[int, Any] = field(default_factory=dict)
    was_asked: bool = False


def progress_of(report: Mapping[str, Any]) -> tuple[int, int]:
    return int(report["records_in"]), int(report["position"])


def is_quiet(before: Mapping[int, Any], after: Mapping[int, Any]) -> bool:
    """All that was sent by the second round had been taken by the first: so nothing was on the way between them."""
    taken: dict[str, int] = {}
    for tasks in before.values():
        for task in tasks.values():
            for channel, number in task["next"].items():
                # By all copies.
                taken[channel] = min(number, taken.get(channel, number))
    return all(
        # Less, where a task that started again has not sent again all that was taken before.
        number <= taken.get(channel, 0)
        for tasks in after.values()
        for task in tasks.values()
        if not task["silent"]  # what it would send is not on any way
        for channel, number in task["sent"].items()
    )
