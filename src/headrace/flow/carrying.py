"""What a task does for the order of its source: numbers records, tells paths apart, and says how far it has come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import FlowError, OrderBroken, QueueDamaged
from headrace.flow.operators import Operator, Outputs, Wrapped
from headrace.flow.ordered import source_numbers
from headrace.flow.plan import Edge, Plan, TaskPlan
from headrace.model import frames
from headrace.model.frames import NO_PROGRESS
from headrace.order import columns
from headrace.order.by_sequence import ALWAYS
from headrace.order.columns import PATH, Children


class Carrying:
    """Of one task in whose vertex records carry the order of their source, or that merges such records."""

    def __init__(self, plan: Plan, task: TaskPlan):
        self._plan, self._task = plan, task
        self.nodes, self.keys = plan.carried.nodes, plan.carried.keys
        self._paths = plan.paths[task.name]
        siblings = [f"{task.vertex.name}.{index}" for index in range(task.vertex.parallelism)]
        self.with_path = any(plan.paths[name].count > 1 for name in siblings)
        self._widths = {hop.channel: hop.paths for hop in self._paths.hops}
        self._firsts = {hop.channel: self._paths.first(hop.channel) for hop in self._paths.hops}
        self.heard: dict[int, int] = dict.fromkeys(self._firsts, NO_PROGRESS)
        """For each channel, the tick up to which all has come, as heartbeats say."""
        self.own = NO_PROGRESS
        """Of a source, or of a task that merges: the tick up to which all has been sent."""
        self.newest = NO_PROGRESS
        """Of a source that is ordered by a column: the last value of it."""
        self.told: dict[int, int] = {}
        self._source = dict(source_numbers(plan.graph, self.nodes)).get(task.vertex.name, 0) + task.index
        self.carries = [edge for edge in plan.edges_from(task.vertex) if self.is_carried_on(edge)]

    def is_carried_on(self, edge: Edge) -> bool:
        return edge.ordering is not None or edge.consumer in self.nodes

    # ---------------------------------------------------------------- records

    def begin(self, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Records of a source, with their numbers from `first` on. Raises OrderBroken where they are out of order."""
        count = batch.num_rows
        values = {columns.SEQUENCE: np.arange(first, first + count, dtype=np.int64)}
        if self.keys.is_relaxed:
            values[columns.TICK] = values[columns.SEQUENCE]
        if self._plan.carried.by is not None:
            values[columns.TICK] = self._ticks(batch.column(self._plan.carried.by))
            values[columns.SOURCE] = np.full(count, self._source)
        if self.keys.has_parts:
            values[columns.PART] = np.zeros(count, np.int64)
        fields = self.keys.fields(with_path=False)
        hidden = pa.record_batch([pa.array(values[field.name]) for field in fields], schema=pa.schema(fields))
        if count:
            # More records may come of the last tick.
            self.own = first + count - 1 if self._plan.carried.by is None else self.newest - 1
        return columns.joined(batch, hidden)

    def _ticks(self, column: pa.Array) -> Any:
        place = f"source {self._task.name}, column {self._plan.carried.by}"
        if column.null_count:
            raise FlowError(f"{place}: a record has none, and is to be ordered by it")
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz), safe=False).view(pa.int64())
        ticks = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        if len(ticks):
            before = np.concatenate([[self.newest], ticks[:-1]])
            back = np.flatnonzero(ticks < before)
            if len(back):
                raise OrderBroken(place, f"{int(ticks[back[0]])} comes after {int(before[back[0]])}")
            self.newest = int(ticks[-1])
        return ticks

    def arrived(self, batch: pa.RecordBatch, channels: Sequence[int], counts: Sequence[int]) -> pa.RecordBatch:
        """Records that came on some channels, so many on each, with the numbers of their paths here."""
        if not self._firsts:
            return batch
        carried = columns.numbers(batch, PATH) if PATH in batch.schema.names else None
        if carried is not None:
            widths = np.repeat([self._widths[channel] for channel in channels], counts)
            wrong = np.flatnonzero((carried < 0) | (carried >= widths))
            if len(wrong):
                raise QueueDamaged(
                    str(self._task.inbox),
                    f"a record of path {carried[wrong[0]]} came, and {widths[wrong[0]]} lead through its producer",
                )
        if not self.with_path:
            return batch.drop_columns([PATH]) if carried is not None else batch
        paths = np.repeat(np.array([self._firsts[channel] for channel in channels], np.int64), counts)
        return columns.with_numbers(batch, PATH, paths if carried is None else paths + carried)

    def check_placed(self, node: str, outputs: Outputs) -> None:
        """Raises FlowError where a stage gives what no record led to, and it would go where all has an order."""
        ordered = {edge.output for edge in self.carries if edge.node == node}
        ordered |= {output for consumer, output in self._plan.fused(node) if consumer.name in self.nodes}
        for output, batch in outputs if node in self.nodes else ():
            if batch.num_rows and output in ordered:
                raise FlowError(
                    f"stage {node} gave {batch.num_rows} records at the start or end of a substream, and what it gives "
                    f"is to be ordered: these have no place among the records of the source; give them to a side "
                    f"output that is not, or let a stage behind the ordered stream be told of ends"
                )

    # --------------------------------------------------------------- progress

    def hear(self, channel: int, progress: int) -> None:
        if channel in self.heard:
            self.heard[channel] = max(self.heard[channel], progress)

    def end(self, channel: int) -> None:
        self.hear(channel, ALWAYS)

    def beats(self, sent: Mapping[int, int]) -> Iterator[tuple[tuple[int, int], bytes]]:
        """What is new of its progress: the edge and the consumer to say it to, and the frame."""
        # In the end something may come still: that it does not, the end of the channel says.
        tick = min(*self.heard.values(), self.own if not self.heard else columns.AFTER_ALL, columns.AFTER_ALL - 1)
        index = self._task.index
        for edge in self.carries:
            for consumer in edge.route.reaches(edge.place(index)):
                channel = edge.channel(index, consumer)
                if tick > self.told.get(channel, NO_PROGRESS):
                    self.told[channel] = tick
                    frame = frames.heartbeat(channel, sent.get(channel, 0), tick)
                    yield (edge.number, consumer), frames.encode(frame)


def numbering(plan: Plan, node: str, operator: Operator) -> Operator:
    """An operator that numbers the children of a record, where there may be several."""
    shift = plan.carried.shift_of(node)
    return operator if shift is None else _Numbering(operator, plan, node, shift)


class _Numbering(Wrapped):
    def __init__(self, inner: Operator, plan: Plan, node: str, shift: int):
        super().__init__(inner)
        self._keys, self._width, self._node, self._shift = plan.carried.keys, plan.carried.width, node, shift
        # In the order of drawing: what a stage gives in the end is after what the stages before it gave in theirs.
        self._last = columns.AFTER_ALL + [each.name for each in plan.graph.nodes].index(node)

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        return self._numbered(self.inner.apply(batch))

    def finish(self) -> Outputs:
        found: Outputs = []
        for output, given in self.inner.finish():
            last = np.full(given.num_rows, self._last, np.int64)
            for name in {self._keys.tick, columns.SEQUENCE}:
                given = columns.with_numbers(given, name, last)
            found.append((output, given))
        return self._numbered(found)

    def _numbered(self, outputs: Outputs) -> Outputs:
        """The children of a record may come in several batches, where some of them go aside."""
        counting: dict[str, Children] = {}
        found: Outputs = []
        for output, given in outputs:
            made = counting.setdefault(output, Children(self._keys, self._shift, self._width, self._node))
            found.append((output, made.numbered(given)))
        return found
