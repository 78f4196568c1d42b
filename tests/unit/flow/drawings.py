"""The first strokes of a flow: shared by the tests of drawing one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.flow.builder import Flow, Stream

NUMBERS = pa.schema([("n", pa.int64())])


def some_numbers(records: int = 10) -> Any:
    return hr.generate(
        lambda first, count: pa.record_batch([pa.array(range(first, first + count))], schema=NUMBERS), records
    )


def as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def ignored(batch: pa.RecordBatch) -> None:
    return None


def drawn() -> tuple[Flow, Stream]:
    flow = Flow("f")
    return flow, flow.source("s", some_numbers())


def any_sink() -> Any:
    return hr.callback(ignored)
