"""Plain values as JSON and back: numbers, texts, bytes, times, decimals, lists, tuples, dicts, sets."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np

from headrace.errors import FlowError

_TAG: Final = "$"

# How a value that JSON does not have is written, and read.
_CODECS: Final[tuple[tuple[type, str, Callable[[Any], Any], Callable[[Any], Any]], ...]] = (
    (dt.datetime, "datetime", dt.datetime.isoformat, dt.datetime.fromisoformat),
    (dt.date, "date", dt.date.isoformat, dt.date.fromisoformat),
    (dt.time, "time", dt.time.isoformat, dt.time.fromisoformat),
    (dt.timedelta, "us", lambda x: x // dt.timedelta(microseconds=1), lambda x: dt.timedelta(microseconds=x)),
    (Decimal, "decimal", str, Decimal),
    (bytes, "bytes", lambda x: base64.b64encode(x).decode(), base64.b64decode),
    (tuple, "tuple", lambda x: [_tagged(each) for each in x], lambda x: tuple(_untagged(each) for each in x)),
    (set, "set", lambda x: [_tagged(each) for each in sorted(x, key=repr)], lambda x: {_untagged(e) for e in x}),
)
_READERS: Final = {name: read for _, name, _, read in _CODECS}


def dumps(value: Any, what: str) -> bytes:
    """Raises FlowError, naming `what` it is, for a value that would not come back the same."""
    try:
        return json.dumps(_tagged(value), separators=(",", ":")).encode()
    except TypeError as error:
        raise FlowError(
            f"{what} cannot be kept: {error}; use numbers, texts, bytes, times, decimals, lists, tuples, dicts and sets"
        ) from None


def loads(content: bytes) -> Any:
    return _untagged(json.loads(content))


def _tagged(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        return _tagged(value.item())
    if isinstance(value, int | float):
        return value
    if isinstance(value, list):
        return [_tagged(each) for each in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and _TAG not in value:
            return {key: _tagged(each) for key, each in value.items()}
        return {_TAG: "dict", "v": [[_tagged(key), _tagged(each)] for key, each in value.items()]}
    for kind, name, write, _ in _CODECS:
        if isinstance(value, kind):
            return {_TAG: name, "v": write(value)}
    raise TypeError(f"a {type(value).__name__} is not a plain value")


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
