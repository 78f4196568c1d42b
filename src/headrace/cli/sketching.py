"""What can be said of a metric text before there is data."""

from __future__ import annotations

from typing import Final

from headrace.language import BoundMetric, parse
from headrace.measure.definition import Definition, sketch

_ANY_TIME: Final = "time"
"""Stands for the time column where no data is looked at."""


def sketched(text: str, stream: str | None) -> tuple[BoundMetric, ...]:
    """The metrics of the text, without types: those of one stream, or of all. Raises QueryError."""
    statements = parse(text) if stream is None else Definition(text, _ANY_TIME, stream=stream).statements
    return sketch(statements, text)
