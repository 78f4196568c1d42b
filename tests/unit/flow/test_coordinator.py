"""The coordinator as a state machine: who has which tasks, what becomes of the dead, and when it is over."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.coordinator import Coordinator, assign
from headrace.flow.effects import (
    CancelWorker,
    CoordinatorEffect,
    Exited,
    Finish,
    Reported,
    StartWorker,
    StopAsked,
    Tell,
    Ticked,
    Truncate,
)
from headrace.flow.plan import Plan, make_plan

_NUMBERS = pa.schema([("n", pa.int64())])


def _make(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, first + count), pa.int64())], schema=_NUMBERS)


def _ignored(batch: pa.RecordBatch) -> None:
    return None


def _plan(loop: bool = False) -> Plan:
    flow = Flow("f")
    numbers = flow.source("s", hr.generate(_make, 10))
    if loop:
        numbers = again = flow.loop("again", numbers)
        again.back(again)
    flow.sink("out", numbers, hr.callback(_ignored), route=hr.rebalance())
    return make_plan(flow.graph())


def _task(**values: Any) -> dict[str, Any]:
    usual = {
        "next": {},
        "sent": {},
        "source_ended": False,
        "finished": False,
        "safe": True,
        "keep_from": 0,
        "position": 0,
    }
    return {**usual, **values}


_DONE = _task(finished=True, source_ended=True)


class _Script:
    """A coordinator, and workers that say what they are told to say."""

    def __init__(self, plan: Plan, workers: int = 2):
        self.machine = Coordinator(plan, workers, 100)
        self.epochs: dict[int, int] = {}
        self.tasks: dict[int, tuple[str, ...]] = {}
        self.probe: int | None = None
        self.took(self.machine.start(0.0))

    def took(self, effects: list[CoordinatorEffect]) -> list[CoordinatorEffect]:
        for effect in effects:
            if isinstance(effect, StartWorker):
                self.epochs[effect.worker], self.tasks[effect.worker] = effect.epoch, effect.tasks
            elif isinstance(effect, Tell) and "probe" in effect.message:
                self.probe = effect.message["probe"]
        return effects

    def on(self, stimulus: Any) -> list[CoordinatorEffect]:
        return self.took(self.machine.on(stimulus))

    def report(self, worker: int, tasks: dict[str, Any] | None = None, **values: Any) -> list[CoordinatorEffect]:
        known = {name: (tasks or {}).get(name, _task()) for name in self.tasks[worker]}
        message = {
            "worker": worker,
            "epoch": self.epochs[worker],
            "probe": None,
            "paused": False,
            "tasks": known,
            **values,
        }
        return self.on(Reported(message))

    def answers(self, tasks: dict[str, Any] | None = None, **values: Any) -> list[CoordinatorEffect]:
        """Of all workers, to the last question."""
        return [effect for worker in self.epochs for effect in self.report(worker, tasks, probe=self.probe, **values)]


# ------------------------------------------------------------------ assignment


def test_tasks_are_shared_out() -> None:
    assert assign(_plan(loop=True), 2) == {0: ("s.0", "out.0"), 1: ("again.0",)}
    assert assign(_plan(), 9) == {0: ("s.0",), 1: ("out.0",)}, "no worker without a task"
    flow = Flow("f")
    flow.sink("out", flow.source("s", hr.generate(_make, 1), parallelism=4), hr.callback(_ignored), parallelism=3)
    shares = assign(make_plan(flow.graph()), 3)
    assert sorted(name for names in shares.values() for name in names) == sorted(make_plan(flow.graph()).tasks)
    assert all(any(name.startswith("s.") for name in names) for names in shares.values())


def test_all_workers_start_with_epochs_of_their_own() -> None:
    machine = Coordinator(_plan(), 2, 100)
    assert machine.start(0.0) == [
        Tell({"say": "leave", "before": 100}),
        StartWorker(0, 101, ("s.0",)),
        StartWorker(1, 102, ("out.0",)),
    ]


def test_workers_hear_now_and_then_that_somebody_is_there() -> None:
    script = _Script(_plan())
    assert script.on(Ticked(5.0)) == [Tell({"say": "alive"})]
    assert script.on(Ticked(9.9)) == []
    assert script.on(Ticked(10.0)) == [Tell({"say": "alive"})]


# -------------------------------------------------------------------- restarts


def test_a_worker_that_dies_is_started_again() -> None:
    script = _Script(_plan())
    assert script.on(Exited(1, 102, "killed")) == [StartWorker(1, 103, ("out.0",))]
    assert script.on(Exited(1, 102, "killed")) == [], "that one is known to be dead"
    assert script.machine.status()["restarts"] == 1


def test_reports_of_an_older_epoch_do_not_count() -> None:
    script = _Script(_plan())
    done = {"worker": 1, "epoch": 102, "probe": None, "paused": False, "tasks": {"out.0": {**_DONE, "keep_from": 9}}}
    script.report(0, {"s.0": _DONE})
    script.on(Exited(1, 102))
    assert script.on(Reported(done)) == []
    assert script.on(Reported({**done, "failed": {"message": "old"}})) == []
    assert script.on(Reported({**done, "worker": 5})) == []
    assert script.on(Reported({**done, "epoch": 103})) == [Truncate("f.in.out.0", 9), Tell({"say": "leave"})]


def test_too_many_deaths_end_the_flow() -> None:
    script = _Script(_plan())
    for death in range(20):
        script.on(Ticked(float(death)))
        (start,) = script.on(Exited(1, script.epochs[1], "out of memory"))
        assert isinstance(start, StartWorker)
    effects = script.on(Exited(1, script.epochs[1], "out of memory"))
    assert isinstance(effects[-1], Finish)
    assert effects[-1].problem == "workers died 21 times within 60 seconds; the last one said: out of memory"
    assert CancelWorker(0, 101) in effects
    assert script.on(Ticked(99.0)) == []
    assert script.on(StopAsked(drain=True)) == [], "it is over"


def test_deaths_long_ago_are_forgiven() -> None:
    script = _Script(_plan())
    for death in range(60):
        script.on(Ticked(death * 3.1))
        (start,) = script.on(Exited(1, script.epochs[1]))
        assert isinstance(start, StartWorker)


def test_a_silent_worker_is_replaced() -> None:
    script = _Script(_plan())
    alive = Tell({"say": "alive"})
    assert script.on(Ticked(500.0)) == [alive], "those that have not come up yet may take their time"
    for worker in (0, 1):
        script.report(worker)
    assert script.on(Ticked(529.0)) == [alive]
    script.report(0)
    assert script.on(Ticked(530.5)) == [CancelWorker(1, 102), StartWorker(1, 103, ("out.0",))]
    assert script.on(Ticked(531.0)) == []


def test_a_worker_that_is_silent_while_all_leave_does_not_hold_up_the_end() -> None:
    script = _Script(_plan())
    for worker in (0, 1):
        script.report(worker)
    assert script.on(StopAsked(drain=False)) == [Tell({"say": "leave"})]
    assert script.on(Exited(0, 101)) == []
    effects = script.on(Ticked(31.0))
    if not any(isinstance(effect, Finish) for effect in effects):
        effects = [*script.report(1), *script.on(Ticked(31.5)), *script.report(1)]
    assert any(effect == Tell({"say": "leave"}) or isinstance(effect, Finish) for effect in effects)


# ------------------------------------------------------------------ truncation


def test_queues_are_truncated_as_workers_say_and_never_back() -> None:
    script = _Script(_plan())
    assert script.report(0, {"s.0": _task(keep_from=5)}) == [], "a source has no inbox"
    assert script.report(1, {"out.0": _task(keep_from=0)}) == []
    assert script.report(1, {"out.0": _task(keep_from=7)}) == [Truncate("f.in.out.0", 7)]
    assert script.report(1, {"out.0": _task(keep_from=7)}) == []
    assert script.report(1, {"out.0": _task(keep_from=3)}) == []
    assert script.report(1, {"out.0": _task(keep_from=8)}) == [Truncate("f.in.out.0", 8)]


def test_a_queue_from_outside_is_not_truncated() -> None:
    flow = Flow("f")
    flow.sink("out", flow.source("s", hr.queue("in", _NUMBERS)), hr.callback(_ignored))
    script = _Script(make_plan(flow.graph()), 1)
    assert script.report(0, {"s.0": _task(keep_from=7)}) == []


# ---------------------------------------------------------------------- finish


def test_it_is_over_when_all_have_finished_and_left() -> None:
    script = _Script(_plan())
    assert script.report(0, {"s.0": _DONE}) == []
    assert script.report(1, {"out.0": {**_DONE, "safe": False}}) == []
    assert script.report(1, {"out.0": _DONE}) == [Tell({"say": "leave"})]
    assert script.report(1, {"out.0": _DONE}) == [], "said once"
    assert script.on(Exited(0, 101)) == []
    assert script.on(Exited(1, 102)) == [Finish(None)]


def test_a_worker_that_dies_after_it_was_told_to_leave_has_left() -> None:
    script = _Script(_plan())
    script.report(0, {"s.0": _DONE})
    script.report(1, {"out.0": _DONE})
    script.on(Exited(0, 101, "killed"))
    assert script.on(Exited(1, 102, "killed")) == [Finish(None)]


def test_what_was_finished_counts_again_after_a_restart() -> None:
    script = _Script(_plan())
    script.report(0, {"s.0": _DONE})
    script.on(Exited(0, 101))
    assert script.report(1, {"out.0": _DONE}) == [], "nothing is known of the new worker 0"
    assert script.report(0, {"s.0": _DONE}) == [Tell({"say": "leave"})]


def test_a_failure_ends_the_flow() -> None:
    script = _Script(_plan())
    failed = {"message": "stage x: ValueError", "stage": "x"}
    assert script.report(1, failed=failed) == [
        CancelWorker(0, 101),
        CancelWorker(1, 102),
        Finish("stage x: ValueError", failed),
    ]


# ----------------------------------------------------------------------- drain


def test_to_stop_at_once_is_to_leave() -> None:
    script = _Script(_plan())
    assert script.on(StopAsked(drain=False)) == [Tell({"say": "leave"})]
    assert script.on(StopAsked(drain=True)) == [], "it stops already"
    assert script.on(Exited(0, 101)) == []
    assert script.on(Exited(1, 102)) == [Finish(None)]


def _drained(script: _Script, tasks: dict[str, Any], at: float, **values: Any) -> list[CoordinatorEffect]:
    """A round of questions and answers."""
    asked = script.on(Ticked(at))
    assert [effect.message["say"] for effect in asked if isinstance(effect, Tell)] == ["pause", "commit"]
    return script.answers(tasks, **{"paused": True, **values})


def test_to_drain_is_to_pause_and_to_leave_when_two_rounds_agree() -> None:
    script = _Script(_plan())
    assert script.on(StopAsked(drain=True)) == [Tell({"say": "pause"})]
    assert script.on(StopAsked(drain=True)) == []
    some = {"s.0": _task(sent={"0": 5}), "out.0": _task(next={"0": 3})}
    all_taken = {"s.0": _task(sent={"0": 5}), "out.0": _task(next={"0": 5})}
    assert _drained(script, some, 1.0) == []
    assert script.on(Ticked(1.01)) == [], "not so fast"
    assert _drained(script, all_taken, 1.1) == [], "the round before had not taken all"
    assert _drained(script, all_taken, 1.2) == [Tell({"say": "leave"})]


def test_a_drain_waits_for_commits_and_for_pauses() -> None:
    script = _Script(_plan())
    script.on(StopAsked(drain=True))
    taken = {"s.0": _task(sent={"0": 5}), "out.0": _task(next={"0": 5})}
    assert _drained(script, taken, 1.0) == []
    assert _drained(script, {**taken, "out.0": {**taken["out.0"], "safe": False}}, 1.1) == []
    assert _drained(script, taken, 1.2, paused=False) == []
    assert _drained(script, taken, 1.3) == [Tell({"say": "leave"})]


def test_a_worker_that_starts_in_a_drain_makes_it_begin_again() -> None:
    script = _Script(_plan())
    script.on(StopAsked(drain=True))
    taken = {"s.0": _task(sent={"0": 5}), "out.0": _task(next={"0": 5})}
    assert _drained(script, taken, 1.0) == []
    script.on(Ticked(1.1))
    old = script.probe
    script.on(Exited(1, 102))
    assert script.report(0, taken, probe=old, paused=True) == []
    assert script.report(1, taken, probe=old, paused=True) == [], "an answer to a question that is void"
    assert _drained(script, taken, 1.2) == []
    assert _drained(script, taken, 1.3) == [Tell({"say": "leave"})]


def test_an_answer_of_some_is_no_answer() -> None:
    script = _Script(_plan())
    script.on(StopAsked(drain=True))
    for at in (1.0, 1.1, 1.2):
        script.on(Ticked(at))
        assert script.report(0, probe=script.probe, paused=True) == []


# ----------------------------------------------------------------------- loops

_ROUND = {
    "s.0": _task(sent={"0": 3}, source_ended=True, finished=True),
    "again.0": _task(next={"0": 3, "1": 7}, sent={"1": 7, "2": 10}),
    "out.0": _task(next={"2": 10}),
}


def _asked(script: _Script, at: float) -> list[Any]:
    return [effect.message["say"] for effect in script.on(Ticked(at)) if isinstance(effect, Tell)]


def test_loops_end_when_sources_have_and_nothing_goes_round() -> None:
    script = _Script(_plan(loop=True))
    assert _asked(script, 1.0) == [], "nothing is known of the source"
    script.answers({**_ROUND, "s.0": _task()})
    assert _asked(script, 1.1) == [], "it has not ended"
    script.answers(_ROUND)
    assert _asked(script, 1.2) == ["answer"]
    going = {**_ROUND, "again.0": _task(next={"0": 3, "1": 6}, sent={"1": 7, "2": 10})}
    assert script.answers(going) == []
    assert _asked(script, 1.3) == ["answer"]
    assert script.answers(_ROUND) == []
    assert _asked(script, 1.4) == ["answer"]
    assert script.answers(_ROUND) == [Tell({"say": "end loops"})]


@pytest.mark.parametrize("why", ["loop", "drain"])
def test_it_is_quiet_where_a_task_goes_back_behind_what_others_have_taken(why: str) -> None:
    """An end that went round before a crash; records of a source that is paused now, and need not come again."""
    script = _Script(_plan(loop=why == "loop"))
    if why == "drain":
        script.on(StopAsked(drain=True))
    back = {"s.0": _task(sent={"0": 2}), "out.0": _task(next={"0": 5})}
    tasks = {**_ROUND, "again.0": _task(next={"0": 3, "1": 8}, sent={"1": 7, "2": 10})} if why == "loop" else back
    script.answers(tasks)
    said: list[Any] = []
    for at in range(1, 5):
        script.on(Ticked(float(at)))
        said += [e.message["say"] for e in script.answers(tasks, paused=True) if isinstance(e, Tell)]
    assert said[:1] == ["end loops" if why == "loop" else "leave"]


def _loops_ended(script: _Script) -> None:
    script.answers(_ROUND)
    for at in (1.2, 1.3):
        script.on(Ticked(at))
        effects = script.answers(_ROUND)
    assert effects == [Tell({"say": "end loops"})]


def test_a_worker_that_dies_before_it_ended_its_loops_is_told_again() -> None:
    script = _Script(_plan(loop=True), 1)
    _loops_ended(script)
    script.on(Exited(0, script.epochs[0], "killed"))
    said: list[Any] = []
    script.answers(_ROUND)  # from the commit before: nothing has ended
    for at in range(2, 8):
        said += _asked(script, float(at))
        said += [effect.message["say"] for effect in script.answers(_ROUND) if isinstance(effect, Tell)]
    assert "end loops" in said


def test_loops_do_not_end_before_a_queue_from_outside_has() -> None:
    flow = Flow("f")
    again = flow.loop("again", flow.source("s", hr.queue("in", _NUMBERS, producers=1)))
    again.back(again)
    flow.sink("out", again, hr.callback(_ignored), route=hr.rebalance())
    script = _Script(make_plan(flow.graph()))
    open_ = {**_ROUND, "s.0": _task(sent={"0": 3}, next={"5": 3})}
    said: list[Any] = []
    for at in range(1, 6):
        said += _asked(script, float(at))
        said += [effect.message["say"] for effect in script.answers(open_) if isinstance(effect, Tell)]
    assert "end loops" not in said


def test_status_names_all_workers_and_tasks() -> None:
    script = _Script(_plan())
    script.report(1)
    status = script.machine.status()
    assert {"epoch": 102, "up": True, "left": False, "tasks": ["out.0"]}.items() <= status["workers"][1].items()
    assert (status["workers"][0]["up"], list(status["tasks"]), status["stopping"]) == (False, ["out.0"], None)
