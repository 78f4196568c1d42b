from __future__ import annotations

import pickle

import pytest

from headrace.errors import DefinitionError, HeadraceError, MetricOverflow, ParseError, Span


@pytest.mark.parametrize(
    "error",
    [
        ParseError("no such thing", "SELECT\n  x", Span(2, 3, 1), "try y"),
        MetricOverflow("spent", "int64"),
        DefinitionError("time= is missing"),
    ],
)
def test_errors_survive_pickling(error: HeadraceError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.__dict__ == error.__dict__


def test_the_caret_stands_below_the_place() -> None:
    error = ParseError("no such thing", "SELECT\n  amount", Span(2, 3, 6))
    assert str(error) == "line 2, column 3: no such thing\n    amount\n    ^^^^^^"


def test_a_long_line_is_cut_around_the_place() -> None:
    error = ParseError("here", "x" * 5000 + "y" + "x" * 5000, Span(1, 5001))
    excerpt, caret = str(error).split("\n")[1:]
    assert len(excerpt) < 120
    assert excerpt[caret.index("^")] == "y"
