"""A task: one copy of a vertex. Frames or feeds go in, frames and deliveries come out; all it did is in its snapshot.

It reads no clock and no file. What it does depends on its inbox alone, and not on where that is cut: so a task that
starts again from a snapshot sends again just what it sent, under the same numbers, and its receivers slice it off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.flow import task_state
from headrace.flow.agents import agent_of
from headrace.flow.agreed import Agreed
from headrace.flow.carrying import Carrying
from headrace.flow.copies import copy_of
from headrace.flow.delivering import Delivering
from headrace.flow.effects import Append, Effect, Snapshot
from headrace.flow.files import Files, FilesInMemory
from headrace.flow.graph import Node
from headrace.flow.io import Feed
from headrace.flow.losses import Loss
from headrace.flow.merging import Merging
from headrace.flow.opening import opened
from headrace.flow.operators import MAIN, Outputs
from headrace.flow.pieces import MOST_RECORDS, in_parts
from headrace.flow.plan import Plan, TaskPlan
from headrace.flow.queue_ends import QueueEnd
from headrace.flow.receiving import Receiving
from headrace.flow.regions import AGENT
from headrace.flow.second_copies import SecondCopies
from headrace.flow.sending import Sending
from headrace.flow.state_files import StateFiles
from headrace.flow.telling import Telling
from headrace.flow.tracked import TaskTracking, report_frames
from headrace.model.frames import Frame, Kind
from headrace.model.progress import PROGRESS
from headrace.order import columns
from headrace.queues.protocol import Entry


class Task:
    """One task of a plan at work."""

    def __init__(
        self,
        plan: Plan,
        task: TaskPlan,
        losses: Sequence[Loss] = (),
        files: Files | None = None,
        name: str | None = None,
        compares: bool = False,
    ):
        """`files`: where its stages keep what is too large for their state, if not in memory. `name`: of a copy.

        `compares`: are there copies of those who send to it, to be held against each other?
        """
        self.plan = task
        self.name = task.name if name is None else name
        self.kept = files if files is not None else FilesInMemory()
        self.dirty = False
        """Has anything happened since the last snapshot?"""
        self.position = 0
        self.fed: Any = None
        self.source_ended = False
        self.finished = False
        second = SecondCopies(plan.producer_of, task.name) if compares and plan.graph.agreement != "arrival" else None
        self.receiving = Receiving(task, losses, second)
        self.ended: set[int] = set()
        self._awaited = frozenset(task.channels) - set(task.notices)
        self.changed = 0
        """The number of the last change that came with its inbox."""
        self.changed_at = 0
        self.records_in = 0
        self.most_rows = MOST_RECORDS
        """Of one call of a stage."""
        self._plan, self._graph = plan, plan.graph
        self._fused = {name: plan.fused(name) for name in task.vertex.nodes}
        self._carried = plan.carried.nodes
        carries = bool(task.merges) or any(name in self._carried for name in task.vertex.nodes)
        self.order = Carrying(plan, task) if carries else None
        waits = [edge.ordering.wait_s for edge in plan.edges if edge.consumer == task.vertex.name and edge.ordering]
        self.merging = Merging(task.merges, plan.carried.keys, losses, waits[0]) if task.merges else None
        region = plan.region if plan.region is not None and task.vertex.name in plan.region.group_of else None
        tracking = None if region is None else TaskTracking(plan, task, region.at(task.name))
        self.tracking = None if tracking is not None and tracking.is_counted else tracking
        self.sending = Sending(plan, task, self.order, self.tracking)
        self.delivering = Delivering(plan.graph, task, self.name, self.sending)
        self.agreed = Agreed(task, plan.graph.agreement, copy_of(self.name), losses, second) if task.agreed else None
        self.pulse = 0
        """The last beat that came with its inbox."""
        self.operators = opened(plan, task, self.kept, self.order, tracking)
        self.files = StateFiles()
        self.telling = Telling(self.tracking, self.operators, self.order) if self.tracking else None
        self.owes_end = False
        """Has it finished, and not told agents so? It does when that is committed: see `SubstreamReports`."""

    @property
    def next(self) -> dict[int, int]:
        """For each channel, what is to come next."""
        return self.receiving.next

    @property
    def sent(self) -> dict[int, int]:
        """For each channel, how many numbers were taken."""
        return self.sending.sent

    @property
    def records_out(self) -> int:
        return self.sending.records

    @property
    def outside_channels(self) -> Mapping[int, str]:
        return self.delivering.channels

    @property
    def is_source(self) -> bool:
        return not self.plan.inboxes

    @property
    def positions(self) -> dict[str, int]:
        """Where it reads on, in each of its queues, after its last snapshot."""
        if self.agreed is not None:
            return self.agreed.positions
        own = {} if self.plan.inbox is None else {self.plan.inbox: self.position}
        return own if self.merging is None else {**self.merging.positions, **own}

    def wanted(self) -> Sequence[str]:
        """The queues it would read."""
        if self.agreed is not None:
            return self.agreed.wanted()
        if self.merging is None:
            return self.plan.inboxes
        return [*self.merging.wanted(), *(() if self.plan.inbox is None else (self.plan.inbox,))]

    def reports(self) -> dict[str, Any]:
        """What its stages have to say, by their names."""
        found = {name: operator.report() for name, operator in self.operators.items()}
        if self.merging is not None:
            found["order"] = self.merging.report()
        if self.agreed is not None:
            found["agreement"] = self.agreed.report()
        return {name: report for name, report in found.items() if report is not None}

    # -------------------------------------------------------------------- take

    def take(self, entries: Sequence[Entry], coarse: int = 0) -> list[Effect]:
        """Frames of the inbox, in their order. `coarse` as of `feed`: the inbox may be a source."""
        if self.tracking is not None and self.tracking.is_source:
            self.tracking.begin(coarse)
        run: list[Frame] = []
        reports: list[pa.RecordBatch] = []
        rows, is_beating, was_finished = 0, False, self.finished and self.plan.takes_beats
        for entry in entries:
            frame = self.receiving.new_part(entry, self.changed)
            self.position = entry.next
            if frame is None:
                continue
            if frame.kind == Kind.HEARTBEAT:
                is_beating = True
                if self.order is not None:
                    self.order.hear(frame.channel, frame.progress)
                continue
            if frame.kind == Kind.DATA and frame.batch is not None:
                if run and (
                    run[0].batch.schema != frame.batch.schema  # type: ignore[union-attr]
                    or (run[0].channel in self.plan.notices) != (frame.channel in self.plan.notices)
                ):
                    self._run_frames(run)
                    run, rows = [], 0
                run.append(frame)
                rows += frame.count
                if rows < MOST_RECORDS:
                    continue
            if frame.kind == Kind.REPORT and frame.batch is not None:
                reports.append(frame.batch)
                continue
            self._run_reports(reports)
            self._run_frames(run)
            run, rows = [], 0
            self._on_other(frame, entry.next)
        self._run_reports(reports)
        self._run_frames(run)
        if is_beating:
            self.sending.beat()
        self.dirty = self.dirty or (bool(entries) and not was_finished)
        if not self.finished and self._all_ended():
            self._finish()
        return self._taken()

    def _run_reports(self, reports: list[pa.RecordBatch]) -> None:
        if reports and (agent := agent_of(self.operators)) is not None:
            self._send(self._graph.node(AGENT), agent.take(reports))
            reports.clear()

    def _on_other(self, frame: Frame, position: int) -> None:
        """What is neither a record nor a report."""
        if frame.kind == Kind.END:
            self.ended.add(frame.channel)
            if self.order is not None:
                self.order.end(frame.channel)
            # A beat behind the last end is not sent on, wherever the frames are cut.
            if self.plan.takes_beats and not self.finished and self._all_ended():
                self._finish()
        elif frame.message is not None and "beat" in frame.message:
            self._beat_until(frame.message["beat"])
        elif frame.message is not None and "change" in frame.message:
            self.changed, self.changed_at = frame.message["change"], position
            self.operators[frame.message["stage"]].change(frame.message)

    def take_path(self, queue: str, entries: Sequence[Entry]) -> list[Effect]:
        """Frames of a data path, or of a sender, in their order."""
        if self.agreed is not None:
            return self._take_agreed(self.agreed, queue, entries)
        assert self.merging is not None and self.order is not None  # noqa: PT018
        is_beating = self.merging.take(queue, entries)
        released = self.merging.release()
        if released is not None:
            self._run_head(released if self.tracking is None else self.tracking.merged(released))
        self.order.own = self.merging.frontier
        if is_beating:
            self.sending.beat()
        self.next.update(self.merging.numbers)
        self.dirty = self.dirty or bool(entries)
        if not self.finished and self.merging.is_over:
            self._finish()
        return self._taken()

    def _take_agreed(self, agreed: Agreed, queue: str, entries: Sequence[Entry]) -> list[Effect]:
        self.dirty = (agreed.take(queue, entries) and not self.finished) or self.dirty
        for run in agreed.release():
            if run.beat is not None:
                self.sending.pulse(run.beat)
            elif run.records is not None:
                self._run_head(run.records)
        for log, frame in agreed.proposed():
            self.sending.put(log, frame)
        self.next.update(agreed.numbers)
        if not self.finished and agreed.is_over:
            self._finish()
        return self._taken()

    def _beat_until(self, number: int) -> None:
        """The pulse, which comes to all that sources send to: no beat is left out, and none is there twice."""
        if not self.finished:
            for each in range(self.pulse + 1, number + 1):
                self.sending.pulse(each)
            self.pulse = max(self.pulse, number)

    def say(self, now_s: float, is_silent: bool) -> list[Effect]:
        """What a copy says to the others of its task, whether it is silent or not."""
        if self.agreed is None or self.finished:
            return []
        told = [*self.agreed.tick(now_s, is_silent), *self.agreed.proposed()]
        return [Append(queue, [frame]) for queue, frame in told]

    def kept_files(self) -> tuple[str, ...]:
        """Those that its stages have written, or been given, and still read."""
        return tuple(name for operator in self.operators.values() for name in operator.named_files())

    def begin_to_speak(self) -> None:
        """After silence. The files that its state began with may be gone: the next snapshot has all of it."""
        self.files.begin_anew()
        if self.merging is not None:
            self.merging.ask_again()

    def beat(self, now_s: float = 0.0) -> list[Effect]:
        """How far a source has come, to all that the order is carried to; of others, once after a restart."""
        for queue, frame in self.merging.hurry(now_s) if self.merging is not None else ():
            self.sending.put(queue, frame)
        if self.order is not None and not self.finished and not (self.plan.channels and self.order.told):
            self.sending.beat()
        return self._taken()

    def feed(self, feed: Feed, coarse: int = 0) -> list[Effect]:
        """What the source gave. `coarse` is the time, where what is tracked has an order."""
        self.fed = feed.position
        self.dirty = True
        if feed.batch is not None:
            if self.tracking is not None:
                self.tracking.opened(feed.batch, coarse)
            self._run_head(feed.batch)
        if feed.ended:
            self.source_ended = True
            if not self.finished:
                self._finish()
        return self._taken()

    def end_loops(self) -> list[Effect]:
        """Nothing comes back any more, and nothing else comes. One that has finished has nothing more to commit."""
        is_told = self.tracking is None or self.tracking.told_all
        is_due = not self.finished and bool(self.plan.back_channels) and is_told
        if is_due and set(self.plan.channels) - self.ended <= {*self.plan.back_channels, *self.plan.notices}:
            self.ended.update(self.plan.back_channels)
            self.dirty = True
            self._finish()
        return self._taken()

    def _all_ended(self) -> bool:
        source = self._graph.node(self.plan.vertex.name).source
        if isinstance(source, QueueEnd):
            return source.producers is not None and len(self.ended) >= source.producers
        if self.merging is not None:
            return self.merging.is_over
        # A reader of what is tracked hears of all ends first.
        return self._awaited <= self.ended and (self.tracking is None or self.tracking.told_all)

    # --------------------------------------------------------------------- run

    def _run_frames(self, run: list[Frame]) -> None:
        batches = [frame.batch for frame in run if frame.batch is not None]
        if batches and self.telling is not None and (self.telling.is_firm or run[0].channel in self.plan.notices):
            self._run_told(self.telling, run)
        elif batches:
            if self.tracking is not None and not self.tracking.is_source:
                self.tracking.begin()
                for frame in run:
                    self.tracking.received(frame.channel, frame.first, frame.batch)
                if not self.tracking.is_passing and columns.TOKEN in batches[0].schema.names:
                    batches = [batch.drop_columns([columns.TOKEN]) for batch in batches]
            batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            if self.tracking is not None and self.tracking.is_source:
                self.tracking.opened(batch)
            if self.order is not None:
                batch = self.order.arrived(batch, [f.channel for f in run], [b.num_rows for b in batches])
            self._run_head(batch)

    def _run_told(self, telling: Telling, run: Sequence[Frame]) -> None:
        """Notices, or records that may have to wait for some."""
        for found in telling.take(run, run[0].channel in self.plan.notices):
            if isinstance(found, pa.RecordBatch):
                self._run_head(found)
            else:
                self._send(self._graph.node(self.plan.vertex.name), found)

    def _run_head(self, batch: pa.RecordBatch) -> None:
        head = self._graph.node(self.plan.vertex.name)
        if self.order is not None and head.source is not None:
            batch = self.order.begin(batch, self.records_in)
        self.records_in += batch.num_rows
        self._run(head, batch)

    def _run(self, node: Node, batch: pa.RecordBatch) -> None:
        if self.order is not None and node.name not in self._carried:
            batch = columns.without(batch)
        if node.sink is not None:
            self.delivering.deliver(node, batch)
        elif node.source is not None:
            self._send(node, [(MAIN, batch)])
        else:
            for part in in_parts(batch, self.most_rows):
                PROGRESS.calls += 1
                self._send(node, self.operators[node.name].apply(part))

    def _send(self, node: Node, outputs: Outputs) -> None:
        for output, batch in outputs:
            if not batch.num_rows:
                continue
            if self.tracking is not None:
                self.tracking.gave(node.name, output, batch)
            for consumer, wanted in self._fused[node.name]:
                if wanted == output:
                    self._run(consumer, batch)
            for edge in self.sending.edges_of.get((node.name, output), ()):
                self.sending.route(edge, batch)

    def _finish(self) -> None:
        """All input has come and gone: each node in turn gives what it still has, then every channel ends."""
        self.finished = True
        if self.tracking is not None:
            self.tracking.begin()
            self.tracking.table.steps += 1
            self.tracking.is_over = self.tracking.is_source
        for name in self.plan.vertex.nodes:
            if name in self.operators:
                self._send(self._graph.node(name), self.operators[name].finish())
        if self.tracking is not None:
            self.tracking.finish()
            self.owes_end = self.tracking.says_after_commits
            if not (self.tracking.is_passing or self.owes_end):
                for queue, frame in report_frames(self._plan, [self.tracking.said()], is_asked=True):
                    self.sending.put(queue, frame)
        self.sending.end(but_agents=self.owes_end)
        self.delivering.end()

    def end_reports(self) -> list[Effect]:
        """Behind the last report of a task that reports what is committed, when all of it is."""
        self.owes_end = False
        self.sending.end_agents()
        return self._taken()

    def _taken(self) -> list[Effect]:
        appends = [Append(queue, parts) for queue, parts in self.sending.taken().items()]
        return [*appends, *self.delivering.taken()]

    # ------------------------------------------------------------------- state

    def snapshot(self, epoch: int, version: int) -> Snapshot:
        """Everything needed to go on after the last frame."""
        self.dirty = False
        return task_state.snapshot(self, epoch, version)

    def restore(self, values: Mapping[str, Any], read: Callable[[str], bytes]) -> None:
        """From the values of a snapshot, and the files it names."""
        task_state.restore(self, values, read)
