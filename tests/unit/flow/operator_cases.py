"""Input for stages, and what they make of it: shared by the tests of operators."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from headrace.flow.operators import MAIN, Operator, Shape

NUMBERS = pa.schema([("n", pa.int64())])
KEYED = pa.schema([("k", pa.string()), ("n", pa.int64())])


def shape(main: pa.Schema = NUMBERS, given: pa.Schema = NUMBERS, **sides: pa.Schema) -> Shape:
    return Shape("parse", {MAIN: main, "errors": given.append(pa.field("reason", pa.string())), **sides})


def batch_of(*numbers: int | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=NUMBERS)


def pairs(records: Sequence[tuple[str | None, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": key, "n": number} for key, number in records], KEYED)


def ran(operator: Operator, batches: Sequence[pa.RecordBatch], end: bool = True) -> dict[str, list[Any]]:
    """The records of each output."""
    found: dict[str, list[Any]] = {}
    outputs = [pair for batch in batches for pair in operator.apply(batch)]
    for name, batch in [*outputs, *(operator.finish() if end else [])]:
        found.setdefault(name, []).extend(batch.to_pylist())
    return {name: records for name, records in found.items() if records}


def rows(*numbers: int) -> list[dict[str, int]]:
    return [{"n": number} for number in numbers]


def cut_up(batch: pa.RecordBatch, cuts: Sequence[int]) -> list[pa.RecordBatch]:
    bounds = [0, *sorted(min(cut, batch.num_rows) for cut in cuts), batch.num_rows]
    return [batch.slice(start, end - start) for start, end in pairwise(bounds)]
