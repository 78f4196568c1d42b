"""The arguments that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

QueryFile: TypeAlias = Annotated[
    str, typer.Argument(metavar="FILE", help="The metric text, or [bold]-[/bold] to read it from standard input.")
]
TimeColumn: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--time", metavar="COLUMN", help="The column with the time of an event. Default: the only timestamp column."
    ),
]
InputFormat: TypeAlias = Annotated[
    str | None,
    typer.Option("--input-format", metavar="FORMAT", help="parquet, csv or json, where the name does not say it."),
]
Stream: TypeAlias = Annotated[
    str | None,
    typer.Option("--stream", metavar="NAME", help="The name after FROM to look at, where the text has several."),
]
Debug: TypeAlias = Annotated[
    bool, typer.Option("--debug", metavar="", help="On an error, show the whole traceback as well.")
]
