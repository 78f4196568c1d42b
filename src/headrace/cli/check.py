"""`headrace check`: is the metric text right, and does it fit the data? Does a program keep the rules?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headrace import Metrics
from headrace.cli import screen
from headrace.cli.options import Debug, InputFormat, Stream, TimeColumn
from headrace.cli.program_file import load_program, read_sample
from headrace.cli.query import read_query
from headrace.cli.session import data_frame
from headrace.cli.sketching import sketched
from headrace.errors import DefinitionError, ProgramInconsistent
from headrace.language import BoundMetric, format_expr, format_window
from headrace.spark.schema import spark_type
from headrace.synchronize.check import Checked
from headrace.synchronize.check import check as check_program

_OF_PROGRAMS: Final = "For a program"

_File = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="The metric text, or [bold]-[/bold] to read it from standard input; or FILE.py with a program.",
    ),
]
_SchemaFrom = Annotated[
    str | None,
    typer.Option(metavar="DATA", help="Check names and types against this data (Parquet, CSV or JSON) as well."),
]
_ClassName = Annotated[
    str | None,
    typer.Option("--class", metavar="NAME", help="Which program, if FILE has several.", rich_help_panel=_OF_PROGRAMS),
]
_Events = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help="Events to try it with: a Parquet, CSV or JSON file. Default: those of its examples().",
        rich_help_panel=_OF_PROGRAMS,
    ),
]
_Tag = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMNS",
        help="The column with the tag of an event, or several: kind,key. Default: its attribute tag.",
        rich_help_panel=_OF_PROGRAMS,
    ),
]
_Seed = Annotated[int, typer.Option(metavar="N", help="Tries other random cases.", rich_help_panel=_OF_PROGRAMS)]
_Tolerance = Annotated[
    float,
    typer.Option(
        min=0, metavar="X", help="How much floats may differ, relative to their size.", rich_help_panel=_OF_PROGRAMS
    ),
]


def check(
    file: _File,
    schema_from: _SchemaFrom = None,
    time: TimeColumn = None,
    stream: Stream = None,
    input_format: InputFormat = None,
    class_name: _ClassName = None,
    events: _Events = None,
    tag: _Tag = None,
    seed: _Seed = 0,
    tolerance: _Tolerance = 0.0,
    debug: Debug = False,
) -> None:
    """Check a metric text, without computing anything; or a program, on a sample of its events.

    Without data, the text must read as the metric language and use
    functions that exist. With [bold]--schema-from[/bold], its names and types must
    fit the data too, and the type of every answer is shown.

    A program must give in parallel what it gives sequentially. Random small runs
    look for a case where it does not; exits with 1 if there is one.

    [dim]headrace check rules.sql
    headrace check rules.sql --schema-from payments.parquet
    echo "SELECT count(*) FROM payments OVER sliding 5 minutes" | headrace check -
    headrace check counters.py --events clicks.parquet --tag kind,key[/dim]
    """
    if file.endswith(".py"):
        _refuse(file, "metric texts", {"--schema-from": schema_from, "--stream": stream})
        _check_program(file, class_name, events, input_format, tag, time, seed, tolerance)
        return
    _refuse(file, "programs, FILE.py", {"--class": class_name, "--events": events, "--tag": tag})
    text = read_query(file)
    metrics = sketched(text, stream)
    types = [""] * len(metrics) if schema_from is None else _types(text, schema_from, input_format, time, stream)
    screen.out.print(_table(metrics, types))
    fits = escape(f" and fits {schema_from}") if schema_from is not None else ""
    screen.out.print(f"\n[green]ok[/]: {len(metrics)} metric{'s' * (len(metrics) != 1)}; the text is right{fits}")


def _refuse(file: str, what: str, options: dict[str, str | None]) -> None:
    for option, value in options.items():
        if value is not None:
            raise DefinitionError(f"{option} is for {what}, and FILE is {file}")


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


# -------------------------------------------------------------------- programs


def _check_program(
    file: str,
    class_name: str | None,
    events: str | None,
    input_format: str | None,
    tag: str | None,
    time: str | None,
    seed: int,
    tolerance: float,
) -> None:
    program = load_program(file, class_name)
    sample = None if events is None else read_sample(events, input_format)
    columns = None if tag is None else [name.strip() for name in tag.split(",") if name.strip()]
    try:
        checked = check_program(program, sample, tag=columns, time=time, seed=seed, tolerance=tolerance)
    except ProgramInconsistent as error:
        screen.out.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    _show(checked)


def _show(checked: Checked) -> None:
    table = Table("rule", "tried", "asks that", box=None, header_style="dim", pad_edge=False)
    table.columns[1].justify = "right"
    for name, count, short in checked.rows():
        table.add_row(Text(name, "bold"), f"{count:,}", short)
    screen.out.print(table)
    for note in checked.notes:
        screen.out.print(f"note: {note}", markup=False)
    of = f"{checked.events} events with {checked.tags} tags, seed {checked.seed}"
    screen.out.print(f"\n[green]ok[/]: {escape(checked.program)} keeps all rules on {of}")
