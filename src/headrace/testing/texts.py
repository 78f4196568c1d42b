"""Random metric texts over a given schema: every aggregation, every kind of window, filters, groupings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]

FOR_NUMBERS = ("sum", "avg", "stdDev", "median", "percentile")
FOR_ALL = ("count", "min", "max", "first", "last", "prev", "countDistinct", "topK")
PLUMBING = ("id", "ts", "arrival")


@st.composite
def metric_texts(draw: Draw, schema: pa.Schema, max_statements: int = 3) -> str:
    """One to three statements of one to four metrics each, named m1, m2, …, over the columns of `schema`."""
    statements: list[str] = []
    named = 0
    for _ in range(draw(st.integers(1, max_statements))):
        items = [draw(aggregations(schema)) for _ in range(draw(st.integers(1, 4)))]
        names = [f"{item} AS m{named + n}" for n, item in enumerate(items, start=1)]
        named += len(items)
        keys = draw(st.lists(st.sampled_from(_key_columns(schema)), max_size=2, unique=True))
        where = draw(st.one_of(st.just(""), filters(schema)))
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        statements.append(f"SELECT {', '.join(names)} FROM events{where}{group} OVER {draw(windows())}")
    return ";\n".join(statements)


@st.composite
def aggregations(draw: Draw, schema: pa.Schema) -> str:
    """A call such as `percentile(amount, 0.9)`, with an argument that the function takes."""
    field = draw(st.sampled_from([field for field in schema if field.name not in ("id", "arrival")]))
    function: str = draw(st.sampled_from(("count(*)", *FOR_ALL, *(FOR_NUMBERS if _is_number(field.type) else ()))))
    argument = draw(arguments(field))
    if function == "count(*)":
        return function
    if function == "percentile":
        return f"percentile({argument}, {draw(st.sampled_from(('0', '0.1', '0.25', '0.5', '0.9', '0.99', '1')))})"
    if function == "topK":
        return f"topK({argument}, {draw(st.sampled_from((1, 2, 3, 10)))})"
    return f"{function}({argument})"


def arguments(field: pa.Field) -> st.SearchStrategy[str]:
    """The column itself, mostly; now and then an expression over it that keeps its type and range."""
    name = field.name
    shapes = [name, name, f"coalesce({name}, {name})", f"CASE WHEN {name} IS NOT NULL THEN {name} END"]
    if pa.types.is_floating(field.type):
        shapes.append(f"-{name}")
    return st.sampled_from(shapes)


@st.composite
def filters(draw: Draw, schema: pa.Schema) -> str:
    """` WHERE …` with a condition that is true for some rows, false for some and null for others."""
    field = draw(st.sampled_from([field for field in schema if field.name not in PLUMBING]))
    condition = draw(st.sampled_from(_conditions(field)))
    return f" WHERE {draw(st.sampled_from(('', 'NOT ')))}({condition})"


def windows() -> st.SearchStrategy[str]:
    """Windows for events some seconds apart, delayed or not, by time or by count."""
    length = st.sampled_from(("1us", "1s", "2s", "5s", "7s", "10s", "15s", "1m"))
    delay = st.one_of(st.just(""), st.sampled_from((" delayed by 1s", " delayed by 4s", " delayed by 12s")))
    return st.one_of(
        st.builds("sliding {}{}".format, length, delay),
        st.builds("tumbling {}{}".format, length, delay),
        st.builds("infinite{}".format, delay),
        st.builds("sliding {} events".format, st.sampled_from((1, 2, 3, 5, 20))),
    )


def _key_columns(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name in ("card", "shop", "rate", "region")]


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type))


def _conditions(field: pa.Field) -> list[str]:
    name = field.name
    both = [f"{name} IS NULL", f"{name} IS NOT NULL"]
    if _is_number(field.type):
        return [*both, f"{name} > 0", f"{name} <= 1", f"{name} BETWEEN -2 AND 2", f"{name} IN (0, 1, 3)"]
    if pa.types.is_string(field.type):
        return [*both, f"{name} = 'a'", f"{name} <> ''", f"{name} LIKE '%a%'"]
    if pa.types.is_boolean(field.type):
        return [*both, name, f"{name} OR {name} IS NULL"]
    return both
