"""Lengths of time as people write them: `5m`, `5 min`, `1h30m`, `1 hour 30 minutes`, `1.5 h`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Final

from headrace.errors import NOWHERE, DefinitionError, ParseError, Span
from headrace.model.ticks import DAY, HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND, WEEK, Ticks

LONGEST: Final = Ticks(3_652_500 * DAY)
"""Ten thousand years: whatever is longer is meant to be `infinite`."""

_SPELLINGS: Final = (
    (MICROSECOND, "us µs μs usec usecs microsecond microseconds"),
    (MILLISECOND, "ms msec msecs millisecond milliseconds"),
    (SECOND, "s sec secs second seconds"),
    (MINUTE, "m min mins minute minutes"),
    (HOUR, "h hr hrs hour hours"),
    (DAY, "d day days"),
    (WEEK, "w week weeks"),
)
UNITS: Final = {spelling: size for size, spellings in _SPELLINGS for spelling in spellings.split()}
_CALENDAR: Final = frozenset(("mo", "mon", "month", "months", "quarter", "quarters", "y", "yr", "yrs", "year", "years"))
_PART: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([^\W\d_]+)\s*")
_LONGEST_NUMBER: Final = 30


@dataclass(frozen=True)
class Part:
    """One number with its unit, as `30 minutes`."""

    quantity: str
    unit: str
    at: Span


@dataclass(frozen=True)
class Duration:
    """A length of time that may still be zero, negative or too long; whoever uses it says what is allowed."""

    ticks: int
    at: Span


def read_parts(parts: Sequence[Part], at: Span, negative: bool = False) -> Duration:
    """The exact sum of the parts, in microseconds."""
    total, seen = Fraction(0), set()
    for part in parts:
        size = _unit_size(part)
        if size in seen:
            raise ParseError(f"the duration says {part.unit} twice", "", part.at)
        seen.add(size)
        total += _quantity(part) * size
    if total.denominator != 1:
        raise ParseError("the duration is not a whole number of microseconds", "", at)
    return Duration(-int(total) if negative else int(total), at)


def read_text(text: str, at: Span) -> Duration:
    """The duration inside a quoted text, as in `INTERVAL '1 hour 30 minutes'`."""
    parts, position = [], 0
    while match := _PART.match(text, position):
        parts.append(Part(match[1], match[2], at))
        position = match.end()
    if not parts or position != len(text):
        hint = "write it as '5 minutes' or '1h30m'"
        raise ParseError(f"{_shorten(text)!r} is not a duration", "", at, hint)
    return read_parts(parts, at)


def read_length(name: str, text: str) -> Ticks:
    """A length of time that a user gave as an argument called `name`."""
    if not isinstance(text, str):
        raise DefinitionError(f'{name}= must be a length of time such as "10 minutes", not {text!r}')
    try:
        found = read_text(text, NOWHERE)
    except ParseError as error:
        raise DefinitionError(f"{name}=: {error.problem}" + (f"; {error.hint}" if error.hint else "")) from None
    if not 0 <= found.ticks <= LONGEST:
        raise DefinitionError(f"{name}= must be between 0 and 10,000 years, not {text!r}")
    return Ticks(found.ticks)


def _unit_size(part: Part) -> int:
    word = part.unit.lower()
    if word in UNITS:
        return UNITS[word]
    if word in _CALENDAR:
        raise ParseError(f"a {word.rstrip('s')} has no fixed length", "", part.at, "say it in days: 30 days, 365 days")
    near = get_close_matches(word, UNITS, n=1)
    hint = f"did you mean {near[0]}?" if near else "units are us, ms, s, m, h, d, w, or their full names"
    raise ParseError(f"{_shorten(part.unit)!r} is not a unit of time", "", part.at, hint)


def _quantity(part: Part) -> Fraction:
    if len(part.quantity) > _LONGEST_NUMBER:
        raise ParseError(f"the number has more than {_LONGEST_NUMBER} digits", "", part.at)
    return Fraction(part.quantity)


def _shorten(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
