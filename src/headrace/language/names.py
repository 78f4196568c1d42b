"""Names: finding the column or function that a text means, and naming metrics that have no AS."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from headrace.language.nodes import Infinite, Item, LastEvents, Sliding, Statement, Tumbling, Window
from headrace.language.printer import format_expr
from headrace.model.ticks import Ticks, format_ticks

_LONGEST_PART: Final = 40


def matches(name: str, known: Sequence[str]) -> list[str]:
    """The known names that this one means: those spelled the same, else those that differ only in case, as in Spark."""
    same = [other for other in known if other == name]
    return same or [other for other in known if other.lower() == name.lower()]


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint with the nearest known name, if one is near."""
    spelled = {other.lower(): other for other in known}
    near = get_close_matches(name.lower()[:100], spelled, n=1, cutoff=0.6)
    return f"did you mean {spelled[near[0]]}?" if near else None


def listed(known: Sequence[str], most: int = 8) -> str:
    """A few names for a message."""
    return ", ".join(known[:most]) + (", …" if len(known) > most else "")


def default_name(item: Item, statement: Statement) -> str:
    """The name of a metric without AS: `sum_amount_by_card_5m`. It depends on the text alone.

    Function, arguments, `by` the grouping, then the window: `5m`, `tumbling_1h`, `infinite`, `100_events`, with
    `_delayed_1m` where it is. What is no letter, digit or underscore becomes an underscore.
    """
    parts = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", item.function)]
    parts += [_word(format_expr(arg))[:_LONGEST_PART] for arg in item.args]
    if statement.group_by:
        parts += ["by", *(column.name for column in statement.group_by)]
    return _word("_".join([*parts, _window_word(statement.window)]).lower())


def _word(text: str) -> str:
    return re.sub(r"\W+|__+", "_", text).strip("_")


def _window_word(window: Window) -> str:
    match window:
        case Sliding():
            return format_ticks(window.width) + _delay_word(window.delay)
        case Tumbling():
            return f"tumbling_{format_ticks(window.width)}{_delay_word(window.delay)}"
        case Infinite():
            return f"infinite{_delay_word(window.delay)}"
        case LastEvents():
            return f"{window.count}_events"


def _delay_word(delay: Ticks) -> str:
    return f"_delayed_{format_ticks(delay)}" if delay else ""
