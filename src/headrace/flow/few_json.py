"""A few JSON objects as columns, and a few records as JSON objects, without what reading and writing many costs.

Arrow's reader takes 0.2 ms before it has read anything, as long as a whole answer may take. What is said here is what
it says, or None, and then it is asked: `tests/property/test_few_json.py` holds the two side by side.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

FEW: Final = 8
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?Z?", re.ASCII)
_MICROS: Final = dt.timedelta(microseconds=1)
_EPOCH: Final = dt.datetime(1970, 1, 1)
_LONG: Final = 300
_LONG_NUMBER: Final = re.compile(rb"\d{300}")
_PLAIN: Final = (1e-3, 1e9)
"""Between these, the shortest text of a double has no exponent."""

Reader = Callable[[Any, bytes], Any]


class _NotHere(Exception):
    """This is for the reader of many."""


def readers_of(schema: pa.Schema) -> list[tuple[str, pa.DataType, Reader]] | None:
    """How each column is read; None where one of them is not read here."""
    found = []
    for entry in schema:
        reader = _reader_of(entry.type)
        if reader is None:
            return None
        found.append((entry.name, entry.type, reader))
    return found


def read_few(lines: Sequence[bytes], readers: Sequence[tuple[str, pa.DataType, Reader]]) -> list[pa.Array] | None:
    """The columns; None where it is not quite sure what they are."""
    try:
        objects = [_decoded(line) for line in lines]
        return [
            pa.array([_value(found, line, name, read) for found, line in zip(objects, lines, strict=True)], type)
            for name, type, read in readers
        ]
    except (_NotHere, ValueError, RecursionError, OverflowError, pa.ArrowException):
        return None


def _decoded(line: bytes) -> dict[str, Any]:
    # Half of a character and numbers that no double has are errors, also in a field that nobody reads.
    if (b"\\u" in line and b"\\ud" in line.lower()) or (len(line) > _LONG and _LONG_NUMBER.search(line)):
        raise _NotHere
    found: dict[str, Any] = _DECODE(str(line, "utf-8"))
    return found


def _value(found: dict[str, Any], line: bytes, name: str, read: Reader) -> Any:
    value = found.get(name)
    return None if value is None else read(value, line)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _NotHere
    return found


def _no_constant(name: str) -> Any:
    raise _NotHere


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NotHere
    return value


_DECODE: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_constant).decode


def _reader_of(type: pa.DataType) -> Reader | None:
    if pa.types.is_boolean(type):
        return _bool
    if pa.types.is_integer(type):
        return _int
    if pa.types.is_float64(type):
        return _float
    if pa.types.is_string(type):
        return _text
    if pa.types.is_timestamp(type) and type.unit == "us":
        return _moment
    return None


def _bool(value: Any, line: bytes) -> bool:
    if value is True or value is False:
        return value
    raise _NotHere


def _int(value: Any, line: bytes) -> int:
    if type(value) is int:
        return value
    raise _NotHere


def _float(value: Any, line: bytes) -> float:
    if type(value) is int:
        if value == 0 and b"-0" in line:  # -0 is not 0
            raise _NotHere
        return float(value)
    if type(value) is float:
        return value
    raise _NotHere


def _text(value: Any, line: bytes) -> str:
    if type(value) is str:
        return value
    raise _NotHere


def _moment(value: Any, line: bytes) -> int:
    if type(value) is str and _MOMENT.fullmatch(value) is not None:
        return (dt.datetime.fromisoformat(value).replace(tzinfo=None) - _EPOCH) // _MICROS
    raise _NotHere


# --------------------------------------------------------------------------- out

_NULL: Final = "null"


def write_few(batch: pa.RecordBatch, many: Callable[[pa.Array], pa.Array]) -> list[str]:
    """Each record as a JSON object; `many` gives the texts of a column where they are not known here."""
    columns = []
    for entry, column in zip(batch.schema, batch.columns, strict=True):
        write = _writer_of(entry.type)
        texts: list[str | None] = [None]
        if write is not None:
            values = (column.view(pa.int64()) if pa.types.is_timestamp(entry.type) else column).to_pylist()
            texts = [_NULL if value is None else write(value) for value in values]
        if None in texts:
            texts = [_NULL if text is None else text for text in many(column).to_pylist()]
        columns.append([f"{_name(entry.name)}:{text}" for text in texts])
    return [f"{{{','.join(texts)}}}" for texts in zip(*columns, strict=True)]


def quoted(value: str) -> str:
    """A string in JSON."""
    return json.dumps(value, ensure_ascii=False)


_name = functools.lru_cache(maxsize=1024)(quoted)


@functools.lru_cache(maxsize=256)
def _writer_of(type: pa.DataType) -> Callable[[Any], str | None] | None:
    if pa.types.is_boolean(type):
        return {True: "true", False: "false"}.get
    if pa.types.is_integer(type):
        return str
    if pa.types.is_float64(type):
        return _written_float
    if pa.types.is_string(type):
        return quoted
    if pa.types.is_timestamp(type) and type.unit == "us" and type.tz in (None, "UTC"):
        return functools.partial(_written_moment, "" if type.tz is None else "Z")
    return None


def _written_float(value: float) -> str | None:
    if _PLAIN[0] <= abs(value) < _PLAIN[1]:
        return repr(value).removesuffix(".0")
    return None


def _written_moment(zone: str, value: int) -> str | None:
    try:
        return f'"{(_EPOCH + value * _MICROS).isoformat(timespec="microseconds")}{zone}"'
    except OverflowError:
        return None
