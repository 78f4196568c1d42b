"""Reports: what the tasks of a worker have to say of substreams, in one record batch.

| column | in the row of a substream | in the row of a task itself |
|---|---|---|
| producer | the number of the task | the number of the task |
| id | of the substream | 0 |
| at | the step of the task at which it last changed | the step as of which all rows of the task are |
| since | the step before that | what a source has promised: all labels below it |
| coarse | the earliest coarse time of a record of it, from sources | the coarse time of a source now |
| promised | will the source give no more of it? | will the source give nothing more? |
| value_0, … | the running words, one for each group | 0 |
| name | its label, the first time a source tells of it | null |
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.track.local import Said
from headrace.track.rows import Ints


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
    plain = ("producer", "id", "at", "since", "coarse")
    fields = [pa.field(name, pa.int64()) for name in plain]
    fields += [pa.field("promised", pa.uint8())]
    fields += [pa.field(f"value_{group}", pa.int64()) for group in range(groups)]
    return pa.schema([*fields, pa.field("name", label)])


def report_of(tasks: Sequence[TaskSaid], groups: int, label: pa.DataType, shard: int = 0, shards: int = 1) -> Any:
    """The rows of those substreams that the shard has. One row more for each task."""
    shares = [
        slice(None) if shards == 1 else np.flatnonzero(task.said.ids % np.uint64(shards) == shard) for task in tasks
    ]
    ids = [task.said.ids[own] for task, own in zip(tasks, shares, strict=True)]
    count = len(tasks) + sum(len(each) for each in ids)
    columns: Ints = np.zeros((5 + groups, count), np.int64)
    promised: npt.NDArray[np.uint8] = np.empty(count, np.uint8)
    names: list[Any] = []
    start = 0
    for task, own, words in zip(tasks, shares, ids, strict=True):
        said, stop = task.said, start + 1 + len(words)
        rows = slice(start + 1, stop)
        columns[:5, start] = task.producer, 0, task.step, task.below, task.coarse
        columns[0, rows], columns[1, rows] = task.producer, words.view(np.int64)
        columns[2, rows], columns[3, rows], columns[4, rows] = said.at[own], said.since[own], said.coarse[own]
        columns[5:, rows] = said.values[own].view(np.int64).T
        promised[start], promised[rows] = task.is_over, said.promised[own]
        names += [None, *([said.names.get(word) for word in words.tolist()] if said.names else [None] * len(words))]
        start = stop
    buffer, size = pa.py_buffer(columns), 8 * count
    arrays = [
        pa.Array.from_buffers(pa.int64(), count, [None, buffer.slice(at * size, size)]) for at in range(len(columns))
    ]
    labels = pa.array(names, label) if any(task.said.names for task in tasks) else pa.nulls(count, label)
    arrays = [*arrays[:5], pa.array(promised), *arrays[5:], labels]
    return pa.RecordBatch.from_arrays(arrays, schema=report_schema(groups, label))
