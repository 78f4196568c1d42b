"""The coordinator waits until all is quiet: to drain a flow, and to end its loops."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.effects import CoordinatorEffect, Exited, Finish, StopAsked, Tell, Ticked
from headrace.flow.plan import make_plan

from .coordinator_script import NUMBERS, Script, ignored, plan_of, task_says

# ----------------------------------------------------------------------- drain


def test_to_stop_at_once_is_to_leave() -> None:
    script = Script(plan_of())
    assert script.on(StopAsked(drain=False)) == [Tell({"say": "leave"})]
    assert script.on(StopAsked(drain=True)) == [], "it stops already"
    assert script.on(Exited(0, 101)) == []
    assert script.on(Exited(1, 102)) == [Finish(None)]


def _drained(script: Script, tasks: dict[str, Any], at: float, **values: Any) -> list[CoordinatorEffect]:
    """A round of questions and answers."""
    asked = script.on(Ticked(at))
    assert [effect.message["say"] for effect in asked if isinstance(effect, Tell)] == ["pause", "commit"]
    return script.answers(tasks, **{"paused": True, **values})


def test_to_drain_is_to_pause_and_to_leave_when_two_rounds_agree() -> None:
    script = Script(plan_of())
    assert script.on(StopAsked(drain=True)) == [Tell({"say": "pause"})]
    assert script.on(StopAsked(drain=True)) == []
    some = {"s.0": task_says(sent={"0": 5}), "out.0": task_says(next={"0": 3})}
    all_taken = {"s.0": task_says(sent={"0": 5}), "out.0": task_says(next={"0": 5})}
    assert _drained(script, some, 1.0) == []
    assert script.on(Ticked(1.01)) == [], "not so fast"
    assert _drained(script, all_taken, 1.1) == [], "the round before had not taken all"
    assert _drained(script, all_taken, 1.2) == [Tell({"say": "leave"})]


def test_a_drain_waits_for_commits_and_for_pauses() -> None:
    script = Script(plan_of())
    script.on(StopAsked(drain=True))
    taken = {"s.0": task_says(sent={"0": 5}), "out.0": task_says(next={"0": 5})}
    assert _drained(script, taken, 1.0) == []
    assert _drained(script, {**taken, "out.0": {**taken["out.0"], "safe": False}}, 1.1) == []
    assert _drained(script, taken, 1.2, paused=False) == []
    assert _drained(script, taken, 1.3) == [Tell({"say": "leave"})]


def test_a_worker_that_starts_in_a_drain_makes_it_begin_again() -> None:
    script = Script(plan_of())
    script.on(StopAsked(drain=True))
    taken = {"s.0": task_says(sent={"0": 5}), "out.0": task_says(next={"0": 5})}
    assert _drained(script, taken, 1.0) == []
    script.on(Ticked(1.1))
    old = script.probe
    script.on(Exited(1, 102))
    assert script.report(0, taken, probe=old, paused=True) == []
    assert script.report(1, taken, probe=old, paused=True) == [], "an answer to a question that is void"
    assert _drained(script, taken, 1.2) == []
    assert _drained(script, taken, 1.3) == [Tell({"say": "leave"})]


def test_an_answer_of_some_is_no_answer() -> None:
    script = Script(plan_of())
    script.on(StopAsked(drain=True))
    for at in (1.0, 1.1, 1.2):
        script.on(Ticked(at))
        assert script.report(0, probe=script.probe, paused=True) == []


# ----------------------------------------------------------------------- loops

_ROUND = {
    "s.0": task_says(sent={"0": 3}, source_ended=True, finished=True),
    "again.0": task_says(next={"0": 3, "1": 7}, sent={"1": 7, "2": 10}),
    "out.0": task_says(next={"2": 10}),
}


def _asked(script: Script, at: float) -> list[Any]:
    return [effect.message["say"] for effect in script.on(Ticked(at)) if isinstance(effect, Tell)]


def test_loops_end_when_sources_have_and_nothing_goes_round() -> None:
    script = Script(plan_of(loop=True))
    assert _asked(script, 1.0) == [], "nothing is known of the source"
    script.answers({**_ROUND, "s.0": task_says()})
    assert _asked(script, 1.1) == [], "it has not ended"
    script.answers(_ROUND)
    assert _asked(script, 1.2) == ["answer"]
    going = {**_ROUND, "again.0": task_says(next={"0": 3, "1": 6}, sent={"1": 7, "2": 10})}
    assert script.answers(going) == []
    assert _asked(script, 1.3) == ["answer"]
    assert script.answers(_ROUND) == []
    assert _asked(script, 1.4) == ["answer"]
    assert script.answers(_ROUND) == [Tell({"say": "end loops"})]


@pytest.mark.parametrize("why", ["loop", "drain"])
def test_it_is_quiet_where_a_task_goes_back_behind_what_others_have_taken(why: str) -> None:
    """An end that went round before a crash; records of a source that is paused now, and need not come again."""
    script = Script(plan_of(loop=why == "loop"))
    if why == "drain":
        script.on(StopAsked(drain=True))
    back = {"s.0": task_says(sent={"0": 2}), "out.0": task_says(next={"0": 5})}
    tasks = {**_ROUND, "again.0": task_says(next={"0": 3, "1": 8}, sent={"1": 7, "2": 10})} if why == "loop" else back
    script.answers(tasks)
    said: list[Any] = []
    for at in range(1, 5):
        script.on(Ticked(float(at)))
        said += [e.message["say"] for e in script.answers(tasks, paused=True) if isinstance(e, Tell)]
    assert said[:1] == ["end loops" if why == "loop" else "leave"]


def _loops_ended(script: Script) -> None:
    script.answers(_ROUND)
    for at in (1.2, 1.3):
        script.on(Ticked(at))
        effects = script.answers(_ROUND)
    assert effects == [Tell({"say": "end loops"})]


def test_a_worker_that_dies_before_it_ended_its_loops_is_told_again() -> None:
    script = Script(plan_of(loop=True), 1)
    _loops_ended(script)
    script.on(Exited(0, script.epochs[0], "killed"))
    said: list[Any] = []
    script.answers(_ROUND)  # from the commit before: nothing has ended
    for at in range(2, 8):
        said += _asked(script, float(at))
        said += [effect.message["say"] for effect in script.answers(_ROUND) if isinstance(effect, Tell)]
    assert "end loops" in said


def test_workers_that_are_slow_to_answer_are_waited_for() -> None:
    """A question every 50 ms, whatever the last one got, and those who take 90 ms would never answer the last one."""
    script = Script(plan_of(loop=True))
    script.answers(_ROUND)
    asked: list[str] = []
    said: list[Any] = []
    for tick in range(1, 80):
        asked += _asked(script, tick * 0.03)
        if tick % 4 == 0:
            said += [effect.message["say"] for effect in script.answers(_ROUND) if isinstance(effect, Tell)]
        assert len(asked) <= 1 + tick // 2
        if said:
            break
    assert said == ["end loops"]
    assert len(asked) == 2


def test_a_question_that_nobody_answers_is_put_again() -> None:
    script = Script(plan_of(loop=True))
    script.answers(_ROUND)
    asked = [at for at in range(1, 70) if _asked(script, at / 16)]
    assert asked == [1, 17, 33, 49, 65]


def test_loops_do_not_end_before_a_queue_from_outside_has() -> None:
    flow = Flow("f")
    again = flow.loop("again", flow.source("s", hr.queue("in", NUMBERS, producers=1)))
    again.back(again)
    flow.sink("out", again, hr.callback(ignored), route=hr.rebalance())
    script = Script(make_plan(flow.graph()))
    open_ = {**_ROUND, "s.0": task_says(sent={"0": 3}, next={"5": 3})}
    said: list[Any] = []
    for at in range(1, 6):
        said += _asked(script, float(at))
        said += [effect.message["say"] for effect in script.answers(open_) if isinstance(effect, Tell)]
    assert "end loops" not in said
