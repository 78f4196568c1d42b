"""Small data for each program, and how results are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from headrace.demo.programs import PROGRAMS, event_windows, fraud, key_counters, outliers, page_views, smart_home
from headrace.synchronize.program import Program

SMALL: Final[Mapping[str, Mapping[str, int]]] = {
    "key_counters": {"increments": 3_000, "increments_per_reset": 50, "keys": 5},
    "event_windows": {"windows": 6, "values_per_window": 200},
    "page_views": {"views": 3_000, "views_per_update": 60},
    "fraud": {"windows": 6, "transactions_per_window": 800},
    "outliers": {"windows": 5, "connections_per_window": 300},
    "smart_home": {"slices": 50, "loads_per_slice": 2, "houses": 3},
}
EVENTS: Final[Mapping[str, pa.Schema]] = {
    "key_counters": key_counters.EVENTS,
    "event_windows": event_windows.EVENTS,
    "page_views": page_views.EVENTS,
    "fraud": fraud.EVENTS,
    "outliers": outliers.EVENTS,
    "smart_home": smart_home.EVENTS,
}
NAMES: Final = list(PROGRAMS)
COLUMNAR: Final = [name for name in NAMES if PROGRAMS[name].program().is_columnar]


def small(name: str, **more: Any) -> pa.Table:
    return PROGRAMS[name].generate(**{**SMALL[name], **more})


def example_table(name: str) -> pa.Table:
    examples: Any = PROGRAMS[name].program()
    return pa.Table.from_pylist(examples.examples(), EVENTS[name])


def bag(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    """Rows whatever their order, and how often each is there."""
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def run_columns(program: Program, events: pa.Table, cuts: list[int]) -> tuple[Any, pa.Table]:
    """The state and the rows of update_batch, over a table that is cut at these rows."""
    state, found = program.init(), []
    columnar: Any = program
    for start, stop in zip([0, *cuts], [*cuts, events.num_rows], strict=True):
        batches = events.slice(start, stop - start).combine_chunks().to_batches()
        batch = batches[0] if batches else pa.RecordBatch.from_pylist([], events.schema)
        state, given = columnar.update_batch(state, batch)
        if given is not None:
            found.append(given.cast(program.outputs))
    return state, pa.Table.from_batches(found, schema=program.outputs)
