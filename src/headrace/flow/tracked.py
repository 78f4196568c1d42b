"""What a task does for tracking: it notes what comes and goes, and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import FlowError, SubstreamBroken
from headrace.flow.charging import Region
from headrace.flow.first_labels import first_labels
from headrace.flow.operators import Operator, Outputs, Wrapped
from headrace.flow.plan import Edge, Plan, TaskPlan
from headrace.flow.regions import opens_at
from headrace.flow.substreams import ids_of
from headrace.model import frames
from headrace.order import columns
from headrace.track import local
from headrace.track.labels import NoName
from headrace.track.local import COUNTED, NO_TIME, Broken, LocalTable, Note
from headrace.track.reports import TaskSaid, report_of
from headrace.track.terms import Mode
from headrace.track.tokens import Words, tokens_from

STATE: Final = "headrace-tracking"
"""The name of its state among those of the stages of a task."""


class TaskTracking:
    """Of one task of a region."""

    changes_are_all = False

    def __init__(self, plan: Plan, task: TaskPlan, region: Region):
        self._region, self._task, self._plan = region, task, plan
        vertex = self.vertex = task.vertex.name
        self.number = region.number_of[task.name]
        self.reader = region.readers.get(vertex)
        self._group = region.group_of[vertex]
        held = region.held_group_of[vertex]
        head = plan.graph.node(vertex)
        self.is_source = head.source is not None
        self._opens = self.is_source and opens_at(head, region.tracked)
        self._places = first_labels(plan, vertex, region.tracked) if self.is_source and not self._opens else {}
        # Where an end is for now only, a reader holds nothing by itself: in a loop it would wait for itself.
        self._is_for_now = region.tracking.mode == Mode.WHENEVER
        self._held_group, self.holds = held, held >= 0
        self.is_passing = vertex in region.passing
        self._start = -1
        """The step at which what is being worked at began; -1 before anything is."""
        self.is_over = False
        self.overs = 0
        """How many tasks of the agent will say nothing more."""
        self.up_tos: dict[int, int] = {}
        """By the channel of each task of the agent: all labels below it have ended, of those that it has."""
        self.is_firm = self.reader is not None and region.tracking.points[self.reader].is_firm
        self.labels, self._label = region.tracked.meaning().labels, region.tracked.labels_of
        self._coarse = NO_TIME
        self._kept: list[TaskSaid] = []
        """What is said, and not sent yet: see `keep_said`."""

    # Most tasks of a flow may pass on what is counted, and need neither of these.

    @cached_property
    def table(self) -> LocalTable:
        return LocalTable(
            self._region.tracked.meaning(),
            self._region.tracking.groups,
            self._held_group,
            self.number + 1,
            holds_all=self.reader is not None and self.holds and not self._is_for_now,
            forgets=self.is_source,
        )

    @cached_property
    def _counted(self) -> dict[int, int]:
        """What records of a channel are charged to, where they are counted."""
        counted = self._region.counted
        return {
            edge.channel(producer, self._task.index): counted[edge.vertex]
            for edge in self._plan.edges
            if edge.consumer == self.vertex and edge.vertex in counted
            for producer in range(edge.producers)
        }

    @property
    def up_to(self) -> int:
        """All labels below it have ended."""
        return min(self.up_tos.values()) if len(self.up_tos) == len(self._plan.agents) else local.NOTHING

    @property
    def told_all(self) -> bool:
        """Will nothing more be told of substreams?"""
        return self.reader is None or self.overs == len(self._plan.agents)

    @property
    def is_counted(self) -> bool:
        """Does it pass records on that have no tokens? Then there is nothing to note, and nothing to tell."""
        return self.vertex in self._region.counted

    @property
    def says_after_commits(self) -> bool:
        """Is what it tells of substreams true only once it is committed?"""
        nodes = [self._plan.graph.node(name) for name in self._task.vertex.nodes]
        return self.reader is not None and any(node.sink and node.sink.shows_at_commit for node in nodes)

    def owed(self) -> dict[str, int]:
        """What the tasks of the tracker must have heard of."""
        if self.is_passing:
            return {}
        return {f"reports {self.number} to {shard}": self.table.steps for shard in range(len(self._plan.agents))}

    # -------------------------------------------------------------------- note

    def begin(self, coarse: int | None = None) -> None:
        """Something is about to be worked at. `coarse` is the time at a source, if it was looked at."""
        self._start = self.table.steps
        if coarse is None or coarse == self._coarse:
            return
        if self.table.noted_rows:
            self._folded()
        self._coarse = coarse

    def received(self, channel: int, first: int, batch: pa.RecordBatch) -> None:
        self.table.steps += batch.num_rows
        if self.is_passing:
            return
        counted = self._counted.get(channel)
        if counted is not None:
            self.table.note(Note.RECEIVED, batch, COUNTED, 0, counted, self._start)
            return
        if columns.TOKEN in batch.schema.names:
            tokens = batch.column(columns.TOKEN).to_numpy()
            self.table.note_tokens(Note.RECEIVED, batch, tokens, self._group, self._start)
            return
        self.table.note(Note.RECEIVED, batch, channel, first, self._group, self._start)

    def merged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Records that a merge has let go, of all channels: each has its token with it. Gives them without."""
        self.begin()
        self.received(-1, 0, batch)
        return batch.drop_columns([columns.TOKEN])

    def received_again(self, batch: pa.RecordBatch, tokens: Words, start: int) -> None:
        """Records that were kept back until now, which began at a step."""
        self.table.note_tokens(Note.RECEIVED_LATER, batch, tokens, self._group, start)

    def opened(self, batch: pa.RecordBatch, coarse: int | None = None) -> None:
        """Records of a source, and the time there, if it was looked at."""
        self.begin(coarse)
        self.table.steps += batch.num_rows
        if self._opens:
            self.table.note(Note.OPENED, batch, 0, 0, 0, self._start)

    def gave(self, node: str, output: str, batch: pa.RecordBatch) -> None:
        """What a node of the task gave, whoever reads it."""
        place = self._places.get((node, output))
        if place is not None:
            self.table.note(Note.OPENED_LATER, batch, place, 0, 0, self._start)

    def leaves(self, edge: Edge, batch: pa.RecordBatch) -> None:
        """Records that are about to be shared out."""
        counted = self._region.counted.get(edge.consumer)
        if counted is not None and not self.is_passing:
            self.table.note(Note.SENT, batch, COUNTED, 0, counted, self._start)

    def sent(self, edge: Edge, channel: int, first: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Gives the records as they are to be sent."""
        group = self._region.group_of.get(edge.consumer)
        if self.is_passing and group is not None:
            return batch
        if self.is_passing:
            return columns.without(batch)
        if group is None or edge.consumer in self._region.counted:
            return batch
        self.table.note(Note.SENT, batch, channel, first, group, self._start)
        # Who merges, or passes records on, does not know them by their numbers.
        if edge.consumer not in self._region.passing and edge.ordering is None:
            return batch
        return batch.append_column(columns.TOKEN, pa.array(tokens_from(channel, first, batch.num_rows)))

    def hold(self, labels: Sequence[Any]) -> None:
        if self.vertex in self._region.waits_for_itself:
            raise FlowError(
                f"stage {self.vertex} is in a loop and is told of ends: what it holds may come back to it, "
                f"and it cannot wait for itself; let another stage hold, or be told"
            )
        self._held(labels, self.table.hold, "holds back")

    def release(self, labels: Sequence[Any]) -> None:
        self._held(labels, self.table.release, "lets go of")

    def _held(self, labels: Sequence[Any], call: Any, doing: str) -> None:
        if not self.holds or not labels or self._start < 0:
            return  # what a stage holds when it is restored is in the table already
        try:
            column = pa.array(labels, self._region.tracking.label)
            call(ids_of(column), self._start, column, self._coarse)
        except (pa.ArrowException, TypeError, ValueError):
            raise FlowError(
                f"{self.vertex} {doing} substream {labels[0]!r}, and substreams are {self._region.tracking.label}"
            ) from None
        except Broken as broken:
            raise self._named(broken, labels) from None

    def ended(self, ids: Words) -> None:
        """Substreams have ended here, and what the task had to give for them it has given."""
        if not self.holds or self._is_for_now:
            return
        self._folded()
        rows = self.table.held(ids)
        if len(rows):
            self.table.release(rows, self._start)

    def check_same(self, stage: str, given: pa.RecordBatch, gives: pa.RecordBatch) -> None:
        """Of records that keep their tokens: they must keep their substreams, too. Raises SubstreamBroken."""
        if gives is given:
            return
        before, after = self._label(given), self._label(gives)
        # What is not a number does not equal itself.
        if not before.equals(after) and not np.array_equal(ids_of(before), ids_of(after)):
            pairs = zip(before.to_pylist(), after.to_pylist(), strict=True)
            was, now = next(pair for pair in pairs if pair[0] != pair[1])
            raise SubstreamBroken(
                self._task.name,
                f"stage {stage} made a record of {self._region.tracked.name} {now!r} of one of {was!r}: what belongs "
                f"to a substream comes of what belongs to it; leave what tells substreams apart as it is",
            )

    def finish(self) -> None:
        """The task has given all that it will."""
        self._folded()
        self.table.release_all(self._start)

    def gone(self, ids: Words) -> None:
        self._folded()
        self.table.drop(ids)

    # ------------------------------------------------------------------ report

    def said(self) -> TaskSaid:
        self._folded()
        coarse = self._coarse if self._coarse != NO_TIME else local.NOTHING
        return TaskSaid(self.number, self.table.steps, self.table.said(), self.table.below, coarse, self.is_over)

    def keep_said(self) -> None:
        """What it has to say now, for `kept` to give later."""
        self._kept.append(self.said())

    def kept(self) -> list[TaskSaid]:
        """The oldest first; they are the caller's now."""
        found, self._kept = self._kept, []
        return found

    def _folded(self) -> None:
        try:
            self.table.fold(self._coarse)
        except Broken as broken:
            raise self._named(broken) from None
        except NoName as problem:
            by = self._region.tracked.name
            raise FlowError(
                f"{self._where}: {by} has a value of which Python cannot make one of its own ({problem}); leave such "
                f"records out before they are tracked, or let by= give whole numbers or texts"
            ) from None

    @property
    def _where(self) -> str:
        """The task, and the stages that run in it: any of them may be at fault."""
        nodes = self._task.vertex.nodes
        return self._task.name if len(nodes) == 1 else f"{self._task.name} ({', '.join(nodes)})"

    def _named(self, broken: Broken, labels: Sequence[Any] = ()) -> SubstreamBroken:
        by, task = self._region.tracked.name, self._where
        label = labels[0] if labels else broken.label
        if broken.note == Note.HELD:
            return SubstreamBroken(task, f"it holds {by} {label!r}, of which it was given nothing: hold what has come")
        problems = {
            local.NOT_OF_MEMBERS: (
                f"it gave a record of {by} {label!r}, and was given none of it at that time, nor does it hold it: what "
                f"belongs to a substream comes of what belongs to it. {self._advice(label)}"
            ),
            local.AFTER_ITS_END: (
                f"the source gave a record of {by} {label!r} after the one that closed it; let the last one close it"
            ),
            local.NOT_HELD: f"it lets go of {by} {label!r}, which it does not hold: release as often as you hold",
            local.WENT_BACK: (
                f"{by} {label!r} comes after higher ones, and ends=hr.rising(slack={self._region.tracked.ends.slack}) "
                f"says that they rise; give more slack, or another way to tell ends"
            ),
        }
        return SubstreamBroken(task, problems[broken.kind])

    def _advice(self, label: Any) -> str:
        nodes = [self._plan.graph.node(name) for name in self._task.vertex.nodes]
        if not any(node.behaviour is not None and node.behaviour.is_stateful for node in nodes):
            return "Let its function leave what tells substreams apart as it is, or track what it gives by another name"
        return (
            f"If the stage keeps records back, let it say so: self.hold({label!r}) when it keeps the first one, and "
            f"self.release({label!r}) when it has given all"
        )

    # ------------------------------------------------------------------- state

    def values(self) -> dict[str, Any]:
        return {**self.table.values(), "is_over": self.is_over, "overs": self.overs, "up_tos": self.up_tos}

    def set_values(self, values: Mapping[str, Any]) -> None:
        self.table.set_values(values)
        self.is_over, self.overs = values["is_over"], values["overs"]
        self.up_tos = {int(channel): tick for channel, tick in values["up_tos"].items()}
        self._start = self.table.steps

    def changes(self) -> bytes | None:
        return self.table.changes()

    def content(self) -> bytes:
        return self.table.content()

    def restore(self, parts: Sequence[bytes]) -> None:
        self.table.restore(parts)


class Passing(Wrapped):
    """Of a stage that gives one record for each: what records are tracked by goes with them."""

    def __init__(self, inner: Operator, stage: str, tracking: TaskTracking):
        super().__init__(inner)
        self._stage, self._tracking, self._is_counted = stage, tracking, tracking.is_counted
        self._apply = inner.apply

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        plain = batch if self._is_counted else columns.without(batch)
        given = self._apply(plain)
        if len(given) == 1 and given[0][1] is batch:
            return given  # as most of them do: there is nothing to look at
        rows = sum(part.num_rows for _, part in given)
        if rows != batch.num_rows or len(given) > 1:
            raise FlowError(
                f"stage {self._stage} gave {rows} records for {batch.num_rows}, and one_to_one says one for each"
            )
        for _, part in given:
            self._tracking.check_same(self._stage, plain, part)
        if plain is batch:
            return given
        return [(output, columns.joined(part, columns.only(batch))) for output, part in given]


def report_frames(plan: Plan, said: Sequence[TaskSaid], is_asked: bool = False) -> list[tuple[str, bytes]]:
    """What tasks of a worker have to say of substreams, for each queue of the agent that it concerns, or all."""
    region, agents = plan.region, plan.agents
    assert region is not None
    found = []
    # What sources say of themselves concerns every task of the agent.
    is_asked = is_asked or region.tracking.mode == Mode.RISING or region.tracking.consistent
    for shard, queue in enumerate(agents):
        report = report_of(said, region.tracking.groups, region.tracking.label, shard, len(agents))
        if is_asked or report.num_rows > len(said) or len(agents) == 1:
            found.append((queue, frames.encode(frames.report(report))))
    return found
