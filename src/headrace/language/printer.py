"""Statements to text: the canonical short form, which `parse` reads back to equal statements."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Final

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
    Infinite,
    IsNull,
    Item,
    LastEvents,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Sliding,
    Statement,
    Tumbling,
    Window,
)
from headrace.model.ticks import Ticks, format_ticks

# How tightly a node binds; one that binds less tightly than its place asks for goes in parentheses.
_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _UNARY, _PRIMARY = range(1, 9)
_PRODUCTS: Final = frozenset("*/%")
_SUMS: Final = frozenset(("+", "-", "||"))

RESERVED: Final = frozenset(
    (
        "select", "distinct", "from", "where", "group", "over", "as", "and", "or", "not", "in", "between",
        "like", "is", "null", "true", "false", "case", "when", "then", "else", "end", "cast",
    )
)  # fmt: skip
_PLAIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE | re.ASCII)


def format_statements(statements: Iterable[Statement]) -> str:
    """All statements in the short form, one a line. `parse` gives back equal statements."""
    return ";\n".join(_format_statement(statement) for statement in statements)


def format_expr(expr: Expr) -> str:
    """An expression with no more parentheses than it needs."""
    return _format(expr)[0]


def format_window(window: Window) -> str:
    """A window as it stands behind OVER: `sliding 5m delayed by 1m`."""
    match window:
        case Sliding():
            return f"sliding {format_ticks(window.width)}{_format_delay(window.delay)}"
        case Tumbling():
            return f"tumbling {format_ticks(window.width)}{_format_delay(window.delay)}"
        case Infinite():
            return f"infinite{_format_delay(window.delay)}"
        case LastEvents():
            return f"sliding {window.count} events"


def format_name(name: str) -> str:
    """The name, in quotes where it needs them."""
    if _PLAIN_NAME.fullmatch(name) and name.lower() not in RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def _format_statement(statement: Statement) -> str:
    parts = ["SELECT " + ", ".join(_format_item(item) for item in statement.items)]
    parts.append(f"FROM {format_name(statement.stream)}")
    if statement.where is not None:
        parts.append(f"WHERE {format_expr(statement.where)}")
    if statement.group_by:
        parts.append("GROUP BY " + ", ".join(format_name(column.name) for column in statement.group_by))
    parts.append(f"OVER {format_window(statement.window)}")
    return " ".join(parts)


def _format_item(item: Item) -> str:
    args = ", ".join(format_expr(arg) for arg in item.args) or "*"
    name = f" AS {format_name(item.name)}" if item.name is not None else ""
    return f"{item.function}({args}){name}"


def _format_delay(delay: Ticks) -> str:
    return f" delayed by {format_ticks(delay)}" if delay else ""


def _at_least(level: int, expr: Expr) -> str:
    """The expression for a place that takes only what binds as tightly as `level`."""
    text, own = _format(expr)
    return text if own >= level else f"({text})"


def _format(expr: Expr) -> tuple[str, int]:
    match expr:
        case Column():
            return format_name(expr.name), _PRIMARY
        case Literal():
            return _format_literal(expr)
        case Negate():
            inner = _at_least(_UNARY, expr.operand)
            # Two minus signs in a row would start a comment.
            return (f"-({inner})" if inner.startswith("-") else f"-{inner}"), _UNARY
        case Not():
            return f"NOT {_at_least(_NOT, expr.operand)}", _NOT
        case Binary():
            return _format_binary(expr)
        case And():
            return " AND ".join(_at_least(_NOT, term) for term in expr.terms), _AND
        case Or():
            return " OR ".join(_at_least(_AND, term) for term in expr.terms), _OR
        case Case():
            return _format_case(expr), _PRIMARY
        case Call():
            return f"{expr.function}({', '.join(format_expr(arg) for arg in expr.args)})", _PRIMARY
        case Cast():
            return f"CAST({format_expr(expr.operand)} AS {expr.type_name})", _PRIMARY
        case _:
            return _format_predicate(expr), _PREDICATE


def _format_literal(literal: Literal) -> tuple[str, int]:
    value = literal.value
    if value is None or isinstance(value, bool):
        return {None: "NULL", True: "TRUE", False: "FALSE"}[value], _PRIMARY
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'", _PRIMARY
    text = _format_number(value)
    return text, _UNARY if text.startswith("-") else _PRIMARY


def _format_number(value: int | float | Decimal) -> str:
    """A float always has an exponent and a Decimal a point: that is how the parser tells them apart."""
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text if "." in text else text + "."
    text = repr(value)
    return text + "e0" if isinstance(value, float) and "e" not in text else text


def _format_binary(expr: Binary) -> tuple[str, int]:
    if expr.op in _PRODUCTS:
        left, right, level = _PRODUCT, _UNARY, _PRODUCT
    elif expr.op in _SUMS:
        left, right, level = _SUM, _PRODUCT, _SUM
    else:
        left, right, level = _SUM, _SUM, _PREDICATE
    return f"{_at_least(left, expr.left)} {expr.op} {_at_least(right, expr.right)}", level


def _format_predicate(expr: IsNull | In | Between | Like) -> str:
    operand, negated = _at_least(_SUM, expr.operand), "NOT " if expr.negated else ""
    match expr:
        case IsNull():
            return f"{operand} IS {negated}NULL"
        case In():
            return f"{operand} {negated}IN ({', '.join(format_expr(option) for option in expr.options)})"
        case Between():
            return f"{operand} {negated}BETWEEN {_at_least(_SUM, expr.low)} AND {_at_least(_SUM, expr.high)}"
        case Like():
            return f"{operand} {negated}LIKE {_format_literal(Literal(expr.pattern))[0]}"


def _format_case(expr: Case) -> str:
    branches = [f"WHEN {format_expr(when)} THEN {format_expr(then)}" for when, then in expr.branches]
    otherwise = [f"ELSE {format_expr(expr.otherwise)}"] if expr.otherwise is not None else []
    return " ".join(["CASE", *branches, *otherwise, "END"])
