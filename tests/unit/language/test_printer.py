"""The canonical short form."""

from __future__ import annotations

import pytest

from headrace.language import format_expr, format_statements, format_window, parse
from headrace.language.nodes import Column, Negate


def canonical(text: str) -> str:
    printed = format_statements(parse(text))
    assert parse(printed) == parse(text)
    assert format_statements(parse(printed)) == printed
    return printed


def test_statements() -> None:
    text = """
        select Sum(amount) as spent, count(*), percentile(x, 0.90) from "pay ments" where not (a = 1) and b
        group by card, "Group" over sliding 5 minutes delayed by 60 seconds;
        select count(distinct x) as d from p over tumbling 1 hour;
    """
    assert canonical(text) == (
        'SELECT Sum(amount) AS spent, count(*), percentile(x, 0.90) FROM "pay ments" WHERE NOT a = 1 AND b '
        'GROUP BY card, "Group" OVER sliding 5m delayed by 1m;\n'
        "SELECT countDistinct(x) AS d FROM p OVER tumbling 1h"
    )


def test_the_sql_form_prints_as_the_short_form() -> None:
    text = "SELECT sum(x) OVER (PARTITION BY c ORDER BY ts RANGE INTERVAL 5 MINUTES PRECEDING) AS s FROM p"
    assert canonical(text) == "SELECT sum(x) AS s FROM p GROUP BY c OVER sliding 5m1us"


@pytest.mark.parametrize(
    ("window", "printed"),
    [
        ("sliding 90 minutes", "sliding 1h30m"),
        ("sliding 14 days delayed by 1.5s", "sliding 14d delayed by 1s500ms"),
        ("tumbling 1 week", "tumbling 7d"),
        ("infinite", "infinite"),
        ("infinite delayed by 2h", "infinite delayed by 2h"),
        ("sliding 007 events", "sliding 7 events"),
    ],
)
def test_windows(window: str, printed: str) -> None:
    (statement,) = parse(f"SELECT count(*) FROM p OVER {window}")
    assert format_window(statement.window) == printed


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("((x))", "x"),
        ("(x+y)*z", "(x + y) * z"),
        ("x+(y*z)", "x + y * z"),
        ("x-(y-z)", "x - (y - z)"),
        ("(x-y)-z", "x - y - z"),
        ("-(-x)", "-(-x)"),
        ("-(x+y)", "-(x + y)"),
        ("x - -5", "x - -5"),
        ("-5 * x", "-5 * x"),
        ("(a or b) and c", "(a OR b) AND c"),
        ("a and (b and c)", "a AND (b AND c)"),
        ("not (a and b)", "NOT (a AND b)"),
        ("(not a) = b", "(NOT a) = b"),
        ("(a = b) = c", "(a = b) = c"),
        ("(a is null) is not null", "(a IS NULL) IS NOT NULL"),
        ("a in (1,'x''y',null)", "a IN (1, 'x''y', NULL)"),
        ("a not between (b = c) and d", "a NOT BETWEEN (b = c) AND d"),
        ("(a || b) like 'x%'", "a || b LIKE 'x%'"),
        ("case a or b when true then 1 else 2 end", "CASE WHEN (a OR b) = TRUE THEN 1 ELSE 2 END"),
        ("cast(x as dec(5,2))", "CAST(x AS decimal(5,2))"),
        ("date '2024-01-01'", "CAST('2024-01-01' AS date)"),
        ("COALESCE(`a b`, 1.50, 1., 1e3, 1e300)", 'coalesce("a b", 1.50, 1., 1000.0e0, 1e+300)'),
        ('"SELECT"', '"SELECT"'),
        ('"a""b"', '"a""b"'),
        ("größe", '"größe"'),
    ],
)
def test_expressions(text: str, printed: str) -> None:
    statements = parse(f"SELECT max({text}) FROM p OVER infinite")
    assert format_expr(statements[0].items[0].args[0]) == printed
    canonical(f"SELECT max({text}) FROM p OVER infinite")


def test_two_minus_signs_never_meet() -> None:
    assert format_expr(Negate(Negate(Column("x")))) == "-(-x)"
