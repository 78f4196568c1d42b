"""From the grammar's expression rules to nodes. Runs inside the parser, bottom up: no recursion, whatever the text."""

from __future__ import annotations

import re
from decimal import Decimal
from difflib import get_close_matches
from typing import Final, NoReturn

from lark import Token, Transformer, v_args

from headrace.errors import ParseError
from headrace.language.built import MAX_DEPTH, Built, Name, cover, grow, span, too_deep
from headrace.language.moments import DATE_PATTERN, TIMESTAMP_PATTERN
from headrace.language.nodes import (
    And,
    Between,
    Binary,
    Call,
    Case,
    Cast,
    Column,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Not,
    Or,
)
from headrace.language.type_names import TYPE_NAMES, canonical_type_name

MAX_DIGITS: Final = 38
_SAME_OPERATOR: Final = {"==": "=", "!=": "<>"}
_MOMENTS: Final = {"date": (DATE_PATTERN, "2024-12-31"), "timestamp": (TIMESTAMP_PATTERN, "2024-12-31 23:59:59.5")}
_WORDS: Final = {"TRUE": True, "FALSE": False, "NULL": None}


def unquote(token: Token) -> str:
    """The text between the quotes of a string or a quoted name; a doubled quote stands for itself."""
    quote = token[0]
    return token[1:-1].replace(quote * 2, quote)


@v_args(inline=True)
class ExpressionBuilder(Transformer[Token, object]):
    """One method a rule; each takes what its parts have built."""

    # ---------------------------------------------------------------- leaves

    def name(self, token: Token) -> Name:
        text = str(token) if token.type == "NAME" else unquote(token)
        if not text:
            raise ParseError("a name in quotes cannot be empty", "", span(token))
        return Name(text, span(token))

    def column(self, name: Name) -> Built:
        return Built(Column(name.text, name.at))

    def number(self, token: Token) -> Built:
        return Built(Literal(_read_number(token), span(token)))

    def text(self, token: Token) -> Built:
        return Built(Literal(unquote(token), span(token)))

    def word(self, token: Token) -> Built:
        return Built(Literal(_WORDS[token.type], span(token)))

    def moment(self, kind: Token, token: Token) -> Built:
        """`date '2024-12-31'` is a cast that is known to work."""
        at, text = cover(span(kind), span(token)), unquote(token)
        if kind.lower() not in _MOMENTS:
            hint = "only date '…' and timestamp '…' are written this way"
            raise ParseError(f"{kind} cannot stand before a text in quotes", "", at, hint)
        pattern, example = _MOMENTS[kind.lower()]
        if not re.fullmatch(pattern, text):
            raise ParseError(f"this is not a {kind.lower()}", "", span(token), f"write it as '{example}'")
        return Built(Cast(Literal(text, span(token)), kind.lower(), at), depth=1, size=2)

    # ------------------------------------------------------------- operators

    def disjunction(self, *terms: Built) -> Built:
        at = cover(terms[0].expr.at, terms[-1].expr.at)
        return grow(Or(tuple(term.expr for term in terms), at), terms)

    def conjunction(self, *terms: Built) -> Built:
        at = cover(terms[0].expr.at, terms[-1].expr.at)
        return grow(And(tuple(term.expr for term in terms), at), terms)

    def not_(self, word: Token, operand: Built) -> Built:
        return grow(Not(operand.expr, cover(span(word), operand.expr.at)), [operand])

    def comparison(self, left: Built, sign: Token, right: Built) -> Built:
        return self.binary(left, sign, right)

    def binary(self, left: Built, sign: Token, right: Built) -> Built:
        op = _SAME_OPERATOR.get(sign, str(sign))
        at = cover(left.expr.at, right.expr.at)
        return grow(Binary(op, left.expr, right.expr, at), [left, right])

    def minus(self, sign: Token, operand: Built) -> Built:
        at, expr = cover(span(sign), operand.expr.at), operand.expr
        if isinstance(expr, Literal) and (negated := _negated(expr)) is not None:
            return operand._replace(expr=Literal(negated, at))
        return grow(Negate(expr, at), [operand])

    def plus(self, sign: Token, operand: Built) -> Built:
        return operand

    def parens(self, opening: Token, inner: Built, closing: Token) -> Built:
        if inner.parens >= MAX_DEPTH:
            raise too_deep(span(opening))
        return inner._replace(parens=inner.parens + 1)

    # ------------------------------------------------------------ predicates

    def is_null(self, operand: Built, word: Token, negated: Token | None, null: Token) -> Built:
        return grow(IsNull(operand.expr, negated is not None, cover(operand.expr.at, span(null))), [operand])

    def in_(self, operand: Built, negated: Token | None, word: Token, *rest: Built | Token) -> Built:
        options = [part for part in rest if isinstance(part, Built)]
        closing = next(part for part in rest if isinstance(part, Token))
        at = cover(operand.expr.at, span(closing))
        node = In(operand.expr, tuple(option.expr for option in options), negated is not None, at)
        return grow(node, [operand, *options])

    def between(self, operand: Built, negated: Token | None, word: Token, low: Built, high: Built) -> Built:
        at = cover(operand.expr.at, high.expr.at)
        return grow(Between(operand.expr, low.expr, high.expr, negated is not None, at), [operand, low, high])

    def like(self, operand: Built, negated: Token | None, word: Token, pattern: Built) -> Built:
        found = pattern.expr
        if not isinstance(found, Literal) or not isinstance(found.value, str):
            raise ParseError("LIKE needs a pattern in quotes, such as 'abc%'", "", found.at)
        if re.search(r"(?<!\\)(?:\\\\)*\\(?![%_\\])", found.value):
            hint = r"write \\ for a backslash, \% for a percent sign, \_ for an underscore"
            raise ParseError(r"in a LIKE pattern, \ must come before %, _ or \ ", "", found.at, hint)
        at = cover(operand.expr.at, found.at)
        return grow(Like(operand.expr, found.value, negated is not None, at), [operand])

    # ----------------------------------------------------- functions and case

    def arguments(self, *args: Built | None) -> tuple[Built, ...]:
        return tuple(arg for arg in args if arg is not None)

    def call(self, name: Token, opening: Token, args: tuple[Built, ...], closing: Token) -> Built:
        at = cover(span(name), span(closing))
        return grow(Call(name.lower(), tuple(arg.expr for arg in args), at), args)

    def nested_star(self, name: Token, opening: Token, star: Token, closing: Token) -> Built:
        at = cover(span(name), span(closing))
        raise ParseError(f"{name}(*) cannot stand inside an expression: aggregations do not nest", "", at)

    def cast(self, word: Token, operand: Built, type_name: str, closing: Token) -> Built:
        return grow(Cast(operand.expr, type_name, cover(span(word), span(closing))), [operand])

    def type(self, name: Token, *sizes: Token | None) -> str:
        given = tuple(_read_size(size) for size in sizes if size is not None)
        return canonical_type_name(str(name), given) or _refuse_type(name)

    def when(self, condition: Built, result: Built) -> tuple[Built, Built]:
        return condition, result

    def otherwise(self, result: Built) -> Built:
        return result

    def case(self, word: Token, *rest: tuple[Built, Built] | Built | Token | None) -> Built:
        branches = [part for part in rest if isinstance(part, tuple) and not isinstance(part, Built)]
        others = [part for part in rest if isinstance(part, Built)]
        end = next(part for part in rest if isinstance(part, Token))
        node = Case(
            tuple((condition.expr, result.expr) for condition, result in branches),
            others[0].expr if others else None,
            cover(span(word), span(end)),
        )
        return grow(node, [*others, *(part for branch in branches for part in branch)])

    def simple_case(self, word: Token, operand: Built, *rest: tuple[Built, Built] | Built | Token | None) -> Built:
        """`CASE x WHEN 1 THEN …` asks x = 1 in each branch."""

        def compared(value: Built) -> Built:
            return grow(Binary("=", operand.expr, value.expr, value.expr.at), [operand, value])

        asked = [
            (compared(part[0]), part[1]) if isinstance(part, tuple) and not isinstance(part, Built) else part
            for part in rest
        ]
        return self.case(word, *asked)


def _read_number(token: Token) -> int | float | Decimal:
    if "e" in token.lower():
        return _read_float(token)
    digits = token.replace(".", "").lstrip("0")
    if len(digits) > MAX_DIGITS or len(token.partition(".")[2]) > MAX_DIGITS:
        hint = "write it with an exponent, as 1e40, to get a double"
        raise ParseError(f"the number has more than {MAX_DIGITS} digits", "", span(token), hint)
    return Decimal(str(token)) if "." in token else int(token.lstrip("0") or "0")


def _read_float(token: Token) -> float:
    value = float(token)
    if value == float("inf"):
        raise ParseError("the number is too large for a double", "", span(token))
    return value


def _negated(literal: Literal) -> int | float | Decimal | None:
    value = literal.value
    if isinstance(value, Decimal):
        # Unary minus would round to the precision of Python's decimal context.
        return value.copy_negate()
    return -value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _refuse_type(name: Token) -> NoReturn:
    known = canonical_type_name(str(name), ())
    if known is None:
        near = get_close_matches(name.lower(), TYPE_NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"types are {', '.join(TYPE_NAMES[:13])}"
        raise ParseError(f"there is no type {name}", "", span(name), hint)
    if known.startswith("decimal"):
        problem = "a decimal has a precision of 1 to 38 and a scale no larger"
        raise ParseError(problem, "", span(name), "write it as decimal(10,2)")
    raise ParseError(f"{name} takes no size", "", span(name))


def _read_size(token: Token) -> int:
    if not token.isdecimal() or len(token) > 3:
        raise ParseError("a size in a type is a small whole number", "", span(token))
    return int(token)
