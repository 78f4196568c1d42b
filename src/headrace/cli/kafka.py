"""`headrace kafka`: a real Kafka broker on this machine, for development and tests."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from headrace.cli import screen
from headrace.cli.options import AsJson, Debug
from headrace.errors import InputError
from headrace.queues.kafka_admin import KafkaAdmin
from headrace.spark.broker import KAFKA, PORT, Broker, BrokerStatus

kafka = typer.Typer(
    name="kafka",
    no_args_is_help=True,
    help="A real Apache Kafka broker on this machine, for development and tests. Needs Java, no Docker.",
)

Port = Annotated[
    int | None,
    typer.Option(min=1, max=65535, metavar="PORT", help=f"Where it listens, on 127.0.0.1 only. Default: {PORT}."),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Its data, settings and log. Default: ~/.local/share/headrace/kafka-PORT.", file_okay=False
    ),
]
_LOOK_S = 5.0


@kafka.command()
def start(port: Port = None, folder: Folder = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Start a broker and wait until it answers. It runs until it is stopped, and keeps its data.

    The first time, Apache Kafka is fetched from Maven Central (38 MB, kept in ~/.cache/headrace).

    [dim]headrace kafka start
    headrace kafka start --port 9093 --folder ./kafka[/dim]
    """
    broker = Broker(folder, port)
    with screen.err.status(f"starting Kafka on {broker.address} (the first time it is fetched, a minute at most)"):
        is_new = broker.start()
    status = broker.status()
    if as_json:
        _print_json({"started": is_new, **dataclasses.asdict(status)})
        return
    screen.out.print(f"[green]ok[/]: Kafka {KAFKA} {'is running' if is_new else 'was running already'}")
    _print_places(status)
    screen.out.print(f"  stop     {_command('stop', folder, port)}", soft_wrap=True)


@kafka.command()
def stop(port: Port = None, folder: Folder = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Stop the broker. Its data stays, and is there again when it is started again.

    [dim]headrace kafka stop
    headrace kafka stop --folder ./kafka[/dim]
    """
    broker = Broker(folder, port)
    with screen.err.status("stopping Kafka"):
        was_running = broker.stop()
    if as_json:
        _print_json({"stopped": was_running, **dataclasses.asdict(broker.status())})
    elif was_running:
        screen.out.print(f"[green]ok[/]: stopped; the data stays in {broker.folder}", soft_wrap=True)
    else:
        screen.out.print(f"[green]ok[/]: no broker of {broker.folder} is running", soft_wrap=True)


@kafka.command()
def status(port: Port = None, folder: Folder = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Whether the broker is running, and where its things are. Exits with 1 if it does not take requests.

    [dim]headrace kafka status
    headrace kafka status --json[/dim]
    """
    found = Broker(folder, port).status()
    if as_json:
        _print_json(dataclasses.asdict(found))
    elif not found.running:
        screen.out.print(f"no broker of {found.folder} is running", soft_wrap=True)
        screen.out.print(f"  start    {_command('start', folder, port)}", soft_wrap=True)
    else:
        screen.out.print(
            f"[green]ok[/]: Kafka is running, process {found.pid}"
            if found.ready
            else f"process {found.pid} is running, but does not answer"
        )
        _print_places(found)
    if not found.ready:
        raise typer.Exit(1)


@kafka.command()
def topics(port: Port = None, folder: Folder = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """The topics of the broker: how many partitions, and how many messages there are in them.

    [dim]headrace kafka topics
    headrace kafka topics --json[/dim]
    """
    broker = Broker(folder, port).status()
    if not broker.ready:
        raise InputError(f"no broker of {broker.folder} is running; {_command('start', folder, port)}")
    admin = KafkaAdmin(broker.address, {}, _LOOK_S)
    found = [
        {"topic": topic, "partitions": partitions, "messages": admin.messages(topic, partitions)}
        for topic, partitions in admin.topics().items()
    ]
    if as_json:
        _print_json({"address": broker.address, "topics": found})
    elif found:
        screen.out.print(_table(found))
    else:
        screen.out.print(f"no topics at {broker.address} yet")


def _print_places(found: BrokerStatus) -> None:
    for what, where in (("address", found.address), ("data", found.folder), ("log", found.log)):
        screen.out.print(f"  {what:<8} {where}", soft_wrap=True)


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table("topic", "partitions", "messages", box=None, header_style="dim", pad_edge=False)
    table.columns[1].justify = table.columns[2].justify = "right"
    for each in found:
        table.add_row(each["topic"], f"{each['partitions']:,}", f"{each['messages']:,}")
    return table


def _command(verb: str, folder: Path | None, port: int | None) -> str:
    """What to type, about the same broker."""
    chosen = f" --folder {folder}" if folder else f" --port {port}" if port else ""
    if verb == "start" and folder and port:
        chosen += f" --port {port}"
    return f"headrace kafka {verb}{chosen}"


def _print_json(found: dict[str, Any]) -> None:
    screen.out.print(json.dumps(found, indent=2), markup=False, soft_wrap=True)
