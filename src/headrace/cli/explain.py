"""`headrace explain`: the plan behind a metric text, as a tree that shows what is shared."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace import Metrics
from headrace.cli import screen
from headrace.cli.options import Debug, InputFormat, QueryFile, Stream, TimeColumn
from headrace.cli.query import read_query
from headrace.cli.session import data_frame
from headrace.cli.sketching import sketched
from headrace.language import parse
from headrace.measure.definition import Definition


def explain(
    file: QueryFile,
    input: Annotated[
        str | None,
        typer.Option("--input", "-i", metavar="DATA", help="Plan for this data, with the type of every answer."),
    ] = None,
    time: TimeColumn = None,
    stream: Stream = None,
    input_format: InputFormat = None,
    debug: Debug = False,
) -> None:
    """Show the plan for a metric text, as a tree.

    It has stages, windows, filters, groups and metrics, and says what they share.

    [dim]headrace explain rules.sql
    headrace explain rules.sql --input payments.parquet --time ts[/dim]
    """
    text = read_query(file)
    if input is None:
        sketched(text, stream)
        plan = Definition(text, time=time or _time_in(text), stream=stream).explain()
    else:
        plan = _explain_for(text, input, input_format, time, stream)
    screen.out.print(plan, markup=False, soft_wrap=True)


def _explain_for(text: str, path: str, input_format: str | None, time: str | None, stream: str | None) -> str:
    with data_frame("explain", path, input_format, time) as (frame, time_column):
        return Metrics(text, time=time_column, stream=stream).explain(frame)


def _time_in(text: str) -> str:
    """The column that the text itself orders by (only the SQL form says it), else words that stand for it."""
    named = (statement.order_by.name for statement in parse(text) if statement.order_by is not None)
    return next(named, "the time column")
