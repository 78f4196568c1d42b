"""Arrow IPC streams that anybody may have made. Nothing in them is trusted."""

from __future__ import annotations

import functools
from typing import Final

import pyarrow as pa

from headrace.errors import FrameDamaged
from headrace.model.frames import checked_batch

_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def read_stream(content: bytes) -> list[pa.RecordBatch]:
    """Its record batches. Raises ValueError; compressed batches, whose size nobody knows, are refused."""
    try:
        messages = list(pa.ipc.MessageReader.open_stream(pa.py_buffer(content)))
        if not messages or messages[0].type != "schema":
            raise ValueError("it is not an Arrow stream: it does not begin with a schema")
        head = messages[0].serialize().to_pybytes()
        return [checked_batch(head, memoryview(each.serialize())) for each in messages[1:]]
    except FrameDamaged as error:
        raise ValueError(f"the Arrow stream cannot be read: {error.problem}") from None
    except (pa.ArrowException, OSError, EOFError, MemoryError) as error:
        raise ValueError(f"it is not an Arrow stream: {error}") from None


def write_stream(batch: pa.RecordBatch) -> bytes:
    """A stream of one record batch."""
    return b"".join([_head(batch.schema), batch.serialize(), _END])


@functools.lru_cache(maxsize=64)
def _head(schema: pa.Schema) -> bytes:
    content: bytes = schema.serialize().to_pybytes()
    return content
