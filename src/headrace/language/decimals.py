"""Decimals: Spark's types for the results, and exact columnar arithmetic that rounds half up at the end."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

MAX_PRECISION: Final = 38
_WIDE: Final = 76
_LEAST_SCALE: Final = 6
_INTEGER_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 20}

Datum = Any
"""A pyarrow Array or Scalar; pyarrow ships no types."""


def type_of_value(value: Decimal) -> pa.DataType:
    """The smallest decimal type that holds the value as it is written."""
    _, digits, exponent = value.as_tuple()
    scale = max(0, -int(exponent))
    return pa.decimal128(max(1, len(digits), scale), scale)


def type_for_integers(found: pa.DataType) -> pa.DataType:
    """The decimal type that Spark gives an integer column when it meets a decimal."""
    return pa.decimal128(_INTEGER_DIGITS[found.bit_width], 0)


def exact_common(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """A decimal type that holds every value of both; over 38 digits it is a decimal256."""
    scale = max(left.scale, right.scale)
    precision = max(left.precision - left.scale, right.precision - right.scale) + scale
    return pa.decimal128(precision, scale) if precision <= MAX_PRECISION else pa.decimal256(precision, scale)


def result_type(op: str, left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Spark's type of `left op right`, or None where the exact result needs over 76 digits on the way."""
    if _digits_on_the_way(op, left, right) > _WIDE:
        return None
    scale = max(left.scale, right.scale)
    whole = (left.precision - left.scale, right.precision - right.scale)
    match op:
        case "+" | "-":
            return _capped(max(whole) + scale + 1, scale)
        case "*":
            return _capped(left.precision + right.precision + 1, left.scale + right.scale)
        case "/":
            return _quotient_type(left, right)
        case _:
            return _capped(min(whole) + scale, scale)


def _quotient_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    scale = max(_LEAST_SCALE, left.scale + right.precision + 1)
    return _capped(left.precision - left.scale + right.scale + scale, scale)


def _capped(precision: int, scale: int) -> pa.DataType:
    """Spark's rule past 38 digits: keep the whole digits, and of the others at least six."""
    if precision <= MAX_PRECISION:
        return pa.decimal128(max(1, precision), scale)
    kept = max(MAX_PRECISION - (precision - scale), min(scale, _LEAST_SCALE))
    return pa.decimal128(MAX_PRECISION, kept)


def _digits_on_the_way(op: str, left: pa.DataType, right: pa.DataType) -> int:
    scale, whole = max(left.scale, right.scale), left.precision - left.scale
    match op:
        case "+" | "-":
            return int(max(whole, right.precision - right.scale) + scale + 1)
        case "*":
            return int(left.precision + right.precision + 1)
        case "/":
            wanted = _quotient_type(left, right).scale
            return int(whole + right.scale + _quotient_scale(_widened_scale(wanted, left, right), right))
        case _:
            quotient = whole + right.scale
            return int(max(quotient + _quotient_scale(left.scale, right), quotient + right.precision + scale + 2))


def _quotient_scale(left_scale: int, right: pa.DataType) -> int:
    """The scale at which Arrow cuts a quotient off."""
    return int(max(4, left_scale + right.precision - right.scale + 1))


def _widened_scale(wanted: int, left: pa.DataType, right: pa.DataType) -> int:
    """The scale the left side needs so that Arrow's quotient has one digit more than wanted, to round by."""
    return int(max(left.scale, wanted - right.precision + right.scale))


def compute(op: str, left: Datum, right: Datum, result: pa.DataType) -> Datum:
    """`left op right` for decimals, rounded half up to the result type. Division by zero gives null.

    Raises ArrowInvalid where a value does not fit the result.
    """
    if _digits_on_the_way(op, left.type, right.type) > MAX_PRECISION:
        left, right = _wide(left), _wide(right)
    match op:
        case "+":
            return fit(pc.add(left, right), result)
        case "-":
            return fit(pc.subtract(left, right), result)
        case "*":
            return fit(pc.multiply(left, right), result)
        case "/":
            return fit(_quotient(left, right, result.scale), result)
        case _:
            return fit(_remainder(left, right), result)


def _wide(value: Datum) -> Datum:
    """The same values with room for up to 76 digits on the way."""
    return pc.cast(value, pa.decimal256(value.type.precision, value.type.scale))


def _of_kind(like: pa.DataType, precision: int, scale: int) -> pa.DataType:
    """A decimal of as many bits as another, with its own digits."""
    make = pa.decimal256 if like.bit_width == 256 else pa.decimal128
    return make(precision, scale)


def without_zeros(divisor: Datum) -> Datum:
    zero = pa.scalar(0, divisor.type)
    return pc.if_else(pc.equal(divisor, zero), pa.scalar(None, divisor.type), divisor)


def _quotient(left: Datum, right: Datum, scale: int) -> Datum:
    widened = _widened_scale(scale, left.type, right.type)
    precision = left.type.precision - left.type.scale + widened
    return pc.divide(pc.cast(left, _of_kind(left.type, precision, widened)), without_zeros(right))


def _remainder(left: Datum, right: Datum) -> Datum:
    divisor = without_zeros(right)
    quotient = truncated(pc.divide(left, divisor))
    digits = max(1, left.type.precision - left.type.scale + right.type.scale)
    whole = pc.cast(quotient, pa.decimal256(digits, 0))
    return pc.subtract(left, pc.multiply(whole, divisor))


def truncated(value: Datum) -> Datum:
    """The values without their fraction; Arrow wants room for a whole digit even where there is none."""
    return pc.trunc(pc.cast(value, pa.decimal256(min(_WIDE, value.type.precision + 1), value.type.scale)))


def fit(value: Datum, target: pa.DataType) -> Datum:
    """The values rounded half up to the scale of the target. Raises ArrowInvalid for one that does not fit."""
    return pc.cast(rounded(value, target.scale), target)


def rounded(value: Datum, scale: int) -> Datum:
    if value.type.scale <= scale:
        return value
    precision = value.type.precision + 1
    room = pa.decimal128(precision, value.type.scale) if precision <= MAX_PRECISION else None
    roomy = pc.cast(value, room or pa.decimal256(_WIDE, value.type.scale))
    return pc.round(roomy, ndigits=scale, round_mode="half_towards_infinity")
