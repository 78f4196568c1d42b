"""The coordinator as a state machine: who has which tasks, what becomes of the dead, and when it is over."""

from __future__ import annotations

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.coordinator import Coordinator
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
from headrace.flow.placing import shared_out
from headrace.flow.plan import make_plan

from .coordinator_script import DONE, NUMBERS, Script, ignored, make, plan_of, task_says

# ------------------------------------------------------------------ assignment


def test_tasks_are_shared_out() -> None:
    assert shared_out(list(plan_of(loop=True).tasks), 2) == {0: ("s.0", "out.0"), 1: ("again.0",)}
    assert shared_out(list(plan_of().tasks), 9) == {0: ("s.0",), 1: ("out.0",)}, "no worker without a task"
    flow = Flow("f")
    flow.sink("out", flow.source("s", hr.generate(make, 1), parallelism=4), hr.callback(ignored), parallelism=3)
    shares = shared_out(list(make_plan(flow.graph()).tasks), 3)
    assert sorted(name for names in shares.values() for name in names) == sorted(make_plan(flow.graph()).tasks)
    assert all(any(name.startswith("s.") for name in names) for names in shares.values())


def test_who_has_the_tracker_has_fewer_other_tasks() -> None:
    names, heavy = [*(f"a.{n}" for n in range(60)), "tracker.0"], {"tracker": 1 / 4}
    shares = shared_out(names, 4, heavy)
    assert sorted(name for each in shares.values() for name in each) == sorted(names)
    with_tracker = next(each for each in shares.values() if "tracker.0" in each)
    assert len(with_tracker) == 13
    assert {len(each) for each in shares.values() if each is not with_tracker} == {16}
    assert shared_out(names, 1, heavy) == {0: tuple(names)}


def test_all_workers_start_with_epochs_of_their_own() -> None:
    machine = Coordinator(plan_of(), 2, 100)
    assert machine.start(0.0) == [
        Tell({"say": "leave", "before": 100}),
        StartWorker(0, 101, ("s.0",)),
        StartWorker(1, 102, ("out.0",)),
    ]


def test_workers_hear_now_and_then_that_somebody_is_there() -> None:
    script = Script(plan_of())
    assert script.on(Ticked(5.0)) == [Tell({"say": "alive"})]
    assert script.on(Ticked(9.9)) == []
    assert script.on(Ticked(10.0)) == [Tell({"say": "alive"})]


# -------------------------------------------------------------------- restarts


def test_a_worker_that_dies_is_started_again() -> None:
    script = Script(plan_of())
    assert script.on(Exited(1, 102, "killed")) == [StartWorker(1, 103, ("out.0",))]
    assert script.on(Exited(1, 102, "killed")) == [], "that one is known to be dead"
    assert script.machine.status()["restarts"] == 1


def test_reports_of_an_older_epoch_do_not_count() -> None:
    script = Script(plan_of())
    task = {**DONE, "keep_from": {"f.in.out.0": 9}}
    done = {"worker": 1, "epoch": 102, "probe": None, "paused": False, "tasks": {"out.0": task}}
    script.report(0, {"s.0": DONE})
    script.on(Exited(1, 102))
    assert script.on(Reported(done)) == []
    assert script.on(Reported({**done, "failed": {"message": "old"}})) == []
    assert script.on(Reported({**done, "worker": 5})) == []
    assert script.on(Reported({**done, "epoch": 103})) == [Truncate("f.in.out.0", 9), Tell({"say": "leave"})]


def test_too_many_deaths_end_the_flow() -> None:
    script = Script(plan_of())
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
    script = Script(plan_of())
    for death in range(60):
        script.on(Ticked(death * 3.1))
        (start,) = script.on(Exited(1, script.epochs[1]))
        assert isinstance(start, StartWorker)


def test_a_silent_worker_is_replaced() -> None:
    script = Script(plan_of())
    alive = Tell({"say": "alive"})
    assert script.on(Ticked(500.0)) == [alive], "those that have not come up yet may take their time"
    for worker in (0, 1):
        script.report(worker)
    assert script.on(Ticked(529.0)) == [alive]
    script.report(0)
    assert script.on(Ticked(530.5)) == [CancelWorker(1, 102), StartWorker(1, 103, ("out.0",))]
    assert script.on(Ticked(531.0)) == []


def test_a_worker_that_is_silent_while_all_leave_does_not_hold_up_the_end() -> None:
    script = Script(plan_of())
    for worker in (0, 1):
        script.report(worker)
    assert script.on(StopAsked(drain=False)) == [Tell({"say": "leave"})]
    assert script.on(Exited(0, 101)) == []
    effects = script.on(Ticked(31.0))
    if not any(isinstance(effect, Finish) for effect in effects):
        effects = [*script.report(1), *script.on(Ticked(31.5)), *script.report(1)]
    assert any(effect == Tell({"say": "leave"}) or isinstance(effect, Finish) for effect in effects)


def _busy(script: Script, worker: int, for_s: float, still_s: float | None = None) -> list[CoordinatorEffect]:
    about = {"what": "out.0", "for_s": for_s, "still_s": for_s if still_s is None else still_s}
    return script.on(Reported({"worker": worker, "epoch": script.epochs[worker], "busy": about}))


def test_a_worker_that_is_at_one_thing_for_long_is_not_dead() -> None:
    script = Script(plan_of())
    for worker in (0, 1):
        script.report(worker)
    for moment in range(2, 1000, 2):
        script.report(0)
        assert script.on(Ticked(float(moment))) in ([], [Tell({"say": "alive"})])
        assert _busy(script, 1, float(moment), 3.0) == [], "it moves"
    assert script.machine.status()["workers"][1]["busy"] == "out.0 for 998 s"
    assert script.machine.status()["restarts"] == 0
    script.report(1)
    assert script.machine.status()["workers"][1]["busy"] is None


def test_a_stage_that_hangs_is_tried_again_and_then_named() -> None:
    script = Script(plan_of())
    for epoch in (102, 103):
        script.report(1)
        assert _busy(script, 1, 299.0) == []
        assert _busy(script, 1, 301.0) == [CancelWorker(1, epoch), StartWorker(1, epoch + 1, ("out.0",))]
        assert _busy(script, 1, 1.0) == []
    *_, finish = _busy(script, 1, 301.0)
    assert isinstance(finish, Finish)
    assert str(finish.problem).startswith(
        "worker 1 (tasks out.0) was started again 3 times, and got no further; the last time: out.0 was at one thing "
        "for 301 seconds."
    )


def test_stages_that_hang_now_and_then_do_not_end_the_flow() -> None:
    script = Script(plan_of())
    for records in range(10):
        script.report(1, {"out.0": task_says(records_in=records)})
        assert isinstance(_busy(script, 1, 301.0)[-1], StartWorker)


def test_who_dies_again_and_again_at_the_same_place_ends_the_flow() -> None:
    """However long a start takes: a record that kills its worker does so every time."""
    script = Script(plan_of())
    for death in range(11):
        script.on(Ticked(death * 10.0))
        script.report(1, {"out.0": task_says(records_in=7000)})
        assert isinstance(script.on(Exited(1, script.epochs[1], "killed"))[-1], StartWorker)
    script.report(1, {"out.0": task_says(records_in=6000)})
    finish = script.on(Exited(1, script.epochs[1], "killed"))[-1]
    assert isinstance(finish, Finish)
    assert "was started again 12 times, and got no further; the last time: killed" in str(finish.problem)


def test_who_cannot_begin_may_do_so_later() -> None:
    """As where a broker is away."""
    script = Script(plan_of())
    for death in range(40):
        script.on(Ticked(death * 10.0))
        assert isinstance(script.on(Exited(1, script.epochs[1], "away"))[-1], StartWorker)


def test_a_worker_that_has_not_begun_does_not_hold_up_the_end() -> None:
    script = Script(plan_of())
    script.report(0)
    script.on(StopAsked(drain=False))
    script.on(Ticked(1.0))
    assert CancelWorker(1, 102) in script.on(Ticked(4.0))
    assert script.on(Exited(0, 101)) == [Finish(None, {})]


def test_who_is_busy_while_all_leave_is_not_waited_for() -> None:
    script = Script(plan_of())
    for worker in (0, 1):
        script.report(worker)
    script.on(StopAsked(drain=False))
    script.on(Exited(0, 101))
    assert _busy(script, 1, 2.0) == [CancelWorker(1, 102), Finish(None, {})]


def test_the_same_exception_three_times_ends_the_flow_and_is_told() -> None:
    script, problem = Script(plan_of()), "KeyError: 'x' (a.py, line 3, in f)"

    def dies(said: str) -> list[CoordinatorEffect]:
        told = script.on(Reported({"worker": 1, "epoch": script.epochs[1], "raised": said}))
        return told or script.on(Exited(1, script.epochs[1], said))

    for said in (problem, "OSError: away (b.py, line 1, in g)", problem):
        assert isinstance(dies(said)[-1], StartWorker)
    finish = dies(problem)[-1]
    assert isinstance(finish, Finish)
    assert finish.problem == f"workers were started again, and raised the same 3 times: {problem}"


# ------------------------------------------------------------------ truncation


def test_queues_are_truncated_as_workers_say_and_never_back() -> None:
    script = Script(plan_of())
    assert script.report(0, {"s.0": task_says(keep_from={})}) == [], "a source has no inbox"
    assert script.report(1, {"out.0": task_says(keep_from={"f.in.out.0": 0})}) == []
    assert script.report(1, {"out.0": task_says(keep_from={"f.in.out.0": 7})}) == [Truncate("f.in.out.0", 7)]
    assert script.report(1, {"out.0": task_says(keep_from={"f.in.out.0": 7})}) == []
    assert script.report(1, {"out.0": task_says(keep_from={"f.in.out.0": 3})}) == []
    assert script.report(1, {"out.0": task_says(keep_from={"f.in.out.0": 8})}) == [Truncate("f.in.out.0", 8)]


def test_a_queue_from_outside_is_not_truncated() -> None:
    flow = Flow("f")
    flow.sink("out", flow.source("s", hr.queue("in", NUMBERS)), hr.callback(ignored))
    script = Script(make_plan(flow.graph()), 1)
    assert script.report(0, {"s.0": task_says(keep_from={"f.in.out.0": 7})}) == []


# ---------------------------------------------------------------------- finish


def test_it_is_over_when_all_have_finished_and_left() -> None:
    script = Script(plan_of())
    assert script.report(0, {"s.0": DONE}) == []
    assert script.report(1, {"out.0": {**DONE, "safe": False}}) == []
    assert script.report(1, {"out.0": DONE}) == [Tell({"say": "leave"})]
    assert script.report(1, {"out.0": DONE}) == [], "said once"
    assert script.on(Exited(0, 101)) == []
    assert script.on(Exited(1, 102)) == [Finish(None)]


def test_a_worker_that_dies_after_it_was_told_to_leave_has_left() -> None:
    script = Script(plan_of())
    script.report(0, {"s.0": DONE})
    script.report(1, {"out.0": DONE})
    script.on(Exited(0, 101, "killed"))
    assert script.on(Exited(1, 102, "killed")) == [Finish(None)]


def test_what_was_finished_counts_again_after_a_restart() -> None:
    script = Script(plan_of())
    script.report(0, {"s.0": DONE})
    script.on(Exited(0, 101))
    assert script.report(1, {"out.0": DONE}) == [], "nothing is known of the new worker 0"
    assert script.report(0, {"s.0": DONE}) == [Tell({"say": "leave"})]


def test_a_failure_ends_the_flow() -> None:
    script = Script(plan_of())
    failed = {"message": "stage x: ValueError", "stage": "x"}
    assert script.report(1, failed=failed) == [
        CancelWorker(0, 101),
        CancelWorker(1, 102),
        Finish("stage x: ValueError", failed),
    ]


# ----------------------------------------------------------------------- status


def test_status_names_all_workers_and_tasks() -> None:
    script = Script(plan_of())
    script.report(1)
    status = script.machine.status()
    assert {"epoch": 102, "up": True, "left": False, "tasks": ["out.0"]}.items() <= status["workers"][1].items()
    assert (status["workers"][0]["up"], list(status["tasks"]), status["stopping"]) == (False, ["out.0"], None)
