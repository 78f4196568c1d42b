"""`measure` on an Arrow table, without Spark: for tests, notebooks and small data. The answers are the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.measure.definition import Definition
from headrace.measure.keys import BytesIndex
from headrace.measure.plan import Stage
from headrace.measure.policy import NO_ARRIVAL, NO_TIME, STATUSES
from headrace.measure.reservoir import MEMORY_BYTES
from headrace.measure.task import MeasureTask
from headrace.measure.words import is_float, order_codes, to_words
from headrace.model.jit import Ints


def measure_table(
    definition: Definition, table: pa.Table, frames: Sequence[int] | None = None, memory_bytes: int = MEMORY_BYTES
) -> pa.Table:
    """The rows of the table in their order, with one more column for each metric.

    `frames` are the sizes of the pieces in which the rows are pushed, in arrival order; what is left comes last.
    Rows without a time or an arrival are not measured: their metrics are null.
    """
    plan = definition.plan(table.schema)
    answers: dict[str, pa.ChunkedArray] = {}
    codes = unmeasured(definition, table)
    for stage in plan.stages:
        found, more = _run_stage(definition, stage, table, frames, memory_bytes)
        answers.update(found)
        codes = np.maximum(codes, more)
    for metric in plan.metrics:
        table = table.append_column(metric.name, answers[metric.name])
    if definition.status is not None:
        reasons = definition.policy.reasons(definition.time, definition.arrival, definition.id)
        index = pa.array(codes)
        table = table.append_column(definition.status, pa.array(STATUSES).take(index))
        table = table.append_column(f"{definition.status}_reason", pa.array(reasons, pa.string()).take(index))
    return table


def unmeasured(definition: Definition, rows: pa.Table) -> Ints:
    """Codes of rows that have no time or no arrival; OK for all others."""
    codes = np.zeros(rows.num_rows, np.int64)
    if definition.arrival is not None:
        codes[~np.asarray(rows.column(definition.arrival).is_valid())] = NO_ARRIVAL
    codes[~np.asarray(rows.column(definition.time).is_valid())] = NO_TIME
    return codes


def _run_stage(
    definition: Definition, stage: Stage, table: pa.Table, frames: Sequence[int] | None, memory_bytes: int
) -> tuple[dict[str, pa.ChunkedArray], Ints]:
    """The answers of one stage, and what became of each row."""
    order, known = arrival_order(definition, stage, table)
    settings = definition.settings(memory_bytes)
    names = list(dict.fromkeys([*settings.columns, *stage.columns]))
    rows = table.select(names).take(pa.array(order)).combine_chunks()
    task = MeasureTask(stage, settings)
    pushed, codes = [], [np.zeros(0, np.int64)]
    for batch in pieces(rows, frames):
        pushed.append(task.push(batch))
        codes.append(task.codes)
    back = np.empty(table.num_rows, np.int64)
    back[order] = np.arange(len(order))
    index = pa.array(back, mask=~known)
    found = {}
    for i, metric in enumerate(stage.metrics):
        column = pa.chunked_array([answers[i] for answers in pushed], metric.type)
        found[metric.name] = column.take(index)
    code_of_row = np.zeros(table.num_rows, np.int64)
    code_of_row[order] = np.concatenate(codes)
    return found, code_of_row


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
