"""The language as properties: the printer round-trips, and no text breaks the parser."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ParseError
from headrace.language import format_statements, parse
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
)
from headrace.model.ticks import Ticks

# ---------------------------------------------------------- any tree the parser can give

PLAIN = st.characters(exclude_categories=["Cs"])
WORDS = st.sampled_from(
    ["x", "amount", "Card", "events", "m", "date", "sliding", "over", "group", "a b", 'q"t', "é", "İ", "\u017felect"]
)
NAMES = WORDS | st.text(PLAIN, min_size=1, max_size=8)
FUNCTIONS = st.sampled_from(["sum", "count", "stdDev", "percentile", "x1", "first"])
NUMBERS = (
    st.integers(-(10**38) + 1, 10**38 - 1)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12)
    | st.integers(-(10**38) + 1, 10**38 - 1).map(lambda digits: Decimal(f"{digits}E-20"))
    | st.floats(allow_nan=False, allow_infinity=False)
)
PATTERNS = st.lists(st.sampled_from([r"\%", r"\_", r"\\", "%", "_", "a", "'", "é"]), max_size=6).map("".join)
LEAVES = st.builds(Column, NAMES) | st.builds(Literal, st.none() | st.booleans() | NUMBERS | st.text(PLAIN, max_size=8))
TYPES = st.sampled_from(["int", "string", "decimal(10,2)", "timestamp", "double"])
OPERATORS = st.sampled_from(["+", "-", "*", "/", "%", "||", "=", "<>", "<", "<=", ">", ">="])


def negated(operand: Expr) -> Expr:
    """The parser writes the sign of a number into the number."""
    is_number = isinstance(operand, Literal) and type(operand.value) in (int, float, Decimal)
    return operand if is_number else Negate(operand)


def above(part: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    several = st.lists(part, min_size=2, max_size=3).map(tuple)
    some = st.lists(part, min_size=1, max_size=3).map(tuple)
    branches = st.lists(st.tuples(part, part), min_size=1, max_size=2).map(tuple)
    return st.one_of(
        st.builds(negated, part),
        st.builds(Not, part),
        st.builds(Binary, OPERATORS, part, part),
        st.builds(And, several),
        st.builds(Or, several),
        st.builds(IsNull, part, st.booleans()),
        st.builds(In, part, some, st.booleans()),
        st.builds(Between, part, part, part, st.booleans()),
        st.builds(Like, part, PATTERNS, st.booleans()),
        st.builds(Case, branches, st.none() | part),
        st.builds(Call, st.sampled_from(["coalesce", "abs", "f"]), st.lists(part, max_size=3).map(tuple)),
        st.builds(Cast, part, TYPES),
    )


EXPRESSIONS = st.recursive(LEAVES, above, max_leaves=12)
WIDTHS = st.integers(1, 3_652_500 * 86_400_000_000).map(Ticks)
DELAYS = st.just(Ticks(0)) | WIDTHS
WINDOWS = st.one_of(
    st.builds(Sliding, WIDTHS, DELAYS),
    st.builds(Tumbling, WIDTHS, DELAYS),
    st.builds(Infinite, DELAYS),
    st.builds(LastEvents, st.integers(1, 2**31 - 1)),
)
ITEMS = st.builds(Item, FUNCTIONS, st.lists(EXPRESSIONS, max_size=2).map(tuple), st.none() | NAMES)
STATEMENTS = st.builds(
    Statement,
    st.lists(ITEMS, min_size=1, max_size=3).map(tuple),
    NAMES,
    st.none() | EXPRESSIONS,
    st.lists(st.builds(Column, NAMES), max_size=2).map(tuple),
    WINDOWS,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STATEMENTS, min_size=1, max_size=2).map(tuple))
def test_what_is_printed_reads_back_equal(statements: tuple[Statement, ...]) -> None:
    printed = format_statements(statements)
    assert parse(printed) == statements
    assert format_statements(parse(printed)) == printed


X, Y = Column("x"), Column("y")
SIGNS = ("+", "-", "*", "/", "%", "||", "=", "<")
AROUND: tuple[Callable[[Expr], Expr], ...] = (
    negated,
    Not,
    IsNull,
    *(lambda part, sign=sign: Binary(sign, part, Y) for sign in SIGNS),
    *(lambda part, sign=sign: Binary(sign, X, part) for sign in SIGNS),
    lambda part: And((part, Y)),
    lambda part: And((X, part)),
    lambda part: Or((part, Y)),
    lambda part: Or((X, part)),
    lambda part: In(part, (X, Y), True),
    lambda part: In(X, (part, Y)),
    lambda part: Between(part, X, Y, True),
    lambda part: Between(X, part, Y),
    lambda part: Between(X, Y, part),
    lambda part: Like(part, "a", True),
    lambda part: Case(((part, X),), Y),
    lambda part: Case(((X, part), (Y, X))),
    lambda part: Call("f", (part, X)),
    lambda part: Cast(part, "int"),
)


def test_every_nesting_of_two_nodes_reads_back_equal() -> None:
    """How tightly a node binds matters only against its neighbour, so pairs are all there is."""
    leaves = (
        X,
        Literal(-1),
        Literal(Decimal("-0.5")),
        Literal(-1e300),
        Literal(None),
        Literal(Decimal("-" + "7" * 38)),
    )
    nested = [outer(inner(leaf)) for outer in AROUND for inner in AROUND for leaf in leaves[:2]]
    nested += [outer(leaf) for outer in AROUND for leaf in leaves]
    items = tuple(Item("max", (expr,)) for expr in nested)
    statements = (Statement(items, "p", None, (), Infinite()),)
    for item, again in zip(items, parse(format_statements(statements))[0].items, strict=True):
        assert again == item


# ------------------------------------------------------------------- no text breaks the parser

VALID = (
    "SELECT sum(amount * 2) AS spent, count(*) FROM payments WHERE NOT a = 'x''y' AND b IN (1, 2.5, 1e3) "
    "GROUP BY card OVER sliding 1h30m delayed by 5 minutes;",
    "SELECT sum(x) OVER (PARTITION BY c ORDER BY ts RANGE BETWEEN INTERVAL '5' MINUTE PRECEDING AND CURRENT ROW) AS s, "
    "count(DISTINCT y) OVER (ORDER BY ts ROWS 9 PRECEDING) FROM `p q` WHERE x BETWEEN 1 AND -2 OR y IS NOT NULL",
    "SELECT max(CASE x WHEN 1 THEN CAST(y AS decimal(10,2)) ELSE coalesce(z, -1) END) FROM p -- c\nOVER tumbling 7 d;"
    "/* c */ SELECT min(date '2024-01-01') FROM p WHERE s LIKE 'a\\%_' OVER sliding 10 events",
)
TOKENS = sorted(
    {token for text in VALID for token in re.findall(r"'[^']*'|\w+|\S", text)} | {"infinite", "(", "\n", "1.", "e5"}
)


def reads_or_is_refused(text: str) -> None:
    """A text reads and round-trips, or is refused with a place; no other exception gets through."""
    try:
        statements = parse(text)
    except ParseError as refused:
        error = refused
    else:
        assert parse(format_statements(statements)) == statements
        return
    assert min(error.at.line, error.at.column) >= 1
    assert str(error).startswith(f"line {error.at.line}, column {error.at.column}: ")


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60) | st.text("select( )'\"`;-*/.,=<>0123e%\\\n", max_size=60))
def test_random_text(text: str) -> None:
    reads_or_is_refused(text)
    reads_or_is_refused(f"SELECT sum(x) FROM p WHERE {text} OVER infinite")


@settings(max_examples=250, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=30))
def test_random_tokens(tokens: list[str]) -> None:
    reads_or_is_refused("SELECT " + " ".join(tokens))
    reads_or_is_refused(f"SELECT max({' '.join(tokens[:8])}) FROM p OVER {' '.join(tokens[8:])}")


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(VALID), st.data())
def test_mutated_text(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        stop = data.draw(st.integers(start, min(len(text), start + 8)))
        text = text[:start] + data.draw(st.sampled_from(["", *TOKENS])) + text[stop:]
    reads_or_is_refused(text)
