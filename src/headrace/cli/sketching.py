"""What can be said of a metric text before there is data."""

from __future__ import annotations

from typing import Final

from headrace.errors import BindError
from headrace.language import BoundMetric, parse
from headrace.measure.definition import Definition, sketch

_ANY_TIME: Final = "time"
"""Stands for the time column where no data is looked at."""


def sketched(text: str, stream: str | None) -> tuple[BoundMetric, ...]:
    """The metrics of the text, without types: those of one stream, or of all. Raises QueryError."""
    statements = parse(text) if stream is None else Definition(text, _ANY_TIME, stream=stream).statements
    metrics = sketch(statements, text)
    # Two metrics of a stream with one name: the binder would refuse them too, once it has data.
    items = [(statement.stream, item.at) for statement in statements for item in statement.items]
    taken: set[tuple[str, str]] = set()
    for (source, at), metric in zip(items, metrics, strict=True):
        if (source, metric.name.lower()) in taken:
            problem = f"a metric cannot be called {metric.name}: another metric has that name"
            raise BindError(problem, text, at, "give it another name: AS other_name")
        taken.add((source, metric.name.lower()))
    return metrics
