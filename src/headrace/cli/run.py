"""`headrace run`: a flow on Spark, with its figures in the terminal."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from headrace.cli import screen
from headrace.cli.flow_file import load_flow
from headrace.cli.options import Debug
from headrace.cli.session import spark_session
from headrace.flow.job import Job
from headrace.flow.kafka_ends import kafka_queues
from headrace.spark.live import Flow

FlowFile = Annotated[
    str, typer.Argument(metavar="FLOW.py", help="A Python file that draws a flow; FLOW.py:NAME if it draws several.")
]


def run(
    flow_file: FlowFile,
    at: Annotated[
        str, typer.Option(metavar="DIR", help="Where its queues and commits are. A flow that ran there before goes on.")
    ] = "headrace-flows",
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many Spark tasks share the work. Default: one for each core.")
    ] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Keep queues on this Kafka broker, not in files below DIR.")
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Copies of each task, in different workers.")] = 1,
    mode: Annotated[str, typer.Option(help="What copies do: active, standby or none.")] = "active",
    order: Annotated[str, typer.Option(help="How copies agree on an order: queue, round-robin or leader.")] = "queue",
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two updates of the figures.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="For machines: a line of JSON at each update.")] = False,
    debug: Debug = False,
) -> None:
    """Run a flow on Spark until its sources end. Ctrl-C lets what is under way arrive; a second Ctrl-C stops at once.

    [dim]headrace run trades.py
    headrace run trades.py --at /data/flows --workers 4 --kafka localhost:9092
    headrace run trades.py --workers 2 --replicas 2[/dim]
    """
    flow = load_flow(flow_file)
    flow.graph()
    with spark_session("run") as spark:
        queues = kafka_queues(kafka) if kafka is not None else None
        job = flow.start(spark, at, workers=workers, queues=queues, replicas=replicas, mode=mode, order=order)
        if as_json:
            _watch(job, every, lambda status: print(json.dumps(status), flush=True))  # noqa: T201
            return
        with Live(console=screen.err, auto_refresh=False) as live:
            figures = Figures(flow)
            _watch(job, every, lambda status: live.update(figures.table(status), refresh=True))
    screen.out.print(f"[green]ok[/]: {flow.name} is over; {figures.summary}")


def _watch(job: Job, every: float, show: Any) -> None:
    asked = False
    while True:
        try:
            over = job.look(every)
            show(job.status())
            if over:
                return
        except KeyboardInterrupt:
            if asked:
                job.stop(drain=False)
                raise
            asked = True
            screen.err.print("letting what is under way arrive; Ctrl-C again stops at once")
            job.ask_to_stop(drain=True)


class Figures:
    """Rates from one look to the next, by vertex."""

    def __init__(self, flow: Flow):
        self._flow = flow
        self._last: dict[str, tuple[float, int]] = {}
        self.summary = "nothing was seen of it"

    def table(self, status: dict[str, Any]) -> Table:
        now = time.monotonic()
        up = sum(worker["up"] for worker in status["workers"].values())
        restarts = f", {status['restarts']} restarts" if status["restarts"] else ""
        busy = "".join(f", busy: {worker['busy']}" for worker in status["workers"].values() if worker["busy"])
        title = f"{status['flow']}: {status['state']}, {up} of {len(status['workers'])} workers up{restarts}{busy}"
        table = Table("stage", "tasks", "in", "out", "in a second", "waiting", title=title, box=None)
        table.title_justify = "left"
        for column in table.columns[1:]:
            column.justify = "right"
        for name, tasks in _by_vertex(status).items():
            taken = sum(task["records_in"] for task in tasks)
            given = sum(task["records_out"] for task in tasks)
            waiting = sum(size for queue, size in status["backlog_bytes"].items() if f".in.{name}." in queue)
            before, had = self._last.get(name, (now, taken))
            rate = (taken - had) / (now - before) if now > before else 0.0
            self._last[name] = (now, taken)
            table.add_row(name, str(len(tasks)), f"{taken:,}", f"{given:,}", f"{rate:,.0f}", f"{waiting / 1e6:,.1f} MB")
            self.summary = f"{given:,} records left {name}"
        return table


def _by_vertex(status: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for worker in status["workers"].values():
        for task in worker["tasks"]:
            if task in status["tasks"]:
                found.setdefault(task.rpartition(".")[0], []).append(status["tasks"][task])
    order = status.get("order", list(found))
    return {name: found[name] for name in order if name in found}
