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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.track.local import Said
from headrace.track.rows import Ints
from headrace.track.tokens import Words


@dataclass(frozen=True)
class TaskSaid:
    """What one task says, as of a step."""

    producer: int
    step: int
    said: Said
    below: int
    coarse: int
    is_over: bool = False


def report_schema(groups: int, label: pa.DataType) -> pa.Schema:
    plain = ("producer", "id", "at", "since", "coarse")
    fields = [pa.field(name, pa.int64()) for name in plain]
    fields += [pa.field("promised", pa.uint8())]
    fields += [pa.field(f"value_{group}", pa.int64()) for group in range(groups)]
    return pa.schema([*fields, pa.field("name", label)])


def report_of(tasks: Sequence[TaskSaid], groups: int, label: pa.DataType, shard: int = 0, shards: int = 1) -> Any:
    """The rows of those substreams that the shard has. One row more for each task."""
    parts = [_rows(task, groups, shard, shards) for task in tasks]
    arrays = [pa.array(np.concatenate([part[at] for part in parts])) for at in range(6)]
    arrays += [
        pa.array(np.concatenate([part[6][:, group] for part in parts]).view(np.int64)) for group in range(groups)
    ]
    has_names = any(task.said.names for task in tasks)
    names = [name for part in parts for name in part[7]] if has_names else []
    arrays.append(pa.array(names, label) if has_names else pa.nulls(len(arrays[0]), label))
    return pa.RecordBatch.from_arrays(arrays, schema=report_schema(groups, label))


def _rows(task: TaskSaid, groups: int, shard: int, shards: int) -> tuple[Any, ...]:
    said = task.said
    own = slice(None) if shards == 1 else np.flatnonzero(said.ids % np.uint64(shards) == shard)
    ids = said.ids[own]

    def column(first: int, values: Any) -> Ints:
        found: Ints = np.empty(len(ids) + 1, np.int64)
        found[0], found[1:] = first, values
        return found

    promised: npt.NDArray[np.uint8] = np.empty(len(ids) + 1, np.uint8)
    promised[0], promised[1:] = task.is_over, said.promised[own]
    values: Words = np.zeros((len(ids) + 1, groups), np.uint64)
    values[1:] = said.values[own]
    names = [None, *([said.names.get(key) for key in ids.tolist()] if said.names else [None] * len(ids))]
    return (
        column(task.producer, task.producer),
        column(0, ids.view(np.int64)),
        column(task.step, said.at[own]),
        column(task.below, said.since[own]),
        column(task.coarse, said.coarse[own]),
        promised,
        values,
        names,
    )
