"""Walking expressions: what stands directly below a node, and a node over other parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly below, in the order of the text."""
    match expr:
        case Column() | Literal():
            return ()
        case Negate() | Not() | IsNull() | Like() | Cast():
            return (expr.operand,)
        case Binary():
            return (expr.left, expr.right)
        case And() | Or():
            return expr.terms
        case In():
            return (expr.operand, *expr.options)
        case Between():
            return (expr.operand, expr.low, expr.high)
        case Call():
            return expr.args
        case Case():
            parts = [part for branch in expr.branches for part in branch]
            return (*parts, expr.otherwise) if expr.otherwise is not None else tuple(parts)


def rebuild(expr: Expr, parts: Sequence[Expr]) -> Expr:
    """The same node over other parts, which come in the order of `children`."""
    match expr:
        case Column() | Literal():
            return expr
        case Negate() | Not() | IsNull() | Like() | Cast():
            return replace(expr, operand=parts[0])
        case Binary():
            return replace(expr, left=parts[0], right=parts[1])
        case And() | Or():
            return replace(expr, terms=tuple(parts))
        case In():
            return replace(expr, operand=parts[0], options=tuple(parts[1:]))
        case Between():
            return replace(expr, operand=parts[0], low=parts[1], high=parts[2])
        case Call():
            return replace(expr, args=tuple(parts))
        case Case():
            count = 2 * len(expr.branches)
            branches = tuple(zip(parts[0:count:2], parts[1:count:2], strict=True))
            return replace(expr, branches=branches, otherwise=parts[count] if expr.otherwise is not None else None)


def columns_of(expr: Expr) -> frozenset[str]:
    """The names of all columns that the expression reads."""
    names, waiting = set(), [expr]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Column):
            names.add(node.name)
        waiting.extend(children(node))
    return frozenset(names)
