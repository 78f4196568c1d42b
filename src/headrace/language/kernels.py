"""Columnar arithmetic and comparison with the rules of SQL and Spark.

Division by zero gives null. Integers never wrap: Arrow's checked kernels raise. NaN equals NaN and is larger than
any other number; -0.0 equals 0.0.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from headrace.language import decimals
from headrace.language.casts import floor_divide, try_cast
from headrace.language.plain_types import PLAIN, UNZONED, plain_type

Datum = Any
"""A pyarrow Array or Scalar; pyarrow ships no types."""

_CHECKED: Final = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}


def plain(values: Datum) -> Datum:
    """A column as its plain type. Times finer than a microsecond are rounded down."""
    if values.type in PLAIN:
        return values
    target = plain_type(values.type)
    if kinds.is_dictionary(values.type):
        return plain(values.dictionary_decode())
    if kinds.is_timestamp(values.type) and values.type.unit == "ns":
        values = pc.cast(floor_divide(pc.cast(values, pa.int64()), 1000), UNZONED)
    return values if values.type == target else pc.cast(values, target)


def coerce(value: Datum, target: pa.DataType) -> Datum:
    """A value as a wider type; nothing is lost but the last digits of an int64 that becomes a double."""
    if value.type == target:
        return value
    if isinstance(value, pa.Scalar):
        return coerce(pa.repeat(value, 1), target)[0]
    if kinds.is_decimal(target) and kinds.is_integer(value.type):
        return pc.cast(pc.cast(value, pa.decimal256(76, target.scale)), target)
    if kinds.is_decimal256(target):
        return pc.cast(value, target)
    return try_cast(value, target)


def arithmetic(op: str, left: Datum, right: Datum, result: pa.DataType) -> Datum:
    """`left op right` for two sides of the types that `types.arithmetic` says. Raises ArrowInvalid on overflow."""
    if kinds.is_decimal(result):
        return decimals.compute(op, left, right, result)
    if op in _CHECKED:
        return _CHECKED[op](left, right)
    divisor = _without_zeros(right)
    if op == "/":
        return pc.divide(left, divisor)
    return _float_remainder(left, divisor) if kinds.is_floating(result) else _int_remainder(left, divisor)


def _without_zeros(divisor: Datum) -> Datum:
    return pc.if_else(pc.equal(divisor, pa.scalar(0, divisor.type)), pa.scalar(None, divisor.type), divisor)


def _int_remainder(left: Datum, right: Datum) -> Datum:
    # The quotient by -1 of the smallest integer does not fit, though the remainder is 0.
    divisor = pc.if_else(pc.equal(right, -1), 1, right)
    return pc.subtract(left, pc.multiply(pc.divide(left, divisor), divisor))


def _float_remainder(left: Datum, right: Datum) -> Datum:
    count = next(len(side) for side in (left, right) if isinstance(side, pa.Array))
    sides = [pa.repeat(side, count) if isinstance(side, pa.Scalar) else side for side in (left, right)]
    with np.errstate(invalid="ignore"):
        rest = np.fmod(*(side.to_numpy(zero_copy_only=False) for side in sides))
    missing = pc.or_(pc.is_null(sides[0]), pc.is_null(sides[1]))
    return pa.array(rest, pa.float64(), mask=missing.to_numpy(zero_copy_only=False))


def compare(op: str, left: Datum, right: Datum) -> Datum:
    """A comparison of two sides of one type."""
    match op:
        case "=":
            return _equal(left, right)
        case "<>":
            return pc.invert(_equal(left, right))
        case "<":
            return _less(left, right)
        case ">":
            return _less(right, left)
        case "<=":
            return pc.invert(_less(right, left))
        case _:
            return pc.invert(_less(left, right))


def _equal(left: Datum, right: Datum) -> Datum:
    equal = pc.equal(left, right)
    if kinds.is_floating(left.type):
        return pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return equal


def _less(left: Datum, right: Datum) -> Datum:
    less = pc.less(left, right)
    if kinds.is_floating(left.type):
        return pc.or_(less, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))
    return less


def is_in(value: Datum, constants: pa.Array) -> Datum:
    """SQL's IN for a list without nulls: null for a null value. NaN is in a list with NaN."""
    if kinds.is_floating(value.type):
        # Adding zero turns -0.0 into 0.0, which a hash would tell apart.
        value, constants = pc.add(value, 0.0), pc.add(constants, 0.0)
    return pc.if_else(pc.is_null(value), pa.scalar(None, pa.bool_()), pc.is_in(value, constants))
