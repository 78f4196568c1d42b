"""Which tasks of a flow are tracked, and what their agent is told: drawn into the graph as a stage of its own.

The agent reads what all tasks before a tracked stream report, and tells those who asked. Its inbox is its log: it
commits, starts again and is shared out as any stage. Everything that can reach a *point*, a reader of a tracked stream
or a stream of ends, belongs to the region; what its tasks are charged for is in `charging.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.graph import Graph, Input, Node, reached
from headrace.flow.operators import Behaviour, Identity, Operator, Outputs, Shape
from headrace.flow.routing import Broadcast, Forward, Rebalance
from headrace.flow.substreams import Tracked

AGENT: Final = "tracker"
REPORTS: Final = "headrace-reports"
GONE: Final = "headrace:gone"
"""An output that no stage can be called like."""
_WORDS: Final = ("start", "end")
_OFTEN: Final = 1024


def notices(label: pa.DataType) -> pa.Schema:
    """What an agent says: `told` is a number of `Told`."""
    fields = [("told", pa.int8()), ("id", pa.int64()), ("substream", label), ("tick", pa.int64())]
    return pa.schema([pa.field(name, of) for name, of in fields])


def ends_schema(label: pa.DataType) -> pa.Schema:
    """Of a stream of ends, as users see it."""
    return pa.schema([pa.field("substream", label), pa.field("event", pa.string())])


@dataclass(frozen=True)
class Ends(Behaviour):
    """The notices of an agent as records."""

    def open(self, shape: Shape) -> Operator:
        return _EndRecords(shape)

    def __str__(self) -> str:
        return "starts and ends of substreams"


class _EndRecords(Operator):
    def __init__(self, shape: Shape):
        self._schema = shape.outputs[""]
        self._repeated = [pa.repeat(pa.scalar(word), _OFTEN) for word in _WORDS]

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        told = batch.column("told").to_numpy()
        if 0 < len(told) <= _OFTEN and told[0] < len(_WORDS) and (told == told[0]).all():
            # As it is nearly always: few at a time, and all the same.
            labels, words = batch.column("substream"), self._repeated[told[0]].slice(0, len(told))
        else:
            kept = batch.filter(pa.array(told < len(_WORDS)))
            labels, words = kept.column("substream"), pa.array(_WORDS).take(kept.column("told").cast(pa.int64()))
        return [("", pa.RecordBatch.from_arrays([labels, words], schema=self._schema))] if len(labels) else []


@dataclass(frozen=True)
class AgentStage(Behaviour):
    """Opened with what the plan says of its region: see `tracked.py`."""

    tracked: Tracked
    label: pa.DataType

    def open(self, shape: Shape) -> Operator:
        raise FlowError(f"stage {shape.stage} is drawn by .tracked(), and needs the plan of its flow")

    @property
    def is_stateful(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"tells of substreams by {self.tracked.name}, {self.tracked.ends}"


def with_agent(graph: Graph) -> Graph:
    """The graph with an agent, where something is tracked. Raises FlowError that names the stage and the fix."""
    asked = [(node, arrow, arrow.tracked) for node in graph.nodes for arrow in node.inputs if arrow.tracked]
    if not asked:
        return graph
    for _, arrow, _ in asked:
        if _is_ends(graph.node(arrow.node)):
            raise FlowError(f"stage {arrow.node} gives ends of substreams, which are not tracked themselves")
    tracked = _one(graph, [each for _, _, each in asked])
    if any(node.name == AGENT for node in graph.nodes):
        raise FlowError(f"flow {graph.name} is tracked, and {AGENT} is what its agent is called; rename that stage")
    for _, arrow, _ in asked:
        tracked = _known(graph.node(arrow.node), arrow, tracked)
    label = tracked.label
    assert label is not None
    graph = _merged_apart(graph)
    told = notices(label)
    graph, outputs = _with_points(graph, told)
    nodes = {node.name: node for node in graph.nodes}
    heads = {node.name: head_of(graph, node) for node in graph.nodes}
    region = _region(graph, heads)
    for name in region:
        node = nodes[name]
        if node.source is None:
            arrow = Input(AGENT, GONE, Broadcast(), notices=True)
            nodes[name] = replace(node, inputs=(*node.inputs, arrow))
    reports = tuple(Input(name, REPORTS, Rebalance(), notices=True) for name in region)
    sides = dict.fromkeys([*outputs, GONE], told)
    agent = Node(AGENT, tracked.agents, reports, behaviour=AgentStage(tracked, label), schema=told, sides=sides)
    after = _after_ends(graph)
    ordered = [nodes[n.name] for n in graph.nodes if n.name not in after]
    behind = [nodes[n.name] for n in graph.nodes if n.name in after]
    found = Graph(graph.name, (*ordered, agent, *behind))
    _check_region(found, region, heads, tracked)
    return found


def _known(producer: Node, arrow: Input, tracked: Tracked) -> Tracked:
    """With the type of labels, which all that is tracked must have."""
    schema = producer.schema_of(arrow.output)
    if schema is None:
        raise FlowError(f"{producer.name}: it must be known which columns it gives, to be tracked")
    problem = tracked.problem(schema)
    if problem is not None:
        raise FlowError(f"{producer.kind} {producer.name}: {problem}")
    return replace(tracked, label=tracked.type_in(schema))


def without_agent(graph: Graph) -> Graph:
    """As it was before: to be laid out in another way."""

    def before(arrow: Input) -> Input:
        return arrow if arrow.of is None else Input(*arrow.of, Rebalance(), tracked=arrow.tracked)

    nodes = [node for node in graph.nodes if node.name != AGENT]
    return Graph(
        graph.name,
        tuple(replace(n, inputs=tuple(before(arrow) for arrow in n.inputs if not arrow.notices)) for n in nodes),
    )


def _one(graph: Graph, asked: list[Tracked]) -> Tracked:
    common = {replace(each, is_firm=False, starts=False) for each in asked}
    if len(common) > 1:
        ways = ("by", "ends", "consistent", "agents", "flush_s", "slack_s")
        differ = [way for way in ways if len({getattr(each, way) for each in common}) > 1]
        by = " and ".join(sorted(each.name for each in common))
        found = [f"by={by}" if way == "by" else f"{way}=" for way in differ]
        raise FlowError(
            f"flow {graph.name} is tracked in different ways: streams differ in {', '.join(found)}; one flow has one "
            f"way to tell substreams and their ends: say the same of all tracked streams, "
            f"with the same function object where it is a function: two lambdas are two, even of the same words"
        )
    return next(iter(common))


def _merged_apart(graph: Graph) -> Graph:
    """What merges does so in a task before: a reader that is told of ends has one inbox for all that it hears."""
    nodes: list[Node] = []
    for node in graph.nodes:
        asked = [arrow.tracked for arrow in node.inputs if arrow.tracked is not None]
        if asked and all(arrow.ordering is not None for arrow in node.inputs) and not isinstance(node.behaviour, Ends):
            name, arrows = _merged(node), tuple(replace(arrow, tracked=None) for arrow in node.inputs)
            if any(each.name == name for each in graph.nodes):
                raise FlowError(f"stage {name}: what {node.name} reads is merged by a stage of this name; rename it")
            schema = graph.node(arrows[0].node).schema_of(arrows[0].output)
            nodes.append(Node(name, node.parallelism, arrows, behaviour=Identity(), schema=schema))
            is_firm, starts = any(each.is_firm for each in asked), any(each.starts for each in asked)
            node = replace(
                node, inputs=(Input(name, "", Forward(), tracked=replace(asked[0], is_firm=is_firm, starts=starts)),)
            )
        nodes.append(node)
    return Graph(graph.name, tuple(nodes))


def _merged(reader: Node) -> str:
    return f"{reader.name}-merged"


def read_by(graph: Graph, reader: Node, arrow: Input) -> list[tuple[str, str]]:
    """What a reader reads by an arrow, with its output: where that is merged before it, what is merged."""
    giver = graph.node(arrow.node)
    is_merged = giver.name == _merged(reader) and isinstance(giver.behaviour, Identity)
    arrows = [each for each in giver.inputs if each.ordering is not None] if is_merged else []
    return [(each.node, each.output) for each in arrows or [arrow]]


def _with_points(graph: Graph, told: pa.Schema) -> tuple[Graph, list[str]]:
    """Readers hear the agent, and streams of ends read nothing else."""
    nodes, outputs = [], []
    for node in graph.nodes:
        if any(arrow.tracked for arrow in node.inputs):
            outputs.append(node.name)
            arrow = Input(AGENT, node.name, Broadcast(), notices=True)
            if isinstance(node.behaviour, Ends):
                asked = node.inputs[0]
                node = replace(node, inputs=(replace(arrow, tracked=asked.tracked, of=(asked.node, asked.output)),))
                node = replace(node, inputs=(replace(node.inputs[0], route=Rebalance(), notices=False),))
            else:
                node = replace(node, inputs=(*node.inputs, arrow))
        nodes.append(node)
    return Graph(graph.name, tuple(nodes)), outputs


def head_of(graph: Graph, node: Node) -> str:
    """The first node of the vertex that this one is in."""
    while len(node.inputs) == 1 and is_fused(node.inputs[0]):
        node = graph.node(node.inputs[0].node)
    return node.name


def is_fused(arrow: Input) -> bool:
    return isinstance(arrow.route, Forward) and not arrow.back and arrow.ordering is None


def _region(graph: Graph, heads: Mapping[str, str]) -> list[str]:
    """The heads of all vertices from which something tracked can be reached."""
    waiting = [node.name for node in graph.nodes if any(a.tracked for a in node.inputs) and not _is_ends(node)]
    waiting += [arrow.of[0] for node in graph.nodes for arrow in node.inputs if arrow.of is not None]

    def before(head: str) -> list[str]:
        arrows = [arrow for arrow in graph.node(head).inputs if not arrow.notices and arrow.node != AGENT]
        return [heads[arrow.node] for arrow in arrows]

    found = reached([heads[name] for name in waiting], before)
    for name in found:
        for node in graph.nodes:
            if heads[node.name] == name and _is_ends(node):
                raise FlowError(f"stage {node.name} gives ends of substreams, which are not tracked themselves")
    return [node.name for node in graph.nodes if node.name in found]


def _is_ends(node: Node) -> bool:
    return isinstance(node.behaviour, Ends)


def _after_ends(graph: Graph) -> set[str]:
    found = {node.name for node in graph.nodes if _is_ends(node)}
    grows = True
    while grows:
        more = {node.name for node in graph.nodes if any(a.node in found for a in node.inputs)} - found
        grows = bool(more)
        found |= more
    return found


def _check_region(graph: Graph, region: Iterable[str], heads: Mapping[str, str], tracked: Tracked) -> None:
    """All that is on the way within the region must be told apart."""
    inside = set(region)
    ways = [
        (node, arrow)
        for node in graph.nodes
        for arrow in node.inputs
        if node.name in inside and not arrow.notices and heads.get(arrow.node) in inside
    ]
    for node, arrow in ways:
        producer = graph.node(arrow.node)
        given = producer.schema_of(arrow.output)
        problem = tracked.problem(given)
        if problem is not None:
            raise FlowError(
                f"{producer.kind} {producer.name} is before something that is tracked: {problem}; let what it "
                f"gives to {node.name} keep what tells substreams apart, as it is"
            )
    ends = [arrow.of for node in graph.nodes for arrow in node.inputs if arrow.of is not None]
    for name, output in [*((arrow.node, arrow.output) for _, arrow in ways), *ends]:
        if graph.node(heads[name]).source is not None:
            _check_told(graph, name, output, tracked)


def _check_told(graph: Graph, name: str, output: str, tracked: Tracked) -> None:
    """A source, or one of the stages from it to here, must tell records apart, and which of them close."""
    last = producer = graph.node(name)
    given = producer.schema_of(output)
    while not tells(producer.schema_of(output), tracked):
        if producer.source is not None:
            problem = None if given is None else tracked.problem(given) or tracked.closes_problem(given)
            raise FlowError(f"{last.kind} {last.name}: {problem or 'it must be known which columns it gives'}")
        arrow = producer.inputs[0]
        producer, output = graph.node(arrow.node), arrow.output


def opens_at(source: Node, tracked: Tracked) -> bool:
    """Can it be told at the source itself what a record belongs to, and what it closes?"""
    return tells(source.schema, tracked)


def tells(schema: pa.Schema | None, tracked: Tracked) -> bool:
    """Can records of these columns be told apart, and which of them close?"""
    return schema is not None and tracked.problem(schema) is None and tracked.closes_problem(schema) is None
