"""Batches in pieces that fit into frames, and values that nobody changes any more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from headrace.errors import FlowError
from headrace.model.frames import MOST_BYTES

MOST_RECORDS: Final = 65_536
_MOST_BYTES: Final = 8 << 20


def cut(batch: pa.RecordBatch, giver: str) -> list[pa.RecordBatch]:
    """Pieces that fit into frames. `giver`: whose records they are."""
    # The size of its buffers is no less than its own, and known at once.
    if batch.num_rows <= MOST_RECORDS and (batch.get_total_buffer_size() <= _MOST_BYTES or batch.nbytes <= _MOST_BYTES):
        return [batch]
    half = batch.num_rows // 2
    if not half:
        if batch.nbytes > MOST_BYTES - (1 << 20):
            raise FlowError(
                f"a record of {giver} has {batch.nbytes:,} bytes, and a frame {MOST_BYTES:,} at most; give it in "
                f"several records, or keep what is large in a file and give its name"
            )
        return [batch]
    return [*cut(batch.slice(0, half), giver), *cut(batch.slice(half), giver)]


def in_parts(batch: pa.RecordBatch, most_rows: int) -> Iterator[pa.RecordBatch]:
    """The batch, or parts of it of so many rows."""
    if batch.num_rows <= most_rows:
        yield batch
        return
    for start in range(0, batch.num_rows, most_rows):
        yield batch.slice(start, most_rows)


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: copied(value) if isinstance(value, dict) else _listed(value) for name, value in values.items()}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value
