"""What texts mean: both forms of the language, windows, durations, expressions."""

from __future__ import annotations

from decimal import Decimal

import pytest

from headrace.language import parse
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
    Tumbling,
    Window,
)
from headrace.model.ticks import DAY, HOUR, MILLISECOND, MINUTE, SECOND, WEEK, Ticks

X, Y, Z = Column("x"), Column("y"), Column("z")
ONE, TWO = Literal(1), Literal(2)


def window_of(text: str) -> Window:
    return parse(f"SELECT count(*) FROM p OVER {text}")[0].window


def expr_of(text: str) -> Expr:
    where = parse(f"SELECT count(*) FROM p WHERE {text} OVER infinite")[0].where
    assert where is not None
    return where


def frame_of(text: str) -> Window:
    return parse(f"SELECT sum(x) OVER (ORDER BY ts {text}) FROM p")[0].window


# ------------------------------------------------------------------ short form


def test_a_whole_statement() -> None:
    (statement,) = parse(
        "SELECT sum(amount) AS spent, count(*) AS n FROM payments WHERE amount > 0 "
        "GROUP BY card, shop OVER sliding 5 minutes"
    )
    assert statement.items == (Item("sum", (Column("amount"),), "spent"), Item("count", (), "n"))
    assert statement.stream == "payments"
    assert statement.where == Binary(">", Column("amount"), Literal(0))
    assert statement.group_by == (Column("card"), Column("shop"))
    assert statement.window == Sliding(Ticks(5 * MINUTE))
    assert statement.order_by is None


def test_items_keep_the_spelling_of_functions_and_may_lack_a_name() -> None:
    (statement,) = parse("select STDDEV(x), percentile(x, 0.9) from p over infinite")
    assert statement.items == (Item("STDDEV", (X,)), Item("percentile", (X, Literal(Decimal("0.9")))))


@pytest.mark.parametrize("text", ["count(DISTINCT x)", "COUNT(distinct x)", "countDistinct(x)"])
def test_count_distinct(text: str) -> None:
    assert parse(f"SELECT {text} FROM p OVER infinite")[0].items == (Item("countDistinct", (X,)),)


def test_several_statements_comments_and_empty_ones() -> None:
    text = """
        -- spent by card
        SELECT sum(x) FROM p OVER sliding 5m; /* and ** also
        by shop */ ;
        SELECT sum(y) FROM p OVER tumbling 1h;
    """
    assert [statement.window for statement in parse(text)] == [Sliding(MINUTE5), Tumbling(HOUR)]


def test_places_are_those_of_the_text() -> None:
    (statement,) = parse("SELECT sum(x)\n  FROM p\n WHERE  yy > 'a b'\nOVER sliding 5 minutes")
    assert statement.where is not None
    assert (statement.where.at.line, statement.where.at.column, statement.where.at.length) == (3, 9, 10)
    assert (statement.window.at.line, statement.window.at.column, statement.window.at.length) == (4, 6, 17)


def test_quoted_names_and_words_of_the_grammar_as_names() -> None:
    text = 'SELECT max("a ""b""") AS `select` FROM "my stream" GROUP BY `c``d`, sliding, minutes, "Group" OVER infinite'
    (statement,) = parse(text)
    assert statement.items == (Item("max", (Column('a "b"'),), "select"),)
    assert statement.stream == "my stream"
    assert [column.name for column in statement.group_by] == ["c`d", "sliding", "minutes", "Group"]


@pytest.mark.parametrize(
    "name", ["over_x", "selected", "m", "events", "range", "date", "timestamp", "größe", "_1", "by"]
)
def test_names_that_look_like_words_of_the_grammar(name: str) -> None:
    (statement,) = parse(f"SELECT max({name}) AS {name} FROM {name} WHERE {name} > 1 GROUP BY {name} OVER infinite")
    assert statement.items == (Item("max", (Column(name),), name),)
    assert (statement.stream, statement.group_by) == (name, (Column(name),))


def test_a_stream_may_have_a_qualified_name() -> None:
    assert parse("SELECT count(*) FROM lake.bank.payments OVER infinite")[0].stream == "lake.bank.payments"


# -------------------------------------------------------------------- durations

MINUTE5 = Ticks(5 * MINUTE)


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("5m", MINUTE5),
        ("5 m", MINUTE5),
        ("5 min", MINUTE5),
        ("5 MINUTES", MINUTE5),
        ("1 minute", MINUTE),
        ("1h30m", 90 * MINUTE),
        ("1 hour 30 minutes", 90 * MINUTE),
        ("1.5 h", 90 * MINUTE),
        (".5s", 500 * MILLISECOND),
        ("250ms", 250 * MILLISECOND),
        ("7us", 7),
        ("7 µs", 7),
        ("90 secs", 90 * SECOND),
        ("2 days", 2 * DAY),
        ("1w", WEEK),
        ("0.000001s", 1),
        ("1w1d1h1m1s1ms1us", WEEK + DAY + HOUR + MINUTE + SECOND + MILLISECOND + 1),
        ("3652500 days", 3_652_500 * DAY),
    ],
)
def test_durations_as_people_write_them(text: str, ticks: int) -> None:
    assert window_of(f"sliding {text}") == Sliding(Ticks(ticks))


def test_windows() -> None:
    assert window_of("sliding 5 minutes delayed by 1 minute") == Sliding(MINUTE5, MINUTE)
    assert window_of("TUMBLING 1 hour") == Tumbling(HOUR)
    assert window_of("tumbling 1 hour Delayed By 1s") == Tumbling(HOUR, SECOND)
    assert window_of("infinite") == Infinite()
    assert window_of("infinite delayed by 1 day") == Infinite(DAY)
    assert window_of("sliding 100 events") == LastEvents(100)
    assert window_of("sliding 1 event") == LastEvents(1)
    assert window_of("sliding 5m delayed by 0s") == Sliding(MINUTE5)


# --------------------------------------------------------------------- SQL form


@pytest.mark.parametrize(
    "interval", ["5 MINUTES", "'5' MINUTE", "'5 minutes'", "'5m'", "5 minute", "'0h 5 min'", "300 s"]
)
def test_a_range_is_closed_so_it_is_one_tick_longer(interval: str) -> None:
    closed = Sliding(Ticks(5 * MINUTE + 1))
    assert frame_of(f"RANGE BETWEEN INTERVAL {interval} PRECEDING AND CURRENT ROW") == closed
    assert frame_of(f"RANGE INTERVAL {interval} PRECEDING") == closed


def test_other_frames() -> None:
    assert frame_of("") == Infinite()
    assert frame_of("RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW") == Infinite()
    assert frame_of("RANGE UNBOUNDED PRECEDING") == Infinite()
    assert frame_of("ROWS BETWEEN 9 PRECEDING AND CURRENT ROW") == LastEvents(10)
    assert frame_of("ROWS 0 PRECEDING") == LastEvents(1)
    assert frame_of("ROWS CURRENT ROW") == LastEvents(1)
    assert frame_of("RANGE CURRENT ROW") == Sliding(Ticks(1))
    delayed = "RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND INTERVAL 1 MINUTE PRECEDING"
    assert frame_of(delayed) == Sliding(Ticks(59 * MINUTE + 1), MINUTE)
    assert frame_of("RANGE BETWEEN UNBOUNDED PRECEDING AND INTERVAL 1 DAY PRECEDING") == Infinite(DAY)


def test_sql_items_are_grouped_by_their_windows_in_the_order_of_the_text() -> None:
    over = "OVER (PARTITION BY card ORDER BY ts RANGE INTERVAL 5 MINUTES PRECEDING)"
    items = f"sum(x) {over} AS a, max(x) {over} AS b, count(*) OVER (ORDER BY ts ASC) AS c, min(x) {over}"
    first, second, third = parse(f"SELECT {items} FROM p WHERE x > 1")
    assert [item.name for item in first.items] == ["a", "b"]
    assert [item.name for item in second.items] == ["c"]
    assert [item.name for item in third.items] == [None]
    assert (first.group_by, second.group_by) == ((Column("card"),), ())
    assert first.order_by == Column("ts")
    assert first.where == second.where == third.where == Binary(">", X, ONE)


def test_both_forms_give_equal_statements() -> None:
    short = parse("SELECT sum(x) AS s FROM p GROUP BY card OVER sliding 10 events")
    sql = parse("select sum(x) over (partition by card order by ts rows 9 preceding) as s from p")
    assert short == sql


# ------------------------------------------------------------------ expressions


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("x == 1", Binary("=", X, ONE)),
        ("x != 1", Binary("<>", X, ONE)),
        ("x + y * z", Binary("+", X, Binary("*", Y, Z))),
        ("(x + y) * z", Binary("*", Binary("+", X, Y), Z)),
        ("x - y - z", Binary("-", Binary("-", X, Y), Z)),
        ("x || y % z", Binary("||", X, Binary("%", Y, Z))),
        ("-x * y", Binary("*", Negate(X), Y)),
        ("x - -1", Binary("-", X, Literal(-1))),
        ("-(1)", Literal(-1)),
        ("- -1", ONE),
        ("+x", X),
        ("x AND y AND z", And((X, Y, Z))),
        ("x and (y and z)", And((X, And((Y, Z))))),
        ("x OR y AND z OR x", Or((X, And((Y, Z)), X))),
        ("NOT x = 1 AND y", And((Not(Binary("=", X, ONE)), Y))),
        ("NOT NOT x", Not(Not(X))),
        ("x IN (1, y + 2)", In(X, (ONE, Binary("+", Y, TWO)))),
        ("x NOT IN (1)", In(X, (ONE,), True)),
        ("x BETWEEN 1 AND 2 AND y", And((Between(X, ONE, TWO), Y))),
        ("x not between 1 and 2", Between(X, ONE, TWO, True)),
        (r"x LIKE 'a\%%'", Like(X, r"a\%%")),
        ("x NOT LIKE '_'", Like(X, "_", True)),
        ("x IS NULL", IsNull(X)),
        ("x + 1 IS NOT NULL", IsNull(Binary("+", X, ONE), True)),
        ("CASE WHEN x THEN 1 WHEN y THEN 2 ELSE z END", Case(((X, ONE), (Y, TWO)), Z)),
        ("CASE WHEN x THEN 1 END", Case(((X, ONE),))),
        ("CASE x WHEN 1 THEN y WHEN 2 THEN z END", Case(((Binary("=", X, ONE), Y), (Binary("=", X, TWO), Z)))),
        ("COALESCE(x, 1)", Call("coalesce", (X, ONE))),
        ("now()", Call("now", ())),
        ("CAST(x AS Integer)", Cast(X, "int")),
        ("cast(x as decimal(10, 2))", Cast(X, "decimal(10,2)")),
        ("cast(x as decimal)", Cast(X, "decimal(10,0)")),
        ("cast(x as numeric(5))", Cast(X, "decimal(5,0)")),
        ("date '2024-02-29'", Cast(Literal("2024-02-29"), "date")),
        ("timestamp '2024-12-31 23:59:59.5+01:00'", Cast(Literal("2024-12-31 23:59:59.5+01:00"), "timestamp")),
    ],
)
def test_expressions(text: str, expr: Expr) -> None:
    assert expr_of(text) == expr


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("007", 7),
        ("-9223372036854775808", -(2**63)),
        ("9" * 38, 10**38 - 1),
        ("1.50", Decimal("1.50")),
        ("-.5", Decimal("-0.5")),
        ("1.", Decimal("1")),
        ("1e3", 1000.0),
        ("1.5E-3", 0.0015),
        ("'it''s'", "it's"),
        ("''", ""),
        ("'-- no comment'", "-- no comment"),
        ("'two\nlines'", "two\nlines"),
        ("TRUE", True),
        ("false", False),
        ("Null", None),
    ],
)
def test_literals(text: str, value: object) -> None:
    assert expr_of(text) == Literal(value)  # type: ignore[arg-type]


def test_literals_of_different_types_differ_though_python_calls_them_equal() -> None:
    same = [Literal(1), Literal(True), Literal(1.0), Literal(Decimal("1")), Literal(Decimal("1.0")), Literal("1")]
    assert len(set(same)) == len(same)
    assert Literal(Decimal("1.50")) == Literal(Decimal("1.50"))
    assert Literal(1) != 1


# ----------------------------------------------------------------------- limits


def test_lists_are_flat_without_limit() -> None:
    terms = " OR ".join(f"x = {n}" for n in range(5_000))
    assert isinstance(disjunction := expr_of(terms), Or)
    assert len(disjunction.terms) == 5_000
    assert isinstance(choice := expr_of(f"x IN ({', '.join(map(str, range(5_000)))})"), In)
    assert len(choice.options) == 5_000


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100 + "x" + ")" * 100,
        "NOT " * 100 + "x",
        "- " * 100 + "x",
        "x" + " + x" * 100,
        "abs(" * 100 + "x" + ")" * 100,
        "CASE WHEN x THEN " * 100 + "x" + " END" * 100,
    ],
)
def test_a_hundred_levels_are_fine(text: str) -> None:
    expr_of(text)
