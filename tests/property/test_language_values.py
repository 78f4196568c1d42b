"""Expressions by columns against the same expressions row by row, in plain Python with SQL's three-valued logic."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.errors import BindError, MeasureError
from headrace.language import evaluate, type_of
from headrace.language.nodes import (
    And,
    Between,
    Binary,
    Call,
    Case,
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

INTS = st.none() | st.integers(-5, 5) | st.sampled_from([2**31, 2**62, -(2**63), 2**63 - 1])
FLOATS = st.none() | st.sampled_from([0.0, -0.0, 1.5, -2.0, 3.0, math.nan, math.inf, -math.inf, 1e308])
DECIMALS = st.none() | st.integers(-300, 300).map(lambda n: Decimal(n).scaleb(-2)) | st.just(Decimal("9999.99"))
STRINGS = st.none() | st.sampled_from(["", "a", "ab", "A%", "b_c", "é\n日"])
SCHEMA = pa.schema(
    {"i": pa.int64(), "j": pa.int32(), "f": pa.float64(), "d": pa.decimal128(6, 2), "s": pa.string(), "b": pa.bool_()}
)
ROWS = st.lists(
    st.tuples(INTS, st.none() | st.integers(-3, 3), FLOATS, DECIMALS, STRINGS, st.none() | st.booleans()), max_size=6
)

SMALL_NUMBERS = st.sampled_from([0, 1, -2, Decimal("0.5"), Decimal("-1.25"), 2.0, math.pi, None])
COMPARISONS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


def negated(operand: Expr) -> Expr:
    """The parser writes the sign of a number into the number."""
    is_number = isinstance(operand, Literal) and type(operand.value) in (int, float, Decimal)
    return operand if is_number else Negate(operand)


def numbers() -> st.SearchStrategy[Expr]:
    leaves = st.sampled_from([Column(name) for name in "ijfd"]) | st.builds(Literal, SMALL_NUMBERS)
    return st.recursive(leaves, lambda part: arithmetic(part) | choices(part), max_leaves=4)


def arithmetic(part: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.builds(negated, part) | st.builds(Binary, st.sampled_from(["+", "-", "*", "/", "%"]), part, part)


def choices(part: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    several = st.lists(part, min_size=2, max_size=3).map(tuple)
    case = st.builds(lambda *parts: Case((parts[:2],), parts[2]), simple_conditions(part), part, st.none() | part)
    return case | st.builds(Call, st.sampled_from(["coalesce", "greatest", "least"]), several)


def simple_conditions(part: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    return st.one_of(
        st.sampled_from([Column("b"), Literal(None), Literal(True)]),
        st.builds(Binary, COMPARISONS, part, part),
        st.builds(In, part, st.lists(part, min_size=1, max_size=3).map(tuple), st.booleans()),
        st.builds(Between, part, part, part, st.booleans()),
        st.builds(IsNull, part, st.booleans()),
    )


def conditions() -> st.SearchStrategy[Expr]:
    joined = Binary("||", Column("s"), Literal("a"))
    texts: st.SearchStrategy[Expr] = st.sampled_from([Column("s"), Literal("a"), Literal(None), joined])
    likes = st.builds(Like, texts, st.sampled_from(["a%", "%", "_", r"A\%", "%_\n%", ""]), st.booleans())
    leaves = simple_conditions(numbers()) | simple_conditions(texts) | likes
    return st.recursive(leaves, combined, max_leaves=3)


def combined(part: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    terms = st.lists(part, min_size=2, max_size=3).map(tuple)
    return st.builds(Not, part) | st.builds(And, terms) | st.builds(Or, terms)


class Overflow(Exception):
    """The exact result does not fit its type."""


EXACT = Context(prec=200)


def row_value(expr: Expr, row: dict[str, Any]) -> Any:
    """SQL for one row in plain Python: None is unknown."""
    match expr:
        case Column():
            return row[expr.name]
        case Literal():
            return expr.value
        case Case():
            taken = next((then for when, then in expr.branches if row_value(when, row) is True), expr.otherwise)
            return typed(row_value(taken, row) if taken is not None else None, expr)
        case Negate():
            value = row_value(expr.operand, row)
            return None if value is None else typed(EXACT.minus(value) if type(value) is Decimal else -value, expr)
        case Call():
            return typed(called(expr.function, [row_value(arg, row) for arg in expr.args]), expr)
        case Binary():
            left, right = row_value(expr.left, row), row_value(expr.right, row)
            if left is None or right is None:
                return None
            if expr.op == "||":
                return left + right
            return computed(expr, left, right) if expr.op in "+-*/%" else compared(expr.op, left, right)
        case _:
            return row_truth(expr, row)


def row_truth(expr: Expr, row: dict[str, Any]) -> bool | None:
    """The conditions: true, false or unknown."""
    match expr:
        case Not():
            return opposite(row_value(expr.operand, row))
        case And():
            return opposite(any_of([opposite(row_value(term, row)) for term in expr.terms]))
        case Or():
            return any_of([row_value(term, row) for term in expr.terms])
        case IsNull():
            return (row_value(expr.operand, row) is None) != expr.negated
        case In():
            operand = row_value(expr.operand, row)
            found = any_of([compared("=", operand, row_value(option, row)) for option in expr.options])
            return opposite(found) if expr.negated else found
        case Between():
            operand, low, high = (row_value(part, row) for part in (expr.operand, expr.low, expr.high))
            outside = any_of([compared("<", operand, low), compared(">", operand, high)])
            return outside if expr.negated else opposite(outside)
        case Like():
            value = row_value(expr.operand, row)
            found = None if value is None else like(value, expr.pattern)
            return opposite(found) if expr.negated else found
        case _:
            raise AssertionError(expr)


def opposite(found: bool | None) -> bool | None:
    return None if found is None else not found


def any_of(found: list[bool | None]) -> bool | None:
    """SQL's OR."""
    return True if True in found else None if None in found else False


def like(text: str, pattern: str) -> bool:
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    regex = "".join({"%": ".*", "_": "."}.get(part, re.escape(part[-1])) for part in parts)
    return re.fullmatch(regex, text, re.DOTALL) is not None


def key(value: Any) -> Any:
    """Spark's order of numbers: NaN equals itself and is the largest."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


def compared(op: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, float) or isinstance(right, float):
        left, right = key(float(left)), key(float(right))
    sign = {"=": "eq", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}[op]
    return bool(getattr(operator, sign)(left, right))


def called(function: str, values: list[Any]) -> Any:
    known = [value for value in values if value is not None]
    if function == "coalesce" or not known:
        return next(iter(known), None)
    if any(isinstance(value, float) for value in known):
        known = [float(value) for value in known]
    return (max if function == "greatest" else min)(known, key=key)


def computed(expr: Binary, left: Any, right: Any) -> Any:
    if (
        isinstance(left, float)
        or isinstance(right, float)
        or (expr.op == "/" and type_of(expr, SCHEMA) == pa.float64())
    ):
        left, right = float(left), float(right)
    if expr.op in "/%" and right == 0:
        return None
    with localcontext(EXACT):
        match expr.op, left:
            case "+", _:
                value = left + right
            case "-", _:
                value = left - right
            case "*", _:
                value = left * right
            case "/", _:
                value = left / right
            case _, float():
                value = math.fmod(left, right) if math.isfinite(left) and not math.isnan(right) else math.nan
            case _, int() if isinstance(right, int):
                value = abs(left) % abs(right) * (-1 if left < 0 else 1)
            case _:
                value = Decimal(left) % Decimal(right)
        return typed(value, expr)


def typed(value: Any, expr: Expr) -> Any:
    """The value as the type of its expression, rounded half up; Overflow if it does not fit."""
    found = type_of(expr, SCHEMA)
    if value is None or pa.types.is_boolean(found) or pa.types.is_string(found):
        return value
    if pa.types.is_floating(found):
        return float(value)
    if pa.types.is_integer(found):
        if not -(2 ** (found.bit_width - 1)) <= value < 2 ** (found.bit_width - 1):
            raise Overflow
        return value
    rounded = Decimal(value).quantize(Decimal(1).scaleb(-found.scale), ROUND_HALF_UP, EXACT)
    if abs(rounded) >= Decimal(10) ** (found.precision - found.scale):
        raise Overflow
    return rounded


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return type(left) is type(right) and bool(left == right)


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [pa.array([row[index] for row in rows], field.type) for index, field in enumerate(SCHEMA)]
    return pa.record_batch(columns, schema=SCHEMA)


def check_values(expr: Expr, rows: list[tuple[Any, ...]], wanted: list[Any]) -> None:
    result = evaluate(expr, batch_of(rows))
    result.validate(full=True)
    assert result.type == type_of(expr, SCHEMA)
    found = result.to_pylist()
    assert len(found) == len(rows)
    different = [(row, is_, was) for row, is_, was in zip(rows, found, wanted, strict=True) if not same(is_, was)]
    assert not different, (expr, different[:3])


def has_type(expr: Expr) -> bool:
    """Deep decimal arithmetic may need more digits than there are; the binder refuses it."""
    try:
        type_of(expr, SCHEMA)
    except BindError:
        return False
    return True


@settings(max_examples=300, deadline=None)
@given(numbers() | conditions(), ROWS)
def test_columns_equal_rows(expr: Expr, rows: list[tuple[Any, ...]]) -> None:
    assume(has_type(expr))
    try:
        wanted: list[Any] | None = [row_value(expr, dict(zip(SCHEMA.names, row, strict=True))) for row in rows]
    except Overflow:
        wanted = None
    if wanted is not None:
        check_values(expr, rows, wanted)
        return
    with pytest.raises(MeasureError, match="does not fit"):
        evaluate(expr, batch_of(rows))


VALUES: dict[str, list[Any]] = {
    "i": [None, 0, 1, -1, 7, 2**53 + 1, 2**63 - 1, -(2**63)],
    "j": [None, 0, 2, -3],
    "f": [None, 0.0, -0.0, 1.5, 7.0, -3.25, math.nan, math.inf, -math.inf, 1e308],
    "d": [None, Decimal("0.00"), Decimal("1.25"), Decimal("-0.05"), Decimal("7.07"), Decimal("9999.99")],
    "s": [None, "", "a", "é"],
    "b": [None, True, False],
}
SHAPES: tuple[Callable[[Expr, Expr], Expr], ...] = (
    *(lambda x, y, op=op: Binary(op, x, y) for op in ("+", "-", "*", "/", "%", "=", "<>", "<", "<=", ">", ">=", "||")),
    lambda x, y: In(x, (y, Literal(None))),
    lambda x, y: In(x, (y, Literal(1.5), Literal(0), Literal(Decimal("7.07"))), True),
    lambda x, y: In(x, (Literal(math.nan), Literal(0.0))),
    lambda x, y: In(x, (Literal("a"), y)),
    lambda x, y: Between(x, y, Literal(2)),
    lambda x, y: Between(x, Literal(0), y, True),
    lambda x, y: And((Binary(">", x, y), IsNull(x, True), Column("b"))),
    lambda x, y: Or((Not(Binary(">", x, y)), IsNull(y))),
    lambda x, y: And((x, y)),
    lambda x, y: Or((x, y)),
    lambda x, y: Case(((Binary("<", x, y), x),), y),
    lambda x, y: Call("greatest", (x, y)),
    lambda x, y: Call("least", (x, y)),
    lambda x, y: Call("coalesce", (x, y)),
)


@pytest.mark.parametrize("left", SCHEMA.names)
@pytest.mark.parametrize("right", SCHEMA.names)
def test_every_operator_on_every_pair_of_types(left: str, right: str) -> None:
    """All pairs of telling values at once; the rows that overflow are set apart, and must overflow."""
    exprs = [shape(Column(left), Column(right)) for shape in SHAPES]
    names = dict.fromkeys((left, right))
    pairs = [dict(zip(names, pair, strict=True)) for pair in product(*(VALUES[name] for name in names))]
    rows = [tuple((pair | {"b": pair.get("b", True)}).get(name) for name in SCHEMA.names) for pair in pairs]
    for expr in filter(has_type, exprs):
        fitting, overflowing = [], []
        for row in rows:
            try:
                fitting.append((row, row_value(expr, dict(zip(SCHEMA.names, row, strict=True)))))
            except Overflow:
                overflowing.append(row)
        check_values(expr, [row for row, _ in fitting], [value for _, value in fitting])
        for row in overflowing:
            with pytest.raises(MeasureError, match="does not fit"):
                evaluate(expr, batch_of([row]))


@st.composite
def decimal_columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Decimal]]:
    precision = draw(st.integers(1, 38) | st.integers(1, 9))
    scale = draw(st.integers(0, precision))
    digits = st.integers(0, precision).flatmap(lambda size: st.integers(-(10**size) + 1, 10**size - 1))
    values = draw(st.lists(digits, min_size=3, max_size=3))
    return pa.decimal128(precision, scale), [Decimal(value).scaleb(-scale, EXACT) for value in values]


@settings(max_examples=250, deadline=None)
@given(st.sampled_from("+-*/%"), decimal_columns(), decimal_columns())
def test_decimal_arithmetic_is_exact(op: str, left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    schema, expr = pa.schema({"l": left[0], "r": right[0]}), Binary(op, Column("l"), Column("r"))
    try:
        found = type_of(expr, schema)
    except BindError:
        return
    for first, second in zip(left[1], right[1], strict=True):
        batch = pa.record_batch([pa.array([first], left[0]), pa.array([second], right[0])], schema=schema)
        exact = {"+": EXACT.add, "-": EXACT.subtract, "*": EXACT.multiply, "/": EXACT.divide, "%": EXACT.remainder}[op]
        wanted = None
        if op not in "/%" or second != 0:
            wanted = exact(first, second).quantize(Decimal(1).scaleb(-found.scale), ROUND_HALF_UP, EXACT)
        if wanted is not None and abs(wanted) >= Decimal(10) ** (found.precision - found.scale):
            with pytest.raises(MeasureError, match="does not fit decimal"):
                evaluate(expr, batch)
        else:
            assert evaluate(expr, batch).to_pylist() == [wanted]
