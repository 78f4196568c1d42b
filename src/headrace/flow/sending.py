"""What a task sends: records by their routes, numbered on every channel, and the frames that are to be appended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from headrace.flow.carrying import Carrying
from headrace.flow.pieces import cut
from headrace.flow.plan import Edge, Plan, TaskPlan
from headrace.flow.regions import AGENT, GONE
from headrace.flow.routing import split
from headrace.flow.tracked import TaskTracking
from headrace.model import frames
from headrace.order import columns


class Sending:
    """Of one task."""

    def __init__(self, plan: Plan, task: TaskPlan, order: Carrying | None, tracking: TaskTracking | None):
        self._index, self._order, self._tracking = task.index, order, tracking
        self.edges = plan.edges_from(task.vertex)
        self._queues = {
            (edge.number, consumer): plan.queue_of(edge, task.index, consumer)
            for edge in self.edges
            for consumer in edge.route.reaches(edge.place(task.index))
        }
        region = plan.region
        passing = frozenset() if region is None else region.passing
        # Who passes records on remembers no substreams.
        self._unheard = {
            e.number for e in self.edges if (e.vertex, e.output) == (AGENT, GONE) and e.consumer in passing
        }
        self._edge_of = {edge.number: edge for edge in self.edges}
        self._giver = {edge.number: f"{plan.graph.node(edge.node).kind} {edge.node}" for edge in self.edges}
        """As errors name it."""
        self.edges_of: dict[tuple[str, str], list[Edge]] = {}
        """By node and output."""
        for edge in self.edges:
            self.edges_of.setdefault((edge.node, edge.output), []).append(edge)
        self.sent: dict[int, int] = {}
        self.routed: dict[int, int] = {}
        self.records = 0
        self._out: dict[str, list[bytes]] = {}

    def taken(self) -> dict[str, list[bytes]]:
        """What is to be appended to each queue; it is the caller's now."""
        out, self._out = self._out, {}
        return out

    def put(self, queue: str, frame: bytes) -> None:
        self._out.setdefault(queue, []).append(frame)

    def beat(self) -> None:
        """How far the task has come, to all that the order is carried to."""
        for place, frame in self._order.beats(self.sent) if self._order is not None else ():
            self.put(self._queues[place], frame)

    def pulse(self, number: int) -> None:
        """A beat, to all that the task can send to: it has its place among the records."""
        self._put_on_all(lambda channel, first: frames.control(channel, first, {"beat": number}))

    def route(self, edge: Edge, batch: pa.RecordBatch) -> None:
        if edge.number in self._unheard:
            return
        before = self.routed.get(edge.number, 0)
        self.routed[edge.number] = before + batch.num_rows
        self.records += batch.num_rows
        if self._order is not None and not self._order.is_carried_on(edge):
            batch = columns.without(batch)
        if self._tracking is not None:
            self._tracking.leaves(edge, batch)
        for consumer, part in split(edge.route, batch, before, edge.place(self._index)):
            channel = edge.channel(self._index, consumer)
            if self._tracking is not None:
                part = self._tracking.sent(edge, channel, self.sent.get(channel, 0), part)
            self._emit(self._queues[edge.number, consumer], channel, part, self._giver[edge.number])

    def _emit(self, queue: str, channel: int, batch: pa.RecordBatch, giver: str) -> None:
        for part in cut(batch, giver):
            first = self.sent.get(channel, 0)
            self.sent[channel] = first + part.num_rows
            self.put(queue, frames.encode(frames.data(channel, first, part)))

    def end(self, but_agents: bool = False) -> None:
        """Every channel. `but_agents`: those to agents are counted, and their ends follow with `end_agents`."""
        self._put_on_all(frames.end, but_agents)

    def end_agents(self) -> None:
        """It does no harm where they have ended before: the number is the same."""
        for edge, queue, channel in self._channels():
            if edge.consumer == AGENT:
                self.put(queue, frames.encode(frames.end(channel, self.sent[channel] - 1)))

    def _put_on_all(self, frame: Callable[[int, int], frames.Frame], but_agents: bool = False) -> None:
        for edge, queue, channel in self._channels():
            first = self.sent.get(channel, 0)
            self.sent[channel] = first + 1
            if not (but_agents and edge.consumer == AGENT):
                self.put(queue, frames.encode(frame(channel, first)))

    def _channels(self) -> Iterator[tuple[Edge, str, int]]:
        """With the queue that each is in."""
        for (number, consumer), queue in self._queues.items():
            edge = self._edge_of[number]
            yield edge, queue, edge.channel(self._index, consumer)
