"""Expressions over record batches, column by column: `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from headrace.errors import MeasureError
from headrace.language import kernels, scalars, types
from headrace.language.casts import try_cast
from headrace.language.nodes import (
    And,
    Between,
    Binary,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
)
from headrace.language.printer import format_expr
from headrace.language.trees import children, columns_of
from headrace.language.type_names import arrow_type, spark_name

Datum = Any
"""A pyarrow Array or Scalar; pyarrow ships no types."""


def evaluate(expr: Expr, batch: pa.RecordBatch) -> pa.Array:
    """The value of a bound expression for every row; its type is exactly `type_of(expr, batch.schema)`.

    SQL's rules: three-valued logic, division by zero gives null, a cast that fails gives null, NaN equals NaN and is
    the largest number. Only the rows that reach a branch of a CASE compute it.
    Raises MeasureError where integer or decimal arithmetic overflows.
    """
    if isinstance(expr, Column):
        return _column(batch, expr.name)
    columns = {name: _column(batch, name) for name in columns_of(expr)}
    rows = _Rows(columns, batch.num_rows)
    return _array(_value(expr, rows), rows.count)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    found = batch.schema.get_field_index(name)
    if found < 0:
        raise MeasureError(f"the data has no column {name}")
    try:
        return kernels.plain(batch.column(found))
    except pa.ArrowInvalid as error:
        raise MeasureError(f"column {name} holds a value out of range: {error}") from None


@dataclass(frozen=True)
class _Rows:
    """The columns an expression reads, as plain types."""

    columns: dict[str, pa.Array]
    count: int

    def where(self, mask: pa.Array) -> _Rows:
        kept = {name: column.filter(mask) for name, column in self.columns.items()}
        return _Rows(kept, mask.true_count)


def _array(value: Datum, count: int) -> pa.Array:
    return pa.repeat(value, count) if isinstance(value, pa.Scalar) else value


def _value(expr: Expr, rows: _Rows) -> Datum:
    """An array with one value a row, or a scalar where the expression reads no column."""
    match expr:
        case Column():
            return rows.columns[expr.name]
        case Literal():
            return pa.scalar(expr.value, types.literal_type(expr.value))
        case Case():
            return _case(expr, rows)
        case And() | Or():
            return _logic(expr, rows)
    parts = [_value(part, rows) for part in children(expr)]
    if rows.count == 0:
        # Not even a constant is computed that no row asks for: it might overflow.
        return pa.nulls(0, types.infer(expr, [part.type for part in parts]))
    if all(isinstance(part, pa.Scalar) for part in parts):
        return _checked(expr, [pa.repeat(part, 1) for part in parts])[0]
    return _checked(expr, parts)


def _checked(expr: Expr, parts: Sequence[Datum]) -> Datum:
    try:
        return _apply(expr, parts)
    except pa.ArrowInvalid:
        found = types.infer(expr, [part.type for part in parts])
        text = format_expr(expr)
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise MeasureError(
            f"{shown}: the result does not fit {spark_name(found)}; cast to a wider type, or to double"
        ) from None


def _apply(expr: Expr, parts: Sequence[Datum]) -> Datum:
    match expr:
        case Binary():
            return _binary(expr, parts[0], parts[1])
        case Negate():
            return pc.negate_checked(kernels.coerce(parts[0], types.infer(expr, [parts[0].type])))
        case Not():
            return pc.invert(kernels.coerce(parts[0], pa.bool_()))
        case IsNull():
            return pc.is_valid(parts[0]) if expr.negated else pc.is_null(parts[0])
        case In():
            return _negated(expr.negated, _in(expr, parts))
        case Between():
            return _negated(expr.negated, _between(expr, parts))
        case Like():
            text = kernels.coerce(parts[0], pa.string())
            return _negated(expr.negated, pc.match_like(text, expr.pattern))
        case Cast():
            return try_cast(parts[0], arrow_type(expr.type_name))
        case Call():
            return scalars.call_value(expr, parts)
        case _:
            raise AssertionError(f"{type(expr).__name__} is not computed from its parts")


def _negated(negated: bool, value: Datum) -> Datum:
    return pc.invert(value) if negated else value


def _binary(expr: Binary, left: Datum, right: Datum) -> Datum:
    if expr.op in types.ARITHMETIC:
        sides = types.arithmetic(expr, left.type, right.type)
        operands = kernels.coerce(left, sides.left), kernels.coerce(right, sides.right)
        return kernels.arithmetic(expr.op, *operands, sides.result)
    if expr.op == "||":
        texts = kernels.coerce(left, pa.string()), kernels.coerce(right, pa.string())
        return pc.binary_join_element_wise(*texts, "")
    return _compare(expr.op, expr.left, left, expr.right, right)


def _compare(op: str, left: Expr, left_value: Datum, right: Expr, right_value: Datum) -> Datum:
    both = types.comparison_type(left, left_value.type, right, right_value.type)
    return kernels.compare(op, kernels.coerce(left_value, both), kernels.coerce(right_value, both))


def _between(expr: Between, parts: Sequence[Datum]) -> Datum:
    above = _compare(">=", expr.operand, parts[0], expr.low, parts[1])
    below = _compare("<=", expr.operand, parts[0], expr.high, parts[2])
    return pc.and_kleene(above, below)


def _in(expr: In, parts: Sequence[Datum]) -> Datum:
    """Constants of one type are looked up in a hash set; all others are compared one by one."""
    operand, found = parts[0], pa.scalar(False)
    sets: dict[tuple[pa.DataType, pa.DataType], list[pa.Array]] = {}
    for option, value in zip(expr.options, parts[1:], strict=True):
        both = types.comparison_type(expr.operand, operand.type, option, value.type)
        if isinstance(value, pa.Scalar) and value.is_valid and not kinds.is_decimal256(both):
            sets.setdefault((value.type, both), []).append(pa.repeat(value, 1))
        else:
            found = pc.or_kleene(found, _compare("=", expr.operand, operand, option, value))
    for (_, both), constants in sets.items():
        values = kernels.coerce(pa.concat_arrays(constants), both)
        found = pc.or_kleene(found, kernels.is_in(kernels.coerce(operand, both), values))
    return found


def _logic(expr: And | Or, rows: _Rows) -> Datum:
    combine = pc.and_kleene if isinstance(expr, And) else pc.or_kleene
    result: Datum = pa.scalar(isinstance(expr, And))
    for term in expr.terms:
        result = combine(result, kernels.coerce(_value(term, rows), pa.bool_()))
    return result


def _case(expr: Case, rows: _Rows) -> Datum:
    """Each condition sees the rows that no branch before it has taken, so a condition can guard a result."""
    pieces, places, open_rows, open_places = [], [], rows, pa.array(np.arange(rows.count))
    for condition, result in expr.branches:
        asked = kernels.coerce(_array(_value(condition, open_rows), open_rows.count), pa.bool_())
        hit = pc.fill_null(asked, False)
        miss = pc.invert(hit)
        taken = open_rows.where(hit)
        pieces.append(_array(_value(result, taken), taken.count))
        places.append(open_places.filter(hit))
        open_rows, open_places = open_rows.where(miss), open_places.filter(miss)
    otherwise = Literal(None) if expr.otherwise is None else expr.otherwise
    pieces.append(_array(_value(otherwise, open_rows), open_rows.count))
    places.append(open_places)
    common = types.common_type(expr, [piece.type for piece in pieces], "the results of CASE")
    order = np.argsort(pa.concat_arrays(places).to_numpy(), kind="stable")
    return pa.concat_arrays([kernels.coerce(piece, common) for piece in pieces]).take(pa.array(order))
