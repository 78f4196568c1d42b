"""Every way a text can fail to read: the words, the place, the hint."""

from __future__ import annotations

import pickle

import pytest

from headrace.errors import ParseError, Span
from headrace.language import parse


def error_of(text: str) -> ParseError:
    with pytest.raises(ParseError) as caught:
        parse(text)
    return caught.value


SYNTAX = [
    # text, column, problem, hint
    ("SELECT sum(x) FROM p GROUP BY c OVR sliding 5m", 33, "expected ',', ';', OVER or the end", "did you mean OVER?"),
    ("SELCT sum(x) FROM p OVER infinite", 1, "unexpected 'SELCT'", "did you mean SELECT?"),
    ("SELECT sum(x) FORM p OVER infinite", 15, "unexpected 'FORM'", "did you mean FROM?"),
    ("SELECT sum(x) FROM p WERE x > 1 OVER infinite", 22, "unexpected 'WERE'", "did you mean WHERE?"),
    ("SELECT sum(x) FROM p OVER slidng 5m", 27, "expected INFINITE, SLIDING or TUMBLING", "did you mean SLIDING?"),
    ("SELECT sum(x) FROM p OVER sliding 5m delyed by 1m", 38, "unexpected 'delyed'", "did you mean DELAYED?"),
    ("SELECT sum(x) FROM p OVER 5 minutes", 27, "unexpected '5'", "windows are: sliding 5 minutes"),
    ("SELECT sum(x) FROM p OVER (ORDER BY ts)", 27, "unexpected '('", "behind each aggregation"),
    ("SELECT sum(x) OVER sliding 5 m FROM p", 20, "unexpected 'sliding'; expected '('", "at the end of the statement"),
    ("SELECT sum(x) + 1 FROM p OVER infinite", 15, "unexpected '+'", "an item is one aggregation"),
    ("SELECT sum(x) total FROM p OVER infinite", 15, "unexpected 'total'", "a name needs AS"),
    ("SELECT sum(p.x) FROM p OVER infinite", 13, "unexpected '.'", "without the name of the stream"),
    ("SELECT sum(x) AS from FROM p OVER infinite", 18, "unexpected 'from'; expected a name", "a name in quotes"),
    ("SELECT sum(group) FROM p OVER infinite", 12, "unexpected 'group'", "a name in quotes"),
    ("SELECT sum(x) FROM p WHERE OVER infinite", 28, "unexpected 'OVER'; expected an expression", "a name in quotes"),
    ("SELECT sum(x) FROM p WHERE x = @ OVER infinite", 32, "unexpected '@'; expected an expression", None),
    ("SELECT sum(x) FROM p WHERE x = 1 = 2 OVER infinite", 34, "unexpected '='", None),
    ("SELECT sum(x FROM p OVER infinite", 14, "unexpected 'FROM'; expected an operator, ')' or ','", None),
    ("SELECT sum(x", 13, "the text ends too early; expected ')' or ','", None),
    ("SELECT sum(x) FROM p OVER sliding 5", 36, "expected a unit of time such as minutes or events", None),
    ("SELECT sum(x) FROM p OVER sliding five minutes", 35, "unexpected 'five'; expected a number", None),
    ("SELECT sum('x) FROM p OVER infinite", 12, "the text in quotes that starts here has no end", None),
    ('SELECT sum("x) FROM p OVER infinite', 12, "the name in quotes that starts here has no end", None),
    ("SELECT sum(x) FROM p /* OVER infinite", 22, "the comment that starts here has no end", None),
    ("SELECT sum(x) FROM p OVER infinite SELECT sum(x) FROM p OVER infinite", 36, "expected ';'", None),
    ("SELECT sum(x) OVER (ORDER BY ts RANGE 5 MINUTES PRECEDING) FROM p", 41, "unexpected 'MINUTES'", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "column", "problem", "hint"), SYNTAX)
def test_syntax(text: str, column: int, problem: str, hint: str | None) -> None:
    error = error_of(text)
    assert problem in error.problem
    assert (error.at.line, error.at.column) == (1, column)
    assert (error.hint is None) if hint is None else (hint in (error.hint or ""))


MEANING = [
    ("SELECT sum(x) FROM p", 1, "every metric needs a window: add OVER sliding 5 minutes", "tumbling 1 hour"),
    ("SELECT card, sum(x) FROM p OVER infinite", 8, "a SELECT lists aggregations, not columns", "last(card)"),
    ("SELECT * FROM p OVER infinite", 8, "a SELECT lists aggregations, not *", "count(*)"),
    ("SELECT sum(DISTINCT x) FROM p OVER infinite", 8, "sum does not take DISTINCT", "count(DISTINCT x)"),
    ("SELECT sum(count(*)) FROM p OVER infinite", 12, "count(*) cannot stand inside an expression", None),
    ('SELECT sum("") FROM p OVER infinite', 12, "a name in quotes cannot be empty", None),
    ("SELECT sum(x) FROM p OVER sliding 0 s", 35, "a window must be longer than nothing", "5 minutes"),
    ("SELECT sum(x) FROM p OVER sliding -5 minutes", 35, "a window must be longer than nothing", None),
    ("SELECT sum(x) FROM p OVER tumbling 0h", 36, "a window must be longer than nothing", None),
    ("SELECT sum(x) FROM p OVER infinite delayed by -1s", 47, "a delay cannot be negative", None),
    ("SELECT sum(x) FROM p OVER sliding 1 month", 35, "a month has no fixed length", "30 days"),
    ("SELECT sum(x) FROM p OVER sliding 2 years", 35, "a year has no fixed length", "365 days"),
    ("SELECT sum(x) FROM p OVER sliding 5 minuts", 35, "'minuts' is not a unit of time", "did you mean minute"),
    ("SELECT sum(x) FROM p OVER sliding 5 xyz", 35, "'xyz' is not a unit of time", "units are us, ms"),
    ("SELECT sum(x) FROM p OVER sliding 0.0000001 s", 35, "not a whole number of microseconds", None),
    ("SELECT sum(x) FROM p OVER sliding 5m5m", 37, "the duration says m twice", None),
    ("SELECT sum(x) FROM p OVER sliding 3652501 d", 35, "longer than 10,000 years", "write infinite"),
    ("SELECT sum(x) FROM p OVER infinite delayed by 3652501 d", 47, "the delay is longer than", None),
    (f"SELECT sum(x) FROM p OVER sliding {'9' * 5000} d", 35, "the number has more than 30 digits", None),
    ("SELECT sum(x) FROM p OVER sliding 10 events delayed by 1s", 56, "a window of events cannot be delayed", None),
    ("SELECT sum(x) FROM p OVER sliding 0 events", 35, "at least 1 event", None),
    ("SELECT sum(x) FROM p OVER sliding 1.5 events", 35, "a number of events is a whole number", None),
    ("SELECT sum(x) FROM p OVER sliding 2147483648 events", 35, "at most 2,147,483,647 events", None),
    (f"SELECT sum(x) FROM p OVER sliding {'9' * 5000} events", 35, "at most 2,147,483,647 events", None),
    ("SELECT sum(x) FROM p OVER tumbling 10 events", 36, "a tumbling window has a length of time", "sliding 100"),
    ("SELECT sum(x) FROM p WHERE x LIKE y OVER infinite", 35, "LIKE needs a pattern in quotes", None),
    (r"SELECT sum(x) FROM p WHERE x LIKE 'a\b' OVER infinite", 35, r"\ must come before %, _ or \ ", r"write \\"),
    (r"SELECT sum(x) FROM p WHERE x LIKE 'a\' OVER infinite", 35, r"\ must come before", None),
    (f"SELECT sum({'9' * 39}) FROM p OVER infinite", 12, "the number has more than 38 digits", "1e40"),
    (f"SELECT sum(0.{'0' * 39}) FROM p OVER infinite", 12, "the number has more than 38 digits", None),
    ("SELECT sum(1e999) FROM p OVER infinite", 12, "the number is too large for a double", None),
    ("SELECT sum(CAST(x AS strin)) FROM p OVER infinite", 22, "there is no type strin", "did you mean string?"),
    ("SELECT sum(CAST(x AS foo)) FROM p OVER infinite", 22, "there is no type foo", "types are boolean"),
    ("SELECT sum(CAST(x AS decimal(39,1))) FROM p OVER infinite", 22, "a precision of 1 to 38", "decimal(10,2)"),
    ("SELECT sum(CAST(x AS decimal(5,6))) FROM p OVER infinite", 22, "a scale no larger", None),
    ("SELECT sum(CAST(x AS int(4))) FROM p OVER infinite", 22, "int takes no size", None),
    ("SELECT sum(CAST(x AS decimal(1.5))) FROM p OVER infinite", 30, "a small whole number", None),
    ("SELECT max(date '2023-02-29') FROM p OVER infinite", 17, "this is not a date", "'2024-12-31'"),
    ("SELECT max(timestamp 'noon') FROM p OVER infinite", 22, "this is not a timestamp", "23:59:59"),
    ("SELECT max(foo 'x') FROM p OVER infinite", 12, "foo cannot stand before a text in quotes", "date '…'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "column", "problem", "hint"), MEANING)
def test_meaning(text: str, column: int, problem: str, hint: str | None) -> None:
    error = error_of(text)
    assert problem in error.problem
    assert (error.at.line, error.at.column) == (1, column)
    if hint is not None:
        assert hint in (error.hint or "")


FRAMES = [
    ("OVER ()", 15, "OVER (…) needs ORDER BY the time column"),
    ("OVER (PARTITION BY c)", 15, "OVER (…) needs ORDER BY the time column"),
    ("OVER (ORDER BY ts, x)", 34, "ORDER BY takes one column"),
    ("OVER (ORDER BY ts DESC)", 33, "ORDER BY must go up"),
    ("OVER (ORDER BY ts RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)", 73, "cannot see events that follow"),
    ("OVER (ORDER BY ts ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING)", 64, "cannot see events that follow"),
    ("OVER (ORDER BY ts RANGE INTERVAL 1 DAY FOLLOWING)", 54, "cannot see events that follow"),
    ("OVER (ORDER BY ts RANGE 5 PRECEDING)", 39, "RANGE over time needs an interval with a unit"),
    ("OVER (ORDER BY ts ROWS INTERVAL 5 MINUTES PRECEDING)", 38, "ROWS counts rows, not time"),
    ("OVER (ORDER BY ts ROWS UNBOUNDED PRECEDING)", 38, "ROWS needs a number of rows"),
    ("OVER (ORDER BY ts ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING)", 62, "a window of events cannot be delayed"),
    ("OVER (ORDER BY ts ROWS 1.5 PRECEDING)", 38, "a number of rows is a whole number"),
    ("OVER (ORDER BY ts ROWS 2147483647 PRECEDING)", 38, "at most 2,147,483,647 events"),
    ("OVER (ORDER BY ts GROUPS 5 PRECEDING)", 33, "GROUPS frames are not part"),
    ("OVER (ORDER BY ts RANGE BETWEEN CURRENT ROW AND UNBOUNDED PRECEDING)", 63, "cannot end at UNBOUNDED PRECEDING"),
    ("OVER (ORDER BY ts RANGE BETWEEN INTERVAL 1 s PRECEDING AND INTERVAL 2 s PRECEDING)", 47, "ends before it starts"),
    ("OVER (ORDER BY ts RANGE INTERVAL -5 MINUTES PRECEDING)", 39, "cannot be negative"),
    ("OVER (ORDER BY ts RANGE INTERVAL '5 foos' PRECEDING)", 39, "'foos' is not a unit of time"),
    ("OVER (ORDER BY ts RANGE INTERVAL 'soon' PRECEDING)", 39, "'soon' is not a duration"),
    ("OVER (ORDER BY ts RANGE INTERVAL 1 MONTH PRECEDING)", 48, "a month has no fixed length"),
]  # fmt: skip


@pytest.mark.parametrize(("over", "column", "problem"), FRAMES)
def test_frames(over: str, column: int, problem: str) -> None:
    error = error_of(f"SELECT sum(x) {over} FROM p")
    assert problem in error.problem
    assert (error.at.line, error.at.column) == (1, column)


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("SELECT sum(x) OVER (ORDER BY ts) FROM p GROUP BY card", 50, "GROUP BY does not go with OVER (…)"),
        ("SELECT sum(x) OVER (ORDER BY ts) FROM p OVER infinite", 46, "no second OVER"),
        ("SELECT sum(x) OVER (ORDER BY ts), max(x) FROM p", 35, "max has no OVER (…), though others have"),
    ],
)
def test_the_two_forms_do_not_mix(text: str, column: int, problem: str) -> None:
    error = error_of(text)
    assert problem in error.problem
    assert error.at.column == column


@pytest.mark.parametrize("text", ["", "  \n\t", ";;", "-- nothing\n", "/* nothing */"])
def test_no_metric(text: str) -> None:
    assert error_of(text).problem == "there is no metric in the text"


def test_lines_are_counted() -> None:
    error = error_of("SELECT sum(x) -- first\nFROM p\n  OVR infinite")
    assert (error.at.line, error.at.column) == (3, 3)
    assert "\n    OVR infinite\n    ^^^\n" in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 101 + "x" + ")" * 101,
        "(" * 20_000 + "x" + ")" * 20_000,
        "NOT " * 101 + "x",
        "- " * 101 + "x",
        "x" + " + x" * 101,
        "x" + " || x" * 10_000,
        "abs(" * 101 + "x" + ")" * 101,
        "CASE WHEN x THEN " * 101 + "x" + " END" * 101,
        "CAST(" * 101 + "x" + " AS int)" * 101,
        "(x AND " * 101 + "x" + ")" * 101,
    ],
)
def test_deep_nesting(text: str) -> None:
    assert "nested more than 100 deep" in error_of(f"SELECT sum({text}) FROM p OVER infinite").problem


def test_brackets_that_never_close() -> None:
    assert "the text ends too early" in error_of("SELECT sum(" + "(" * 50_000).problem


def test_a_case_operand_that_would_multiply_without_end() -> None:
    text = "x"
    for _ in range(40):
        text = f"CASE {text} WHEN 1 THEN 2 WHEN 2 THEN 3 END"
    assert "repeated too often" in error_of(f"SELECT sum({text}) FROM p OVER infinite").problem


def test_too_long() -> None:
    error = error_of("SELECT " + "x" * 10_000_000)
    assert error.problem == "the text has 10,000,007 characters; 1,000,000 is the most"
    assert len(str(error)) < 500


def test_broken_unicode() -> None:
    error = error_of("SELECT sum(x)\nFROM \ud800 OVER infinite")
    assert "not valid Unicode" in error.problem
    assert (error.at.line, error.at.column) == (2, 6)
    str(error).encode()


def test_not_a_string() -> None:
    assert "a metric text is a string, not bytes" in error_of(b"SELECT").problem  # type: ignore[arg-type]


def test_errors_cross_process_borders() -> None:
    error = error_of("SELECT sum(x) FROM p")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.at, again.hint) == (str(error), error.at, error.hint)


@pytest.mark.parametrize("word", ["GROUPP", "WHEREx", "OVRE"])
def test_a_word_of_the_grammar_is_a_whole_word(word: str) -> None:
    with pytest.raises(ParseError) as raised:
        parse(f"SELECT sum(x) FROM p {word} sliding 5m")
    assert raised.value.at == Span(1, 22, len(word))
    assert "did you mean" in str(raised.value)
