"""Can all of a flow be sent to its workers? Asked on the driver, before one starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle

from headrace.errors import FlowError
from headrace.flow.graph import Graph
from headrace.model.failures import problem_of


def check_pickles(graph: Graph) -> None:
    """Raises FlowError that names what cannot be sent, and why."""
    pickles: Any = cloudpickle  # it has no type hints
    for name, part in _parts(graph):
        try:
            pickles.dumps(part)
        except Exception as error:
            raise FlowError(
                f"{name} cannot be sent to workers: {problem_of(error)}; make what cannot be sent where it is used, "
                f"inside the function or in the __init__ of a class of hr.Stage"
            ) from error


def _parts(graph: Graph) -> Iterator[tuple[str, Any]]:
    for node in graph.nodes:
        for arrow in node.inputs:
            yield f"the route from {arrow.node} to {node.kind} {node.name}", arrow.route
        for part in (node.source, node.behaviour, node.sink):
            yield f"{node.kind} {node.name}", part
