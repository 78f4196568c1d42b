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
EventTime: TypeAlias = Annotated[
    str, typer.Option("--time", metavar="COLUMN", help="The column with the time of an event.")
]
EventId: TypeAlias = Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="Orders events of equal time.")]
Arrival: TypeAlias = Annotated[
    str | None,
    typer.Option("--arrival", metavar="COLUMN", help="The order in which events came. Default: their time."),
]
TimeFormat: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--time-format",
        metavar="PATTERN",
        help="How to read a time that is text ('dd/MM/yyyy HH:mm:ss') or a number (s, ms or us since 1970).",
    ),
]
Data: TypeAlias = Annotated[
    str,
    typer.Option(
        "--input", "-i", metavar="DATA", help="A file, a folder of part files, or a pattern: Parquet, CSV or JSON."
    ),
]
OutputPath: TypeAlias = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="OUT",
        help="NAME.parquet or NAME.csv makes one file, any other name a folder of part files.",
    ),
]
OutputFormat: TypeAlias = Annotated[
    str | None,
    typer.Option("--output-format", metavar="FORMAT", help="parquet or csv, where the name does not say it."),
]
Overwrite: TypeAlias = Annotated[bool, typer.Option("--overwrite", metavar="", help="Replace what is at OUT.")]
InputFormat: TypeAlias = Annotated[
    str | None,
    typer.Option("--input-format", metavar="FORMAT", help="parquet, csv or json, where the name does not say it."),
]
Stream: TypeAlias = Annotated[
    str | None,
    typer.Option("--stream", metavar="NAME", help="The name after FROM to look at, where the text has several."),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="For machines: one JSON document on stdout.")]
Debug: TypeAlias = Annotated[
    bool, typer.Option("--debug", metavar="", help="On an error, show the whole traceback as well.")
]
