"""What the tasks of a region report on: records on the way to a task are charged to the group of points that the task
leads to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.flow.graph import reached
from headrace.flow.regions import AGENT, GONE, AgentStage, opens_at, read_by
from headrace.flow.routing import Broadcast
from headrace.flow.substreams import Tracked
from headrace.track.terms import Mode, Point, Tracking

if TYPE_CHECKING:
    from headrace.flow.plan import Plan, Vertex


@dataclass(frozen=True)
class Region:
    """What a plan says of its region."""

    tracking: Tracking
    tracked: Tracked
    group_of: Mapping[str, int]
    """By vertex: what records on the way to it are charged to."""
    held_group_of: Mapping[str, int]
    """By vertex: what it holds back is charged to; -1 where nobody is told of what it gives."""
    readers: Mapping[str, int]
    """By vertex: the number of its point."""
    number_of: Mapping[str, int]
    """By task: the number under which it reports."""
    waits_for_itself: frozenset[str]
    """Readers in a loop: what they hold would keep their own ends from them."""
    passing: frozenset[str]
    """Vertices that give one record for each, to one other: a record keeps its token, and they have nothing to tell."""
    counted: Mapping[str, int]
    """Those of them to which all comes from sources, and what that is charged to. What sources gave of a substream is
    known when they promise its end; so it is enough that as many records come out, and none needs a token."""

    def at(self, task: str) -> Region:
        """As one task has it: what functions of the user raise there is told with its name."""
        return replace(self, tracked=replace(self.tracked, task=task))


def region_of(plan: Plan) -> Region | None:
    if not any(node.name == AGENT for node in plan.graph.nodes):
        return None
    stage = plan.graph.node(AGENT).behaviour
    assert isinstance(stage, AgentStage)
    vertices = [edge.vertex for edge in plan.edges if edge.consumer == AGENT]
    names, targets, own = _points(plan)
    follows, leads = _ways(plan, vertices, targets)
    held = {
        name: frozenset().union(*(leads[n] for n in follows[name]), [k for k, of in enumerate(own) if of == name])
        for name in vertices
    }
    # A reader in a loop leads to itself: its own end does not wait for what it has yet to give at that end.
    readers = {name: k for k, name in enumerate(names) if own[k] is None}
    looping = frozenset(name for name, k in readers.items() if k in held[name])
    held = {name: each - {readers[name]} if name in looping else each for name, each in held.items()}
    # Where any stage may begin a substream, one that gives one record for each may do so, too.
    mode = stage.tracked.ends.mode
    passing = {n for n in vertices if mode != Mode.WHENEVER and _is_passing(plan, n, follows[n], leads)}
    tasks = [task for task in plan.tasks.values() if task.vertex.name in vertices]
    sources = tuple(n for n, task in enumerate(tasks) if plan.graph.node(task.vertex.name).source is not None)
    inexact = [n for n in sources if not _is_exact(plan, tasks[n].vertex, stage.tracked)]
    # Where one of several source tasks promises for all, the others may not have told yet what they gave.
    counted = _counted(plan, passing) if mode != Mode.MARKER or len(sources) == 1 else []
    groups = {e: number for number, e in enumerate(dict.fromkeys([*leads.values(), *filter(None, held.values())]))}
    counting = {each: len(groups) + number for number, each in enumerate(dict.fromkeys(leads[n] for n in counted))}
    charged = [*groups.items(), *counting.items()]
    arrows = {node.name: a.tracked for node in plan.graph.nodes for a in node.inputs if a.tracked is not None}
    points = tuple(
        Point(name, tuple(n for group, n in charged if k in group), how.starts, how.is_firm and own[k] is None)
        for k, (name, how) in enumerate((name, arrows[name]) for name in names)
    )
    tracking = Tracking(
        len(groups) + len(counting), points, tuple(task.name for task in tasks), sources, stage.label, mode,
        # Who holds back what is later must hear of ends in their order.
        stage.tracked.consistent or any(point.is_firm for point in points), frozenset(counting.values()),
        frozenset(inexact),
    )  # fmt: skip
    return Region(
        tracking,
        stage.tracked,
        {name: groups[leads[name]] for name in vertices},
        {name: groups.get(held[name], -1) if held[name] else -1 for name in vertices},
        readers,
        {task.name: number for number, task in enumerate(tasks)},
        looping,
        frozenset(passing),
        {name: counting[leads[name]] for name in vertices if name in counted},
    )


def _is_exact(plan: Plan, vertex: Vertex, tracked: Tracked) -> bool:
    """Is a substream told of first at one of the records that the source gives?

    Not where a stage beside it tells them apart, and may have left some out; nor where one may hold what it names.
    """
    beside = [plan.graph.node(name).behaviour for name in vertex.nodes]
    return opens_at(plan.graph.node(vertex.name), tracked) and not any(each and each.is_stateful for each in beside)


def _ways(
    plan: Plan, vertices: Sequence[str], targets: Sequence[frozenset[str]]
) -> tuple[dict[str, list[str]], dict[str, frozenset[int]]]:
    """What follows each vertex, and the points that it leads to."""
    follows = {
        name: [e.consumer for e in plan.edges if e.vertex == name and e.consumer in vertices and not e.notices]
        for name in vertices
    }
    reach = {name: reached([name], follows.__getitem__) for name in vertices}
    leads = {name: frozenset(k for k, aims in enumerate(targets) if reach[name] & aims) for name in vertices}
    return follows, leads


def _counted(plan: Plan, passing: set[str]) -> list[str]:
    """Passing vertices to which all comes from sources, directly or through each other; in the order of the plan."""
    firm = {node.name for node in plan.graph.nodes for a in node.inputs if a.tracked is not None and a.tracked.is_firm}
    found = {name for name in passing if not any(e.consumer in firm for e in plan.edges if e.vertex == name)}
    is_source = {vertex.name for vertex in plan.vertices if plan.graph.node(vertex.name).source is not None}
    shrinks = True
    while shrinks:
        kept = {
            name
            for name in found
            if all(
                edge.vertex in found or (edge.vertex in is_source and not isinstance(edge.route, Broadcast))
                for edge in plan.edges
                if edge.consumer == name and not edge.notices
            )
            # What comes out of it goes on to another one, or leaves the last one: not both.
            and all(e.consumer in found or e.consumer not in passing for e in plan.edges if e.vertex == name)
        }
        shrinks, found = kept != found, kept
    return [vertex.name for vertex in plan.vertices if vertex.name in found]


def _is_passing(plan: Plan, name: str, follows: list[str], leads: Mapping[str, frozenset[int]]) -> bool:
    edges = [edge for edge in plan.edges if not edge.notices and name in (edge.vertex, edge.consumer)]
    nodes = [plan.graph.node(each) for each in next(v.nodes for v in plan.vertices if v.name == name)]
    return (
        all(node.behaviour is not None and node.behaviour.is_one_to_one and not node.sides for node in nodes)
        and not any(arrow.tracked for node in nodes for arrow in node.inputs)
        and not any(edge.ordering is not None or edge.back for edge in edges)
        and not any(isinstance(edge.route, Broadcast) for edge in edges if edge.vertex == name)
        and len(follows) == 1
        and leads[follows[0]] == leads[name]
        and not plan.carried.nodes & {node.name for node in nodes}
    )


def _points(plan: Plan) -> tuple[list[str], list[frozenset[str]], list[str | None]]:
    """For each point: its name, the vertices that all must have come to, and, of a stream of ends, whose it is."""
    names: list[str] = []
    targets: list[frozenset[str]] = []
    own: list[str | None] = []
    vertex_of = {name: vertex.name for vertex in plan.vertices for name in vertex.nodes}
    for edge in plan.edges:
        if edge.vertex != AGENT or edge.output == GONE:
            continue
        names.append(edge.consumer)
        node = plan.graph.node(edge.output)
        ends = next((arrow.of for arrow in node.inputs if arrow.of is not None), None)
        if ends is None:
            targets.append(frozenset([edge.consumer]))
            own.append(None)
            continue
        readers = [
            each.name
            for each in plan.graph.nodes
            for arrow in each.inputs
            if arrow.tracked and ends in read_by(plan.graph, each, arrow)
        ]
        targets.append(frozenset([vertex_of[ends[0]], *(vertex_of[name] for name in readers)]))
        own.append(vertex_of[ends[0]])
    return names, targets, own
