"""Arrow in and out of topics, as functions for stages: `hr.from_arrow`, `hr.to_arrow`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from headrace.errors import FlowError
from headrace.model.arrow_streams import read_stream, write_stream


@dataclass(frozen=True)
class FromArrow:
    """Column `value` of a batch, an Arrow IPC stream each, as the records in them."""

    schema: pa.Schema

    @property
    def __name__(self) -> str:
        return "from Arrow"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = [self._read(value) for value in batch.column("value").to_pylist()]
        return pa.concat_batches([pa.RecordBatch.from_pylist([], self.schema), *(b for each in found for b in each)])

    def _read(self, value: bytes | None) -> list[pa.RecordBatch]:
        if value is None:
            raise ValueError("the message has no value")
        return [self._columns(batch) for batch in read_stream(value)]

    def _columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for entry in self.schema:
            if batch.schema.names.count(entry.name) != 1:
                raise ValueError(f"column {entry.name} is not there, or more than once")
            if batch.schema.field(entry.name).type != entry.type:
                raise ValueError(f"column {entry.name} is {batch.schema.field(entry.name).type}, not {entry.type}")
        return pa.RecordBatch.from_arrays([batch.column(name) for name in self.schema.names], schema=self.schema)


def from_arrow(schema: pa.Schema) -> FromArrow:
    """For `flow.stage`: the records in the column `value`, Arrow IPC streams of one or many, with these columns.

    Columns that are not named are left out. A stream is not trusted: what is compressed or damaged is an error.
    """
    if not isinstance(schema, pa.Schema):
        raise FlowError(f"from_arrow wants the columns, a pa.schema, not {type(schema).__name__}")
    return FromArrow(schema)


@dataclass(frozen=True)
class ToArrow:
    """Each record of a batch as an Arrow IPC stream of its own in `value`, with a column of it as `key` too."""

    key: str | None = None
    one_to_one: ClassVar[bool] = True

    @property
    def __name__(self) -> str:
        return "to Arrow"

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = pa.array([write_stream(batch.slice(row, 1)) for row in range(batch.num_rows)], pa.binary())
        if self.key is None:
            return pa.record_batch({"value": values})
        if self.key not in batch.schema.names:
            raise FlowError(f"to_arrow: there is no column {self.key} for the key; there are {batch.schema.names}")
        return pa.record_batch({"key": batch.column(self.key).cast(pa.string()), "value": values})


def to_arrow(*, key: str | None = None) -> ToArrow:
    """For `flow.stage`: each record as an Arrow IPC stream in `value`, and a column of it as the `key` of the message.

    One message a record: how many records come together is chance, and what a flow gives is not.
    """
    return ToArrow(key)
