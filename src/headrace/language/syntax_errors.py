"""The grammar library's errors in words that a person can use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from headrace.errors import ParseError, Span
from headrace.language.built import span
from headrace.language.printer import RESERVED

_TERMS: Final = {
    "NAME": "a name",
    "QUOTED": "a name",
    "NUMBER": "a number",
    "QUANTITY": "a number",
    "STRING": "a text in quotes",
    "UNIT": "a unit of time such as minutes",
    "EVENTS": "events",
    "COMPARISON": "a comparison",
    "PLUS": "an operator",
    "MINUS": "an operator",
    "STAR": "an operator",
    "SLASH": "an operator",
    "PERCENT": "an operator",
    "CONCAT": "an operator",
    "LPAR": "'('",
    "RPAR": "')'",
    "COMMA": "','",
    "SEMICOLON": "';'",
    "DOT": "'.'",
    "$END": "the end of the text",
}
_EXPRESSION_STARTS: Final = frozenset(("CASE", "CAST", "TRUE", "FALSE", "NULL"))
_OPERATOR_WORDS: Final = frozenset(("AND", "OR", "IS", "IN", "BETWEEN", "LIKE", "NOT", "COMPARISON", "CONCAT"))
_ARITHMETIC: Final = frozenset(("PLUS", "MINUS", "STAR", "SLASH", "PERCENT"))
_OPENINGS: Final = {"'": "text in quotes", '"': "name in quotes", "`": "name in quotes"}
_SHOWN: Final = 7


def explain_syntax(error: UnexpectedInput, text: str) -> ParseError:
    """Says what stands there, what could stand there, and what was probably meant."""
    found, at = _place(error, text)
    if opened := _unclosed(error, text):
        return ParseError(f"the {opened} that starts here has no end", text, at)
    accepts = _accepts(error)
    what = f"unexpected {_quoted(found)}" if found else "the text ends too early"
    return ParseError(f"{what}; expected {_expected(accepts)}", text, at, _hint(found, accepts))


def _place(error: UnexpectedInput, text: str) -> tuple[str, Span]:
    """What stands at the error, and where; nothing, at the end of the text."""
    if isinstance(error, UnexpectedCharacters):
        return text[error.pos_in_stream or 0], Span(error.line, error.column)
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        return str(error.token), span(error.token)
    # Just behind the last character that is not space.
    kept = text.rstrip()
    return "", Span(kept.count("\n") + 1, len(kept) - kept.rfind("\n"))


def _unclosed(error: UnexpectedInput, text: str) -> str | None:
    """What begins at the error and never ends: only then does its first character stand alone."""
    start = error.pos_in_stream or 0
    if text.startswith("/*", start):
        return "comment"
    return _OPENINGS.get(text[start]) if isinstance(error, UnexpectedCharacters) else None


def _accepts(error: UnexpectedInput) -> frozenset[str]:
    """The terminals that could really follow here; the library's own list holds more than that."""
    interactive = getattr(error, "interactive_parser", None)
    return frozenset(interactive.accepts()) if interactive is not None else frozenset()


def _quoted(found: str) -> str:
    first = found.partition("\n")[0]
    short = first if len(first) <= 30 else first[:27] + "..."
    return short if short[:1] in "'\"`" else f"'{short}'"


def _expected(accepts: frozenset[str]) -> str:
    """A short list in words; states of the parser in the middle of an expression accept dozens of terminals."""
    rest, words = set(accepts), []
    if rest >= _EXPRESSION_STARTS:
        words.append("an expression")
        rest -= {*_EXPRESSION_STARTS, "NAME", "QUOTED", "NUMBER", "STRING", "NOT", "LPAR", "PLUS", "MINUS"}
    if "QUANTITY" in rest:
        # A duration may have a sign only so that the message about it can be a good one.
        rest.discard("MINUS")
    if rest >= _ARITHMETIC:
        words.append("an operator")
        rest -= _OPERATOR_WORDS | _ARITHMETIC | {"LPAR", "STRING"}
    keywords = sorted(_TERMS.get(terminal, terminal) for terminal in rest)
    words += [word for word in dict.fromkeys(keywords) if word not in words]
    shown = words[:_SHOWN] + (["…"] if len(words) > _SHOWN else [])
    return " or ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown) or "something else"


def _hint(found: str, accepts: frozenset[str]) -> str | None:
    keywords = {terminal.lower(): terminal for terminal in accepts if terminal not in _TERMS}
    near = get_close_matches(found.lower(), keywords, n=1, cutoff=0.7) if found.isalpha() else []
    if near and near[0] != found.lower():
        return f"did you mean {keywords[near[0]]}?"
    return next((hint.words for hint in _HINTS if hint.applies(found, accepts)), None)


@dataclass(frozen=True)
class _Hint:
    """What to say where `found` stands and the terminals in `accepts` could."""

    applies: Callable[[str, frozenset[str]], bool]
    words: str


_HINTS: Final = (
    _Hint(
        lambda found, accepts: found == "." and "CONCAT" in accepts,
        "write the column's name alone, without the name of the stream",
    ),
    _Hint(
        lambda found, accepts: "SLIDING" in accepts and found == "(",
        "OVER (…) stands behind each aggregation: sum(x) OVER (…) FROM …",
    ),
    _Hint(
        lambda found, accepts: "SLIDING" in accepts,
        "windows are: sliding 5 minutes, tumbling 1 hour, infinite, sliding 100 events",
    ),
    _Hint(
        lambda found, accepts: accepts >= {"FROM", "OVER", "AS"} and found in tuple("+-*/%"),
        "an item is one aggregation: name each one, and compute with the new columns afterwards",
    ),
    _Hint(
        lambda found, accepts: accepts >= {"FROM", "OVER", "AS"} and found.isidentifier(),
        "a name needs AS: sum(x) AS total",
    ),
    _Hint(
        lambda found, accepts: accepts == {"LPAR"} and found.lower() in ("sliding", "tumbling", "infinite"),
        "the window stands at the end of the statement: SELECT sum(x) FROM … OVER sliding 5 minutes",
    ),
    _Hint(
        lambda found, accepts: "NAME" in accepts and found.lower() in RESERVED,
        'a word of the language can be a name in quotes: "group"',
    ),
)
