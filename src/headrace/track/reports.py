"""Reports: what the tasks of a worker have to say of substreams, in one record batch.

A report is made and taken many times a second, of few rows: its numbers are one column, eight bytes each, and so one
array for who makes it and one for who takes it. `name` is the label of a substream, the first time a source tells it.

| number | in the row of a substream | in the row of a task itself |
|---|---|---|
| PRODUCER | the number of the task | the number of the task |
| ID | of the substream | 0 |
| AT | the step of the task at which it last changed | the step as of which all rows of the task are |
| SINCE | the step before that | what a source has promised: all labels below it |
| COARSE | the earliest coarse time of a record of it, from sources | the coarse time of a source now |
| PROMISED | will the source give no more of it? | will the source give nothing more? |
| VALUES, … | the running words, one for each group | 0 |
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.track.local import Said
from headrace.track.rows import Ints

PRODUCER, ID, AT, SINCE, COARSE, PROMISED, VALUES = range(7)
_WORD: Final = 8


@dataclass(frozen=True)
class TaskSaid:
    """What one task says, as of a step."""

    producer: int
    step: int
    said: Said
    below: int
    coarse: int
    is_over: bool = False


@functools.lru_cache(maxsize=64)
def report_schema(groups: int, label: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("numbers", pa.binary(_WORD * (VALUES + groups))), pa.field("name", label)])


def report_of(tasks: Sequence[TaskSaid], groups: int, label: pa.DataType, shard: int = 0, shards: int = 1) -> Any:
    """The rows of those substreams that the shard has. One row more for each task."""
    parts = [task.said.words for task in tasks]
    if shards > 1:
        parts = [task.said.words[task.said.ids % np.uint64(shards) == shard] for task in tasks]
    count = len(tasks) + sum(len(part) for part in parts)
    numbers: Ints = np.zeros((count, VALUES + groups), np.int64)
    start = 0
    for task, part in zip(tasks, parts, strict=True):
        stop = start + 1 + len(part)
        numbers[start, :VALUES] = task.producer, 0, task.step, task.below, task.coarse, task.is_over
        numbers[start + 1 : stop, PRODUCER] = task.producer
        numbers[start + 1 : stop, ID:] = part
        start = stop
    schema = report_schema(groups, label)
    rows = pa.Array.from_buffers(schema.field(0).type, count, [None, pa.py_buffer(numbers)])
    return pa.RecordBatch.from_arrays([rows, _names(tasks, parts, count, label)], schema=schema)


def _names(tasks: Sequence[TaskSaid], parts: Sequence[Ints], count: int, label: pa.DataType) -> pa.Array:
    if not any(task.said.names for task in tasks):
        return pa.nulls(count, label)
    found: list[Any] = []
    for task, part in zip(tasks, parts, strict=True):
        found += [None, *map(task.said.names.get, part[:, 0].view(np.uint64).tolist())]
    return pa.array(found, label)


def numbers_of(report: pa.RecordBatch, groups: int) -> Ints:
    """Its numbers, row by row."""
    rows, width = report.column(0), VALUES + groups
    size, buffer = len(rows) * width, rows.buffers()[1]
    found: Ints = np.frombuffer(buffer, np.int64, size, rows.offset * width * _WORD) if size else np.zeros(0, np.int64)
    found.flags.writeable = False  # whoever has the bytes: for kernels it is another type
    return found.reshape(-1, width)
