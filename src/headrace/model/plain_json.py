"""Plain values as JSON and back: numbers, texts, bytes, times, decimals, arrays, lists, tuples, dicts, sets.

Dataclasses and named tuples as well, of types that the reader knows: nothing is imported for what was read. Where many
values have one shape, they are written as columns.

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
from headrace.model.columns import MANY, NUMBERS, any_column, check_fields, column, number_of, values_of

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
    except (TypeError, ValueError, OverflowError) as error:
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
    return [int(value.asm8.view(np.int64)), value.unit, _zone(value.tz)]


def _read_timestamp(found: Any) -> pd.Timestamp:
    made = pd.Timestamp(np.datetime64(found[0], found[1]))
    return made if found[2] is None else made.tz_localize("UTC").tz_convert(_zone_of(found[2]))


# How a value that JSON does not have is written, and read.
_CODECS: Final[dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]] = {
    dt.datetime: ("datetime", _write_datetime, _read_datetime),
    dt.date: ("date", dt.date.isoformat, dt.date.fromisoformat),
    dt.time: ("time", _write_time, _read_time),
    dt.timedelta: ("us", lambda x: x // dt.timedelta(microseconds=1), lambda x: dt.timedelta(microseconds=x)),
    pd.Timestamp: ("timestamp", _write_timestamp, _read_timestamp),
    pd.Timedelta: (
        "timedelta",
        lambda x: [int(x.asm8.view(np.int64)), x.unit],
        lambda x: pd.Timedelta(np.timedelta64(x[0], x[1])),
    ),
    Decimal: ("decimal", str, Decimal),
    bytes: ("bytes", lambda x: base64.b64encode(x).decode(), base64.b64decode),
    np.ndarray: ("array", lambda x: _write_array(x), lambda x: _read_array(x)),
    np.str_: ("numpy text", str, np.str_),
    np.bytes_: ("numpy bytes", lambda x: base64.b64encode(x).decode(), lambda x: np.bytes_(base64.b64decode(x))),
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
    if value.dtype.kind not in NUMBERS:
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
        return _write_list(value, types)
    if kind is dict:
        return _write_dict(value, types)
    if isinstance(value, np.generic) and value.dtype.kind in NUMBERS:
        # Not as a number of Python, which would not overflow, and would round otherwise.
        return {_TAG: "number", "v": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
    if kind in _LISTS:
        name, listed = _LISTS[kind]
        return {_TAG: name, "v": _write_list(listed(value), types)}
    if types.get(kind.__name__) is kind:
        check_fields(kind, _names(kind), [value])
        parts = [_tagged(getattr(value, field), types) for field in _names(kind)]
        return {_TAG: "type", "t": kind.__name__, "v": parts}
    if kind not in _CODECS:
        is_record = types is not _NO_TYPES and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))
        hint = f" unless it is made known: write states = ({kind.__name__},) in the program" if is_record else ""
        raise TypeError(f"a {kind.__name__} is not a plain value{hint}")
    name, write, _ = _CODECS[kind]
    return {_TAG: name, "v": write(value)}


def _write_list(values: list[Any], types: Types) -> Any:
    if len(values) >= MANY and (found := _column(values, types)) is not None:
        return {_TAG: "column", "v": found}
    return [_tagged(each, types) for each in values]


def _write_dict(value: dict[Any, Any], types: Types) -> Any:
    if len(value) >= MANY:
        parts = list(value), list(value.values())
        found = [_column(part, types) for part in parts]
        if found != [None, None]:
            keys, values = (
                each or any_column(part, lambda value: _tagged(value, types))
                for each, part in zip(found, parts, strict=True)
            )
            return {_TAG: "columns", "k": keys, "v": values}
    if all(type(key) is str for key in value) and _TAG not in value:
        return {key: _tagged(each, types) for key, each in value.items()}
    return {_TAG: "dict", "v": [[_tagged(key, types), _tagged(each, types)] for key, each in value.items()]}


def _column(values: list[Any], types: Types) -> Any | None:
    def fields(kind: type) -> list[str] | None:
        return _names(kind) if types.get(kind.__name__) is kind else None

    return column(values, lambda each: _tagged(each, types), fields)


def _names(kind: Any) -> list[str]:
    """Of the fields of a dataclass or a named tuple."""
    if not dataclasses.is_dataclass(kind):
        return list(kind._fields)
    return [field.name for field in dataclasses.fields(kind)]


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
    if name == "column":
        return _values(value["v"], types)
    if name == "columns":
        return dict(zip(_values(value["k"], types), _values(value["v"], types), strict=True))
    if name == "type":
        return _made(types[value["t"]], [_untagged(each, types) for each in value["v"]])
    if name in _MAKERS:
        return _MAKERS[name](_untagged(value["v"], types))
    if name == "number":
        return number_of(*value["v"])
    return _READERS[name](value["v"])


def _values(written: Any, types: Types) -> list[Any]:
    return values_of(written, lambda each: _untagged(each, types), lambda name, values: _made(types[name], values))


def _made(kind: type, values: list[Any]) -> Any:
    """Of the values of its fields, whatever its __init__ takes."""
    if not dataclasses.is_dataclass(kind):
        return kind(*values)
    made = object.__new__(kind)
    for field, value in zip(dataclasses.fields(kind), values, strict=True):
        object.__setattr__(made, field.name, value)
    return made
