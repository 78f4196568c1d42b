"""What the OpenAPI page says beside what FastAPI finds out itself: bodies, examples, refusals."""

from __future__ import annotations

from typing import Any, Final

REFUSALS: Final[dict[int | str, str]] = {
    400: "The body is not what it says it is.",
    401: "A token is needed.",
    403: "The token is not known.",
    404: "There is no such stream, or no such page.",
    405: "This page does not do that.",
    409: "Not now, or not with this stream.",
    413: "Too large.",
    422: "Something in the body is not as the stream has it; the sentence says what.",
    429: "Too many requests; see Retry-After.",
    503: "The stream does not run.",
    504: "Some answers did not come in time; their events count, send them again to get the answers.",
}
_EVENT: Final = {"txn": "t-1", "ts": "2026-03-03T12:00:00Z", "card": "c-7", "amount": 12.5}
_OBJECT: Final = {"type": "object", "additionalProperties": True}
EVENTS: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"oneOf": [_OBJECT, {"type": "array", "items": _OBJECT, "minItems": 1}]},
                "examples": {
                    "one": {"summary": "one event", "value": _EVENT},
                    "many": {"summary": "many events", "value": [_EVENT, {**_EVENT, "txn": "t-2"}]},
                },
            },
            "application/vnd.apache.arrow.stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The events, in their order, with all metrics and what became of them.",
        "content": {"application/json": {"example": {"answers": [{**_EVENT, "spent": 112.5, "n": 3, "status": "ok"}]}}},
    }
}
STREAM: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["name", "columns", "time", "id", "metrics"],
                    "properties": {
                        "name": {"type": "string"},
                        "columns": {"type": "object", "additionalProperties": {"type": "string"}},
                        "time": {"type": "string"},
                        "id": {"type": "string"},
                        "metrics": {"type": "string"},
                    },
                },
                "example": {
                    "name": "payments",
                    "columns": {"txn": "string", "ts": "timestamp", "card": "string", "amount": "double"},
                    "time": "ts",
                    "id": "txn",
                    "metrics": "SELECT sum(amount) AS spent FROM payments GROUP BY card OVER sliding 5 minutes",
                },
            }
        },
    }
}
METRIC_TEXT: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "text/plain": {
                "schema": {"type": "string"},
                "example": "SELECT max(amount) AS top FROM payments GROUP BY card OVER sliding 1 hour",
            }
        },
    }
}
