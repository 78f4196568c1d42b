"""What is done with events that are late or repeated, and what is said of them.

| status | the event | its metrics |
|---|---|---|
| ok | is the newest of its group | over its window |
| late | came after one with a later time | over its window: what has arrived |
| rewritten | came later than the closure delay; its time was moved up to that | over the window of the new time |
| duplicate | has an id, or an arrival, that was there before | null; it counts nowhere |
| discarded | is too late, or has no time | null; it counts nowhere |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.errors import DefinitionError
from headrace.model.ticks import DAY, MINUTE, Ticks, format_ticks

# What a row is, from harmless to worst: of several stages the worst counts.
OK, LATE, REWRITTEN, REPEATED, BACKFILLED, TOO_LATE, TOO_OLD, NO_TIME, NO_ARRIVAL = range(9)
COUNTED_CODES: Final = REWRITTEN
"""Codes up to this one are of events that count."""

STATUSES: Final = (
    "ok",
    "late",
    "rewritten",
    "duplicate",
    "duplicate",
    "discarded",
    "discarded",
    "discarded",
    "discarded",
)

ACCEPT, REWRITE, DISCARD = 0, 1, 2
LATE_POLICIES: Final = ("accept", "rewrite", "discard")

_TEN_MINUTES: Final = Ticks(10 * MINUTE)


@dataclass(frozen=True)
class Policy:
    """What is done with events that are late or repeated. Lengths of time are in the time of events.

    `late`     what to do with an event that is later than `closure` behind the newest of its group
    `closure`  how late an event may be and still be in time (for `rewrite` and `discard`)
    `keep`     how long events stay longer than the longest window needs them: an event that is later than this cannot
               be answered exactly and is discarded; None keeps them for ever
    `dedup`    how long an id is remembered: an event with the id of one of its group is a duplicate if the newest of
               the group, itself among them, is less than this after that one; None does not look at ids
    """

    late: str = "accept"
    closure: Ticks = _TEN_MINUTES
    keep: Ticks | None = DAY
    dedup: Ticks | None = None

    def __post_init__(self) -> None:
        if self.late not in LATE_POLICIES:
            raise DefinitionError(f"late= must be one of {', '.join(map(repr, LATE_POLICIES))}, not {self.late!r}")

    def reasons(self, time: str, arrival: str | None, id: str | None) -> tuple[str | None, ...]:
        """Why a row has its status, by code, for people."""
        keep = "" if self.keep is None else format_ticks(self.keep)
        return (
            None,
            "an event of its group with a later time came before it",
            f"more than {format_ticks(self.closure)} behind the newest event of its group: its time was moved up",
            f"an event of its group with this {id} came before it",
            f"its {arrival or time} is not past the backfill, which has it",
            f"more than {format_ticks(self.closure)} behind the newest event of its group",
            f"more than {keep} late: the events of its window may be gone",
            f"{time} is null or out of range",
            f"{arrival} is null",
        )
