"""From a graph to tasks, channels and queues.

Stages that nothing stands between run as one: a *vertex*, a tree of nodes joined by forward arrows. A vertex has as
many tasks as its nodes have parallelism. Each task that does not begin with a source reads one queue, its *inbox*,
which all its producers append to: so the order in which it takes their records is decided once, by the queue, and a
task that starts again from a commit does again just what it did. A task whose input is ordered reads a queue for each
sender instead, and the order is that of the source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from headrace.errors import FlowError
from headrace.flow.charging import Region, region_of
from headrace.flow.graph import Graph, Node, Ordering
from headrace.flow.ordered import Carried, carried
from headrace.flow.queue_ends import QueueEnd, outside
from headrace.flow.regions import AGENT, GONE, head_of
from headrace.flow.routing import Place, Route
from headrace.order.paths import Hop, TaskPaths

_MOST_PATHS: Final = 50_000
TRACKING: Final = "what is tracked"
"""In the layout; flows that were begun before it was written there have none."""


@dataclass(frozen=True)
class Edge:
    """An arrow between two vertices: numbered, and with a channel for each pair of tasks that it joins."""

    number: int
    node: str
    output: str
    vertex: str
    consumer: str
    route: Route
    back: bool
    producers: int
    consumers: int
    first_channel: int
    ordering: Ordering | None = None
    widths: tuple[int, ...] = ()
    """Where it is ordered: how many data paths lead through each producer."""
    notices: bool = False
    """To a tracker or from it."""

    def channel(self, producer: int, consumer: int) -> int:
        return self.first_channel + producer * self.consumers + consumer

    def place(self, producer: int) -> Place:
        return Place(producer, self.producers, self.consumers)


@dataclass(frozen=True)
class Vertex:
    """Nodes that run as one, the first of them at their root."""

    name: str
    parallelism: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class PathsIn:
    """The data paths that end at a task and lead through one producer: what comes has a queue of its own."""

    queue: str
    channel: int
    producer: str
    paths: int

    def __str__(self) -> str:
        paths = "the path" if self.paths == 1 else f"the {self.paths} paths"
        return f"{paths} through {self.producer} (queue {self.queue})"


@dataclass(frozen=True)
class TaskPlan:
    """One task of a vertex."""

    name: str
    vertex: Vertex
    index: int
    inbox: str | None
    """The queue it reads; None where it begins with a source, or merges and nothing else."""
    channels: tuple[int, ...]
    """What its producers send on; empty for a queue from outside, where there may be any."""
    back_channels: tuple[int, ...]
    blocking: tuple[str, ...]
    """The queues that must have room before it takes more."""
    merges: tuple[PathsIn, ...] = ()
    """What it merges, where its input is ordered."""
    pooled: tuple[str, ...] = ()
    """Queues of which one must have room before it takes more: a merge may be waiting for what comes next there."""
    notices: tuple[int, ...] = ()
    """The channels on which a tracker speaks to it."""
    agreed: tuple[PathsIn, ...] = ()
    """What it reads, a queue for each sender, where its copies agree on the order in turns or by a leader."""
    order_log: str | None = None
    """Where the leader among its copies writes the order."""
    takes_beats: bool = False
    """Do beats come in here, to be sent on by all?"""

    @cached_property
    def inboxes(self) -> tuple[str, ...]:
        logs = [queue for queue in (self.inbox, self.order_log) if queue is not None]
        return (*(each.queue for each in (*self.merges, *self.agreed)), *logs)


@dataclass(frozen=True)
class Plan:
    """What runs."""

    graph: Graph
    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]

    @cached_property
    def tasks(self) -> dict[str, TaskPlan]:
        return {
            task.name: task
            for vertex in self.vertices
            for task in (self._task(vertex, index) for index in range(vertex.parallelism))
        }

    def _task(self, vertex: Vertex, index: int) -> TaskPlan:
        head = self.graph.node(vertex.name)
        own = [edge for edge in self.edges if edge.consumer == vertex.name]
        reaching = [
            (edge, edge.channel(producer, index))
            for edge in own
            for producer in range(edge.producers)
            if index in edge.route.reaches(edge.place(producer))
        ]
        merges = self._senders([edge for edge in own if edge.ordering is not None], index)
        agreed = self._senders(own, index) if self._agrees(vertex.name) else ()
        # A tracker never waits for those that wait for it.
        outputs = [
            edge for edge in self.edges_from(vertex) if not edge.back and not (edge.notices and vertex.name == AGENT)
        ]
        own_queues = [edge for edge in outputs if edge.ordering is not None or self._agrees(edge.consumer)]
        blocking = [queue for edge in outputs if edge not in own_queues for queue in self._queues_of(edge, index)]
        pooled = [queue for edge in own_queues for queue in self._queues_of(edge, index)]
        sinks = [self.graph.node(name).sink for name in vertex.nodes]
        blocking += [outside(sink.name) for sink in sinks if isinstance(sink, QueueEnd)]
        is_told = any(edge.notices for edge in own)
        inbox: str | None = None if agreed or (merges and not is_told) else self.inbox(vertex.name, index)
        if head.source is not None:
            inbox = outside(head.source.name) if isinstance(head.source, QueueEnd) else None
        return TaskPlan(
            f"{vertex.name}.{index}",
            vertex,
            index,
            inbox,
            tuple(channel for _, channel in reaching),
            tuple(channel for edge, channel in reaching if edge.back),
            tuple(dict.fromkeys(blocking)),
            merges,
            tuple(pooled),
            tuple(channel for edge, channel in reaching if edge.notices and edge.vertex == AGENT),
            agreed,
            f"{self.graph.name}.order.{vertex.name}.{index}" if agreed and self.graph.agreement == "leader" else None,
            self.graph.agreement == "round-robin" and bool(own) and not agreed,
        )

    def _agrees(self, vertex: str) -> bool:
        """Do the copies of its tasks read a queue for each sender, and agree on the order?

        Where a source sends to a task, its records and the beats are mixed in one queue, once for all copies.
        """
        own = [edge for edge in self.edges if edge.consumer == vertex]
        if self.graph.agreement == "round-robin":
            return bool(own) and not any(self.graph.node(edge.vertex).source is not None for edge in own)
        return self.graph.agreement in ("leader", "arrival") and sum(edge.producers for edge in own) > 1

    def _senders(self, edges: list[Edge], index: int) -> tuple[PathsIn, ...]:
        return tuple(
            PathsIn(
                self.queue_of(edge, producer, index),
                edge.channel(producer, index),
                f"{edge.vertex}.{producer}",
                edge.widths[producer] if edge.widths else 1,
            )
            for edge in edges
            for producer in range(edge.producers)
            if index in edge.route.reaches(edge.place(producer))
        )

    def queue_of(self, edge: Edge, producer: int, consumer: int) -> str:
        """What a task appends to by an edge."""
        inbox = self.inbox(edge.consumer, consumer)
        has_own = edge.ordering is not None or self._agrees(edge.consumer)
        return f"{inbox}.{edge.number}.{producer}" if has_own else inbox

    def _queues_of(self, edge: Edge, producer: int) -> list[str]:
        return [self.queue_of(edge, producer, consumer) for consumer in edge.route.reaches(edge.place(producer))]

    @cached_property
    def carried(self) -> Carried:
        return carried(self.graph)

    @cached_property
    def paths(self) -> dict[str, TaskPaths]:
        """The data paths that lead to each task, where the order of the source is carried."""
        return _paths(self.vertices, self.edges)

    @cached_property
    def region(self) -> Region | None:
        """What is tracked."""
        return region_of(self)

    @cached_property
    def agents(self) -> list[str]:
        """The inboxes of the tasks of the tracker."""
        return [task.inboxes[0] for task in self.tasks.values() if task.vertex.name == AGENT]

    @cached_property
    def shares(self) -> dict[str, int]:
        """For each queue of a task that merges, how many of them it reads."""
        return {
            each.queue: len(senders)
            for task in self.tasks.values()
            for senders in (task.merges, task.agreed)
            for each in senders
        }

    @property
    def beats(self) -> str | None:
        """The queue of the pulse that goes through all tasks, where copies take inputs in turns."""
        return f"{self.graph.name}.beats" if self.graph.agreement == "round-robin" else None

    def inbox(self, vertex: str, index: int) -> str:
        return f"{self.graph.name}.in.{vertex}.{index}"

    def synced_with(self, task: TaskPlan) -> list[str]:
        """The queues that a commit of a task makes safe first: its own, and those whose order it depends on."""
        own = task.inboxes
        outputs = [queue for edge in self.edges_from(task.vertex) for queue in self._queues_of(edge, task.index)]
        sinks = [self.graph.node(name).sink for name in task.vertex.nodes]
        ends = [outside(sink.name) for sink in sinks if isinstance(sink, QueueEnd)]
        return list(dict.fromkeys([*own, *outputs, *ends, *self._orders_before(task)]))

    def _orders_before(self, task: TaskPlan) -> list[str]:
        """The inboxes, of the task and of all before it, in which the order of several senders was decided; and the
        queues of merges that do not wait for ever, in which it was decided what to wait for.

        What the task has done depends on these decisions, and they must outlast it.
        """
        seen: set[str] = set()
        # What others have sent to the same queues is made safe with it, and came of orders of their own.
        sent_to = {edge.consumer for edge in self.edges_from(task.vertex)}
        waiting = [task.vertex.name, *(edge.vertex for edge in self.edges if edge.consumer in sent_to)]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += [edge.vertex for edge in self.edges if edge.consumer == name]
        found = [each for each in self.tasks.values() if each.vertex.name in seen]
        logs = [each.order_log for each in found if each.order_log is not None]
        impatient = {e.consumer for e in self.edges if e.ordering is not None and e.ordering.wait_s is not None}
        logs += [path.queue for each in found if each.vertex.name in impatient for path in each.merges]
        return logs + [
            each.inbox
            for each in found
            if each.inbox is not None and (len(each.channels) != 1 or each.takes_beats or each.vertex.name == AGENT)
        ]

    def producer_of(self, channel: int) -> str:
        """The task that sends on a channel."""
        for edge in self.edges:
            producer = (channel - edge.first_channel) // edge.consumers
            if 0 <= producer < edge.producers:
                return f"{edge.vertex}.{producer}"
        return f"channel {channel}"

    def edges_from(self, vertex: Vertex) -> list[Edge]:
        return [edge for edge in self.edges if edge.vertex == vertex.name]

    def fused(self, name: str) -> list[tuple[Node, str]]:
        """The nodes that run right after a node in the same task, each with the output it reads."""
        vertex = next(vertex for vertex in self.vertices if name in vertex.nodes)
        return [
            (node, arrow.output)
            for node, arrow in self.graph.consumers(name)
            if node.name in vertex.nodes and node.name != vertex.name
        ]

    @cached_property
    def queues(self) -> list[str]:
        """All queues, those of the outside too."""
        found = [queue for task in self.tasks.values() for queue in task.inboxes]
        found += [outside(node.sink.name) for node in self.graph.nodes if isinstance(node.sink, QueueEnd)]
        found += [] if self.beats is None else [self.beats]
        return list(dict.fromkeys(found))

    @cached_property
    def layout(self) -> dict[str, str]:
        """What must not change while state lives, by vertex and edge, in words."""
        found = {
            vertex.name: f"{' + '.join(vertex.nodes)}, parallelism {vertex.parallelism}" for vertex in self.vertices
        }
        for edge in self.edges:
            side = f".{_in_layout(edge)}" if edge.output else ""
            order = "" if edge.ordering is None else f", {edge.ordering}"
            found[f"{edge.node}{side} -> {edge.consumer}"] = f"{edge.route}{order}"
        if self.graph.agreement != "queue":
            found["the order of inputs"] = self.graph.agreement
        # Channels are numbered in the order in which arrows are drawn.
        drawn = [f"{edge.node}{_in_layout(edge)} -> {edge.consumer}" for edge in self.edges]
        found["the order of drawing"] = ", ".join(drawn)
        if self.region is not None:
            found[TRACKING] = self.region.tracked.in_words
        return found

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(repr(sorted(self.layout.items())).encode()).hexdigest()[:16]


def _in_layout(edge: Edge) -> str:
    """Its output, as flows have written it that were begun before it got a name of its own."""
    return "gone" if edge.output == GONE else edge.output


def make_plan(graph: Graph) -> Plan:
    heads = {node.name: head_of(graph, node) for node in graph.nodes}
    vertices = tuple(
        Vertex(node.name, node.parallelism, tuple(each.name for each in graph.nodes if heads[each.name] == node.name))
        for node in graph.nodes
        if heads[node.name] == node.name
    )
    edges: list[Edge] = []
    channels = 0
    for node in graph.nodes:
        for arrow in node.inputs if heads[node.name] == node.name else ():
            producer = graph.node(arrow.node)
            assert arrow.route is not None
            widths: tuple[int, ...] = ()
            if arrow.ordering is not None:
                known = _paths(vertices, edges)
                widths = tuple(known[f"{heads[arrow.node]}.{index}"].count for index in range(producer.parallelism))
                _check_paths(node, sum(widths))
            edge = Edge(
                len(edges),
                arrow.node,
                arrow.output,
                heads[arrow.node],
                node.name,
                arrow.route,
                arrow.back,
                producer.parallelism,
                node.parallelism,
                channels,
                arrow.ordering,
                widths,
                arrow.notices,
            )
            edges.append(edge)
            channels += edge.producers * edge.consumers
    return Plan(graph, vertices, tuple(edges))


def _check_paths(node: Node, count: int) -> None:
    if count > _MOST_PATHS:
        raise FlowError(
            f"{node.kind} {node.name}: {count:,} data paths lead to it, and {_MOST_PATHS:,} are the most; let fewer "
            f"stages share out anew (route=hr.forward(), hr.rescale()), or let one with one task read .ordered() before"
        )


def _paths(vertices: Sequence[Vertex], edges: Sequence[Edge]) -> dict[str, TaskPaths]:
    """In the order of drawing, in which producers come before consumers but for loops, which carry no order."""
    found: dict[str, TaskPaths] = {}
    for vertex in vertices:
        own = [
            edge
            for edge in edges
            if edge.consumer == vertex.name and edge.ordering is None and not edge.back and not edge.notices
        ]
        for index in range(vertex.parallelism):
            hops = tuple(
                Hop(
                    edge.channel(producer, index), f"{edge.vertex}.{producer}", found[f"{edge.vertex}.{producer}"].count
                )
                for edge in own
                for producer in range(edge.producers)
                if index in edge.route.reaches(edge.place(producer))
            )
            found[f"{vertex.name}.{index}"] = TaskPaths(hops)
    return found
