"""The sequential program: one worker, all events in their order. What every parallel run must give."""

from __future__ import annotations

from typing import Any

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
