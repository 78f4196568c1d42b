"""A few JSON objects as columns, and a few records as JSON objects, without what reading and writing many costs.

Arrow's reader gives a batch to a thread of its own, and waits for it: 0.1 ms where nobody else wants the processor, and
milliseconds where somebody does, as long as a whole answer may take. What is said here is what it says, or None, and
then it is asked: `tests/property/test_few_json.py` holds the two side by side.
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
from jiter import from_json

FEW: Final = 8
"""Records that are written."""
FEW_READ: Final = 256
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?Z?", re.ASCII)
_MICROS: Final = dt.timedelta(microseconds=1)
_EPOCH: Final = dt.datetime(1970, 1, 1)
_LONG: Final = 300
_LONG_NUMBER: Final = re.compile(rb"\d{300}")
_PLAIN: Final = (1e-3, 1e9)
"""Between these, the shortest text of a double has no exponent."""

Reader = Callable[[list[Any], Sequence[bytes]], list[Any]]
"""The values of a column, from those that are in the objects of these lines."""
_INFINITE: Final = (math.inf, -math.inf)


class _NotHere(Exception):
    """This is for the reader of many."""


class FewReader:
    """Reads objects as columns of a schema; made once for many calls."""

    def __init__(self, schema: pa.Schema, readers: Sequence[tuple[str, Reader]]):
        self._names, self._readers, self._type = schema.names, readers, pa.struct(list(schema))

    def read(self, lines: Sequence[bytes]) -> list[pa.Array] | None:
        """The columns; None where it is not quite sure what they are."""
        try:
            objects = self._decoded(lines)
            for name, read in self._readers:
                values = [each.get(name) for each in objects]
                found = read(values, lines)
                if found is not values:
                    for each, value in zip(objects, found, strict=True):
                        each[name] = value
            return pa.array(objects, self._type).flatten()  # type: ignore[no-any-return]
        except (_NotHere, ValueError, RecursionError, OverflowError, pa.ArrowException):
            return None

    def _decoded(self, lines: Sequence[bytes]) -> list[dict[str, Any]]:
        for line in lines:
            # Half of a character and numbers that no double has are errors, also in a field that nobody reads.
            if (b"\\u" in line and b"\\ud" in line.lower()) or (len(line) > _LONG and _LONG_NUMBER.search(line)):
                raise _NotHere
        found = [from_json(line, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True) for line in lines]
        for each in found:
            if list(each) != self._names:
                _check_unread(each, self._names)
        return found


def few_reader(schema: pa.Schema) -> FewReader | None:
    """None where a column is not read here."""
    readers = [(entry.name, reader) for entry in schema if (reader := _reader_of(entry.type)) is not None]
    is_whole = len(readers) == len(schema) == len(set(schema.names))
    return FewReader(schema, readers) if is_whole else None


def _check_unread(found: dict[str, Any], names: list[str]) -> None:
    for name, value in found.items():
        if name not in names and (type(value) in (dict, list) or value in _INFINITE):
            raise _NotHere


def _only(values: list[Any], *types: type) -> None:
    if not {*map(type, values)} <= {*types, type(None)}:
        raise _NotHere


def _reader_of(type: pa.DataType) -> Reader | None:
    if pa.types.is_boolean(type):
        return _plain(bool)
    if pa.types.is_integer(type):
        return _plain(int)
    if pa.types.is_float64(type):
        return _floats
    if pa.types.is_string(type):
        return _plain(str)
    if pa.types.is_timestamp(type) and type.unit == "us":
        return _moments
    return None


def _plain(kind: type) -> Reader:
    """Values that are as they are wanted."""

    def read(values: list[Any], lines: Sequence[bytes]) -> list[Any]:
        _only(values, kind)
        return values

    return read


def _floats(values: list[Any], lines: Sequence[bytes]) -> list[Any]:
    _only(values, float, int)
    if int in {*map(type, values)}:
        if any(value == 0 and b"-0" in line for value, line in zip(values, lines, strict=True)):
            raise _NotHere  # -0 is not 0
        values = [None if value is None else float(value) for value in values]
    if any(each in values for each in _INFINITE):
        raise _NotHere
    return values


def _moments(values: list[Any], lines: Sequence[bytes]) -> list[Any]:
    _only(values, str)
    return [None if value is None else _micros(value) for value in values]


def _micros(value: str) -> int:
    if _MOMENT.fullmatch(value) is None:
        raise _NotHere
    return (dt.datetime.fromisoformat(value).replace(tzinfo=None) - _EPOCH) // _MICROS


# --------------------------------------------------------------------------- out

_NULL: Final = "null"


def write_few(batch: pa.RecordBatch, many: Callable[[pa.Array], pa.Array]) -> list[str]:
    """Each record as a JSON object; `many` gives the texts of a column where they are not known here."""
    columns = []
    for (name, write, is_moment), column in zip(_writers(batch.schema), batch.columns, strict=True):
        texts: list[str | None] = [None]
        if write is not None:
            values = (column.view(pa.int64()) if is_moment else column).to_pylist()
            texts = [_NULL if value is None else write(value) for value in values]
        if None in texts:
            texts = [_NULL if text is None else text for text in many(column).to_pylist()]
        columns.append([f"{name}{text}" for text in texts])
    return [f"{{{','.join(texts)}}}" for texts in zip(*columns, strict=True)]


@functools.lru_cache(maxsize=256)
def _writers(schema: pa.Schema) -> list[tuple[str, Callable[[Any], str | None] | None, bool]]:
    """For each column: its name and a colon, how a value is written, and whether that is done from a number of it."""
    return [(f"{quoted(entry.name)}:", _writer_of(entry.type), pa.types.is_timestamp(entry.type)) for entry in schema]


def quoted(value: str) -> str:
    """A string in JSON."""
    return json.dumps(value, ensure_ascii=False)


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
