"""Events of a request: JSON or Arrow, checked value by value before anything of them goes anywhere."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import math
import struct
from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from headrace.errors import RequestRefused
from headrace.language.names import did_you_mean
from headrace.language.type_names import spark_name
from headrace.model.arrow_streams import read_stream

MOST_EVENTS: Final = 10_000
_SHOWN: Final = 60
_LONG: Final = 400
"""A whole number of so many digits is none in any column, and takes long to read."""


class _Number(str):
    """A number as it is written: its column says what is made of it."""


def from_json_body(body: bytes, schema: pa.Schema, needed: tuple[str, ...]) -> pa.RecordBatch:
    """One event, an object, or many, an array of them. `needed` columns must be there. Raises RequestRefused."""
    try:
        found = json.loads(body, parse_float=_Number, parse_int=_whole, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the body is not JSON: {error}", 400) from None
    events = [found] if isinstance(found, dict) else found
    if not isinstance(events, list):
        raise RequestRefused("the body must be an event, a JSON object, or an array of them")
    _check_count(len(events))
    for number, event in enumerate(events):
        if not isinstance(event, dict):
            raise RequestRefused(f"event {number} is not a JSON object: {_shown(event)}")
        unknown = next((name for name in event if name not in schema.names), None)
        if unknown is not None:
            hint = did_you_mean(unknown, schema.names) or f"the stream has {', '.join(schema.names)}"
            raise RequestRefused(f"event {number} has a field {unknown!r} that the stream does not have; {hint}")
    columns = [_column(entry, [event.get(entry.name) for event in events]) for entry in schema]
    return _complete(pa.RecordBatch.from_arrays(columns, schema=schema), needed)


def from_arrow_body(body: bytes, schema: pa.Schema, needed: tuple[str, ...]) -> pa.RecordBatch:
    """An Arrow IPC stream."""
    try:
        batches = read_stream(body)
    except ValueError as error:
        raise RequestRefused(f"the body cannot be taken: {error}", 400) from None
    for batch in batches:
        _check_columns(batch.schema, schema)
    _check_count(sum(batch.num_rows for batch in batches))
    table = pa.Table.from_batches([batch.select(schema.names).cast(schema) for batch in batches]).combine_chunks()
    return _complete(table.to_batches()[0], needed)


def _check_count(count: int) -> None:
    if count == 0:
        raise RequestRefused("there is no event in the body")
    if count > MOST_EVENTS:
        raise RequestRefused(f"{count:,} events are too many for one request: send {MOST_EVENTS:,} at most", 413)


def _check_columns(found: pa.Schema, schema: pa.Schema) -> None:
    for entry in schema:
        if entry.name not in found.names:
            raise RequestRefused(f"column {entry.name} is missing")
        if found.names.count(entry.name) > 1:
            raise RequestRefused(f"column {entry.name} is there more than once")
        if found.field(entry.name).type != entry.type:
            wanted, there = spark_name(entry.type), spark_name(found.field(entry.name).type)
            raise RequestRefused(f"column {entry.name} is {there}, the stream has {wanted}")
    unknown = next((name for name in found.names if name not in schema.names), None)
    if unknown is not None:
        raise RequestRefused(f"there is a column {unknown!r} that the stream does not have")


def _complete(batch: pa.RecordBatch, needed: tuple[str, ...]) -> pa.RecordBatch:
    for name in needed:
        column = batch.column(name)
        if column.null_count:
            number = column.is_null().to_pylist().index(True)
            raise RequestRefused(f"event {number} has no {name}, which every event of the stream needs")
    return batch


# ------------------------------------------------------------------------- values


def _column(entry: pa.Field, values: list[Any]) -> pa.Array:
    convert = _converter(entry.type)
    made = []
    for number, value in enumerate(values):
        try:
            made.append(None if value is None else convert(value))
        except (TypeError, ValueError, ArithmeticError, binascii.Error):
            raise RequestRefused(
                f"event {number}, field {entry.name}: {_shown(value)} is not a {spark_name(entry.type)}"
            ) from None
    try:
        return pa.array(made, entry.type)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise RequestRefused(f"field {entry.name}: {error}") from None


def _converter(type: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_boolean(type):
        return _bool
    if pa.types.is_integer(type):
        low, high = -(1 << (type.bit_width - 1)), (1 << (type.bit_width - 1)) - 1
        return lambda value: _int(value, low, high)
    if pa.types.is_floating(type):
        return _single if pa.types.is_float32(type) else _float
    if pa.types.is_decimal(type):
        one, exact = Decimal(1).scaleb(-type.scale), Context(type.precision, traps=[InvalidOperation, Inexact])
        return lambda value: _decimal(value, one, exact)
    if pa.types.is_timestamp(type):
        return lambda value: _time(value, type)
    if pa.types.is_date(type):
        return lambda value: dt.date.fromisoformat(_text(value))
    if pa.types.is_binary(type):
        return lambda value: base64.b64decode(_text(value), validate=True)
    return _text


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _int(value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise TypeError
    return value


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | _Number):
        raise TypeError
    found = float(value)
    if not math.isfinite(found):
        raise ValueError
    return found


def _single(value: Any) -> float:
    found = _float(value)
    struct.pack("<f", found)  # raises where it is too large
    return found


def _decimal(value: Any, one: Decimal, exact: Context) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    number = Decimal(value).quantize(one, context=exact)  # raises where digits would be lost
    if not number.is_finite():
        raise ValueError
    return number


def _text(value: Any) -> str:
    if type(value) is not str:  # and no number
        raise TypeError
    value.encode()  # raises where it is half of a character
    return value


def _time(value: Any, type: pa.DataType) -> dt.datetime:
    moment = dt.datetime.fromisoformat(_text(value))
    if type.tz is None:
        if moment.tzinfo is not None:
            raise ValueError
        return moment
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)


def _whole(text: str) -> int | _Number:
    return int(text) if len(text) < _LONG else _Number(text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not in JSON")


def _shown(value: Any) -> str:
    text = value if isinstance(value, _Number) else json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
