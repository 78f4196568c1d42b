"""Texts to statements: `parse`."""

from __future__ import annotations

from functools import cache
from typing import Final

from lark import Lark
from lark.exceptions import UnexpectedInput
from lark.lexer import PatternRE, PatternStr, TerminalDef

from headrace.errors import NOWHERE, ParseError, Span
from headrace.language.build_statements import StatementBuilder
from headrace.language.nodes import Statement
from headrace.language.syntax_errors import explain_syntax

MAX_CHARACTERS: Final = 1_000_000


def parse(text: str) -> tuple[Statement, ...]:
    """The statements of a metric text, short form and SQL form alike.

    Raises ParseError, with line and column, and nothing else: for text that does not read, for more than
    1,000,000 characters, and for expressions nested more than 100 deep.
    """
    _check_characters(text)
    try:
        statements: tuple[Statement, ...] = _grammar().parse(text)  # type: ignore[assignment]
    except UnexpectedInput as error:
        raise explain_syntax(error, text) from None
    except ParseError as error:
        raise ParseError(error.problem, text, error.at, error.hint) from None
    if not statements:
        hint = "write a metric such as SELECT count(*) FROM payments OVER sliding 5 minutes"
        raise ParseError("there is no metric in the text", text, Span(1, 1), hint)
    return statements


@cache
def _grammar() -> Lark:
    # The builder keeps no state, so one grammar serves every text.
    return Lark.open(
        "grammar.lark",
        rel_to=__file__,
        parser="lalr",
        lexer="contextual",
        maybe_placeholders=True,
        transformer=StatementBuilder(),
        edit_terminals=_end_at_the_word,
    )


def _end_at_the_word(terminal: TerminalDef) -> None:
    """A word of the grammar is a whole word: GROUPP is not GROUP and then P."""
    pattern = terminal.pattern
    if isinstance(pattern, PatternStr) and pattern.value.isalpha():
        terminal.pattern = PatternRE(rf"{pattern.value}\b", pattern.flags)
        # Lark prefers strings to patterns; now that it is a pattern, it must say so itself.
        terminal.priority += 1


def _check_characters(text: str) -> None:
    if not isinstance(text, str):
        raise ParseError(f"a metric text is a string, not {type(text).__name__}", "", NOWHERE)
    if len(text) > MAX_CHARACTERS:
        problem = f"the text has {len(text):,} characters; {MAX_CHARACTERS:,} is the most"
        raise ParseError(problem, text[:200], Span(1, 1))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        before = text[: error.start]
        at = Span(before.count("\n") + 1, error.start - before.rfind("\n"))
        # The excerpt must itself be printable, so the broken character is shown as a question mark.
        shown = text.encode(errors="replace").decode()
        raise ParseError("the text holds a character that is not valid Unicode", shown, at) from None
