"""A task: one copy of a vertex. Frames or feeds go in, frames and deliveries come out; all it did is in its snapshot.

It reads no clock and no file. What it does depends on its inbox alone, and not on where that is cut: so a task that
starts again from a snapshot sends again just what it sent, under the same numbers, and its receivers slice it off.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.errors import QueueDamaged
from headrace.flow.carrying import Carrying, numbering
from headrace.flow.effects import Append, Deliver, Effect, Snapshot
from headrace.flow.files import Files, FilesInMemory
from headrace.flow.graph import Node
from headrace.flow.io import Feed
from headrace.flow.losses import Loss
from headrace.flow.merging import Merging
from headrace.flow.operators import MAIN, Behaviour, Operator, Outputs, Shape
from headrace.flow.pieces import MOST_RECORDS, copied, cut
from headrace.flow.plan import Edge, Plan, TaskPlan
from headrace.flow.queue_ends import QueueEnd, outside
from headrace.flow.routing import split
from headrace.model import frames
from headrace.model.frames import Frame, Kind
from headrace.order import columns
from headrace.queues.protocol import Entry

_MOST_FILES: Final = 20
_LARGE: Final = 8 << 20
_MOST_OF_LARGE: Final = 500
"""State that takes long to write whole is written whole less often."""


class Task:
    """One task of a plan at work."""

    def __init__(self, plan: Plan, task: TaskPlan, losses: Sequence[Loss] = (), files: Files | None = None):
        """`files`: where its stages keep what is too large for their state, if not in memory."""
        self.plan = task
        self._kept = files if files is not None else FilesInMemory()
        self._losses = losses
        self.is_paused = False
        self.dirty = False
        """Has anything happened since the last snapshot?"""
        self.position = 0
        self.fed: Any = None
        self.source_ended = False
        self.finished = False
        self.next: dict[int, int] = dict.fromkeys(task.channels, 0)
        self.ended: set[int] = set()
        self.sent: dict[int, int] = {}
        self.routed: dict[int, int] = {}
        self.delivered: dict[str, int] = {}
        self.changed = 0
        """The number of the last change that came with its inbox."""
        self.changed_at = 0
        self.records_in = 0
        self.records_out = 0
        self._graph = plan.graph
        self._edges = plan.edges_from(task.vertex)
        self._queues = {
            (edge.number, consumer): plan.queue_of(edge, task.index, consumer)
            for edge in self._edges
            for consumer in edge.route.reaches(edge.place(task.index))
        }
        self._fused = {name: plan.fused(name) for name in task.vertex.nodes}
        self._carried = plan.carried.nodes
        carries = bool(task.merges) or any(name in self._carried for name in task.vertex.nodes)
        self._order = Carrying(plan, task) if carries else None
        waits = [edge.ordering.wait_s for edge in plan.edges if edge.consumer == task.vertex.name and edge.ordering]
        self._merging = Merging(task.merges, plan.carried.keys, losses, waits[0]) if task.merges else None
        self._operators: dict[str, Operator] = {}
        self._files: dict[str, list[tuple[str, int]]] = {}
        for name in task.vertex.nodes:
            node = plan.graph.node(name)
            if node.behaviour is not None:
                outputs = {MAIN: node.schema, **node.sides}
                shape = Shape(name, outputs, self._kept, task.index, task.vertex.parallelism)
                self._operators[name] = self._opened(plan, node.behaviour, shape)
        self._out: dict[str, list[bytes]] = {}
        self._effects: list[Effect] = []

    def _opened(self, plan: Plan, behaviour: Behaviour, shape: Shape) -> Operator:
        if self._order is None or shape.stage not in self._carried:
            return behaviour.open(shape)
        return numbering(plan, shape.stage, behaviour.open_ordered(shape, self._order.keys, self._order.with_path))

    @property
    def is_source(self) -> bool:
        return not self.plan.inboxes

    @property
    def positions(self) -> dict[str, int]:
        """Where it reads on, in each of its queues, after its last snapshot."""
        if self._merging is not None:
            return self._merging.positions
        return {} if self.plan.inbox is None else {self.plan.inbox: self.position}

    def wanted(self) -> Sequence[str]:
        """The queues it would read."""
        return self.plan.inboxes if self._merging is None else self._merging.wanted()

    def reports(self) -> dict[str, Any]:
        """What its stages have to say, by their names."""
        found = {name: operator.report() for name, operator in self._operators.items()}
        if self._merging is not None:
            found["order"] = self._merging.report()
        return {name: report for name, report in found.items() if report is not None}

    # -------------------------------------------------------------------- take

    def take(self, entries: Sequence[Entry]) -> list[Effect]:
        """Frames of the inbox, in their order."""
        run: list[Frame] = []
        rows, is_beating = 0, False
        for entry in entries:
            frame = self._new_part(frames.decode(entry.frame), entry.next)
            self.position = entry.next
            if frame is None:
                continue
            if frame.kind == Kind.HEARTBEAT:
                is_beating = True
                if self._order is not None:
                    self._order.hear(frame.channel, frame.progress)
                continue
            if frame.kind == Kind.DATA and frame.batch is not None:
                if run and run[0].batch.schema != frame.batch.schema:  # type: ignore[union-attr]
                    self._run_frames(run)
                    run, rows = [], 0
                run.append(frame)
                rows += frame.count
                if rows < MOST_RECORDS:
                    continue
            self._run_frames(run)
            run, rows = [], 0
            if frame.kind == Kind.END:
                self.ended.add(frame.channel)
                if self._order is not None:
                    self._order.end(frame.channel)
            elif frame.message is not None and "change" in frame.message:
                self.changed, self.changed_at = frame.message["change"], entry.next
                self._operators[frame.message["stage"]].change(frame.message)
        self._run_frames(run)
        if is_beating:
            self._beat()
        self.dirty = self.dirty or bool(entries)
        if not self.finished and self._all_ended():
            self._finish()
        return self._taken()

    def take_path(self, queue: str, entries: Sequence[Entry]) -> list[Effect]:
        """Frames of a data path, in their order."""
        assert self._merging is not None and self._order is not None  # noqa: PT018
        is_beating = self._merging.take(queue, entries)
        released = self._merging.release()
        if released is not None:
            self._run_head(released)
        self._order.own = self._merging.frontier
        if is_beating:
            self._beat()
        self.next = self._merging.numbers
        self.dirty = self.dirty or bool(entries)
        if not self.finished and self._merging.is_over:
            self._finish()
        return self._taken()

    def beat(self, now_s: float = 0.0) -> list[Effect]:
        """How far a source has come, to all that the order is carried to; of others, once after a restart."""
        for queue, frame in self._merging.hurry(now_s) if self._merging is not None else ():
            self._out.setdefault(queue, []).append(frame)
        if self._order is not None and not self.finished and not (self.plan.channels and self._order.told):
            self._beat()
        return self._taken()

    def _beat(self) -> None:
        for place, frame in self._order.beats(self.sent) if self._order is not None else ():
            self._out.setdefault(self._queues[place], []).append(frame)

    def feed(self, feed: Feed) -> list[Effect]:
        """What the source gave."""
        self.fed = feed.position
        self.dirty = True
        if feed.batch is not None:
            self._run_head(feed.batch)
        if feed.ended:
            self.source_ended = True
            if not self.finished:
                self._finish()
        return self._taken()

    def end_loops(self) -> list[Effect]:
        """Nothing comes back any more, and nothing else comes. One that has finished has nothing more to commit."""
        is_due = not self.finished and bool(self.plan.back_channels)
        if is_due and set(self.plan.channels) - self.ended <= set(self.plan.back_channels):
            self.ended.update(self.plan.back_channels)
            self.dirty = True
            self._finish()
        return self._taken()

    def _new_part(self, frame: Frame, position: int) -> Frame | None:
        """What of a frame has not come before. Raises QueueDamaged where something is missing before it."""
        queue = str(self.plan.inbox)
        if not all(loss.counts(queue, position, frame.stamp) for loss in self._losses):
            return None
        if frame.message is not None and "change" in frame.message:
            return frame if frame.message["change"] > self.changed else None
        expected = self.next.get(frame.channel)
        if expected is None:
            if self.plan.channels:
                raise QueueDamaged(str(self.plan.inbox), f"it has a frame of channel {frame.channel}, which is not its")
            expected = frame.first  # a queue from outside may have lost its beginning: to `truncate`
        if frame.first > expected:
            raise QueueDamaged(
                str(self.plan.inbox),
                f"records {expected} to {frame.first - 1} of channel {frame.channel} are missing; restore the queues "
                f"from a copy, or start the flow anew under another name",
            )
        if frame.kind == Kind.HEARTBEAT:
            return frame
        if frame.end <= expected:
            return None
        self.next[frame.channel] = frame.end
        return frame.since(expected)

    def _all_ended(self) -> bool:
        source = self._graph.node(self.plan.vertex.name).source
        if isinstance(source, QueueEnd):
            return source.producers is not None and len(self.ended) >= source.producers
        return len(self.ended) == len(self.plan.channels)

    # --------------------------------------------------------------------- run

    def _run_frames(self, run: list[Frame]) -> None:
        batches = [frame.batch for frame in run if frame.batch is not None]
        if batches:
            batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            if self._order is not None:
                batch = self._order.arrived(batch, [f.channel for f in run], [b.num_rows for b in batches])
            self._run_head(batch)

    def _run_head(self, batch: pa.RecordBatch) -> None:
        head = self._graph.node(self.plan.vertex.name)
        if self._order is not None and head.source is not None:
            batch = self._order.begin(batch, self.records_in)
        self.records_in += batch.num_rows
        self._run(head, batch)

    def _run(self, node: Node, batch: pa.RecordBatch) -> None:
        if self._order is not None and node.name not in self._carried:
            batch = columns.without(batch)
        if node.sink is not None:
            self._deliver(node, batch)
        elif node.source is not None:
            self._send(node, [(MAIN, batch)])
        else:
            self._send(node, self._operators[node.name].apply(batch))

    def _send(self, node: Node, outputs: Outputs) -> None:
        for output, batch in outputs:
            if not batch.num_rows:
                continue
            for consumer, wanted in self._fused[node.name]:
                if wanted == output:
                    self._run(consumer, batch)
            for edge in self._edges:
                if edge.node == node.name and edge.output == output:
                    self._route(edge, batch)

    def _route(self, edge: Edge, batch: pa.RecordBatch) -> None:
        before = self.routed.get(edge.number, 0)
        self.routed[edge.number] = before + batch.num_rows
        self.records_out += batch.num_rows
        if self._order is not None and not self._order.is_carried_on(edge):
            batch = columns.without(batch)
        for consumer, part in split(edge.route, batch, before, edge.place(self.plan.index)):
            self._emit(self._queues[edge.number, consumer], edge.channel(self.plan.index, consumer), part)

    def _emit(self, queue: str, channel: int, batch: pa.RecordBatch) -> None:
        for part in cut(batch):
            first = self.sent.get(channel, 0)
            self.sent[channel] = first + part.num_rows
            self._out.setdefault(queue, []).append(frames.encode(frames.data(channel, first, part)))

    def _deliver(self, node: Node, batch: pa.RecordBatch) -> None:
        first = self.delivered.get(node.name, 0)
        self.delivered[node.name] = first + batch.num_rows
        self.records_out += batch.num_rows
        if isinstance(node.sink, QueueEnd):
            for part in cut(batch):
                frame = frames.data(self._outside_channel(node.name), first, part)
                self._out.setdefault(outside(node.sink.name), []).append(frames.encode(frame))
                first += part.num_rows
        else:
            self._effects.append(Deliver(self.plan.name, node.name, first, batch))

    def _outside_channel(self, sink: str) -> int:
        """Other sinks, and other flows, may write to the same queue."""
        return zlib.crc32(f"{self._graph.name}.{sink}.{self.plan.index}".encode())

    def _finish(self) -> None:
        """All input has come and gone: each node in turn gives what it still has, then every channel ends."""
        self.finished = True
        for name in self.plan.vertex.nodes:
            if name in self._operators:
                self._send(self._graph.node(name), self._operators[name].finish())
        for (number, consumer), queue in self._queues.items():
            channel = next(each for each in self._edges if each.number == number).channel(self.plan.index, consumer)
            first = self.sent.get(channel, 0)
            self.sent[channel] = first + 1
            self._out.setdefault(queue, []).append(frames.encode(frames.end(channel, first)))
        for name in self.plan.vertex.nodes:
            sink = self._graph.node(name).sink
            if isinstance(sink, QueueEnd):
                last = frames.end(self._outside_channel(name), self.delivered.get(name, 0))
                self._out.setdefault(outside(sink.name), []).append(frames.encode(last))

    def _taken(self) -> list[Effect]:
        effects = [*(Append(queue, parts) for queue, parts in self._out.items()), *self._effects]
        self._out, self._effects = {}, []
        return effects

    # ------------------------------------------------------------------- state

    def snapshot(self, epoch: int, version: int) -> Snapshot:
        """Everything needed to go on after the last frame."""
        new: dict[str, bytes] = {}
        for name, operator in self._operators.items():
            self._snapshot_state(name, operator, f"{epoch:012d}-{version:08d}-{self.plan.name}-{name}", new)
        self.dirty = False
        values = {
            "position": self.position,
            "fed": self.fed,
            "source_ended": self.source_ended,
            "finished": self.finished,
            "next": self.next,
            "ended": sorted(self.ended),
            "sent": self.sent,
            "routed": self.routed,
            "delivered": self.delivered,
            "changed": self.changed,
            "changed_at": self.changed_at,
            "records_in": self.records_in,
            "records_out": self.records_out,
            "files": self._files,
        }
        if self._merging is not None:
            values["merging"] = self._merging.snapshot()
        if self._order is not None:
            values["newest"] = self._order.newest
            values["own"] = self._order.own
            values["heard"] = self._order.heard
        files = tuple(name for parts in self._files.values() for name, _ in parts)
        kept = tuple(name for operator in self._operators.values() for name in operator.named_files())
        self._kept.version = version
        return Snapshot(self.plan.name, epoch, version, copied(values), new, files, kept)

    def _snapshot_state(self, name: str, operator: Operator, file: str, new: dict[str, bytes]) -> None:
        changes = operator.changes()
        if changes is None:
            return
        parts = self._files.setdefault(name, [])
        since = sum(size for _, size in parts[1:]) + len(changes)
        if not parts or since >= parts[0][1] or len(parts) >= (_MOST_FILES if parts[0][1] < _LARGE else _MOST_OF_LARGE):
            changes = operator.content()
            parts.clear()
        parts.append((file, len(changes)))
        new[file] = changes

    def restore(self, values: Mapping[str, Any], read: Callable[[str], bytes]) -> None:
        """From the values of a snapshot, and the files it names."""
        self.position, self.fed = values["position"], values["fed"]
        self.source_ended, self.finished = values["source_ended"], values["finished"]
        self.next = {int(channel): number for channel, number in values["next"].items()}
        self.ended = set(values["ended"])
        self.sent = {int(channel): number for channel, number in values["sent"].items()}
        self.routed = {int(edge): count for edge, count in values["routed"].items()}
        self.delivered = dict(values["delivered"])
        self.changed, self.changed_at = values.get("changed", 0), values.get("changed_at", 0)
        self.records_in, self.records_out = values["records_in"], values["records_out"]
        self._files = {name: [(file, size) for file, size in parts] for name, parts in values["files"].items()}
        if self._merging is not None:
            self._merging.restore(values["merging"])
        if self._order is not None:
            self._order.newest, self._order.own = values["newest"], values["own"]
            self._order.heard = {int(channel): tick for channel, tick in values["heard"].items()}
        for name, parts in self._files.items():
            self._operators[name].restore([read(file) for file, _ in parts])
