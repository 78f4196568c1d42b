"""`headrace metrics`: those of a stream that is being served, while it answers."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from headrace.cli import screen
from headrace.cli.options import AsJson, Debug
from headrace.cli.query import read_query
from headrace.errors import EnvironmentProblem, InputError

metrics = typer.Typer(
    name="metrics",
    no_args_is_help=True,
    help="List, add and remove the metrics of a stream of `headrace serve`, while it answers.",
)
TOKEN: Final = "HEADRACE_TOKEN"
_WAIT_S: Final = 150.0

Stream = Annotated[str, typer.Argument(metavar="STREAM", help="Its name.")]
At = Annotated[str, typer.Option(metavar="URL", help=f"Where it is served. A token for it goes into {TOKEN}.")]
_DEFAULT: Final = "http://127.0.0.1:8080"


@metrics.command("list")
def list_metrics(stream: Stream, at: At = _DEFAULT, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the metrics of a stream, and how much each remembers.

    [dim]headrace metrics list payments[/dim]
    """
    found = _ask(at, "GET", _path(stream))["metrics"]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    table = Table("metric", "type", "is", "state", box=None, header_style="dim", pad_edge=False)
    for each in found:
        table.add_row(each["name"], each["type"], each["is"], screen.size_text(each["bytes"]))
    screen.out.print(table)


@metrics.command()
def add(
    stream: Stream,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The metrics, SELECT … AS name …; - for stdin.")],
    at: At = _DEFAULT,
    debug: Debug = False,
) -> None:
    """Add metrics, computed from the events that are remembered. Answers go on meanwhile.

    [dim]headrace metrics add payments more.sql
    echo "SELECT max(x) AS top FROM payments GROUP BY card OVER sliding 1 hour" | headrace metrics add payments -[/dim]
    """
    since = _ask(at, "POST", _path(stream), read_query(file).encode())["from"]
    screen.out.print(f"[green]ok[/]: every answer has them from here on: {_places(since)}")


@metrics.command()
def remove(
    stream: Stream,
    metric: Annotated[str, typer.Argument(metavar="METRIC", help="Its name.")],
    at: At = _DEFAULT,
    debug: Debug = False,
) -> None:
    """Remove a metric, and what it remembered.

    [dim]headrace metrics remove payments top[/dim]
    """
    since = _ask(at, "DELETE", _path(stream, metric))["from"]
    screen.out.print(f"[green]ok[/]: no answer has {metric} from here on: {_places(since)}")


def _path(stream: str, *metric: str) -> str:
    return "/".join(["/streams", *(urllib.parse.quote(part, safe="") for part in (stream, "metrics", *metric))])


def _places(since: dict[str, int]) -> str:
    return ", ".join(f"position {number:,} of {task}" for task, number in sorted(since.items()))


def _ask(at: str, method: str, path: str, body: bytes | None = None) -> Any:
    if not at.startswith(("http://", "https://")):
        raise InputError(f"--at {at}: give the address of the service, such as {_DEFAULT}")
    token = os.environ.get(TOKEN, "")
    headers = {"content-type": "text/plain", **({"authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(at.rstrip("/") + path, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=_WAIT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise InputError(_said(error)) from None
    except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise EnvironmentProblem(
            f"no answer from {at} ({reason}); is it served? headrace serve METRICS.sql, and --at URL says where"
        ) from None


def _said(error: urllib.error.HTTPError) -> str:
    try:
        problem = str(json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        return f"the service refused: {error.code} {error.reason}"
    return f"{problem}; put it into {TOKEN}" if error.code in (401, 403) else problem
