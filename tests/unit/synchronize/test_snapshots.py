"""A worker that is written and read at any step goes on as if nothing had been."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.demo.programs import PROGRAMS
from headrace.synchronize import snapshots
from headrace.synchronize.codec import Codec
from headrace.synchronize.mailbox import LAST
from headrace.synchronize.node import Message
from headrace.synchronize.optimize import sequential
from headrace.synchronize.plan import make_plan
from headrace.synchronize.sequential import run_sequentially
from headrace.synchronize.tree import TreeTask
from headrace.testing.trees import Sources, random_plan, rows_of

from .tree_cases import window_events, windows

_SMALL: dict[str, dict[str, int]] = {
    "key_counters": {"increments": 200, "increments_per_reset": 20, "keys": 3},
    "event_windows": {"windows": 5, "values_per_window": 15},
    "page_views": {"views": 200, "views_per_update": 20},
    "fraud": {"windows": 4, "transactions_per_window": 20},
    "outliers": {"windows": 3, "connections_per_window": 20},
    "smart_home": {"slices": 4, "loads_per_slice": 2, "houses": 2},
}


class _World:
    """A task for each worker; each is written and read before every step."""

    def __init__(self, plan: Any, streams: list[str], schema: pa.Schema):
        self.plan, self.schema, self.streams = plan, schema, streams
        self.codec = Codec(plan.space.program)
        self.tasks = [TreeTask(plan, task, schema, streams, is_total=True) for task in range(plan.tasks)]
        self.lines: dict[tuple[int, int], deque[Message]] = {}
        self.given: list[pa.RecordBatch] = []
        for task in range(plan.tasks):
            self.tasks[task].start_alone()

    def again(self, task: int) -> TreeTask:
        """As it is after a restart."""
        old = self.tasks[task]
        self.tasks[task] = new = TreeTask(self.plan, task, self.schema, self.streams, is_total=True)
        new.start_alone()
        new.frontiers = list(old.frontiers)
        for number, node in old.nodes.items():
            content = snapshots.dump(node, self.codec)
            snapshots.load(new.nodes[number], self.codec, content)
            assert snapshots.dump(new.nodes[number], self.codec) == content
        return new

    def work(self, task: int) -> None:
        self.given += self.tasks[task].work()
        for to, message in self.tasks[task].outbox:
            self.lines.setdefault((task, to), deque()).append(message)
        self.tasks[task].outbox.clear()


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_workers_that_start_again_before_every_step(name: str) -> None:
    rng = random.Random(name)
    program: Any = PROGRAMS[name].program()
    events = PROGRAMS[name].generate(**_SMALL[name], seed=5, ties=True)
    tag = [program.tag] if isinstance(program.tag, str) else list(program.tag)
    plan = random_plan(program, events, tag, random.Random(4), 4)
    sources = Sources(events, "time", tag, "stream", plan, rng)
    world = _World(plan, sources.names, events.schema)
    inputs: dict[tuple[int, int], Any] = {
        (n, t): deque(p) for n, p in sources.pieces.items() for t in range(plan.tasks)
    }
    while inputs or any(world.lines.values()):
        at: Any = rng.choice([*inputs, *(("line", line) for line, sent in world.lines.items() if sent)])
        task = world.again(at[1][1] if at[0] == "line" else at[1])
        if at[0] == "line":
            task.receive(world.lines[at[1]].popleft())
        elif inputs[at]:
            piece, key = inputs[at].popleft()
            is_here = [plan.members[plan.owner[tag]].task == at[1] for tag in piece.tags.tolist()]
            task.push(at[0], piece.take(np.flatnonzero(is_here)))
            task.complete(at[0], key)
        else:
            del inputs[at]
            task.complete(at[0], LAST)
        world.work(task.task)
    assert all(task.is_done for task in world.tasks)
    assert rows_of(world.given) == rows_of(run_sequentially(program, sources.ordered)[1])


def test_all_that_a_worker_has_is_in_it() -> None:
    """A root with an event on its way, one that waits, a request's answer and marks."""
    plan = windows(2, 2)
    codec = Codec(plan.space.program)
    schema = window_events([], plan).batch.schema
    task = TreeTask(plan, 0, schema, ["a", "b"], is_total=True)
    root = task.nodes[0]
    task.push(0, window_events([(3, "barrier", 0), (9, "barrier", 0)], plan))
    task.complete(1, (5, 0))
    root.work()
    root.on(Message(0, "up", sender=1, state=7))
    assert (len(root.items), root.lanes.rows, root.answers) == (1, 1, {1: 7})
    again = TreeTask(plan, 0, schema, ["a", "b"], is_total=True).nodes[0]
    snapshots.load(again, codec, snapshots.dump(root, codec))
    for name in ("requests", "above", "told", "marks", "answers", "is_up", "has_state", "state"):
        assert getattr(again, name) == getattr(root, name), name
    assert again.lanes.frontiers == root.lanes.frontiers
    assert again.lanes.rows == 1
    assert [(item.key, item.tag) for item in again.items] == [(item.key, item.tag) for item in root.items]
    rows = [None if node.items[0].events is None else node.items[0].events.batch.to_pylist() for node in (again, root)]
    assert rows == [[{"time": 3, "kind": "barrier", "value": 0, "stream": "s"}]] * 2


def test_a_state_that_is_none_is_a_state() -> None:
    plan = make_plan(windows(2).space, sequential(windows(2).space))
    codec = Codec(plan.space.program)
    schema = window_events([], plan).batch.schema
    old, new = (TreeTask(plan, 0, schema, ["a"], is_total=True).nodes[0] for _ in range(2))
    old.start(None)
    snapshots.load(new, codec, snapshots.dump(old, codec))
    assert (new.has_state, new.state) == (True, None)
