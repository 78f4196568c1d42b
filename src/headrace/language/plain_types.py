"""The plain types that expressions work on, and how two of them meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyarrow import types as kinds

from headrace.language import decimals

ZONED: Final = pa.timestamp("us", "UTC")
UNZONED: Final = pa.timestamp("us")

PLAIN: Final = {
    pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(),
    pa.binary(), pa.date32(), ZONED, UNZONED,
}  # fmt: skip
_NEAREST: Final = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(), pa.large_string(): pa.string(), pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(), pa.date64(): pa.date32(),
}  # fmt: skip


def plain_type(given: pa.DataType) -> pa.DataType | None:
    """The plain type that holds every value of this one (a timestamp to the microsecond), or None."""
    if kinds.is_dictionary(given):
        return plain_type(given.value_type)
    if kinds.is_timestamp(given):
        return ZONED if given.tz else UNZONED
    if kinds.is_decimal(given):
        fits = given.precision <= 38 and 0 <= given.scale <= given.precision
        return pa.decimal128(given.precision, given.scale) if fits else None
    if kinds.is_fixed_size_binary(given):
        return pa.binary()
    return given if given in PLAIN else _NEAREST.get(given)


def is_number(found: pa.DataType) -> bool:
    return bool(kinds.is_integer(found) or kinds.is_floating(found) or kinds.is_decimal(found))


def wider(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The plain type that holds the values of both, or None. Decimals that need over 38 digits have none."""
    if left == right or kinds.is_null(right):
        return left
    if kinds.is_null(left):
        return right
    if is_number(left) and is_number(right):
        return _wider_number(left, right)
    if {family(left), family(right)} <= {"date", "timestamp"}:
        return ZONED if ZONED in (left, right) or UNZONED not in (left, right) else UNZONED
    return None


def _wider_number(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if kinds.is_floating(left) or kinds.is_floating(right):
        return pa.float64()
    if kinds.is_integer(left) and kinds.is_integer(right):
        return max(left, right, key=lambda found: found.bit_width)
    first, second = (decimals.type_for_integers(t) if kinds.is_integer(t) else t for t in (left, right))
    both = decimals.exact_common(first, second)
    return both if both.precision <= 38 else None


_FAMILIES: Final[tuple[tuple[str, Callable[[pa.DataType], bool]], ...]] = (
    ("null", kinds.is_null),
    ("bool", kinds.is_boolean),
    ("int", kinds.is_integer),
    ("float", kinds.is_floating),
    ("decimal", kinds.is_decimal),
    ("string", kinds.is_string),
    ("binary", kinds.is_binary),
    ("date", kinds.is_date),
    ("timestamp", kinds.is_timestamp),
)


def family(found: pa.DataType) -> str:
    """Which of nine families a plain type belongs to."""
    return next(name for name, test in _FAMILIES if test(found))


_CASTS: Final = {
    "null": "bool int float decimal string binary date timestamp",
    "bool": "bool int float decimal string",
    "int": "bool int float decimal string timestamp",
    "float": "bool int float decimal string timestamp",
    "decimal": "bool int float decimal string",
    "string": "bool int float decimal string binary date timestamp",
    "binary": "binary",
    "date": "date timestamp string",
    "timestamp": "timestamp date string int float",
}


def castable(given: pa.DataType, target: pa.DataType) -> bool:
    """Whether CAST goes from one plain type to the other."""
    return family(target) in _CASTS[family(given)].split()
