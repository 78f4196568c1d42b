"""A flow run in one thread, one task a stage, with no queue that outlives it: the oracle."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.effects import Append, Deliver, Effect
from headrace.flow.graph import Graph, Input, Node
from headrace.flow.io import Opening
from headrace.flow.operators import empty
from headrace.flow.plan import make_plan
from headrace.flow.queue_ends import QueueEnd, outside
from headrace.flow.regions import with_agent, without_agent
from headrace.flow.routing import Forward, Rebalance, Route
from headrace.flow.task import Task
from headrace.flow.tracked import report_frames
from headrace.model import frames
from headrace.queues.protocol import Entry


def run_sequentially(graph: Graph, most_records: int = 1000) -> dict[str, pa.Table]:
    """What each sink gets, by its name. Sinks themselves are not touched."""
    run = InOneThread(alone(graph))
    for task in run.tasks.values():
        if task.is_source:
            run.read(task, most_records)
    run.end()
    return {node.name: run.table(node) for node in graph.nodes if node.sink is not None}


class InOneThread:
    """The tasks of a flow, one after the other."""

    def __init__(self, graph: Graph):
        plan = self._plan = make_plan(graph)
        self.tasks = {name: Task(plan, task) for name, task in plan.tasks.items()}
        self._graph = graph
        self._inboxes: dict[str, deque[bytes]] = {queue: deque() for queue in plan.queues}
        self._received: dict[str, list[pa.RecordBatch]] = {}

    def _act(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self._inboxes[effect.queue] += effect.frames
            elif isinstance(effect, Deliver):
                self._received.setdefault(effect.node, []).append(effect.batch)

    def _settle(self) -> None:
        """In the order of the graph, until nothing moves."""
        moving = True
        while moving:
            moving = self._reported()
            for task in self.tasks.values():
                for queue in task.plan.inboxes:
                    waiting = self._inboxes.get(queue, deque())
                    while waiting:
                        moving = True
                        entries = [Entry(queue, waiting.popleft(), 0)]
                        is_path = task.plan.merges and queue != task.plan.inbox
                        self._act(task.take_path(queue, entries) if is_path else task.take(entries))

    def _reported(self) -> bool:
        """What tasks have to say of substreams."""
        found = [t for t in self.tasks.values() if t.tracking is not None and (t.owes_end or not t.finished)]
        said = [task.tracking.said() for task in found if task.tracking is not None and task.tracking.table.is_due]
        for queue, frame in report_frames(self._plan, said, is_asked=True) if said else ():
            self._inboxes[queue].append(frame)
        ending = [task for task in found if task.owes_end]
        for task in ending:
            self._act(task.end_reports())
        return bool(said or ending)

    def read(self, task: Task, most_records: int) -> None:
        source = self._graph.node(task.plan.vertex.name).source
        assert source is not None
        opening = Opening(self._graph.name, task.plan.name, task.plan.index, task.plan.vertex.parallelism, 0)
        reader = source.open(opening, None)
        while not task.source_ended:
            feed = reader.poll(most_records)
            if feed is not None:
                self._act(task.feed(feed))
                self._settle()
        reader.close()

    def end(self) -> None:
        """When nothing moves any more, loops end, one after the other."""
        self._settle()
        while not all(task.finished for task in self.tasks.values()):
            before = [task.finished for task in self.tasks.values()]
            for task in self.tasks.values():
                self._act(task.end_loops())
            self._settle()
            if before == [task.finished for task in self.tasks.values()]:
                raise FlowError(f"flow {self._graph.name}: it has no end; a sequential run needs sources that end")

    def table(self, sink: Node) -> pa.Table:
        batches = self._received.get(sink.name, [])
        if isinstance(sink.sink, QueueEnd):
            decoded = [frames.decode(frame).batch for frame in self._inboxes[outside(sink.sink.name)]]
            batches = [batch for batch in decoded if batch is not None]
        arrow = sink.inputs[0]
        schema = self._graph.node(arrow.node).schema_of(arrow.output)
        return pa.Table.from_batches(batches or [empty(schema)])


def alone(graph: Graph) -> Graph:
    """The same flow with one task a stage; sources that have splits keep them, and so does all before a stage that
    counts its tasks.

    Where there is one source task, all is in its order, and nothing need be ordered.
    """
    # What runs as one is another matter then, and so is what reports to an agent.
    graph = without_agent(graph)
    counted = _counted(graph)

    def count(node: Any) -> int:
        has_splits = node.source is not None and node.source.splits() is not None
        return node.parallelism if has_splits or node.name in counted else 1

    counts = {node.name: count(node) for node in graph.nodes}

    def route(found: Route | None, producer: str, consumer: str) -> Route | None:
        fits = not isinstance(found, Forward) or counts[producer] == counts[consumer]
        return found if fits else Rebalance()

    is_one = sum(counts[node.name] for node in graph.nodes if node.source is not None) == 1

    def drawn(arrow: Input, node: Node) -> Input:
        ordering = None if is_one else arrow.ordering
        return replace(arrow, route=route(arrow.route, arrow.node, node.name), ordering=ordering)

    return with_agent(
        Graph(
            graph.name,
            tuple(
                replace(node, parallelism=counts[node.name], inputs=tuple(drawn(arrow, node) for arrow in node.inputs))
                for node in graph.nodes
            ),
        )
    )


def _counted(graph: Graph) -> set[str]:
    """The stages that count their tasks, and all before them."""
    edge = [node for node in graph.nodes if node.behaviour is not None and node.behaviour.counts_tasks]
    found: set[str] = set()
    while edge:
        node = edge.pop()
        if node.name not in found:
            found.add(node.name)
            edge += [graph.node(arrow.node) for arrow in node.inputs]
    return found
