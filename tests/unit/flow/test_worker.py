"""The worker as a state machine: what it is told, and what it wants done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.effects import (
    Acknowledge,
    Append,
    Arrived,
    Deliver,
    Effect,
    Fed,
    Leave,
    Report,
    Save,
    Saved,
    Ticked,
    Told,
)
from headrace.flow.io import Feed, Sink
from headrace.flow.kafka_ends import KafkaSink
from headrace.flow.plan import Plan, make_plan
from headrace.flow.worker import Pace, Worker
from headrace.model import frames
from headrace.queues.protocol import Entry

_NUMBERS = pa.schema([("n", pa.int64())])
_PACE = Pace(commit_s=1.0, report_s=0.5)


def _batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=_NUMBERS)


def _make(first: int, count: int) -> pa.RecordBatch:
    return _batch(*range(first, first + count))


def _ignored(batch: pa.RecordBatch) -> None:
    return None


def _plan() -> Plan:
    flow = Flow("f")
    numbers = flow.source("s", hr.generate(_make, 10))
    count = flow.keyed("k", lambda state, record: ((state or 0) + 1, record), numbers, by="n")
    flow.sink("out", count, hr.callback(_ignored))
    return make_plan(flow.graph())


def _loop_plan() -> Plan:
    flow = Flow("f")
    again = flow.loop("again", flow.source("s", hr.generate(_make, 10)))
    again.back(again)
    flow.sink("out", again, hr.callback(_ignored))
    return make_plan(flow.graph())


def _worker(*tasks: str, plan: Plan | None = None, epoch: int = 7) -> Worker:
    return Worker(plan or _plan(), 0, epoch, tasks or ("s.0", "k.0"), _PACE)


def _entry(position: int, *numbers: int, first: int = 0, channel: int = 0) -> Entry:
    return Entry("f.in.k.0", frames.encode(frames.data(channel, first, _batch(*numbers))), position)


def _kinds(effects: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def _reports(effects: list[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Report)]


def _saves(effects: list[Effect]) -> list[Save]:
    return [effect for effect in effects if isinstance(effect, Save)]


def _committed(worker: Worker, number: int, now_s: float, save: bool = True) -> None:
    """One more record taken, and a commit of it."""
    worker.on(Arrived("f.in.k.0", [_entry(number * 10, number, first=number - 1)]))
    (made,) = _saves(worker.on(Ticked(now_s)))
    if save:
        worker.on(Saved("k.0", made.snapshot.version))


# ---------------------------------------------------------------- records


def test_what_a_source_gives_is_appended() -> None:
    worker = _worker()
    (append,) = worker.on(Fed("s.0", Feed(_batch(1, 2), 2)))
    assert isinstance(append, Append)
    assert append.queue == "f.in.k.0"
    assert [frames.decode(content).batch.to_pylist() for content in append.frames] == [[{"n": 1}, {"n": 2}]]  # type: ignore[union-attr]


def test_what_arrives_is_taken_and_acknowledged() -> None:
    worker = _worker()
    deliver, acknowledge = worker.on(Arrived("f.in.k.0", [_entry(40, 5, 6), _entry(80, 7, first=2)]))
    assert isinstance(deliver, Deliver)
    assert (deliver.task, deliver.node, deliver.first, deliver.batch.to_pylist()) == (
        "k.0",
        "out",
        0,
        [{"n": n} for n in (5, 6, 7)],
    )
    assert acknowledge == Acknowledge("f.in.k.0", 80)
    assert worker.positions == {"f.in.k.0": 80}
    assert worker.on(Arrived("f.in.k.0", [_entry(120, 6, 7, first=1)])) == [Acknowledge("f.in.k.0", 120)]


def test_what_it_wants_to_read() -> None:
    worker = _worker()
    assert (worker.inboxes([]), worker.sources([]), list(worker.blocking)) == (["f.in.k.0"], ["s.0"], ["f.in.k.0"])
    assert worker.sources(["f.in.k.0"]) == [], "there is no room"
    assert worker.inboxes(["f.in.k.0"]) == ["f.in.k.0"], "its own inbox does not stop it"
    worker.on(Fed("s.0", Feed(None, 0, ended=True)))
    assert worker.sources([]) == []


def test_a_task_that_has_finished_still_empties_its_inbox() -> None:
    worker = _worker()
    worker.on(Arrived("f.in.k.0", [Entry("f.in.k.0", frames.encode(frames.end(0, 0)), 1)]))
    assert worker.tasks["k.0"].finished
    assert worker.inboxes([]) == ["f.in.k.0"]
    assert worker.on(Arrived("f.in.k.0", [Entry("f.in.k.0", frames.encode(frames.end(0, 0)), 2)])) == [
        Acknowledge("f.in.k.0", 2)
    ]


# ---------------------------------------------------------------- commits


def test_it_commits_what_has_changed_when_it_is_time() -> None:
    worker = _worker()
    worker.on(Fed("s.0", Feed(_batch(1), 1)))
    assert _saves(worker.on(Ticked(0.9))) == []
    (save,) = _saves(worker.on(Ticked(1.0)))
    assert (save.snapshot.task, save.snapshot.epoch, save.snapshot.version) == ("s.0", 7, 1)
    assert save.queues == ("f.in.k.0",)
    assert save.snapshot.values["fed"] == 1
    assert _saves(worker.on(Ticked(9.0))) == [], "nothing has changed since"


def test_the_queues_of_a_commit_are_what_it_read_and_what_it_wrote() -> None:
    flow = Flow("f")
    numbers = flow.source("s", hr.queue("in", _NUMBERS))
    flow.sink("a", numbers, hr.queue("out"))
    flow.sink("b", numbers, hr.callback(_ignored), parallelism=2)
    worker = _worker("s.0", plan=make_plan(flow.graph()))
    worker.on(Arrived("q.in", [Entry("q.in", frames.encode(frames.data(3, 0, _batch(1))), 1)]))
    (save,) = _saves(worker.on(Ticked(1.0)))
    assert sorted(save.queues) == ["f.in.b.0", "f.in.b.1", "q.in", "q.out"]
    assert save.queues[0] == "q.in"


def test_one_commit_of_a_task_at_a_time() -> None:
    worker = _worker()
    worker.on(Fed("s.0", Feed(_batch(1), 1)))
    assert len(_saves(worker.on(Ticked(1.0)))) == 1
    worker.on(Fed("s.0", Feed(_batch(2), 2)))
    assert _saves(worker.on(Ticked(5.0))) == [], "the first is under way"
    assert worker.on(Saved("s.0", 1)) == []
    (save,) = _saves(worker.on(Ticked(5.1)))
    assert (save.snapshot.version, save.snapshot.values["fed"]) == (2, 2)


# ---------------------------------------------------------------- slow sinks


def _sinking(sink: Sink) -> Worker:
    """A task that reads a source, and one that reads a queue, with room for ten numbers each."""
    flow = Flow("f")
    numbers = flow.source("s", hr.generate(_make, None))
    flow.sink("near", numbers, sink)
    flow.sink("k", numbers, sink, route=hr.rebalance())
    return Worker(make_plan(flow.graph()), 0, 7, ("s.0", "k.0"), _PACE, room_bytes=80)


def _wanted(worker: Worker) -> tuple[list[str], list[str]]:
    return worker.sources([]), worker.inboxes([])


def test_what_a_sink_keeps_is_saved_early_and_no_more_is_taken_than_there_is_room_for() -> None:
    worker = _sinking(hr.parquet("nowhere"))
    worker.on(Fed("s.0", Feed(_batch(*range(10)), 10)))
    worker.on(Arrived("f.in.k.0", [_entry(10, *range(10))]))
    assert _saves(worker.on(Ticked(0.1))) == [], "ten are no more than there is room for"
    worker.on(Fed("s.0", Feed(_batch(10), 11)))
    worker.on(Arrived("f.in.k.0", [_entry(20, 10, first=10)]))
    assert _wanted(worker) == ([], []), "both are to save first"
    assert [save.snapshot.task for save in _saves(worker.on(Ticked(0.2)))] == ["s.0", "k.0"]
    assert _wanted(worker) == (["s.0"], ["f.in.k.0"]), "what comes meanwhile has as much room"
    worker.on(Fed("s.0", Feed(_batch(*range(11, 30)), 30)))
    assert _saves(worker.on(Ticked(9.0))) == [], "the first is under way"
    assert _wanted(worker) == ([], ["f.in.k.0"])
    worker.on(Arrived("f.in.k.0", [_entry(30, *range(11, 30), first=11)]))
    assert _wanted(worker) == ([], [])
    assert _reports(worker.on(Told({"say": "answer", "probe": 4})))[0]["probe"] == 4
    worker.on(Saved("s.0", 1))
    assert _wanted(worker) == ([], []), "there is as much again to save"
    assert [save.snapshot.task for save in _saves(worker.on(Ticked(9.1)))] == ["s.0"]
    assert _wanted(worker) == (["s.0"], [])
    worker.on(Saved("k.0", 1))
    worker.on(Ticked(9.2))
    assert _wanted(worker) == (["s.0"], ["f.in.k.0"])


def test_sinks_that_keep_nothing_take_as_much_as_comes() -> None:
    worker = _sinking(hr.callback(_ignored))
    worker.on(Fed("s.0", Feed(_batch(*range(99)), 99)))
    worker.on(Arrived("f.in.k.0", [_entry(10, *range(99))]))
    assert _saves(worker.on(Ticked(0.1))) == []
    assert _wanted(worker) == (["s.0"], ["f.in.k.0"])


def test_a_topic_keeps_what_belongs_to_a_transaction() -> None:
    assert [KafkaSink(hr.kafka("t", "b", transactional=each)).keeps_until_commit for each in (True, False)] == [
        True,
        False,
    ]


def test_a_task_that_has_finished_commits_at_once_and_says_so() -> None:
    worker = _worker("s.0")
    worker.on(Fed("s.0", Feed(None, 0, ended=True)))
    (save,) = _saves(worker.on(Ticked(0.01)))
    assert save.snapshot.values["finished"]
    (report,) = _reports(worker.on(Saved("s.0", 1)))
    assert (report["tasks"]["s.0"]["finished"], report["tasks"]["s.0"]["safe"]) == (True, True)


def test_tasks_that_finish_together_are_told_of_in_one_report_or_at_the_next_tick() -> None:
    for is_late in (False, True):
        worker = _worker()
        worker.on(Fed("s.0", Feed(None, 0, ended=True)))
        worker.on(Arrived("f.in.k.0", [Entry("f.in.k.0", frames.encode(frames.end(0, 0)), 10)]))
        assert [save.snapshot.task for save in _saves(worker.on(Ticked(0.01)))] == ["s.0", "k.0"]
        assert _reports(worker.on(Saved("s.0", 1))) == []
        (report,) = _reports(worker.on(Ticked(0.02) if is_late else Saved("k.0", 1)))
        assert [each["safe"] for each in report["tasks"].values()] == [True, not is_late]
        assert len(_reports(worker.on(Saved("k.0", 1)) if is_late else worker.on(Ticked(0.03)))) == is_late


def test_after_a_restart_versions_go_on() -> None:
    first = _worker("k.0")
    first.on(Arrived("f.in.k.0", [_entry(10, 4, 4)]))
    (save,) = _saves(first.on(Ticked(1.0)))
    second = _worker("k.0", epoch=8)
    second.restore("k.0", 1, save.snapshot.values, dict(save.snapshot.new_files).__getitem__)
    assert second.positions == {"f.in.k.0": 10}
    deliver, _ = second.on(Arrived("f.in.k.0", [_entry(20, 4, 4, 4, first=0)]))
    assert isinstance(deliver, Deliver)
    assert (deliver.first, deliver.batch.num_rows) == (2, 1)
    (save,) = _saves(second.on(Ticked(1.0)))
    assert (save.snapshot.epoch, save.snapshot.version) == (8, 2)
    assert second.tasks["k.0"].snapshot(8, 3).values["delivered"] == {"out": 3}


# ---------------------------------------------------------------- reports


def test_it_reports_now_and_then() -> None:
    worker = _worker()
    assert _kinds(worker.on(Ticked(0.4))) == []
    (report,) = _reports(worker.on(Ticked(0.5)))
    assert (report["worker"], report["epoch"], report["probe"], report["paused"]) == (0, 7, None, False)
    assert set(report["tasks"]) == {"s.0", "k.0"}
    assert _kinds(worker.on(Ticked(0.9))) == []
    worker.on(Fed("s.0", Feed(_batch(1, 2), 2)))
    worker.on(Arrived("f.in.k.0", [_entry(10, 1, 2)]))
    (report,) = _reports(worker.on(Ticked(1.0)))
    source, keyed = report["tasks"]["s.0"], report["tasks"]["k.0"]
    assert source["sent"] == {"0": 2}
    assert (keyed["next"], keyed["position"], keyed["records_in"], keyed["records_out"]) == ({"0": 2}, 10, 2, 2)
    assert (source["safe"], keyed["safe"]) == (False, False), "a commit has begun and is not safe yet"


def test_queues_are_kept_from_the_third_commit_back() -> None:
    worker = _worker("k.0")
    kept = []
    for number in range(1, 7):
        _committed(worker, number, float(number))
        (report,) = _reports(worker.on(Told({"say": "answer"})))
        kept.append(report["tasks"]["k.0"]["keep_from"].get("f.in.k.0", 0))
    assert kept == [0, 0, 10, 20, 30, 40]


def test_a_commit_under_way_does_not_count() -> None:
    worker = _worker("k.0")
    for number in (1, 2, 3):
        _committed(worker, number, float(number))
    _committed(worker, 4, 4.0, save=False)
    for _ in range(3):
        (report,) = _reports(worker.on(Told({"say": "answer"})))
        assert report["tasks"]["k.0"]["keep_from"] == {"f.in.k.0": 10}
    worker.on(Saved("k.0", 4))
    (report,) = _reports(worker.on(Told({"say": "answer"})))
    assert report["tasks"]["k.0"]["keep_from"] == {"f.in.k.0": 20}


def test_after_a_restart_three_commits_must_pass_again() -> None:
    first = _worker("k.0")
    first.on(Arrived("f.in.k.0", [_entry(10, 4)]))
    (save,) = _saves(first.on(Ticked(1.0)))
    second = _worker("k.0", epoch=8)
    second.restore("k.0", 1, save.snapshot.values, dict(save.snapshot.new_files).__getitem__)
    kept = []
    for number in (2, 3, 4):
        _committed(second, number, float(number))
        (report,) = _reports(second.on(Told({"say": "answer"})))
        kept.append(report["tasks"]["k.0"]["keep_from"].get("f.in.k.0", 0))
    assert kept == [0, 0, 20]


# --------------------------------------------------------------------- told


def test_workers_of_a_driver_that_died_leave_when_another_one_starts() -> None:
    worker = _worker()
    assert worker.on(Told({"say": "leave", "before": 7})) == []
    assert _kinds(worker.on(Told({"say": "leave", "before": 8}))) == ["Report", "Leave"]


def _left_at(worker: Worker, moments: Iterable[float]) -> float | None:
    """When it leaves, of these moments."""
    return next((moment for moment in moments if "Leave" in _kinds(worker.on(Ticked(float(moment))))), None)


def test_an_orphan_leaves() -> None:
    worker = _worker()
    worker.on(Told({"say": "begin"}))
    worker.on(Told({"say": "commit", "probe": 1}))
    assert _left_at(worker, range(1000, 1120)) is None
    assert worker.on(Told({"say": "alive"})) == []
    assert _left_at(worker, range(1120, 1300)) == 1240


def test_who_was_at_work_for_long_is_no_orphan() -> None:
    worker = _worker()
    worker.on(Told({"say": "begin"}))
    assert _left_at(worker, [1.0, 500.0, 1000.0, 1500.0]) is None, "what was said meanwhile it has yet to hear"


def test_a_pause_is_of_sources_alone() -> None:
    worker = _worker()
    (report,) = _reports(worker.on(Told({"say": "pause"})))
    assert report["paused"]
    assert worker.sources([]) == []
    assert worker.inboxes([]) == ["f.in.k.0"]


def test_a_pause_is_of_queues_from_outside_too() -> None:
    flow = Flow("f")
    flow.sink("out", flow.source("s", hr.queue("in", _NUMBERS)), hr.callback(_ignored))
    worker = _worker("s.0", plan=make_plan(flow.graph()))
    worker.on(Told({"say": "pause"}))
    assert worker.inboxes([]) == []


def test_an_answer_has_the_number_of_the_question() -> None:
    worker = _worker()
    assert [report["probe"] for report in _reports(worker.on(Told({"say": "answer", "probe": 12})))] == [12]


def test_asked_to_commit_it_does_at_once_and_from_then_on() -> None:
    worker = _worker()
    worker.on(Fed("s.0", Feed(_batch(1), 1)))
    effects = worker.on(Told({"say": "commit", "probe": 3}))
    assert _kinds(effects) == ["Save", "Report"]
    assert _reports(effects)[0]["probe"] == 3
    assert not _reports(effects)[0]["tasks"]["s.0"]["safe"]
    (report,) = _reports(worker.on(Saved("s.0", 1)))
    assert report["tasks"]["s.0"]["safe"]
    worker.on(Fed("s.0", Feed(_batch(2), 2)))
    assert len(_saves(worker.on(Ticked(0.01)))) == 1


def test_told_to_end_loops_it_ends_those_that_can() -> None:
    plan = _loop_plan()
    worker = _worker("again.0", plan=plan)
    assert _kinds(worker.on(Told({"say": "end loops"}))) == ["Report"]
    entry = next(c for c in plan.tasks["again.0"].channels if c not in plan.tasks["again.0"].back_channels)
    worker.on(Arrived("f.in.again.0", [Entry("f.in.again.0", frames.encode(frames.end(entry, 0)), 1)]))
    effects = worker.on(Told({"say": "end loops"}))
    assert _kinds(effects) == ["Append", "Report"]
    assert _reports(effects)[0]["tasks"]["again.0"]["finished"]


def test_told_to_leave_it_reports_and_leaves() -> None:
    effects = _worker().on(Told({"say": "leave"}))
    assert _kinds(effects) == ["Report", "Leave"]
    assert effects[-1] == Leave()
