"""What the parser carries while it builds nodes from the leaves up: places, and how deep and large a tree has grown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from lark import Token

from headrace.errors import ParseError, Span
from headrace.language.nodes import Expr

MAX_DEPTH: Final = 100
"""How deep expressions may nest. Lists (AND, OR, IN, arguments) are flat: their length does not count."""

MAX_NODES: Final = 1_000_000
"""No text within the limit of characters writes more nodes; only `CASE x WHEN …`, which repeats x, can pass it."""


class Name(NamedTuple):
    text: str
    at: Span


class Built(NamedTuple):
    """An expression and its size, so that nothing ever has to walk a tree that is too deep to walk."""

    expr: Expr
    depth: int = 0
    parens: int = 0
    size: int = 1


def span(token: Token) -> Span:
    """The place of a token; of one that spans lines, its first line."""
    return Span(token.line or 1, token.column or 1, max(1, len(token.partition("\n")[0])))


def cover(first: Span, last: Span) -> Span:
    """From the start of the first to the end of the last, where they stand on one line."""
    if first.line != last.line:
        return first
    return Span(first.line, first.column, last.column + last.length - first.column)


def grow(expr: Expr, parts: Iterable[Built]) -> Built:
    """A node over its parts; refuses what would be too deep or too large."""
    depth, parens, size = 0, 0, 1
    for part in parts:
        depth, parens, size = max(depth, part.depth), max(parens, part.parens), size + part.size
    if depth >= MAX_DEPTH:
        raise too_deep(expr.at)
    if size > MAX_NODES:
        hint = "use CASE WHEN with conditions instead of CASE x WHEN"
        raise ParseError("the expression is too large: its CASE operand is repeated too often", "", expr.at, hint)
    return Built(expr, depth + 1, parens, size)


def too_deep(at: Span) -> ParseError:
    hint = "long sums nest too: write fewer operators or parentheses in one expression"
    return ParseError(f"the expression is nested more than {MAX_DEPTH} deep", "", at, hint)
