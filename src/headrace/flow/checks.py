"""What is checked of a flow before anything starts."""

from __future__ import annotations

from dataclasses import replace

from headrace.errors import FlowError
from headrace.flow.graph import Graph, Input, Node
from headrace.flow.operators import listed
from headrace.flow.ordered import carried
from headrace.flow.queue_ends import QueueEnd
from headrace.flow.regions import Ends, with_agent
from headrace.flow.routing import Forward, Rebalance, Route


def checked(graph: Graph, loops: frozenset[str]) -> Graph:
    """The graph with all its routes. Raises FlowError that names the stage and the fix."""
    if not any(node.source is not None for node in graph.nodes):
        raise FlowError(f"flow {graph.name} has no source; begin with flow.source(name, ...)")
    for name in sorted(loops):
        if not any(arrow.back for arrow in graph.node(name).inputs):
            raise FlowError(f"loop {name}: nothing is sent back; close it with {name}.back(stream), or leave it out")
    graph = Graph(graph.name, tuple(_routed(graph, node) for node in graph.nodes))
    for node in graph.nodes:
        _check_schema(graph, node)
    read: dict[str, str] = {}
    for node in graph.nodes:
        if isinstance(node.source, QueueEnd):
            other = read.setdefault(node.source.name, node.name)
            if other != node.name:
                raise FlowError(
                    f"source {node.name}: source {other} reads queue {node.source.name} already; use its stream"
                )
    carried(graph)
    for node in graph.nodes:
        used = {arrow.output for _, arrow in graph.consumers(node.name)}
        loose = [output for output in ("", *node.sides) if output not in used]
        if node.sink is None and not used:
            raise FlowError(f"{node.kind} {node.name}: nothing reads it; give it a sink, flow.sink(name, stream, ...)")
        if loose == [""] and node.sink is None:
            raise FlowError(
                f"stage {node.name}: nothing reads its main output, only side outputs; records that went there would "
                f"be lost: give it a sink, if only hr.callback(lambda batch: None)"
            )
        if loose and node.sink is None:
            side = next(output for output in loose if output)
            raise FlowError(
                f"stage {node.name}: nothing reads its side output {side}; records that went there would be lost: "
                f"give it a sink, flow.sink(name, stream.side({side!r}), ...)"
            )
    return with_agent(graph)


def _routed(graph: Graph, node: Node) -> Node:
    return replace(node, inputs=tuple(_arrow(graph, node, arrow) for arrow in node.inputs))


def _arrow(graph: Graph, node: Node, arrow: Input) -> Input:
    producer = graph.node(arrow.node)
    route = arrow.route or _default(producer.parallelism, node.parallelism)
    problem = route.problem(producer.parallelism, node.parallelism, producer.schema_of(arrow.output))
    if problem is not None:
        raise FlowError(f"{node.kind} {node.name}, from {arrow.node}: {problem}")
    return replace(arrow, route=route)


def _default(producers: int, consumers: int) -> Route:
    return Forward() if producers == consumers else Rebalance()


def _check_schema(graph: Graph, node: Node) -> None:
    if isinstance(node.behaviour, Ends):
        return
    schemas = [graph.node(arrow.node).schema_of(arrow.output) for arrow in node.inputs]
    for arrow, schema in zip(node.inputs, schemas, strict=True):
        if schema is not None and schemas[0] is not None and schema != schemas[0]:
            raise FlowError(
                f"{node.kind} {node.name}: what comes {'back ' if arrow.back else ''}from {arrow.node} has the columns "
                f"{listed(schema)}, not {listed(schemas[0])}; let a stage before it make them alike"
            )
    problem = node.sink.problem(schemas[0]) if node.sink is not None and schemas[0] is not None else None
    if problem is not None:
        raise FlowError(f"sink {node.name}: {problem}")
