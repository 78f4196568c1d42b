"""A task that starts again reads in other runs than before, of which the agent may have heard a part."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.flow.agents import agent_of
from headrace.flow.builder import Flow
from headrace.flow.effects import Append, Effect
from headrace.flow.io import Feed
from headrace.flow.plan import make_plan
from headrace.flow.task import Task
from headrace.flow.tracked import report_frames
from headrace.queues.protocol import Entry
from headrace.track.agent import Agent
from headrace.track.reports import report_of

from .tracked_flows import CALL, SCHEMA, Counts, numbers


class Told:
    """One task of each kind, and what was appended to each queue."""

    def __init__(self) -> None:
        flow = Flow("f")
        tracked = flow.source("s", numbers()).tracked(by="x", ends=hr.rising(slack=2), bound="firm")
        flow.sink("out", flow.stage("count", Counts, tracked, route=hr.key("x"), schema=SCHEMA), CALL)
        self.plan = make_plan(flow.graph())
        self.source, self.agent = self.task("s.0"), self.task("tracker.0")
        self.queues: dict[str, list[Entry]] = {}

    def task(self, name: str) -> Task:
        return Task(self.plan, self.plan.tasks[name])

    def append(self, effects: list[Effect]) -> None:
        for each in effects:
            if isinstance(each, Append):
                queue = self.queues.setdefault(each.queue, [])
                queue += [Entry(each.queue, frame, len(queue) + n + 1) for n, frame in enumerate(each.frames)]

    def give(self, x: int) -> None:
        """A record of the source."""
        self.append(self.source.feed(Feed(pa.record_batch([[0], [x], [False]], schema=SCHEMA), 0)))

    def report(self, task: Task) -> None:
        assert task.tracking is not None
        self.append([Append(queue, [frame]) for queue, frame in report_frames(self.plan, [task.tracking.said()])])
        inbox = str(self.agent.plan.inbox)
        self.append(self.agent.take(self.queues[inbox][self.agent.position :]))

    def read(self, task: Task, *stops: int) -> None:
        """In runs that stop there."""
        for stop in stops:
            self.append(task.take(self.queues[str(task.plan.inbox)][task.position : stop]))


def test_what_began_within_a_longer_run_is_new_to_the_agent() -> None:
    """It hears of it from the reader before the source has told."""
    told = Told()
    told.give(7)
    told.report(told.source)
    told.give(7)
    told.give(5)
    before, after = told.task("count.0"), told.task("count.0")
    told.read(before, 1, 2, 3)
    told.report(before)
    told.read(after, 1, 2, 4)
    told.report(after)
    told.report(told.source)
    told.give(12)
    told.report(told.source)
    told.read(after, len(told.queues[str(after.plan.inbox)]))
    told.report(after)
    agent = agent_of(told.agent.operators)
    assert agent is not None
    assert agent.agent.open_names(5) == [12]


class Labels(hr.Stage):
    """Gives labels to records of no substream."""

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        labels = batch.column("n").to_pylist()
        self.hold(*labels)
        self.release(*labels)
        return batch.set_column(1, "x", batch.column("n"))


def test_what_a_stage_beside_a_source_begins_within_a_longer_run_is_new_to_the_agent() -> None:
    flow = Flow("f")
    given = flow.stage("labels", Labels, flow.source("s", numbers()), schema=SCHEMA)
    flow.sink("out", flow.stage("count", Counts, given.tracked(by="x"), route=hr.key("x"), schema=SCHEMA), CALL)
    plan = make_plan(flow.graph())
    assert plan.region is not None
    before, after = (Task(plan, plan.tasks["s.0"]) for _ in range(2))
    tracking = plan.region.tracking
    agent = Agent(tracking)
    for task, count in ((before, 2), (after, 4)):
        found = pa.record_batch([list(range(count)), pa.nulls(count, pa.int64()), [False] * count], schema=SCHEMA)
        task.feed(Feed(found, count))
        assert task.tracking is not None
        agent.take(report_of([task.tracking.said()], tracking.groups, tracking.label))
    assert agent.open_names(5) == [0, 1, 2, 3]
