"""The command line's front door: the commands, and the one place where errors become messages."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from headrace import __version__
from headrace.cli import screen
from headrace.cli.check import check
from headrace.cli.demo import demo
from headrace.cli.explain import explain
from headrace.cli.kafka import kafka
from headrace.cli.measure import measure
from headrace.cli.metrics import metrics
from headrace.cli.problems import Problem, problem_of
from headrace.cli.run import run as run_flow
from headrace.cli.serve import serve
from headrace.cli.simulate import simulate
from headrace.cli.state import state

app = typer.Typer(
    name="headrace",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with [bold]headrace demo[/bold]. Every command has its own [bold]--help[/bold], with examples.",
)
for command in (demo, check, explain, measure):
    app.command()(command)
app.command("run")(run_flow)
app.command()(serve)
app.command()(simulate)
app.add_typer(metrics)
app.add_typer(state)
app.add_typer(kafka)


def _print_version(wanted: bool) -> None:
    if wanted:
        screen.out.print(f"headrace {__version__} (pyspark {version('pyspark')}, Python {sys.version.split()[0]})")
        raise typer.Exit


@app.callback()
def headrace(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar="", callback=_print_version, is_eager=True, help="Print the versions and leave."
        ),
    ] = False,
) -> None:
    """Exact streaming metrics on Apache Spark: real sliding windows, an answer for every event."""


def main(arguments: Sequence[str]) -> int:
    """Run one command; the exit code. Every exception becomes a message on stderr."""
    # --debug is understood anywhere on the line, so that it can simply be added at the end.
    debug = "--debug" in arguments
    try:
        app([argument for argument in arguments if argument != "--debug"], prog_name="headrace")
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    except BrokenPipeError:
        # The reader of a pipe has seen enough (`headrace explain … | head`); nothing more can be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BaseException as error:
        if debug:
            traceback.print_exc()
        return _show(problem_of(error))
    return 0


def _show(problem: Problem) -> int:
    # No wrapping and no markup: the caret of an excerpt must stay below its word.
    screen.err.print("[bold red]error:[/] ", end="")
    screen.err.print(problem.message, markup=False, soft_wrap=True)
    return problem.exit_code


def run() -> None:
    """The `headrace` console script."""
    if "--debug" not in sys.argv:
        # What libraries tell programmers; a person at a terminal can do nothing about it.
        warnings.simplefilter("ignore")
        logging.disable()
    sys.exit(main(sys.argv[1:]))
