"""Time in Headrace: whole microseconds, the resolution of a Spark timestamp."""

from __future__ import annotations

from typing import Final, NewType

Tick = NewType("Tick", int)
"""A moment: microseconds since the Unix epoch."""

Ticks = NewType("Ticks", int)
"""A length of time in microseconds."""

MICROSECOND: Final = Ticks(1)
MILLISECOND: Final = Ticks(1_000)
SECOND: Final = Ticks(1_000_000)
MINUTE: Final = Ticks(60 * SECOND)
HOUR: Final = Ticks(60 * MINUTE)
DAY: Final = Ticks(24 * HOUR)
WEEK: Final = Ticks(7 * DAY)

FARTHEST: Final = Ticks(1 << 60)
"""Events up to this far from the epoch, 36,500 years, can be measured: windows of 10,000 years stay within 64 bits."""

_UNITS: Final = (
    ("d", DAY),
    ("h", HOUR),
    ("m", MINUTE),
    ("s", SECOND),
    ("ms", MILLISECOND),
    ("us", MICROSECOND),
)


def format_ticks(length: Ticks) -> str:
    """A length of time as people write it: 5m, 1h30m, 7d. Exact, and read back by the language.

    Weeks are shown as days: people compare 7d with 30d, not 1w with 30d.
    """
    if length == 0:
        return "0s"
    parts, rest = [], int(length)
    for unit, size in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size}{unit}")
            rest %= size
    return "".join(parts)
