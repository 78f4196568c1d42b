"""What will run, for people: a tree in the terminal, or Mermaid text for a page."""

from __future__ import annotations

from headrace.flow.graph import Graph, Node
from headrace.flow.plan import Edge, Plan, Vertex, make_plan
from headrace.flow.regions import AGENT


def explain(graph: Graph, form: str = "tree") -> str:
    plan = make_plan(graph)
    return _mermaid(plan) if form == "mermaid" else _tree(plan)


def _tree(plan: Plan) -> str:
    queues = len(plan.queues)
    tasks = len(plan.tasks)
    lines = [f"flow {plan.graph.name}: {_count(tasks, 'task')}, {_count(queues, 'queue')}"]
    for vertex in plan.vertices:
        last = vertex is plan.vertices[-1]
        lines.append(f"{'└─' if last else '├─'} {_title(plan, vertex)}")
        indent = "   " if last else "│  "
        arrows = [_arrow(edge) for edge in plan.edges_from(vertex) if not edge.notices]
        details = [*_nodes(plan, vertex), *(_tracking(plan) if vertex.name == AGENT else ()), *arrows]
        lines += [f"{indent}{'└─' if at == len(details) - 1 else '├─'} {text}" for at, text in enumerate(details)]
    return "\n".join(lines)


def _title(plan: Plan, vertex: Vertex) -> str:
    where = "one task" if vertex.parallelism == 1 else f"{vertex.parallelism} tasks"
    return f"{' + '.join(vertex.nodes)}: {where}" + ("" if len(vertex.nodes) == 1 else ", run as one")


def _nodes(plan: Plan, vertex: Vertex) -> list[str]:
    return [_what(plan.graph.node(name)) for name in vertex.nodes]


def _tracking(plan: Plan) -> list[str]:
    """Whom a tracker hears, and whom it tells."""
    region = plan.region
    if region is None:
        return []
    silent = [vertex.name for vertex in plan.vertices if vertex.name in region.passing - region.counted.keys()]
    counted = [vertex.name for vertex in plan.vertices if vertex.name in region.counted]
    hears = [vertex.name for vertex in plan.vertices if vertex.name in region.group_of.keys() - region.passing]
    passed = f"; tokens pass through {', '.join(silent)}" if silent else ""
    passed += f"; counts what comes through {', '.join(counted)}" if counted else ""
    found = [f"hears {', '.join(hears)}{passed}"]
    readers = [vertex.name for vertex in plan.vertices if vertex.name in region.readers]
    firm = [point.name for point in region.tracking.points if point.is_firm]
    order = ", in one order" if region.tracking.consistent else ""
    if readers:
        found.append(f"tells {', '.join(readers)}{order}" + (f"; {', '.join(firm)} waits for ends" if firm else ""))
    return found


def _what(node: Node) -> str:
    if node.source is not None:
        return f"source {node.name}: {type(node.source).__name__}"
    if node.sink is not None:
        return f"sink {node.name}: {type(node.sink).__name__}"
    keeps = ", keeps state" if node.behaviour is not None and node.behaviour.is_stateful else ""
    return f"stage {node.name}: {node.behaviour}{keeps}"


def _arrow(edge: Edge) -> str:
    channels = sum(len(edge.route.reaches(edge.place(producer))) for producer in range(edge.producers))
    side = f" (side output {edge.output})" if edge.output else ""
    back = ", back to the start of the loop" if edge.back else ""
    if edge.ordering is not None:
        places = [edge.place(producer) for producer in range(edge.producers)]
        paths = sum(len(edge.route.reaches(place)) * width for place, width in zip(places, edge.widths, strict=True))
        counts = f"{_count(channels, 'channel')}, {_count(paths, 'path')}"
        return f"to {edge.consumer}{side} by {edge.route}, {edge.ordering}: {counts}"
    return f"to {edge.consumer}{side} by {edge.route}: {_count(channels, 'channel')}{back}"


def _mermaid(plan: Plan) -> str:
    lines = ["flowchart LR"]
    for vertex in plan.vertices:
        times = f", {vertex.parallelism} tasks" if vertex.parallelism > 1 else ""
        lines.append(f'  {_id(vertex.name)}["{" + ".join(vertex.nodes)}{times}"]')
    for edge in plan.edges:
        if edge.notices:
            continue
        label = f"{edge.output}: {edge.route}" if edge.output else str(edge.route)
        arrow = "-.->" if edge.back else "-->"
        lines.append(f'  {_id(edge.vertex)} {arrow}|"{label}"| {_id(edge.consumer)}')
    return "\n".join(lines)


def _id(name: str) -> str:
    # `end` and the like mean something to Mermaid.
    return f"n_{name.replace('-', '_')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
