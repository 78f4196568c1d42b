"""`headrace serve`: streams and their metrics behind HTTP, on Spark, with nothing else to install."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import screen
from headrace.cli.options import Debug
from headrace.cli.query import read_query
from headrace.cli.session import spark_session
from headrace.errors import EnvironmentProblem
from headrace.flow.kafka_ends import kafka_queues
from headrace.queues.log import LogQueues
from headrace.queues.protocol import Queues

TOKENS = "HEADRACE_TOKENS"
_SLOTS = max(16, os.cpu_count() or 1)
"""Every stream has a task of its own, which mostly waits."""


def serve(
    metrics_file: Annotated[
        str, typer.Argument(metavar="METRICS.sql", help="Streams (CREATE STREAM) and their metrics; - for stdin.")
    ],
    at: Annotated[
        str, typer.Option(metavar="DIR", help="Where events, answers, state and metrics are; a start there goes on.")
    ] = "headrace-streams",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8080,
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Keep queues on this Kafka broker, not in files below DIR.")
    ] = None,
    parallelism: Annotated[int, typer.Option(min=1, help="How many tasks share the work of a stream.")] = 1,
    replicas: Annotated[
        int, typer.Option(min=1, help="Copies of the tasks of a stream, in different workers: a crash causes no gap.")
    ] = 1,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 5.0,
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, help="Requests a second for each token, or for each address if there are no tokens."),
    ] = None,
    body_mb: Annotated[float, typer.Option(min=0.001, help="The largest body of a request, in MB.")] = 4.0,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", exists=True, help="Certificate, for HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", exists=True, help="Its key.")] = None,
    debug: Debug = False,
) -> None:
    """Answer every event that is posted with its exact metrics. Ctrl-C stops it; the next start goes on where it was.

    To allow only clients with a token, set HEADRACE_TOKENS to one or more tokens, with commas between.
    A stream that was served at DIR before keeps its metrics: change them with [bold]headrace metrics[/bold].

    [dim]headrace serve metrics.sql
    HEADRACE_TOKENS=secret headrace serve metrics.sql --at /data/streams --tls-cert c.pem --tls-key k.pem[/dim]
    """
    uvicorn = _uvicorn()
    from headrace.service.app import make_app
    from headrace.service.limits import Limits
    from headrace.service.registry import Registry
    from headrace.service.streams import read_streams

    wanted = read_streams(read_query(metrics_file))
    tokens = tuple(token.strip() for token in os.environ.get(TOKENS, "").split(",") if token.strip())
    queues: Queues = kafka_queues(kafka) if kafka is not None else LogQueues(Path(at) / "queues")
    _check_port(host, port)
    with spark_session("serve", _SLOTS) as spark:
        registry = Registry(spark, str(Path(at).absolute()), queues, parallelism, replicas)
        try:
            registry.start(wanted)
            scheme = "https" if tls_cert is not None else "http"
            names = ", ".join(spec.name for spec in registry.specs())
            screen.err.print(f"[green]ok[/]: {names} at {scheme}://{host}:{port}, described at /docs there")
            app = make_app(registry, Limits(tokens, int(body_mb * (1 << 20)), rate), timeout)
            uvicorn.run(
                app,
                host=host,
                port=port,
                log_level="warning",
                ssl_certfile=tls_cert,
                ssl_keyfile=tls_key,
                lifespan="off",
            )
        finally:
            registry.close()


def _check_port(host: str, port: int) -> None:
    """Before Spark is started for nothing."""
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot listen on {host}:{port} ({error.strerror or error}); choose another address: --host, --port"
        ) from None


def _uvicorn() -> Any:
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise EnvironmentProblem(
            f'the front end needs FastAPI and uvicorn ({error}); pip install "headrace[service]"'
        ) from None
    return uvicorn
