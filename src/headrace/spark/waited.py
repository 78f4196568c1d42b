"""Events of a stream that have waited since an earlier micro-batch, with the columns that events have now.

Between two starts of a query its source may have got a column, or the session another time zone.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import StateMismatch
from headrace.model.failures import problem_of
from headrace.synchronize.inputs import Inputs

_MISFITS = (pa.ArrowException, ValueError)


def as_now(waited: pa.Table, given: pa.Schema, inputs: Inputs) -> pa.Table:
    """A column that they did not have is null, and one that there is no more stays. Raises StateMismatch for one that
    the program goes by, and for values that do not fit."""
    for field in given:
        at = waited.schema.get_field_index(field.name)
        if at >= 0:
            column = _cast(waited.column(at), field, inputs.program)
            waited = waited.set_column(at, field.with_nullable(True), column)
        elif field.name in inputs.names:
            problem = f"have no column {field.name}, by which it goes now"
            raise _mismatch(inputs.program, problem)
        else:
            column = pa.nulls(waited.num_rows, field.type)
            waited = waited.append_column(field.with_nullable(True), column)
    return waited


def _cast(column: pa.ChunkedArray, field: pa.Field, program: str) -> pa.ChunkedArray:
    try:
        return column if column.type == field.type else column.cast(field.type)
    except _MISFITS as error:
        problem = f"have {field.name} as {column.type}, which does not fit {field.type} ({problem_of(error)})"
        raise _mismatch(program, problem) from None


def _mismatch(program: str, problem: str) -> StateMismatch:
    return StateMismatch(
        f"program {program}: events that wait since an earlier batch {problem}; keep the column as it was until they "
        f"have been taken, or start anew with another checkpoint"
    )
