"""Flows that are tracked, for the tests of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.flow.builder import Flow, Stream
from headrace.flow.sequential import run_sequentially
from headrace.flow.sources import Generate

SCHEMA = pa.schema([("n", pa.int64()), ("x", pa.int64()), ("last", pa.bool_())])


def made(first: int, count: int) -> pa.RecordBatch:
    n = np.arange(first, first + count)
    return pa.record_batch([pa.array(n), pa.array(n // 4), pa.array(n % 4 == 3)], schema=SCHEMA)


def numbers(records: int = 12) -> Generate:
    return hr.generate(made, records)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def ignored(batch: pa.RecordBatch) -> None:
    return None


class Counts(hr.Stage):
    """How many of a substream have come, when it has ended."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        for x in batch.column("x").to_pylist():
            self.seen[x] = self.seen.get(x, 0) + 1

    def on_ended(self, substream: int) -> Any:
        return pa.record_batch([[self.seen.pop(substream, 0)], [substream], [True]], schema=SCHEMA)


def drawn(tracked: Stream, flow: Flow, stage: Any = Counts, **more: Any) -> dict[str, list[Any]]:
    flow.sink("out", flow.stage("count", stage, tracked, **{"parallelism": 1, "route": hr.rebalance(), **more}), CALL)
    return {name: table.to_pylist() for name, table in run_sequentially(flow.graph(), 5).items()}


CALL = hr.callback(ignored)
