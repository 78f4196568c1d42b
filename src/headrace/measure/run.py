"""`measure` on an Arrow table, without Spark: for tests, notebooks and small data. The answers are the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.measure.definition import Definition
from headrace.measure.jit import Ints
from headrace.measure.keys import BytesIndex
from headrace.measure.plan import Stage
from headrace.measure.reservoir import MEMORY_BYTES
from headrace.measure.task import MeasureTask
from headrace.measure.words import is_float, order_codes, to_words


def measure_table(
    definition: Definition, table: pa.Table, frames: Sequence[int] | None = None, memory_bytes: int = MEMORY_BYTES
) -> pa.Table:
    """The rows of the table in their order, with one more column for each metric.

    `frames` are the sizes of the pieces in which the rows are pushed, in arrival order; what is left comes last.
    Rows without a time or an arrival are not measured: their metrics are null.
    """
    plan = definition.plan(table.schema)
    answers: dict[str, pa.ChunkedArray] = {}
    for stage in plan.stages:
        answers.update(_run_stage(definition, stage, table, frames, memory_bytes))
    for metric in plan.metrics:
        table = table.append_column(metric.name, answers[metric.name])
    return table


def _run_stage(
    definition: Definition, stage: Stage, table: pa.Table, frames: Sequence[int] | None, memory_bytes: int
) -> dict[str, pa.ChunkedArray]:
    order, known = arrival_order(definition, stage, table)
    settings = definition.settings(memory_bytes)
    names = list(dict.fromkeys([*settings.columns, *stage.columns]))
    rows = table.select(names).take(pa.array(order)).combine_chunks()
    task = MeasureTask(stage, settings)
    pushed = [task.push(batch) for batch in pieces(rows, frames)]
    back = np.empty(table.num_rows, np.int64)
    back[order] = np.arange(len(order))
    index = pa.array(back, mask=~known)
    found = {}
    for i, metric in enumerate(stage.metrics):
        column = pa.chunked_array([answers[i] for answers in pushed], metric.type)
        found[metric.name] = column.take(index)
    return found


def arrival_order(definition: Definition, stage: Stage, table: pa.Table) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Indices of the rows to measure in their order of arrival, and which rows those are."""
    wanted = [definition.arrival, definition.time, definition.id, *stage.columns]
    names = list(dict.fromkeys(name for name in wanted if name is not None))
    known = pc.is_valid(table[definition.time])
    if definition.arrival is not None:
        known = pc.and_(known, pc.is_valid(table[definition.arrival]))
    keys = [key for name in names for key in _sort_keys(table[name])]
    by = [(str(i), "ascending") for i in range(len(keys))]
    order = np.asarray(pc.sort_indices(pa.table(keys, [name for name, _ in by]), sort_keys=by)).astype(np.int64)
    mask = np.asarray(known)
    return order[mask[order]], mask


def _sort_keys(column: pa.ChunkedArray) -> list[pa.Array]:
    """What makes Arrow sort as Spark does: nulls first, -0.0 as 0.0, NaN last."""
    values = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        values = values.cast(column.type.value_type)
    if is_float(column.type):
        values = pa.array(order_codes(to_words(column, BytesIndex()).word))
    return [column.is_valid().combine_chunks(), values]


def pieces(rows: pa.Table, frames: Sequence[int] | None) -> list[pa.RecordBatch]:
    sizes = [*(frames or ()), rows.num_rows]
    pieces, start = [], 0
    for size in sizes:
        piece = rows.slice(start, size).combine_chunks()
        start += piece.num_rows
        pieces.extend(piece.to_batches())
    return pieces
