"""`headrace check`: is the metric text right, and does it fit the data?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headrace import Metrics
from headrace.cli import screen
from headrace.cli.options import Debug, InputFormat, QueryFile, Stream, TimeColumn
from headrace.cli.query import read_query
from headrace.cli.session import data_frame
from headrace.cli.sketching import sketched
from headrace.language import BoundMetric, format_expr, format_window
from headrace.spark.schema import spark_type


def check(
    file: QueryFile,
    schema_from: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Check names and types against this data (Parquet, CSV or JSON) as well."),
    ] = None,
    time: TimeColumn = None,
    stream: Stream = None,
    input_format: InputFormat = None,
    debug: Debug = False,
) -> None:
    """Check a metric text, without computing anything.

    Without data, the text must read as the metric language and use
    functions that exist. With [bold]--schema-from[/bold], its names and types must
    fit the data too, and the type of every answer is shown.

    [dim]headrace check rules.sql
    headrace check rules.sql --schema-from payments.parquet
    echo "SELECT count(*) FROM payments OVER sliding 5 minutes" | headrace check -[/dim]
    """
    text = read_query(file)
    metrics = sketched(text, stream)
    types = [""] * len(metrics) if schema_from is None else _types(text, schema_from, input_format, time, stream)
    screen.out.print(_table(metrics, types))
    fits = escape(f" and fits {schema_from}") if schema_from is not None else ""
    screen.out.print(f"\n[green]ok[/]: {len(metrics)} metric{'s' * (len(metrics) != 1)}; the text is right{fits}")


def _types(text: str, path: str, input_format: str | None, time: str | None, stream: str | None) -> list[str]:
    with data_frame("check", path, input_format, time) as (frame, time_column):
        metrics = Metrics(text, time=time_column, stream=stream).check(frame)
    return [spark_type(metric.type).simpleString() for metric in metrics]


def _table(metrics: Sequence[BoundMetric], types: Sequence[str]) -> Table:
    titles = ("metric", "is", "by", "over", "where", "type")
    rows = [_row(metric, type_name) for metric, type_name in zip(metrics, types, strict=True)]
    # A column that has nothing to say in any row is left out.
    kept = [i for i in range(len(titles)) if any(row[i] for row in rows)]
    table = Table(*(titles[i] for i in kept), box=None, header_style="dim", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(row[i], "bold" if i == 0 else "") for i in kept))
    return table


def _row(metric: BoundMetric, type_name: str) -> tuple[str, ...]:
    inside = ["*" if metric.argument is None else format_expr(metric.argument), *map(str, metric.parameters)]
    where = format_expr(metric.where) if metric.where is not None else ""
    formula = f"{metric.function.name}({', '.join(inside)})"
    return metric.name, formula, ", ".join(metric.group_by), format_window(metric.window), where, type_name
