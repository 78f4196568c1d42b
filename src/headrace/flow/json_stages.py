"""JSON in and out of a flow, as functions for stages: columns at once, no record by record.

```python
raw = flow.source("payments", hr.kafka("payments", "localhost:9092"))
payments = flow.stage("parse", hr.from_json(schema), raw, on_error="side")
flow.sink("scores", flow.stage("write", hr.to_json(key="card"), scored), hr.kafka("scores", "localhost:9092"))
```
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.errors import FlowError
from headrace.flow.few_json import FEW, FEW_READ, few_reader, quoted, write_few

_READ: Final = 1 << 20
_READING: Final = pj.ReadOptions(use_threads=False, block_size=_READ)
_NO_OBJECT: Final = "it is not one JSON object"
_FIRST_PRINTED, _QUOTE, _BACKSLASH = 0x20, ord('"'), ord("\\")
"""What a JSON string cannot have as it is: all before the first, and the other two."""


@dataclass(frozen=True)
class FromJson:
    """Column `value` of a batch, one JSON object each, as columns; and `keep`, columns of the batch."""

    schema: pa.Schema
    keep: tuple[str, ...] = ()
    one_to_one: ClassVar[bool] = True

    @property
    def __name__(self) -> str:
        return "from JSON"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        parsed = self._parsed(batch.column("value").to_pylist())
        if not self.keep:
            return pa.RecordBatch.from_arrays(parsed, schema=self.schema)
        kept = [batch.schema.field(name) for name in self.keep]
        columns = [*parsed, *(batch.column(name) for name in self.keep)]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*self.schema, *kept]))

    def _parsed(self, values: list[Any]) -> list[pa.Array]:
        if not values:
            return [pa.array([], entry.type) for entry in self.schema]
        if None in values:
            raise ValueError("the message has no value")
        lines = [value.encode() if isinstance(value, str) else value for value in values]
        if not _all_braced(lines):
            lines = [line.strip() for line in lines]
            # So none of them is nothing, and none goes on in the next one: as many objects as lines are one in each.
            if not _all_braced(lines):
                raise ValueError(_NO_OBJECT)
        if len(lines) <= FEW_READ and (reader := _few_reader(self.schema)) is not None:
            few = reader.read(lines)
            if few is not None:
                return few
        text = b"\n".join(lines)
        options = _options(_as_read(self.schema), text.count(b"\n") >= len(lines))
        reading = _READING if len(text) < _READ else pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
        try:
            table = pj.read_json(pa.BufferReader(text), reading, options)
        except pa.ArrowInvalid as error:
            raise ValueError(_said(error)) from None
        if table.num_rows != len(values):
            raise ValueError(_NO_OBJECT)
        return [_as(column.combine_chunks(), entry) for column, entry in zip(table.columns, self.schema, strict=True)]


def _all_braced(lines: list[bytes]) -> bool:
    return all(line[:1] == b"{" and line[-1:] == b"}" for line in lines)


@functools.lru_cache(maxsize=64)
def _as_read(schema: pa.Schema) -> pa.Schema:
    """Dates are texts in JSON; Arrow's reader wants days since 1970."""
    return pa.schema([(entry.name, pa.string() if pa.types.is_date(entry.type) else entry.type) for entry in schema])


def _as(column: pa.Array, entry: pa.Field) -> pa.Array:
    if not _holds(column, entry.type):
        raise ValueError(f"column {entry.name}: there is a number too large for {entry.type}")
    if not pa.types.is_date(entry.type):
        return column
    try:
        return column.cast(entry.type)
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {entry.name}: {error}") from None


def _holds(column: pa.Array, type: pa.DataType) -> bool:
    """Arrow's reader makes infinity of what is too large, and decimals of more digits than they have."""
    if pa.types.is_floating(type):
        return not np.isinf(column.to_numpy(zero_copy_only=False)).any()
    if pa.types.is_decimal(type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            return False
    return True


_few_reader = functools.lru_cache(maxsize=64)(few_reader)


@functools.lru_cache(maxsize=64)
def _options(schema: pa.Schema, newlines_in_values: bool) -> pj.ParseOptions:
    return pj.ParseOptions(schema, newlines_in_values=newlines_in_values, unexpected_field_behavior="ignore")


def from_json(schema: pa.Schema, *, keep: tuple[str, ...] = ()) -> FromJson:
    """For `flow.stage`: the column `value`, JSON objects, as these columns.

    Fields that the schema does not name are left out; those that are missing are null. `keep` names columns of the
    message to keep, such as `offset`.
    """
    if not isinstance(schema, pa.Schema):
        raise FlowError(f"from_json wants the columns, a pa.schema, not {type(schema).__name__}")
    nested = [entry.name for entry in schema if pa.types.is_dictionary(entry.type) or pa.types.is_binary(entry.type)]
    if nested:
        raise FlowError(f"from_json: JSON has no {schema.field(nested[0]).type} for column {nested[0]}; use string")
    return FromJson(schema, tuple(keep))


def _said(error: pa.ArrowInvalid) -> str:
    return str(error).removeprefix("JSON parse error: ").partition(" in row ")[0]


# --------------------------------------------------------------------------- out


@dataclass(frozen=True)
class ToJson:
    """All columns of a batch as JSON objects in `value`, with one of them as `key` too."""

    key: str | None = None
    one_to_one: ClassVar[bool] = True

    @property
    def __name__(self) -> str:
        return "to JSON"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        value = json_objects(batch)
        if self.key is None:
            return pa.record_batch({"value": value})
        if self.key not in batch.schema.names:
            raise FlowError(f"to_json: there is no column {self.key} for the key; there are {batch.schema.names}")
        key = batch.column(self.key)
        return pa.record_batch({"key": key if pa.types.is_string(key.type) else key.cast(pa.string()), "value": value})


def to_json(*, key: str | None = None) -> ToJson:
    """For `flow.stage`: each record as a JSON object in `value`, and a column of it as the `key` of the message.

    Times are ISO 8601, decimals are numbers with all their digits, binary is base64; not a number and infinity are
    null, for JSON has none.
    """
    return ToJson(key)


def json_objects(batch: pa.RecordBatch) -> pa.Array:
    """Each record as a JSON object."""
    if not batch.num_columns:
        return pa.array(["{}"] * batch.num_rows, pa.string())
    if batch.num_rows <= FEW:
        return pa.array(write_few(batch, _texts), pa.string())
    pieces: list[Any] = []
    for at, (entry, column) in enumerate(zip(batch.schema, batch.columns, strict=True)):
        pieces.append(("{" if at == 0 else ",") + quoted(entry.name) + ":")
        texts = _texts(column)
        pieces.append(texts if not texts.null_count else pc.fill_null(texts, "null"))
    return pc.binary_join_element_wise(*pieces, "}", "")


def _texts(column: pa.Array) -> pa.Array:
    """JSON for each value; null where it is null."""
    type = column.type
    if pa.types.is_boolean(type) or pa.types.is_integer(type) or pa.types.is_decimal(type):
        return column.cast(pa.string())
    if pa.types.is_floating(type):
        if not np.isfinite(column.to_numpy(zero_copy_only=False)).all():
            column = pc.if_else(pc.is_finite(column), column, None)
        return column.cast(pa.string())
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return _quoted(column.cast(pa.string()))
    if pa.types.is_timestamp(type) or pa.types.is_date(type):
        return _around(pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1))
    return pa.array([None if value is None else _dumped(value) for value in column.to_pylist()], pa.string())


def _quoted(column: pa.Array) -> pa.Array:
    used = _bytes_of(column)
    if not ((used < _FIRST_PRINTED) | (used == _QUOTE) | (used == _BACKSLASH)).any():
        return _around(column)
    return pa.array([None if value is None else quoted(value) for value in column.to_pylist()], pa.string())


def _bytes_of(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Of all its strings together."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return np.zeros(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)
    return np.frombuffer(data, np.uint8)[ends[column.offset] : ends[column.offset + len(column)]]


def _around(column: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', column, '"', "")


def _dumped(value: Any) -> str:
    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """What JSON has for it."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, int | str | None) else str(value)
