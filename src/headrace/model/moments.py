"""Times that Python takes for equal, and that are not; and what is not a number, of which no two are equal to it."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

_NAN: Final = float("nan")
"""A dict finds the very same one."""


def moment(value: Any) -> Any:
    """A value to find in a dict, in place of another one; only times with a zone, and NaN, are not themselves.

    Where clocks are set back a zone has an hour twice, and to Python a time of its first is equal to that of its
    second, if both are of that zone.
    """
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return _NAN if isinstance(value, float) and value != value else value
