"""After a power cut: what is left of queues counts as far as commits vouch for it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.effects import Snapshot
from headrace.flow.losses import Loss, loss_of
from headrace.flow.manifests import FlowStore
from headrace.flow.plan import Plan, make_plan
from headrace.flow.task import Task
from headrace.model import frames
from headrace.queues.log import LogQueues
from headrace.queues.protocol import Entry


def _make(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(first, first + count))}, schema=pa.schema([("n", pa.int64())]))


def _plan() -> Plan:
    """Two sources, a task that both send to, and two after it."""
    flow = Flow("f")
    made = [flow.source(name, hr.generate(_make, 10)) for name in ("a", "b")]
    merged = flow.stage("merge", lambda batch: batch, *made, parallelism=1, route=hr.rebalance())
    flow.sink("out", merged, hr.callback(print), parallelism=2)
    return make_plan(flow.graph())


def test_a_commit_makes_safe_what_it_depends_on() -> None:
    plan = _plan()
    assert plan.synced_with(plan.tasks["a.0"]) == ["f.in.merge.0"]
    assert plan.synced_with(plan.tasks["merge.0"]) == ["f.in.merge.0", "f.in.out.0", "f.in.out.1"]
    assert plan.synced_with(plan.tasks["out.1"]) == ["f.in.out.1", "f.in.merge.0"]


@pytest.mark.parametrize(("wait_s", "safe"), [(None, 0), (0.05, 2)])
def test_where_a_merge_loses_patience_that_is_made_safe_with_what_comes_of_it(wait_s: float | None, safe: int) -> None:
    """It says so in the queues of its senders: without that it gives records in another order when it starts again."""
    flow = Flow("f")
    stage = flow.stage("s", lambda batch: batch, flow.source("a", hr.generate(_make, 10)), parallelism=2)
    merged = flow.stage("merge", lambda batch: batch, stage.ordered(wait_s=wait_s), parallelism=1)
    flow.sink("out", merged, hr.callback(print), parallelism=2)
    plan = make_plan(flow.graph())
    queues = {path.queue for path in plan.tasks["merge.0"].merges}
    assert len(queues & set(plan.synced_with(plan.tasks["out.1"]))) == safe
    assert queues <= set(plan.synced_with(plan.tasks["merge.0"]))


def test_frames_count_up_to_the_last_moment_that_vouches_for_them() -> None:
    ends = {"f.in.merge.0": 100, "f.in.out.0": 50, "f.in.out.1": 60}
    loss = loss_of(_plan(), (), ends, {"a.0": 10, "out.1": 30, "merge.0": 20})
    assert loss.moments == {"f.in.merge.0": 30, "f.in.out.0": 20, "f.in.out.1": 30}
    assert loss.counts("f.in.out.0", 50, stamp=20)
    assert not loss.counts("f.in.out.0", 50, stamp=21)
    assert loss.counts("f.in.out.0", 51, stamp=21), "what came after the cut"
    assert loss_of(_plan(), (loss,), ends, {}).starts == ends


def test_a_task_leaves_aside_what_does_not_count_and_takes_it_when_it_comes_again() -> None:
    plan = _plan()
    loss = Loss({}, {"f.in.merge.0": 2}, {"f.in.merge.0": 5})
    task = Task(plan, plan.tasks["merge.0"], (loss,))
    channel = task.plan.channels[0]

    def entry(first: int, stamp: int, position: int) -> Entry:
        content = frames.encode(frames.data(channel, first, _make(first, 3)))
        return Entry("f.in.merge.0", frames.stamped(content, stamp), position)

    task.take([entry(0, 5, 1), entry(3, 6, 2), entry(3, 1, 3)])
    assert task.next[channel] == 6
    assert task.records_in == 6


def _committed(store: FlowStore, task: str, moment: int, incarnation: str) -> None:
    values = {"position": 0, "sent": {}}
    store.commit(Snapshot(task, 1, 1, values, {}, ()), {}, moment, incarnation)


def test_a_run_after_a_power_cut_knows_what_was_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, store, queues = _plan(), FlowStore(str(tmp_path / "state"), "f"), LogQueues(tmp_path / "queues")
    queues.create(plan.queues)
    with queues.writer() as writer:
        writer.append("f.in.out.0", [frames.encode(frames.data(4, 0, _make(0, 3)))])
    assert store.begin_run(plan, queues)[2] == ()
    _committed(store, "merge.0", 70, queues.incarnation())
    _committed(store, "a.0", 90, "of an earlier life of the machine")
    store.note_moment("out.1", 80, queues.incarnation())
    assert store.begin_run(plan, queues)[2] == ()
    monkeypatch.setattr("headrace.queues.log.boot_id", lambda: 12345)
    losses = store.begin_run(plan, queues)[2]
    assert [loss.moments for loss in losses] == [{"f.in.merge.0": 80, "f.in.out.0": 70, "f.in.out.1": 80}]
    assert losses[0].ends["f.in.out.0"] == queues.bounds("f.in.out.0")[1] > 0
    assert store.begin_run(plan, queues)[2] == losses, "known as long as frames of before may be read"
