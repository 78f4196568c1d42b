"""Columnar casts between plain types.

A value that cannot be cast gives null, as with Spark's try_cast: 'abc' to int, 300 to tinyint, NaN to bigint, a
decimal that does not fit. Numbers go to integers by dropping the fraction and to decimals by rounding half up;
timestamps without a zone count as UTC; a number is a timestamp in seconds since 1970. Doubles become the shortest
text that reads back to them.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as kinds

from headrace.language import decimals
from headrace.language.moments import (
    DATE_PATTERN,
    DECIMAL_PATTERN,
    DOUBLE_PATTERN,
    INTEGER_PATTERN,
    TIMESTAMP_PATTERN,
    ZONED_PATTERN,
)
from headrace.language.plain_types import UNZONED, ZONED, family

Array = Any
"""A pyarrow Array; pyarrow ships no types."""

_MICROS: Final = 1_000_000
_WIDEST_DAYS: Final = 106_751_990
_EXACT_IN_DOUBLE: Final = 15
_EXACT_POWER: Final = 22


def try_cast(values: Array, target: pa.DataType) -> Array:
    """The values as the target type, null where that cannot be. `plain_types.castable` says which pairs there are."""
    if values.type == target:
        return values
    if kinds.is_null(values.type):
        return pa.nulls(len(values), target)
    return _TO[family(target)](values, target)


def keep(values: Array, valid: Array) -> Array:
    """The values where `valid` is true, null elsewhere."""
    return pc.if_else(pc.fill_null(valid, False), values, pa.scalar(None, values.type))


def _trimmed(texts: Array, pattern: str) -> Array:
    """Texts without space around them, null where they do not look like the pattern."""
    trimmed = pc.utf8_trim_whitespace(texts)
    return keep(trimmed, pc.match_substring_regex(trimmed, pattern))


# -------------------------------------------------------------------- to numbers


def _to_bool(values: Array, target: pa.DataType) -> Array:
    if not kinds.is_string(values.type):
        return pc.not_equal(values, pa.scalar(0, values.type))
    words = pc.utf8_lower(pc.utf8_trim_whitespace(values))
    yes = pc.is_in(words, pa.array(["t", "true", "y", "yes", "1"]))
    no = pc.is_in(words, pa.array(["f", "false", "n", "no", "0"]))
    return keep(yes, pc.or_(yes, no))


def _to_int(values: Array, target: pa.DataType) -> Array:
    match family(values.type):
        case "bool":
            return pc.cast(values, target)
        case "string":
            return _to_int(pc.cast(_trimmed(values, INTEGER_PATTERN), pa.decimal128(38, 0)), target)
        case "timestamp":
            return _to_int(_seconds(values), target)
        case "float":
            whole = pc.trunc(pc.cast(values, pa.float64()))
            # 2**63 is a double, 2**63 - 1 is not: compare with the first value that is too large.
            edge = float(2 ** (target.bit_width - 1))
            inside = pc.and_(pc.greater_equal(whole, -edge), pc.less(whole, edge))
            return pc.cast(pc.cast(keep(whole, inside), pa.int64()), target)
        case _:
            whole = decimals.truncated(values) if kinds.is_decimal(values.type) else values
            edge = 2 ** (target.bit_width - 1)
            return pc.cast(_inside(whole, -edge, edge - 1), target)


def _inside(values: Array, low: int, high: int) -> Array:
    """Integers or decimals from low to high; null for all others."""
    whole = pc.cast(values, pa.decimal256(76, values.type.scale if kinds.is_decimal(values.type) else 0))
    bounds = [pa.scalar(Decimal(bound), pa.decimal256(76, whole.type.scale)) for bound in (low, high)]
    return keep(values, pc.and_(pc.greater_equal(whole, bounds[0]), pc.less_equal(whole, bounds[1])))


def _to_float(values: Array, target: pa.DataType) -> Array:
    match family(values.type):
        case "bool":
            return pc.cast(pc.cast(values, pa.int8()), target)
        case "string":
            return pc.cast(_double_from_text(values), target, safe=False)
        case "timestamp":
            micros = pc.cast(pc.cast(values, pa.int64()), pa.float64(), safe=False)
            return pc.cast(pc.divide(micros, float(_MICROS)), target, safe=False)
        case "decimal":
            return pc.cast(_double_from_decimal(values), target, safe=False)
        case _:
            return pc.cast(values, target, safe=False)


def _double_from_text(texts: Array) -> Array:
    words = pc.replace_substring_regex(pc.utf8_lower(pc.utf8_trim_whitespace(texts)), r"^\+", "")
    words = pc.if_else(pc.equal(words, "infinity"), "inf", pc.if_else(pc.equal(words, "-infinity"), "-inf", words))
    named = pc.is_in(words, pa.array(["nan", "inf", "-inf"]))
    return pc.cast(keep(words, pc.or_(named, pc.match_substring_regex(words, DOUBLE_PATTERN))), pa.float64())


def _double_from_decimal(values: Array) -> Array:
    """The nearest double. Arrow's own cast is off by one unit in the last place for one value in seven."""
    precision, scale = values.type.precision, values.type.scale
    if precision > _EXACT_IN_DOUBLE:
        return pc.cast(pc.cast(values, pa.string()), pa.float64())
    # Both the digits and the power of ten are exact in a double, so their quotient is rounded once.
    digits = pc.cast(pc.cast(_digits(values), pa.int64()), pa.float64())
    return pc.divide(digits, float(10**scale))


def _digits(values: Array) -> Array:
    """Decimals without their point: the same memory, read as whole numbers."""
    whole = pa.decimal128(values.type.precision, 0)
    return pa.Array.from_buffers(whole, len(values), values.buffers(), offset=values.offset)


def _to_decimal(values: Array, target: pa.DataType) -> Array:
    match family(values.type):
        case "bool":
            return _to_decimal(pc.cast(values, pa.int8()), target)
        case "int":
            return _fit_or_null(pc.cast(values, pa.decimal256(76, 0)), target)
        case "float":
            return _decimal_from_double(pc.cast(values, pa.float64()), target)
        case "string":
            return _decimal_from_text(values, target)
        case _:
            return _fit_or_null(values, target)


def _fit_or_null(values: Array, target: pa.DataType) -> Array:
    wide = pc.cast(values, pa.decimal256(76, max(values.type.scale, target.scale)))
    rounded = decimals.rounded(wide, target.scale)
    largest = pa.scalar(Decimal((0, (9,) * target.precision, -target.scale)), rounded.type)
    inside = pc.and_(pc.less_equal(rounded, largest), pc.greater_equal(rounded, pc.negate(largest)))
    return pc.cast(keep(rounded, inside), target)


def _decimal_from_double(values: Array, target: pa.DataType) -> Array:
    """Rounds the shortest text of the double half up, as Spark does: 1.005 to two places is 1.01."""
    digits, plain = _nearest_digits(values, target.scale)
    plain = pc.and_(plain, pc.less(pc.abs(digits), 10.0 ** min(target.precision, 22)))
    whole = pc.cast(pc.cast(keep(digits, plain), pa.int64()), pa.decimal128(19, 0))
    easy = pa.Array.from_buffers(target, len(whole), whole.buffers(), offset=whole.offset)
    return _with_others(easy, plain, values, lambda others: _decimal_by_text(others, target))


def round_doubles(values: Array, places: int) -> Array:
    """Doubles rounded half up by their shortest text, up to 15 places."""

    def by_text(others: Array) -> Array:
        # Past 2**52 a double has no fraction; infinities and NaN stay what they are.
        short = keep(others, pc.less(pc.abs(others), 2.0**52))
        return pc.coalesce(_to_float(_decimal_by_text(short, pa.decimal128(38, places)), pa.float64()), others)

    digits, plain = _nearest_digits(values, places)
    return _with_others(pc.divide(digits, 10.0**places), plain, values, by_text)


def _nearest_digits(values: Array, scale: int) -> tuple[Array, Array]:
    """The doubles times 10**scale as whole numbers, and for which of them that is sure.

    It is where the product is small enough to be exact to four places and far enough from a tie.
    """
    scaled = pc.multiply(values, 10.0**scale)
    whole = pc.floor(pc.add(scaled, 0.5))
    from_tie = pc.abs(pc.subtract(pc.abs(pc.subtract(scaled, whole)), 0.5))
    sure = pc.and_(pc.less(pc.abs(scaled), 1e11), pc.greater(from_tie, 1e-4))
    return whole, pc.and_(pc.fill_null(sure, False), scale <= _EXACT_POWER)


def _with_others(easy: Array, is_easy: Array, values: Array, compute: Callable[[Array], Array]) -> Array:
    """`easy` where it holds, and for the other values what the slow way computes."""
    others = pc.invert(is_easy)
    if not others.true_count:
        return easy
    return pc.replace_with_mask(easy, others, compute(values.filter(others)))


def _decimal_by_text(values: Array, target: pa.DataType) -> Array:
    size = pc.abs(values)
    values = pc.if_else(pc.less(size, 10.0 ** -(target.scale + 1)), 0.0, values)
    values = keep(values, pc.less(size, 10.0 ** (target.precision - target.scale)))
    scale = min(target.scale + 19, 76 - (target.precision - target.scale) - 1)
    return _fit_or_null(pc.cast(pc.cast(values, pa.string()), pa.decimal256(76, scale)), target)


def _decimal_from_text(texts: Array, target: pa.DataType) -> Array:
    numbers = _trimmed(texts, DECIMAL_PATTERN)
    plain = pc.match_substring_regex(numbers, r"^[^eE]*$")
    exact = _fit_or_null(pc.cast(keep(numbers, plain), pa.decimal256(76, 38)), target)
    rest = keep(numbers, pc.invert(plain))
    if rest.null_count == len(rest):
        return exact
    return pc.coalesce(exact, _decimal_from_double(pc.cast(rest, pa.float64()), target))


# -------------------------------------------------------------------- to strings


def _to_string(values: Array, target: pa.DataType) -> Array:
    match family(values.type):
        case "float":
            return _text_of_floats(values)
        case "decimal":
            return _text_of_decimals(values)
        case "timestamp":
            return _short_seconds(_readable(pc.cast(pc.cast(values, UNZONED), pa.string())))
        case "date":
            return _readable(pc.cast(values, pa.string()))
        case _:
            return pc.cast(values, pa.string())


def _readable(texts: Array) -> Array:
    """Arrow writes `<value out of range: …>` for years far past 9999."""
    return keep(texts, pc.invert(pc.starts_with(texts, "<")))


def _short_seconds(texts: Array) -> Array:
    """12:00:00.500000 becomes 12:00:00.5, and 12:00:00.000000 becomes 12:00:00."""
    return pc.replace_substring_regex(pc.replace_substring_regex(texts, r"0{1,6}$", ""), r"\.$", "")


def _text_of_floats(values: Array) -> Array:
    texts = pc.cast(values, pa.string())
    texts = pc.replace_substring_regex(texts, r"^(-?[0-9]+)$", r"\1.0")
    texts = pc.replace_substring_regex(texts, r"^-?nan$", "NaN")
    return pc.replace_substring_regex(texts, r"inf$", "Infinity")


def _text_of_decimals(values: Array) -> Array:
    """All digits, never an exponent."""
    scale = values.type.scale
    digits = pc.cast(_digits(pc.abs(values)), pa.string())
    if scale:
        padded = pc.utf8_lpad(digits, width=scale + 1, padding="0")
        whole, rest = pc.utf8_slice_codeunits(padded, 0, -scale), pc.utf8_slice_codeunits(padded, -scale)
        digits = pc.binary_join_element_wise(whole, rest, ".")
    sign = pc.if_else(pc.less(values, pa.scalar(0, values.type)), "-", "")
    return pc.binary_join_element_wise(sign, digits, "")


def _to_binary(values: Array, target: pa.DataType) -> Array:
    return pc.cast(values, target)


# -------------------------------------------------------------- to dates and times


def _to_date(values: Array, target: pa.DataType) -> Array:
    if kinds.is_timestamp(values.type):
        return pc.cast(pc.cast(values, UNZONED), target)
    texts = pc.utf8_slice_codeunits(_trimmed(values, TIMESTAMP_PATTERN), 0, 10)
    return pc.cast(keep(texts, pc.match_substring_regex(texts, DATE_PATTERN)), target)


def _to_timestamp(values: Array, target: pa.DataType) -> Array:
    match family(values.type):
        case "timestamp":
            return pc.cast(values, target)
        case "date":
            days = pc.cast(values, pa.int32())
            inside = pc.and_(pc.greater_equal(days, -_WIDEST_DAYS), pc.less_equal(days, _WIDEST_DAYS))
            return pc.cast(pc.cast(keep(values, inside), UNZONED), target)
        case "string":
            return pc.cast(_moments_from_text(values), target)
        case "float":
            micros = pc.multiply(pc.cast(values, pa.float64()), float(_MICROS))
            return pc.cast(pc.cast(_to_int(micros, pa.int64()), UNZONED), target)
        case _:
            edge = 2**63 // _MICROS
            micros = pc.multiply(_inside(pc.cast(values, pa.int64()), -edge, edge), _MICROS)
            return pc.cast(pc.cast(micros, UNZONED), target)


def _moments_from_text(texts: Array) -> Array:
    """Timestamps with zone UTC, from texts with or without an offset."""
    texts = _trimmed(texts, TIMESTAMP_PATTERN)
    texts = pc.if_else(pc.equal(pc.utf8_length(texts), 10), pc.binary_join_element_wise(texts, "00:00", " "), texts)
    zoned = pc.match_substring_regex(texts, r":[0-9.]*[0-9]" + ZONED_PATTERN.removeprefix("[0-9]"))
    return pc.cast(pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", "")), ZONED)


def _seconds(values: Array) -> Array:
    """Whole seconds since 1970, rounded down."""
    return floor_divide(pc.cast(values, pa.int64()), _MICROS)


def floor_divide(values: Array, divisor: int) -> Array:
    """Integers over a positive constant, rounded down; Arrow rounds towards zero."""
    quotient = pc.divide(values, divisor)
    return pc.if_else(pc.greater(pc.multiply(quotient, divisor), values), pc.subtract(quotient, 1), quotient)


_TO: Final[dict[str, Callable[[Array, pa.DataType], Array]]] = {
    "bool": _to_bool,
    "int": _to_int,
    "float": _to_float,
    "decimal": _to_decimal,
    "string": _to_string,
    "binary": _to_binary,
    "date": _to_date,
    "timestamp": _to_timestamp,
}
