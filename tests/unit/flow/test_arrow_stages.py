"""Arrow in and out of topics."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import FlowError
from headrace.flow.arrow_stages import from_arrow, to_arrow
from headrace.model.arrow_streams import write_stream

SCHEMA = pa.schema([("id", pa.string()), ("n", pa.int64())])


def _records(*values: tuple[Any, Any], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(schema.names, value, strict=True)) for value in values], schema)


def _messages(*values: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def test_what_is_written_can_be_read_one_message_a_record() -> None:
    batch = _records(("a", 1), (None, 2), ("c", None))
    written = to_arrow(key="id")(batch)
    assert written.column("key").to_pylist() == ["a", None, "c"]
    assert pa.ipc.open_stream(written.column("value")[1].as_py()).read_all().to_pylist() == [{"id": None, "n": 2}]
    assert from_arrow(SCHEMA)(written).equals(batch)
    assert to_arrow()(batch).schema.names == ["value"]


def test_a_message_may_have_many_records_and_other_columns() -> None:
    batch = _records(("a", 1), ("b", 2))
    more = batch.append_column("more", pa.array([True, False]))
    found = from_arrow(SCHEMA)(
        _messages(write_stream(more), write_stream(batch.slice(1)), write_stream(batch.slice(2)))
    )
    assert found.to_pylist() == [{"id": "a", "n": 1}, {"id": "b", "n": 2}, {"id": "b", "n": 2}]
    assert from_arrow(SCHEMA)(_messages()).num_rows == 0


def _compressed() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(_records(*[("a", 1)] * 1000))
    return bytes(sink.getvalue())


WHOLE = write_stream(_records(("a", 1)))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "the message has no value"),
        (b"", "it is not an Arrow stream"),
        (b"not Arrow at all", "it is not an Arrow stream"),
        (WHOLE[:-30], "Arrow stream"),
        (_compressed(), "the Arrow stream cannot be read: its record batch is compressed"),
        (write_stream(_records(("a", 1)).select(["id"])), "column n is not there"),
        (write_stream(_records((1, 2), schema=pa.schema([("id", pa.int64()), ("n", pa.int64())]))), "id is int64, not"),
    ],
)
def test_what_cannot_be_read_is_told(value: bytes | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_arrow(SCHEMA)(_messages(WHOLE, value))


def test_what_is_drawn_wrong_is_told() -> None:
    with pytest.raises(FlowError, match="wants the columns"):
        from_arrow("id")
    with pytest.raises(FlowError, match="there is no column k for the key"):
        to_arrow(key="k")(_records(("a", 1)))
