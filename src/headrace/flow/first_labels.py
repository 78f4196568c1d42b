"""Where a source does not tell substreams apart itself: which of the stages beside it do so first."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.flow.operators import MAIN
from headrace.flow.plan import Plan
from headrace.flow.regions import tells
from headrace.flow.substreams import Tracked


def first_labels(plan: Plan, vertex: str, tracked: Tracked) -> Mapping[tuple[str, str], int]:
    """The outputs of nodes of a vertex that have labels and markers, and come of none that has; with numbers.

    What leaves there is told of, whoever reads it: a stage behind may drop it, and what it closes is closed.
    """
    found: dict[tuple[str, str], int] = {}
    waiting = [vertex]
    while waiting:
        node = plan.graph.node(waiting.pop(0))
        for output in (MAIN, *node.sides):
            schema = node.schema_of(output)
            if tells(schema, tracked):
                found.setdefault((node.name, output), len(found))
            else:
                waiting += [consumer.name for consumer, wanted in plan.fused(node.name) if wanted == output]
    return found
