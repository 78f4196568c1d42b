"""A task that starts again, from any of its commits: the same records."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.flow.effects import Snapshot
from headrace.flow.plan import Plan
from headrace.flow.task import Task
from headrace.model import frames
from headrace.model.frames import Frame
from headrace.queues.protocol import Entry

from .task_cases import CHANNELS, PLAN, Seen, entries_of, inboxes, numbered, run_alone, task_of, without_doubles


def _restored(snapshot: Snapshot, files: dict[str, bytes], plan: Plan = PLAN) -> Task:
    again = task_of(plan, snapshot.task)
    again.restore(json.loads(json.dumps(snapshot.values)), files.__getitem__)
    return again


@given(inboxes(), st.data())
@settings(max_examples=80)
def test_from_any_commit_it_does_again_what_it_did(found: list[Frame], data: st.DataObject) -> None:
    """Some batches, perhaps a commit, perhaps a crash: back to the last commit, cut otherwise this time."""
    entries = entries_of(found)
    files: dict[str, bytes] = {}
    task, seen = task_of(), Seen()
    last: Snapshot | None = None
    version, crashes = 0, 0
    while not task.finished or task.position < len(entries):
        size = data.draw(st.integers(1, 4))
        seen.take(task.take(entries[task.position : task.position + size]))
        then = data.draw(st.sampled_from(["on", "commit", "crash"]))
        if then == "commit":
            version += 1
            last = task.snapshot(1 + crashes, version)
            assert not set(last.new_files) & set(files)
            files.update(last.new_files)
            assert set(last.files) <= set(files)
            assert not task.dirty
        elif then == "crash" and crashes < 4:
            crashes += 1
            task = task_of() if last is None else _restored(last, files)
            version = 0 if last is None else last.version
    assert seen.records == run_alone(without_doubles(found))


def test_a_snapshot_does_not_change_when_the_task_goes_on() -> None:
    task = task_of()
    task.take(entries_of([numbered(CHANNELS[0], 0, 3)]))
    snapshot = task.snapshot(1, 1)
    before = json.dumps(snapshot.values)
    task.take(entries_of([numbered(CHANNELS[0], 3, 9)], 1))
    task.snapshot(1, 2)
    assert json.dumps(snapshot.values) == before


def test_files_of_state_are_few_and_small() -> None:
    task = task_of()
    files: dict[str, bytes] = {}
    counts = []
    for version in range(1, 120):
        task.take([Entry("inbox", frames.encode(numbered(CHANNELS[0], version - 1, version)), version)])
        snapshot = task.snapshot(1, version)
        files.update(snapshot.new_files)
        counts.append(len(snapshot.files))
        if version % 10 == 0:
            again = _restored(snapshot, files)
            assert (
                json.loads(json.dumps(again.snapshot(9, 9).values))["next"]
                == json.loads(json.dumps(snapshot.values))["next"]
            )
    assert max(counts) <= 2 * 20


def test_a_task_with_no_state_has_no_files() -> None:
    task = task_of(name="turn.0")
    task.take(entries_of([numbered(task.plan.channels[0], 0, 3)]))
    snapshot = task.snapshot(1, 1)
    assert (snapshot.files, dict(snapshot.new_files)) == ((), {})
