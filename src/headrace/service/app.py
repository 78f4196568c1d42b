"""The HTTP front end of streams. Every answer is a pure function of what arrived; every refusal is a sentence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from headrace import __version__
from headrace.errors import DefinitionError, FlowError, HeadraceError, QueryError, RequestRefused
from headrace.service.documents import ANSWERS, EVENTS, METRIC_TEXT, REFUSALS, STREAM
from headrace.service.engine import Unanswered
from headrace.service.events import from_arrow_body, from_json_body
from headrace.service.figures import task_lines
from headrace.service.limits import Limits
from headrace.service.registry import Registry
from headrace.service.streams import StreamSpec

ARROW: Final = "application/vnd.apache.arrow.stream"
_OPEN: Final = ("/health", "/docs", "/openapi.json")
_MOST_TEXT: Final = 1 << 16


def make_app(registry: Registry, limits: Limits | None = None, timeout_s: float = 5.0) -> FastAPI:
    """The application over the streams of a registry."""
    app = FastAPI(
        title="Headrace",
        version=__version__,
        description="Send an event, get its exact metrics: real sliding windows, computed the moment it arrives.",
        redoc_url=None,
        responses={status: {"description": about} for status, about in REFUSALS.items()},
    )
    _refuse(app, limits or Limits())
    _add_events(app, registry, timeout_s)
    _add_streams(app, registry)
    _add_figures(app, registry)
    return app


# ------------------------------------------------------------------------ refusals


def _refuse(app: FastAPI, limits: Limits) -> None:
    @app.middleware("http")
    async def guarded(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        try:
            if request.url.path not in _OPEN:
                limits.check(request.headers.get("authorization"), request.client.host if request.client else "")
            length = request.headers.get("content-length", "0")
            if not length.isdigit() or int(length) > limits.body_bytes:
                raise RequestRefused(f"the body is too large: {limits.body_bytes:,} bytes at most", 413)
            request.state.body_bytes = limits.body_bytes
            return await call(request)
        except RequestRefused as refused:
            return _refusal(refused.status, str(refused), refused.retry_after_s)

    @app.exception_handler(HeadraceError)
    async def known(request: Request, error: HeadraceError) -> Response:
        return _refusal(_status_of(error), str(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return _refusal(error.status_code, f"{request.method} {request.url.path}: {error.detail}")


def _status_of(error: HeadraceError) -> int:
    if isinstance(error, RequestRefused):
        return error.status
    if isinstance(error, DefinitionError | QueryError):
        return 422
    return 409 if isinstance(error, FlowError) else 503


def _refusal(status: int, problem: str, retry_after_s: float | None = None) -> JSONResponse:
    headers = {} if retry_after_s is None else {"Retry-After": f"{max(1, round(retry_after_s))}"}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": problem}, status, headers)


async def _body(request: Request) -> bytes:
    """At most as much as is allowed, also where the length is not said before."""
    most, parts, size = request.state.body_bytes, [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise RequestRefused(f"the body is too large: {most:,} bytes at most", 413)
        parts.append(part)
    return b"".join(parts)


# -------------------------------------------------------------------------- events


def _add_events(app: FastAPI, registry: Registry, timeout_s: float) -> None:
    @app.post("/streams/{name}/events", summary="The metrics of events", openapi_extra=EVENTS, responses=ANSWERS)
    async def events(name: str, request: Request) -> Response:
        engine = registry.engine(name)
        body = await _body(request)
        is_arrow = request.headers.get("content-type", "").partition(";")[0].strip() == ARROW
        read = from_arrow_body if is_arrow else from_json_body
        batch = read(body, engine.spec.schema, (engine.spec.time, engine.spec.id))
        try:
            answers = await engine.answer(batch, timeout_s)
        except Unanswered as late:
            ids = batch.column(engine.spec.id).to_pylist()
            pending = [str(id) for id, answer in zip(ids, late.answers, strict=True) if answer is None]
            problem = (
                f"{len(pending)} of {len(ids)} answers did not come within {timeout_s:g} s; the events are in the log "
                f"and count once: send them again with the same {engine.spec.id} to get their answers"
            )
            found = [answer for answer in late.answers if answer is not None]
            return Response(_answers(found, error=problem, pending=pending), 504, media_type="application/json")
        return Response(_answers(answers), media_type="application/json")


def _answers(answers: list[str], **more: Any) -> bytes:
    rest = "".join(f",{json.dumps(name)}:{json.dumps(value)}" for name, value in more.items())
    return f'{{"answers":[{",".join(answers)}]{rest}}}'.encode()


# ------------------------------------------------------------------------- streams


def _add_streams(app: FastAPI, registry: Registry) -> None:
    @app.get("/streams", summary="All streams")
    async def streams() -> dict[str, Any]:
        return {"streams": [spec.as_json() for spec in registry.specs()]}

    @app.post("/streams", status_code=201, summary="A new stream", openapi_extra=STREAM)
    async def create(request: Request) -> dict[str, Any]:
        spec = _spec_in(await _body(request))
        await asyncio.to_thread(registry.create, spec)
        return spec.as_json()

    @app.get("/streams/{name}", summary="One stream: its columns, its metrics, how it does")
    async def stream(name: str) -> dict[str, Any]:
        return await asyncio.to_thread(registry.about, name)

    @app.delete("/streams/{name}", summary="Delete a stream, with all that it remembers")
    async def delete(name: str) -> dict[str, Any]:
        await asyncio.to_thread(registry.delete, name)
        return {"deleted": name}

    @app.get("/streams/{name}/metrics", summary="The metrics of a stream")
    async def metrics(name: str) -> dict[str, Any]:
        return {"metrics": await asyncio.to_thread(registry.engine(name).metrics)}

    @app.post("/streams/{name}/metrics", summary="More metrics, backfilled", openapi_extra=METRIC_TEXT)
    async def add(name: str, request: Request) -> dict[str, Any]:
        engine, text = registry.engine(name), await _body(request)
        if len(text) > _MOST_TEXT:
            raise RequestRefused("the text is too long", 413)
        return {"from": await asyncio.to_thread(engine.add_metrics, _decoded(text))}

    @app.delete("/streams/{name}/metrics/{metric}", summary="One metric less")
    async def remove(name: str, metric: str) -> dict[str, Any]:
        return {"from": await asyncio.to_thread(registry.engine(name).remove_metric, metric)}


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise RequestRefused("the text is not UTF-8", 400) from None


def _spec_in(body: bytes) -> StreamSpec:

    try:
        found = json.loads(body)
        columns = {str(name): str(type) for name, type in found["columns"].items()}
        parts = [found[name] for name in ("name", "time", "id", "metrics")]
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the body is not JSON: {error}", 400) from None
    except (TypeError, KeyError, AttributeError):
        parts = [None]
    if not all(isinstance(part, str) for part in parts):
        raise RequestRefused(
            'a stream is {"name": …, "columns": {name: type}, "time": …, "id": …, "metrics": "SELECT …"}'
        )
    name, time, id, text = parts
    return StreamSpec(name, columns, time, id, text)


# ------------------------------------------------------------------------- figures


def _add_figures(app: FastAPI, registry: Registry) -> None:
    @app.get("/health", summary="Is it up, and are its streams?")
    async def health() -> Response:
        ready = {spec.name: registry.engine(spec.name).is_ready for spec in registry.specs()}
        return JSONResponse({"ready": all(ready.values()), "streams": ready}, 200 if all(ready.values()) else 503)

    @app.get("/metrics", summary="Figures for Prometheus", response_class=PlainTextResponse)
    async def figures() -> PlainTextResponse:
        lines: list[str] = []
        for spec in registry.specs():
            engine = registry.engine(spec.name)
            lines += engine.figures.lines(spec.name)
            lines += task_lines(spec.name, engine.job.reports())
        return PlainTextResponse("\n".join([*lines, ""]), media_type="text/plain; version=0.0.4")
