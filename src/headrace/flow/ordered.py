"""Which stages of a flow carry the order of their source, and whether they can.

A stage carries it if something after it is to be put in order. What is needed to prove that a path stays in order is
asked of every such stage; what cannot be proved is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.graph import Graph, Node, Ordering, reached
from headrace.flow.routing import Broadcast
from headrace.order.columns import Keys, part_width


@dataclass(frozen=True)
class Carried:
    """What the stages of a flow carry of the order."""

    nodes: frozenset[str] = frozenset()
    keys: Keys = field(default_factory=Keys)
    by: str | None = None
    shifts: tuple[tuple[str, int], ...] = ()
    """For each stage that may make several records of one, where it numbers them in the part."""

    @property
    def width(self) -> int:
        return part_width(len(self.shifts))

    def shift_of(self, node: str) -> int | None:
        return dict(self.shifts).get(node)


def carried(graph: Graph) -> Carried:
    """Raises FlowError that names the stage, the reason and the fix."""
    asked = [(node, arrow.node, arrow.ordering) for node in graph.nodes for arrow in node.inputs if arrow.ordering]
    if not asked:
        return Carried()
    nodes: set[str] = set()
    for _, producer, _ in asked:
        nodes |= _up_from(graph, producer)
    orderings = {ordering for *_, ordering in asked}
    if len(orderings) > 1:
        said = ", ".join(sorted(str(each) for each in orderings))
        raise FlowError(f"flow {graph.name} is ordered in different ways: {said}; one flow has one order")
    (ordering,) = orderings
    for node in graph.nodes:
        if node.name in nodes:
            _check(graph, node, ordering)
        data = [arrow for arrow in node.inputs if not arrow.notices]
        ordered = [arrow for arrow in data if arrow.ordering]
        if ordered and len(ordered) < len(data):
            other = next(arrow.node for arrow in data if not arrow.ordering)
            raise FlowError(
                f"{node.kind} {node.name}: some of its inputs are ordered and {other} is not; say .ordered() of all"
            )
    _check_sources(graph, nodes, ordering)
    multiplying = [node.name for node in graph.nodes if node.name in nodes and _may_multiply(node)]
    width = part_width(len(multiplying))
    depths = {name: depth for depth, name in enumerate(reversed(multiplying))}
    shifts = tuple((name, depths[name] * width) for name in multiplying)
    copies = any(
        sum(not arrow.notices for arrow in node.inputs) > 1
        or any(isinstance(arrow.route, Broadcast) and not arrow.notices for arrow in node.inputs)
        for node in graph.nodes
        if node.name in nodes
    )
    keys = Keys(ordering.by is not None, bool(multiplying), copies, ordering.wait_s is not None)
    return Carried(frozenset(nodes), keys, ordering.by, shifts)


def _up_from(graph: Graph, name: str) -> set[str]:
    return reached([name], lambda each: [arrow.node for arrow in graph.node(each).inputs if not arrow.notices])


def _check(graph: Graph, node: Node, ordering: Ordering) -> None:
    back = next((arrow for arrow in node.inputs if arrow.back), None)
    if back is not None:
        raise FlowError(
            f"loop {node.name} is before something that is to be ordered: a record may go round any number of times, "
            f"and nothing tells when all of a sequence has left; let a stage before the loop read the ordered stream"
        )
    if node.behaviour is not None:
        problem = node.behaviour.order_problem(_schema_in(graph, node))
        if problem is not None:
            raise FlowError(f"stage {node.name} is before something that is to be ordered: {problem}")


def _check_sources(graph: Graph, nodes: set[str], ordering: Ordering) -> None:
    sources = [node for node in graph.nodes if node.name in nodes and node.source is not None]
    tasks = sum(node.parallelism for node in sources)
    if ordering.by is None and tasks > 1:
        names = ", ".join(node.name for node in sources)
        raise FlowError(
            f"flow {graph.name}: there is no order among the {tasks} tasks of {names}; give a column that each of them "
            f"is in order of, such as a time: stream.ordered(by=column)"
        )
    for node in sources if ordering.by is not None else ():
        schema = node.schema
        if schema is None or ordering.by not in schema.names:
            raise FlowError(f"source {node.name}: it has no column {ordering.by} to order by; it has {_names(schema)}")
        type = schema.field(ordering.by).type
        if not (pa.types.is_integer(type) or pa.types.is_timestamp(type)):
            raise FlowError(f"source {node.name}: {ordering.by} is {type}; order by whole numbers or timestamps")


def _names(schema: pa.Schema | None) -> str:
    return "none" if schema is None else ", ".join(schema.names)


def _schema_in(graph: Graph, node: Node) -> pa.Schema | None:
    arrow = node.inputs[0]
    return graph.node(arrow.node).schema_of(arrow.output)


def _may_multiply(node: Node) -> bool:
    return node.behaviour is not None and node.behaviour.may_multiply


def source_numbers(graph: Graph, nodes: frozenset[str]) -> Iterator[tuple[str, int]]:
    """For each source, the number of its first task among the tasks of all."""
    number = 0
    for node in graph.nodes:
        if node.source is not None and node.name in nodes:
            yield node.name, number
            number += node.parallelism
