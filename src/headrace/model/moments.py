"""Times that Python takes for equal, and that are not."""

from __future__ import annotations

import datetime as dt
from typing import Any


def moment(value: Any) -> Any:
    """A value to compare, or to find in a dict, in place of another one; only times with a zone are not themselves.

    Where clocks are set back a zone has an hour twice, and to Python a time of its first is equal to that of its
    second, if both are of that zone.
    """
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return value
