"""Plain values as JSON and back: numbers, texts, bytes, times, decimals, arrays, lists, tuples, dicts, sets.

Dataclasses and named tuples as well, of types that the reader knows: nothing is imported for what was read.

What comes back is what went in, of the same type: a value of which that cannot be said is refused, and not only after
the first restart.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt
import pandas as pd

from headrace.errors import FlowError

_TAG: Final = "$"


Types = Mapping[str, type]
"""Dataclasses and named tuples by their names."""
_NO_TYPES: Final[Types] = {}


def dumps(value: Any, what: str, types: Types = _NO_TYPES) -> bytes:
    """Raises FlowError, naming `what` it is, for a value that would not come back the same."""
    try:
        return json.dumps(_tagged(value, types), separators=(",", ":")).encode()
    except RecursionError:
        problem = "it is nested too deeply, or contains itself"
    except (TypeError, ValueError) as error:
        problem = str(error)
    raise FlowError(
        f"{what} cannot be kept: {problem}; use numbers, texts, bytes, times, decimals, arrays of numbers, lists, "
        f"tuples, dicts and sets"
    )


def loads(content: bytes, types: Types = _NO_TYPES) -> Any:
    return _untagged(json.loads(content), types)


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
    np.ndarray: ("array", lambda x: _write_array(x), lambda x: _read_array(x)),
}
_READERS: Final = {name: read for name, _, read in _CODECS.values()}
# Those that have values in them, which are read in their turn.
_LISTS: Final[dict[type, tuple[str, Callable[[Any], Any]]]] = {
    tuple: ("tuple", list),
    set: ("set", lambda x: sorted(x, key=repr)),
    frozenset: ("frozenset", lambda x: sorted(x, key=repr)),
}
_MAKERS: Final[dict[str, Callable[[Any], Any]]] = {name: kind for kind, (name, _) in _LISTS.items()}


def _write_array(value: npt.NDArray[Any]) -> Any:
    if value.dtype.kind not in "biufcMm":
        raise TypeError(f"an array of {value.dtype} is not a plain value")
    content = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    return [value.dtype.str, list(value.shape), content]


def _read_array(found: Any) -> npt.NDArray[Any]:
    kind, shape, content = found
    return np.frombuffer(base64.b64decode(content), np.dtype(kind)).reshape(shape).copy()


def _tagged(value: Any, types: Types) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str, int, float):
        return value
    if kind is list:
        return [_tagged(each, types) for each in value]
    if kind is dict:
        if all(type(key) is str for key in value) and _TAG not in value:
            return {key: _tagged(each, types) for key, each in value.items()}
        return {_TAG: "dict", "v": [[_tagged(key, types), _tagged(each, types)] for key, each in value.items()]}
    if isinstance(value, np.generic):
        item = value.item()
        # Nanoseconds would come back as a number, and a long double stays one.
        if type(item) is not kind and not (isinstance(value, np.datetime64 | np.timedelta64) and type(item) is int):
            return _tagged(item, types)
    if kind in _LISTS:
        name, write_list = _LISTS[kind]
        return {_TAG: name, "v": [_tagged(each, types) for each in write_list(value)]}
    if types.get(kind.__name__) is kind:
        return {_TAG: "type", "t": kind.__name__, "v": [_tagged(each, types) for each in _fields(value)]}
    if kind not in _CODECS:
        is_record = types is not _NO_TYPES and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))
        hint = f" unless it is made known: write states = ({kind.__name__},) in the program" if is_record else ""
        raise TypeError(f"a {kind.__name__} is not a plain value{hint}")
    name, write, _ = _CODECS[kind]
    return {_TAG: name, "v": write(value)}


def _fields(value: Any) -> list[Any]:
    if not dataclasses.is_dataclass(value):
        return list(value)
    return [getattr(value, field.name) for field in dataclasses.fields(value)]


def _untagged(value: Any, types: Types) -> Any:
    if isinstance(value, list):
        return [_untagged(each, types) for each in value]
    if not isinstance(value, dict):
        return value
    name = value.get(_TAG)
    if name is None:
        return {key: _untagged(each, types) for key, each in value.items()}
    if name == "dict":
        return {_untagged(key, types): _untagged(each, types) for key, each in value["v"]}
    if name == "type":
        return _made(types[value["t"]], [_untagged(each, types) for each in value["v"]])
    if name in _MAKERS:
        return _MAKERS[name](_untagged(each, types) for each in value["v"])
    return _READERS[name](value["v"])


def _made(kind: type, values: list[Any]) -> Any:
    """Of the values of its fields, whatever its __init__ takes."""
    if not dataclasses.is_dataclass(kind):
        return kind(*values)
    made = object.__new__(kind)
    for field, value in zip(dataclasses.fields(kind), values, strict=True):
        object.__setattr__(made, field.name, value)
    return made
