"""What may be said when a flow is started."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from headrace.errors import FlowError


def check_options(*, workers: Any = None, commit_s: Any, room_bytes: Any, batch_records: Any, heartbeat_s: Any) -> None:
    """Raises FlowError that names the option, what it was, and what is allowed."""
    if workers is not None:
        _whole("workers", workers, 1)
    _whole("batch_records", batch_records, 1)
    _whole("room_bytes", room_bytes, 0)
    _seconds("commit_s", commit_s)
    _seconds("heartbeat_s", heartbeat_s)


def _whole(option: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise FlowError(f"{option}={value!r}: use a whole number from {least} on")


def _seconds(option: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise FlowError(f"{option}={value!r}: use seconds, a finite number from 0 on")
