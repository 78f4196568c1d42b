"""The sequential program: one worker, all events in their order. What every parallel run must give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.synchronize.program import Program
from headrace.synchronize.running import Running


def run_sequentially(program: Program, events: pa.Table | pa.RecordBatch, state: Any = None) -> tuple[Any, pa.Table]:
    """The state after events that are in their order, and what the program gave. With `update` alone."""
    table = events if isinstance(events, pa.Table) else pa.Table.from_batches([events])
    running = Running(program, table.schema)
    running.is_columnar = False
    state = program.init() if state is None else state
    for batch in table.to_batches():
        state = running.run(state, batch)
    return state, pa.Table.from_batches(running.fetch(), schema=program.outputs)


def in_order(events: pa.Table, time: str, ties: list[str]) -> pa.Table:
    """Events by time; those of one time by columns, and as they are where these are equal."""
    columns = [events.column(name).to_numpy(zero_copy_only=False) for name in (time, *ties)]
    codes = [column if column.dtype.kind in "iufM" else np.unique(column, return_inverse=True)[1] for column in columns]
    return events.take(pa.array(np.lexsort(codes[::-1])))
