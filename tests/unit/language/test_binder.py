"""Names and types against a schema: what is bound, and every way it is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from headrace.errors import BindError
from headrace.language import BoundMetric, bind, parse
from headrace.language.nodes import Binary, Call, Column, Infinite, Literal, Sliding
from headrace.model.signature import Signature
from headrace.model.ticks import MINUTE, Ticks

SCHEMA = pa.schema(
    {
        "ts": pa.timestamp("us", "UTC"),
        "card": pa.string(),
        "shop": pa.dictionary(pa.int32(), pa.string()),
        "Amount": pa.float64(),
        "cents": pa.int32(),
        "price": pa.decimal128(10, 2),
        "huge": pa.decimal128(38, 20),
        "ok": pa.bool_(),
        "day": pa.date32(),
        "tags": pa.list_(pa.string()),
        "raw": pa.binary(),
        "nothing": pa.null(),
        "twin": pa.int64(),
        "TWIN": pa.int64(),
    }
)


class Binder:
    def __init__(self, functions: Sequence[Signature]):
        self.functions = functions

    def bind(self, text: str, time: str = "ts") -> tuple[BoundMetric, ...]:
        return bind(parse(text), text, SCHEMA, self.functions, time)

    def error(self, text: str, time: str = "ts") -> BindError:
        with pytest.raises(BindError) as caught:
            self.bind(text, time)
        return caught.value


@pytest.fixture
def binder(functions: tuple[Signature, ...]) -> Binder:
    return Binder(functions)


# ------------------------------------------------------------------ what is bound


def test_a_metric(binder: Binder) -> None:
    text = "SELECT SUM(amount * 2) AS spent FROM p WHERE OK AND card = 'x' GROUP BY CARD, shop OVER sliding 5 minutes"
    (metric,) = binder.bind(text)
    assert metric.name == "spent"
    assert metric.function.name == "sum"
    assert metric.argument == Binary("*", Column("Amount"), Literal(2))
    assert metric.argument_type == pa.float64()
    assert metric.type == pa.float64()
    assert metric.parameters == ()
    assert metric.group_by == ("card", "shop")
    assert metric.window == Sliding(Ticks(5 * MINUTE))
    assert metric.where is not None


def test_count_star_has_no_argument(binder: Binder) -> None:
    (metric,) = binder.bind("SELECT count(*) AS n FROM p OVER infinite")
    assert (metric.argument, metric.argument_type, metric.type) == (None, None, pa.int64())
    assert (metric.where, metric.group_by, metric.window) == (None, (), Infinite())


@pytest.mark.parametrize("name", ["stdDev", "stddev", "STDDEV_SAMP"])
def test_functions_are_found_in_any_case_and_by_alias(binder: Binder, name: str) -> None:
    assert binder.bind(f"SELECT {name}(cents) AS s FROM p OVER infinite")[0].function.name == "stdDev"


def test_scalar_functions_get_their_own_names(binder: Binder) -> None:
    (metric,) = binder.bind("SELECT max(ifnull(cents, 0)) AS m FROM p OVER infinite")
    assert metric.argument == Call("coalesce", (Column("cents"), Literal(0)))
    assert metric.argument_type == pa.int32()


@pytest.mark.parametrize(("text", "value"), [("0.9", 0.9), ("1", 1), ("1e0", 1.0), ("1 - 0.5", 0.5), ("-0.0", 0.0)])
def test_parameters_are_constants(binder: Binder, text: str, value: float) -> None:
    (metric,) = binder.bind(f"SELECT percentile(cents, {text}) AS m FROM p OVER infinite")
    assert metric.parameters == (value,)
    assert type(metric.parameters[0]) is type(value)


def test_exact_spelling_wins_over_case(binder: Binder) -> None:
    metrics = binder.bind("SELECT max(twin) AS a, max(TWIN) AS b FROM p OVER infinite")
    assert [metric.argument for metric in metrics] == [Column("twin"), Column("TWIN")]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("SELECT sum(amount) FROM p GROUP BY card OVER sliding 5 minutes", "sum_amount_by_card_5m"),
        ("SELECT count(*) FROM p OVER infinite", "count_infinite"),
        ("SELECT stdDev(cents) FROM p GROUP BY card, shop OVER tumbling 1h", "std_dev_cents_by_card_shop_tumbling_1h"),
        ("SELECT percentile(cents, 0.9) FROM p OVER sliding 100 events", "percentile_cents_0_9_100_events"),
        ("SELECT count(DISTINCT card) FROM p OVER infinite delayed by 1m", "count_distinct_card_infinite_delayed_1m"),
        ("SELECT max(cents * 2 + 1) FROM p OVER sliding 1h30m delayed by 1s", "max_cents_2_1_1h30m_delayed_1s"),
        ("SELECT max(cents) OVER (ORDER BY ts RANGE INTERVAL 5 MINUTES PRECEDING) FROM p", "max_cents_5m1us"),
    ],
)
def test_default_names(binder: Binder, text: str, name: str) -> None:
    assert binder.bind(text)[0].name == name


def test_sql_order_by_is_the_time_column_in_any_case(binder: Binder) -> None:
    assert binder.bind("SELECT max(cents) OVER (ORDER BY TS) AS m FROM p")[0].window == Infinite()


# -------------------------------------------------------------------- what is refused

ITEMS = [
    # item, column, problem, hint
    ("sum(amout)", 12, "there is no column amout", "did you mean Amount?"),
    ("sum(zzz)", 12, "there is no column zzz", "the columns are ts, card, shop, Amount"),
    ('count("refund")', 14, "there is no column refund", "single quotes: 'refund'"),
    ("sum(Twin)", 12, "Twin could be any of the columns twin, TWIN", "spell it exactly"),
    ("smu(cents)", 8, "there is no aggregation smu", "did you mean sum?"),
    ("xyzzy(cents)", 8, "there is no aggregation xyzzy", "there are count, sum, max"),
    ("abs(cents)", 8, "abs is not an aggregation", "max(abs(x))"),
    ("sum(lowr(card))", 12, "there is no function lowr", "did you mean lower?"),
    ("sum(xyzzy(card))", 12, "there is no function xyzzy", "there are abs, ceil"),
    ("sum(max(cents))", 12, "max cannot stand inside sum: aggregations do not nest", None),
    ("sum(1 + STDDEV(cents))", 16, "stdDev cannot stand inside sum", None),
    ("sum()", 8, "sum is written sum(x), not with 0 arguments", None),
    ("sum(*)", 8, "sum is written sum(x), not with 0 arguments", None),
    ("sum(cents, 1)", 8, "sum is written sum(x), not with 2 arguments", None),
    ("count(cents, 1)", 8, "count is written count(*) or count(x), not with 2 arguments", None),
    ("percentile(cents)", 8, "percentile is written percentile(x, p), not with 1 argument", None),
    ("percentile(cents, cents)", 26, "the p of percentile must be a constant number", None),
    ("percentile(cents, 'a')", 26, "the p of percentile must be a constant number", None),
    ("percentile(cents, true)", 26, "the p of percentile must be a constant number", None),
    ("percentile(cents, null)", 26, "the p of percentile must be a constant number", None),
    ("percentile(cents, 1.5)", 26, "percentile takes a share from 0 to 1, not 1.5", None),
    ("percentile(cents, 'a' + 1)", 26, "+ needs numbers, not string", "join strings with ||"),
    ("percentile(cents, 9223372036854775807 + 1)", 26, "does not fit bigint", None),
    ("sum(card)", 12, "sum needs a number, not string", None),
    ("count(tags)", 14, "column tags has type list<item: string>, which cannot be used", "expressions take"),
    ("count(null)", 14, "the argument is always NULL", "CAST(NULL AS double)"),
    ("count(nothing)", 14, "the argument is always NULL", None),
    ("sum(cents) AS Card", 8, "a metric cannot be called Card: the data has a column card", "AS other_name"),
    ("sum(cents) AS a, max(cents) AS A", 25, "cannot be called A: another metric has that name", "AS other_name"),
    ("sum(cents), sum(cents)", 20, "sum_cents_infinite: another metric has that name", "AS other_name"),
    ("max(card + 1)", 12, "+ needs numbers, not string", None),
    ("max(ok * 2)", 12, "* needs numbers, not boolean", None),
    ("max(-card)", 12, "- needs a number, not string", None),
    ("max(card > 5)", 19, "cannot compare string with int", "cast one side"),
    ("max(ok = 1)", 17, "cannot compare boolean with int", None),
    ("max(cents in (1, 'a'))", 25, "cannot compare int with string", None),
    ("max(cents between 1 and 'a')", 32, "cannot compare int with string", None),
    ("max(ts > 'noon')", 17, "this text is not a timestamp", "2024-12-31"),
    ("max(day > card)", 18, "cannot compare string with date", "CAST(x AS date)"),
    ("max(card || cents)", 20, "|| joins strings, not int", "CAST(x AS string)"),
    ("max(cents like 'a')", 12, "LIKE needs a string, not int", None),
    ("max(not cents)", 16, "NOT needs a condition, not int", None),
    ("max(ok and cents)", 19, "AND needs a condition, not int", None),
    ("max(ok or card)", 18, "OR needs a condition, not string", None),
    ("max(case when cents then 1 end)", 22, "WHEN needs a condition, not int", None),
    ("max(case when ok then 1 else 'a' end)", 12, "the results of CASE have no common type: int and string", "cast"),
    ("max(coalesce(cents, card))", 28, "the arguments of coalesce have no common type: int and string", "cast"),
    ("max(lower(cents))", 18, "lower needs a string, not int", None),
    ("max(length(cents))", 19, "length needs a string or binary, not int", None),
    ("max(abs(card))", 16, "abs needs a number, not string", None),
    ("max(if(cents, 1, 2))", 15, "if needs a condition, not int", None),
    ("max(round(cents, amount))", 25, "round needs the number of places as a whole number", None),
    ("max(round(cents, 99))", 25, "from 0 to 15", None),
    ("max(substr(card, cents))", 25, "substr needs the position as a whole number", None),
    ("max(lower())", 12, "lower takes 1 argument, not 0", None),
    ("max(round(1, 2, 3))", 12, "round takes 1 to 2 arguments, not 3", None),
    ("max(coalesce())", 12, "coalesce takes 1 or more arguments, not 0", None),
    ("max(cast(day as int))", 12, "cannot cast date to int", None),
    ("max(cast(raw as string))", 12, "cannot cast binary to string", None),
    ("max(huge / huge)", 12, "decimal(38,20) / decimal(38,20) needs more digits than there are", "CAST(x AS double)"),
    ("max(card like '" + "%a" * 100_000 + "')", 12, "the LIKE pattern is too large", None),
]  # fmt: skip


@pytest.mark.parametrize(("item", "column", "problem", "hint"), ITEMS, ids=lambda value: str(value)[:40])
def test_items(binder: Binder, item: str, column: int, problem: str, hint: str | None) -> None:
    error = binder.error(f"SELECT {item} FROM p OVER infinite")
    assert problem in error.problem
    assert (error.at.line, error.at.column) == (1, column)
    if hint is not None:
        assert hint in (error.hint or "")


CLAUSES = [
    ("WHERE cents", 7, "WHERE needs a condition, not int", "x > 0"),
    ("WHERE sum(cents) > 1", 7, "sum cannot stand in WHERE, which looks at one row", None),
    ("WHERE crd = 'a'", 7, "there is no column crd", "did you mean card?"),
    ("GROUP BY crd", 10, "there is no column crd", "did you mean card?"),
    ("GROUP BY card, CARD", 16, "card is grouped by twice", None),
    ("GROUP BY tags", 10, "cannot group by tags: its type is list<item: string>", "group by booleans"),
    ("GROUP BY nothing", 10, "cannot group by nothing: its type is null", None),
    ("GROUP BY Twin", 10, "Twin could be any of the columns", None),
]  # fmt: skip


@pytest.mark.parametrize(("clause", "column", "problem", "hint"), CLAUSES)
def test_clauses(binder: Binder, clause: str, column: int, problem: str, hint: str | None) -> None:
    error = binder.error(f"SELECT max(cents) FROM p\n{clause} OVER infinite")
    assert problem in error.problem
    assert (error.at.line, error.at.column) == (2, column)
    if hint is not None:
        assert hint in (error.hint or "")


def test_order_by_must_be_the_time(binder: Binder) -> None:
    error = binder.error("SELECT max(cents) OVER (ORDER BY day) AS m FROM p")
    assert error.problem == "ORDER BY must be the time column ts, not day"
    assert error.at.column == 34


def test_names_clash_across_statements(binder: Binder) -> None:
    text = "SELECT max(cents) AS m FROM p OVER infinite;\nSELECT sum(cents) AS M FROM p OVER infinite"
    error = binder.error(text)
    assert "a metric cannot be called M: another metric has that name" in error.problem
    assert (error.at.line, error.at.column) == (2, 8)
    assert "SELECT sum(cents) AS M FROM p OVER infinite\n         ^^^" in str(error)


def test_null_is_a_condition_that_no_row_meets(binder: Binder) -> None:
    assert binder.bind("SELECT count(*) AS n FROM p WHERE NULL OVER infinite")[0].where == Literal(None)


def test_a_hundred_levels_bind(binder: Binder) -> None:
    assert binder.bind(f"SELECT max({'- ' * 100}cents) AS m FROM p OVER infinite")
