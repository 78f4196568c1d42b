"""What a task gives to its sinks: records, numbered by sink."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import pyarrow as pa

from headrace.flow.effects import Deliver, Effect
from headrace.flow.graph import Graph, Node
from headrace.flow.pieces import cut
from headrace.flow.plan import TaskPlan
from headrace.flow.queue_ends import QueueEnd, outside
from headrace.flow.sending import Sending
from headrace.model import frames


class Delivering:
    """Of one task, or of a copy of it. A queue outside is written to like any other."""

    def __init__(self, graph: Graph, task: TaskPlan, name: str, sending: Sending):
        self._task, self._name, self._sending = task, name, sending
        queues = {each: graph.node(each).sink for each in task.vertex.nodes}
        self._outside = {each: sink.name for each, sink in queues.items() if isinstance(sink, QueueEnd)}
        self._flow = graph.name
        self.delivered: dict[str, int] = {}
        self._effects: list[Effect] = []

    def deliver(self, node: Node, batch: pa.RecordBatch) -> None:
        first = self.delivered.get(node.name, 0)
        self.delivered[node.name] = first + batch.num_rows
        self._sending.records += batch.num_rows
        if node.name in self._outside:
            for part in cut(batch, f"sink {node.name}"):
                frame = frames.data(self._channel(node.name), first, part)
                self._sending.put(outside(self._outside[node.name]), frames.encode(frame))
                first += part.num_rows
        else:
            self._effects.append(Deliver(self._name, node.name, first, batch))

    @property
    def channels(self) -> Mapping[int, str]:
        """To queues outside, with the sinks that write to them."""
        return {self._channel(name): name for name in self._outside}

    def _channel(self, sink: str) -> int:
        """Other sinks, and other flows, may write to the same queue."""
        return zlib.crc32(f"{self._flow}.{sink}.{self._task.index}".encode())

    def end(self) -> None:
        for name, queue in self._outside.items():
            last = frames.end(self._channel(name), self.delivered.get(name, 0))
            self._sending.put(outside(queue), frames.encode(last))

    def taken(self) -> list[Effect]:
        """What is to be given to sinks; it is the caller's now."""
        effects, self._effects = self._effects, []
        return effects
