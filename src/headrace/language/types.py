"""Which type an expression has, by rules close to Spark's.

Columns are first brought to one of twelve plain types (`plain_type`): bool, four integers, two floats, decimal128,
string, binary, date32 and timestamp in microseconds, with zone UTC or none. Then:

- arithmetic on integers gives int64, on floats double, on decimals what Spark gives; `/` on integers gives double;
- a decimal with a float gives double; an integer with a decimal gives a decimal;
- strings compare with strings; a text in quotes also with a date or a timestamp, if it reads as one;
- a date compares with a timestamp as its midnight; a timestamp without zone counts as UTC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from typing import Final

import pyarrow as pa
from pyarrow import types as kinds

from headrace.errors import BindError
from headrace.language import decimals, scalars
from headrace.language.moments import TIMESTAMP_PATTERN
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
from headrace.language.plain_types import castable, is_number, plain_type, wider
from headrace.language.trees import children
from headrace.language.type_names import arrow_type, spark_name

ARITHMETIC: Final = frozenset("+-*/%")


def type_of(expr: Expr, schema: pa.Schema) -> pa.DataType:
    """The type of the expression over columns of this schema. Raises BindError, without the text."""
    if isinstance(expr, Column):
        return column_type(expr, schema)
    return infer(expr, [type_of(part, schema) for part in children(expr)])


def column_type(column: Column, schema: pa.Schema) -> pa.DataType:
    """The plain type of a column that is spelled as in the schema."""
    found = schema.get_field_index(column.name)
    if found < 0:
        raise BindError(f"there is no column {column.name}", "", column.at)
    given = schema.field(found).type
    plain = plain_type(given)
    if plain is None:
        hint = "expressions take booleans, numbers, strings, binary, dates and timestamps"
        raise BindError(f"column {column.name} has type {given}, which cannot be used", "", column.at, hint)
    return plain


def literal_type(value: bool | int | float | Decimal | str | None) -> pa.DataType:
    """int32 or int64 as it fits, a decimal where there is a point, a double where there is an exponent."""
    match value:
        case None:
            return pa.null()
        case bool():
            return pa.bool_()
        case str():
            return pa.string()
        case float():
            return pa.float64()
        case int() if -(2**63) <= value < 2**63:
            return pa.int32() if -(2**31) <= value < 2**31 else pa.int64()
        case _:
            return decimals.type_of_value(Decimal(value))


def infer(expr: Expr, parts: Sequence[pa.DataType]) -> pa.DataType:
    """The type of a node whose parts (in the order of `children`) have these types."""
    match expr:
        case Literal():
            return literal_type(expr.value)
        case Negate():
            return _negate_type(expr, parts[0])
        case Binary():
            return _binary_type(expr, parts[0], parts[1])
        case Not() | And() | Or():
            return _logic_type(expr, parts)
        case In() | Between():
            for part, found in zip(children(expr)[1:], parts[1:], strict=True):
                comparison_type(expr.operand, parts[0], part, found)
            return pa.bool_()
        case Like():
            if not _is(kinds.is_string, parts[0]):
                raise BindError(f"LIKE needs a string, not {spark_name(parts[0])}", "", expr.operand.at)
            return pa.bool_()
        case Case():
            return _case_type(expr, parts)
        case Call():
            return scalars.call_type(expr, parts)
        case Cast():
            return _cast_type(expr, parts[0])
        case IsNull():
            return pa.bool_()
        case Column():
            raise AssertionError("a column has its type from the schema")


# ------------------------------------------------------------------ arithmetic


@dataclass(frozen=True)
class Operands:
    """What both sides of an arithmetic operator are brought to, and what comes out."""

    left: pa.DataType
    right: pa.DataType
    result: pa.DataType


def arithmetic(expr: Binary, left: pa.DataType, right: pa.DataType) -> Operands:
    """How + - * / % works on these types."""
    for side, found in ((expr.left, left), (expr.right, right)):
        if not is_number(found) and not kinds.is_null(found):
            hint = "join strings with ||" if kinds.is_string(found) and expr.op == "+" else None
            raise BindError(f"{expr.op} needs numbers, not {spark_name(found)}", "", side.at, hint)
    if kinds.is_floating(left) or kinds.is_floating(right):
        return Operands(pa.float64(), pa.float64(), pa.float64())
    if kinds.is_decimal(left) or kinds.is_decimal(right):
        return _decimal_arithmetic(expr, left, right)
    whole = pa.float64() if expr.op == "/" else pa.int64()
    return Operands(whole, whole, whole)


def _decimal_arithmetic(expr: Binary, left: pa.DataType, right: pa.DataType) -> Operands:
    first = _as_decimal(expr.left, right if kinds.is_null(left) else left)
    second = _as_decimal(expr.right, left if kinds.is_null(right) else right)
    result = decimals.result_type(expr.op, first, second)
    if result is None:
        problem = f"{spark_name(first)} {expr.op} {spark_name(second)} needs more digits than there are"
        raise BindError(problem, "", expr.at, "cast one side to double: CAST(x AS double)")
    return Operands(first, second, result)


def _as_decimal(expr: Expr, found: pa.DataType) -> pa.DataType:
    """A whole number in a query takes only the digits it has, as in Spark."""
    if isinstance(expr, Literal) and isinstance(expr.value, int) and not isinstance(expr.value, bool):
        return decimals.type_of_value(Decimal(expr.value))
    return decimals.type_for_integers(found) if kinds.is_integer(found) else found


def _negate_type(expr: Negate, found: pa.DataType) -> pa.DataType:
    if not is_number(found) and not kinds.is_null(found):
        raise BindError(f"- needs a number, not {spark_name(found)}", "", expr.at)
    if kinds.is_decimal(found):
        return found
    return pa.float64() if kinds.is_floating(found) else pa.int64()


def _binary_type(expr: Binary, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if expr.op in ARITHMETIC:
        return arithmetic(expr, left, right).result
    if expr.op != "||":
        comparison_type(expr.left, left, expr.right, right)
        return pa.bool_()
    for side, found in ((expr.left, left), (expr.right, right)):
        if not _is(kinds.is_string, found):
            hint = "cast it: CAST(x AS string)"
            raise BindError(f"|| joins strings, not {spark_name(found)}", "", side.at, hint)
    return pa.string()


# ------------------------------------------------------------------ comparison


def comparison_type(left: Expr, left_type: pa.DataType, right: Expr, right_type: pa.DataType) -> pa.DataType:
    """The type that both sides are brought to before they are compared."""
    sides = [decimals.type_for_integers(t) if kinds.is_integer(t) else t for t in (left_type, right_type)]
    if all(map(kinds.is_decimal, sides)) and left_type != right_type and not _all_integers(left_type, right_type):
        return decimals.exact_common(*sides)
    for text, text_type, other_type in ((left, left_type, right_type), (right, right_type, left_type)):
        if kinds.is_string(text_type) and (kinds.is_timestamp(other_type) or kinds.is_date(other_type)):
            return _moment_type(text, other_type)
    found = wider(left_type, right_type)
    if found is None:
        problem = f"cannot compare {spark_name(left_type)} with {spark_name(right_type)}"
        has_text = kinds.is_string(left_type) or kinds.is_string(right_type)
        hint = "cast one side, for example CAST(x AS double)" if has_text else None
        raise BindError(problem, "", right.at, hint)
    return pa.bool_() if kinds.is_null(found) else found


def _all_integers(*found: pa.DataType) -> bool:
    return all(map(kinds.is_integer, found))


def _moment_type(text: Expr, moment: pa.DataType) -> pa.DataType:
    word = "date" if kinds.is_date(moment) else "timestamp"
    if not isinstance(text, Literal):
        raise BindError(f"cannot compare string with {word}", "", text.at, f"cast it: CAST(x AS {word})")
    if not re.fullmatch(TIMESTAMP_PATTERN, str(text.value)):
        raise BindError(f"this text is not a {word}", "", text.at, "write it as '2024-12-31' or '2024-12-31 23:59:59'")
    # With a time of day in the text, a date must be compared as its midnight.
    return moment if len(str(text.value)) == len("2024-12-31") or word == "timestamp" else pa.timestamp("us", "UTC")


# -------------------------------------------------------------- logic, case, cast


def _logic_type(expr: Not | And | Or, parts: Sequence[pa.DataType]) -> pa.DataType:
    for part, found in zip(children(expr), parts, strict=True):
        if not _is(kinds.is_boolean, found):
            word = type(expr).__name__.upper()
            raise BindError(f"{word} needs a condition, not {spark_name(found)}", "", part.at)
    return pa.bool_()


def _case_type(expr: Case, parts: Sequence[pa.DataType]) -> pa.DataType:
    count = 2 * len(expr.branches)
    for (condition, _), found in zip(expr.branches, parts[:count:2], strict=True):
        if not _is(kinds.is_boolean, found):
            raise BindError(f"WHEN needs a condition, not {spark_name(found)}", "", condition.at)
    return common_type(expr, [*parts[1:count:2], *parts[count:]], "the results of CASE")


def common_type(expr: Expr, found: Sequence[pa.DataType], what: str) -> pa.DataType:
    """The one type that all of these values can have."""

    def join(left: pa.DataType, right: pa.DataType) -> pa.DataType:
        both = wider(left, right)
        if both is None:
            problem = f"{what} have no common type: {spark_name(left)} and {spark_name(right)}"
            raise BindError(problem, "", expr.at, "cast them to one type")
        return both

    return reduce(join, found, pa.null())


def _cast_type(expr: Cast, found: pa.DataType) -> pa.DataType:
    target = arrow_type(expr.type_name)
    if not castable(found, target):
        raise BindError(f"cannot cast {spark_name(found)} to {expr.type_name}", "", expr.at)
    return target


def _is(test: object, found: pa.DataType) -> bool:
    return kinds.is_null(found) or bool(test(found))  # type: ignore[operator]
