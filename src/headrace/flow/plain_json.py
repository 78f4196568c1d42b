"""Plain values as JSON and back: numbers, texts, bytes, times, decimals, lists, tuples, dicts, sets.

What comes back is what went in, of the same type: a value of which that cannot be said is refused, and not only after
the first restart.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from headrace.errors import FlowError

_TAG: Final = "$"


def dumps(value: Any, what: str) -> bytes:
    """Raises FlowError, naming `what` it is, for a value that would not come back the same."""
    try:
        return json.dumps(_tagged(value), separators=(",", ":")).encode()
    except RecursionError:
        problem = "it is nested too deeply, or contains itself"
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise FlowError(
        f"{what} cannot be kept: {problem}; use numbers, texts, bytes, times, decimals, lists, tuples, dicts and sets"
    )


def loads(content: bytes) -> Any:
    return _untagged(json.loads(content))


def _zone(zone: dt.tzinfo | None) -> Any:
    """How a time zone is written."""
    if zone is None:
        return None
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)
    if name is not None:
        return str(name)
    if isinstance(zone, dt.timezone):
        offset = zone.utcoffset(None)
        return offset // dt.timedelta(microseconds=1)
    raise TypeError(f"a time zone of {type(zone).__name__} is not a plain value")


def _zone_of(written: Any) -> dt.tzinfo | None:
    if written is None or isinstance(written, str):
        return None if written is None else ZoneInfo(written)
    return dt.timezone(dt.timedelta(microseconds=written)) if written else dt.UTC


def _write_datetime(value: dt.datetime) -> Any:
    return [value.replace(tzinfo=None, fold=0).isoformat(), _zone(value.tzinfo), value.fold]


def _read_datetime(found: Any) -> dt.datetime:
    return dt.datetime.fromisoformat(found[0]).replace(tzinfo=_zone_of(found[1]), fold=found[2])


def _write_time(value: dt.time) -> Any:
    return [value.replace(tzinfo=None, fold=0).isoformat(), _zone(value.tzinfo), value.fold]


def _read_time(found: Any) -> dt.time:
    return dt.time.fromisoformat(found[0]).replace(tzinfo=_zone_of(found[1]), fold=found[2])


def _write_timestamp(value: pd.Timestamp) -> Any:
    return [value.value, value.unit, _zone(value.tz)]


def _read_timestamp(found: Any) -> pd.Timestamp:
    made = pd.Timestamp(found[0], unit="ns", tz="UTC" if found[2] is not None else None)
    return made.tz_convert(_zone_of(found[2])).as_unit(found[1]) if found[2] is not None else made.as_unit(found[1])


# How a value that JSON does not have is written, and read.
_CODECS: Final[dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]] = {
    dt.datetime: ("datetime", _write_datetime, _read_datetime),
    dt.date: ("date", dt.date.isoformat, dt.date.fromisoformat),
    dt.time: ("time", _write_time, _read_time),
    dt.timedelta: ("us", lambda x: x // dt.timedelta(microseconds=1), lambda x: dt.timedelta(microseconds=x)),
    pd.Timestamp: ("timestamp", _write_timestamp, _read_timestamp),
    pd.Timedelta: ("ns", lambda x: [x.value, x.unit], lambda x: pd.Timedelta(x[0], unit="ns").as_unit(x[1])),
    Decimal: ("decimal", str, Decimal),
    bytes: ("bytes", lambda x: base64.b64encode(x).decode(), base64.b64decode),
    tuple: ("tuple", lambda x: [_tagged(each) for each in x], lambda x: tuple(_untagged(each) for each in x)),
    set: ("set", lambda x: [_tagged(each) for each in sorted(x, key=repr)], lambda x: {_untagged(each) for each in x}),
}
_READERS: Final = {name: read for name, _, read in _CODECS.values()}


def _tagged(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str, int, float):
        return value
    if kind is list:
        return [_tagged(each) for each in value]
    if kind is dict:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: _tagged(each) for key, each in value.items()}
        return {_TAG: "dict", "v": [[_tagged(key), _tagged(each)] for key, each in value.items()]}
    if isinstance(value, np.generic):
        item = value.item()
        # Nanoseconds would come back as a number, and a long double stays one.
        if type(item) is not kind and not (isinstance(value, np.datetime64 | np.timedelta64) and type(item) is int):
            return _tagged(item)
    if kind not in _CODECS:
        raise TypeError(f"a {kind.__name__} is not a plain value")
    name, write, _ = _CODECS[kind]
    return {_TAG: name, "v": write(value)}


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(each) for each in value]
    if not isinstance(value, dict):
        return value
    name = value.get(_TAG)
    if name is None:
        return {key: _untagged(each) for key, each in value.items()}
    if name == "dict":
        return {_untagged(key): _untagged(each) for key, each in value["v"]}
    return _READERS[name](value["v"])
