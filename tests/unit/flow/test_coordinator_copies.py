"""The coordinator where tasks have copies: who has which, who speaks, what queues keep, and when it is over."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.coordinator import Coordinator
from headrace.flow.copies import Replication, agreed, task_of
from headrace.flow.effects import (
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

from .coordinator_script import DONE, NUMBERS, Script, plan_of, task_says

_INBOX = "f.in.out.0"
_LEAVE = Tell({"say": "leave"})


class _Script(Script):
    """With two copies of each task: worker 0 has s.0 and out.0~1, worker 1 has out.0 and s.0~1."""

    def __init__(self, mode: str = "active", workers: int = 2, copies: int = 2, plan: Plan | None = None):
        super().__init__(plan_of(), workers)
        self.epochs, self.tasks, self.silent = {}, {}, dict[int, tuple[str, ...]]()
        self.machine = Coordinator(plan or plan_of(), workers, 100, Replication(mode, copies))
        self.took(self.machine.start(0.0))

    def took(self, effects: list[CoordinatorEffect]) -> list[CoordinatorEffect]:
        for effect in effects:
            if isinstance(effect, StartWorker) and hasattr(self, "silent"):
                self.silent[effect.worker] = effect.silent
        return super().took(effects)

    def up(self) -> _Script:
        for worker in self.tasks:
            self.report(worker, self.quiet(worker))
        return self

    def quiet(self, worker: int, **values: Any) -> dict[str, Any]:
        return {name: task_says(silent=name in self.silent[worker], **values) for name in self.tasks[worker]}

    def dies(self, worker: int) -> list[CoordinatorEffect]:
        return self.on(Exited(worker, self.epochs[worker], "killed"))

    def restores(self, worker: int) -> list[CoordinatorEffect]:
        return self.on(Reported({"worker": worker, "epoch": self.epochs[worker], "restoring": True}))

    def keeps(self, worker: int, position: int | None, **values: Any) -> list[CoordinatorEffect]:
        """What its copy of the sink still needs."""
        name = next(each for each in self.tasks[worker] if task_of(each) == "out.0")
        keep = {} if position is None else {_INBOX: position}
        values = {"silent": name in self.silent[worker], **values}
        return self.report(worker, {name: task_says(keep_from=keep, **values)})


def _spoken(effects: list[CoordinatorEffect]) -> list[str]:
    told = [effect.message for effect in effects if isinstance(effect, Tell)]
    return [name for message in told if message["say"] == "speak" for name in message["copies"]]


# ------------------------------------------------------------------- placement


@pytest.mark.parametrize(("workers", "copies"), [(2, 2), (3, 2), (3, 3), (5, 3)])
def test_copies_of_a_task_are_in_different_workers(workers: int, copies: int) -> None:
    script = _Script(workers=workers, copies=copies)
    names = [name for names in script.tasks.values() for name in names]
    assert len(names) == len(set(names)) == 2 * copies
    for names_of in script.tasks.values():
        assert len({task_of(name) for name in names_of}) == len(names_of)


def test_active_copies_all_speak_but_where_the_sink_wants_one() -> None:
    script = _Script("active")
    assert script.tasks == {0: ("s.0", "out.0~1"), 1: ("out.0", "s.0~1")}
    assert script.silent == {0: ("out.0~1",), 1: ()}, "the function of a callback is called once"


def test_in_standby_the_first_copies_speak() -> None:
    assert _Script("standby").silent == {0: ("out.0~1",), 1: ("s.0~1",)}


# ----------------------------------------------------------------------- voice


def test_the_voice_passes_when_a_worker_dies() -> None:
    script = _Script("standby").up()
    effects = script.dies(0)
    assert effects[0] == Tell({"say": "speak", "copies": ["s.0~1"]})
    assert effects[1] == StartWorker(0, 103, ("s.0", "out.0~1"), ("s.0", "out.0~1")), "it comes back in silence"
    assert script.machine.copies()["s.0~1"]["worker"] == 1


def test_the_voice_does_not_come_back_with_the_worker() -> None:
    script = _Script("standby").up()
    script.dies(0)
    assert _spoken(script.report(0, script.quiet(0))) == []
    assert _spoken(script.dies(0)) == [], "that one was silent"
    assert script.silent[0] == ("s.0", "out.0~1")


def test_the_voice_passes_to_and_fro() -> None:
    script = _Script("standby").up()
    assert _spoken(script.dies(0)) == ["s.0~1"]
    script.report(0, script.quiet(0))
    assert sorted(_spoken(script.dies(1))) == ["out.0~1", "s.0"]
    assert script.silent[1] == ("out.0", "s.0~1")


def test_the_voice_does_not_pass_to_one_that_is_not_up() -> None:
    script = _Script("standby")
    script.report(0, script.quiet(0))
    assert _spoken(script.dies(0)) == [], "worker 1 has said nothing yet"
    assert script.silent[0] == ("out.0~1",), "so it speaks again when it comes back"
    script.restores(1)
    assert _spoken(script.dies(0)) == [], "nor to one that is restoring"


def test_where_both_are_lost_the_voice_stays_where_it_was_last() -> None:
    script = _Script("standby").up()
    assert _spoken(script.dies(0)) == ["s.0~1"]
    assert _spoken(script.dies(1)) == []
    assert script.silent == {0: ("s.0", "out.0~1"), 1: ()}, "one of each task speaks"


def test_of_three_copies_one_that_is_up_speaks() -> None:
    script = _Script("standby", workers=3, copies=3).up()
    first, second = (next(w for w, names in script.tasks.items() if name in names) for name in ("s.0", "s.0~1"))
    script.dies(second)
    assert "s.0~2" in _spoken(script.dies(first))


def test_of_a_worker_that_is_known_to_be_gone_no_voice_passes_again() -> None:
    script = _Script("standby").up()
    old = script.epochs[0]
    script.dies(0)
    assert script.on(Exited(0, old, "killed")) == []


def test_a_worker_that_says_nothing_loses_its_voice() -> None:
    script = _Script("standby").up()
    script.on(Ticked(20.0))
    script.report(1, script.quiet(1))
    assert _spoken(script.on(Ticked(31.0))) == ["s.0~1"]


# ------------------------------------------------------------------ truncation


def test_queues_keep_what_any_copy_still_needs() -> None:
    script = _Script("standby").up()
    assert script.keeps(1, 7) == [], "nothing is known of the other one"
    assert script.keeps(0, 5) == [Truncate(_INBOX, 5)]
    assert script.keeps(0, 9) == [Truncate(_INBOX, 7)]
    assert script.keeps(0, 12) == []


def test_a_copy_that_is_gone_holds_up_nothing() -> None:
    script = _Script("standby").up()
    script.keeps(0, 5)
    script.dies(0)
    assert script.keeps(1, 9) == [Truncate(_INBOX, 9)], "it will begin with a newer commit"


def test_one_that_speaks_is_waited_for_even_where_it_is_gone() -> None:
    """The commits are all its: whoever begins, begins there."""
    script = _Script("standby")
    assert script.keeps(1, 5) == [Truncate(_INBOX, 5)], "the other one has not come up"
    script.dies(1)
    assert script.keeps(0, 9) == []


def test_one_that_restores_may_want_what_the_others_do_not() -> None:
    script = _Script("standby").up()
    script.keeps(0, 50)
    script.keeps(1, 6)
    script.dies(0)
    script.restores(0)
    assert script.keeps(1, 9) == [], "it has begun to read commits, and may have found one of before"
    assert script.keeps(0, 8) == [Truncate(_INBOX, 8)]


def test_one_that_dies_while_it_restores_is_gone() -> None:
    script = _Script("standby").up()
    script.dies(0)
    script.restores(0)
    script.dies(0)
    assert script.keeps(1, 9) == [Truncate(_INBOX, 9)]


def test_one_that_speaks_now_keeps_all_until_it_has_commits() -> None:
    script = _Script("standby").up()
    script.keeps(0, 8)
    script.keeps(1, 6)
    assert _spoken(script.dies(1)) == ["out.0~1"]
    assert script.keeps(0, 30, silent=True) == [], "it has not heard yet: that was said in silence"
    assert script.keeps(0, None, silent=False) == [], "it has no commits"
    assert script.keeps(0, 12, silent=False) == [Truncate(_INBOX, 12)]


def test_reports_of_an_older_epoch_let_nothing_go() -> None:
    script = _Script("standby").up()
    old = script.epochs[0]
    script.keeps(1, 9)
    script.dies(0)
    script.restores(0)
    task = task_says(keep_from={_INBOX: 9}, silent=True)
    stale = {"worker": 0, "epoch": old, "probe": None, "paused": False, "tasks": {"out.0~1": task}}
    assert script.on(Reported(stale)) == []
    assert script.keeps(1, 9) == []


_OUTSIDE = "q.events"


def _outside_script(mode: str = "active") -> _Script:
    """Two copies of a task that reads a queue of the outside, in workers 0 and 1."""
    flow = Flow("f")
    flow.sink("out", flow.source("s", hr.queue("events", NUMBERS)), hr.queue("answers"))
    script = _Script(mode, plan=make_plan(flow.graph()))
    assert script.tasks == {0: ("s.0",), 1: ("s.0~1",)}
    return script.up()


def _needs(script: _Script, worker: int, position: int | None, **values: Any) -> int:
    [name] = script.tasks[worker]
    values = {"silent": name in script.silent[worker], **values}
    keep = {} if position is None else {_OUTSIDE: position}
    assert script.report(worker, {name: task_says(keep_from=keep, **values)}) == [], "others may read it"
    return script.machine.needed_from(_OUTSIDE)


def test_a_queue_from_outside_is_needed_from_where_the_copy_is_that_is_behind() -> None:
    script = _outside_script()
    assert _needs(script, 0, 50, records_in=90) == 0, "nothing is known of the other one"
    assert _needs(script, 1, 20, records_in=60) == 20
    assert _needs(script, 0, 70, records_in=99) == 20
    assert script.machine.needed_from("q.answers") == 0, "it does not read that"


def test_a_queue_from_outside_is_needed_whole_while_a_copy_restores() -> None:
    script = _outside_script()
    _needs(script, 1, 20)
    assert _needs(script, 0, 50) == 20
    script.dies(1)
    assert _needs(script, 0, 55) == 55, "it will begin with a newer commit"
    script.restores(1)
    assert _needs(script, 0, 80) == 0, "it has found one, and nobody knows which"
    assert _needs(script, 1, None) == 0, "it has no commits of its own"
    assert _needs(script, 1, 60) == 60
    script.dies(0)
    script.dies(1)
    assert script.machine.needed_from(_OUTSIDE) == 0


def test_a_queue_from_outside_is_needed_by_one_that_begins_to_speak() -> None:
    script = _outside_script("standby")
    _needs(script, 0, 20)
    assert _needs(script, 1, 50) == 20
    assert _spoken(script.dies(0)) == ["s.0~1"]
    assert _needs(script, 1, 60, silent=True) == 0, "it has not heard yet: that was said in silence"
    assert _needs(script, 1, 30, silent=False) == 30


def test_beats_that_all_have_read_for_a_while_are_let_go() -> None:
    script = _Script(plan=make_plan(agreed("round-robin", plan_of().graph)))
    for at, beats in ((1.0, 10), (6.0, 20), (12.0, 30), (18.0, 40)):
        script.on(Ticked(at))
        script.report(0, script.quiet(0), beats=beats)
        last = script.report(1, script.quiet(1), beats=beats + 5)
    assert last == []
    script.on(Ticked(24.0))
    assert script.report(0, script.quiet(0), beats=50) == [Truncate("f.beats", 35)], "what all had read seconds ago"
    script.dies(1)
    script.restores(1)
    script.on(Ticked(40.0))
    assert script.report(0, script.quiet(0), beats=90) == [], "one begins, and does not say where"


# ------------------------------------------------------------------ when it is over


def test_a_flow_is_over_where_one_copy_of_each_task_has_finished() -> None:
    script = _Script("standby").up()
    late = task_says(silent=True)
    assert script.report(0, {"s.0": DONE, "out.0~1": late}) == []
    assert script.report(1, {"out.0": task_says(), "s.0~1": late}) == []
    assert script.report(1, {"out.0": {**DONE, "safe": False}, "s.0~1": late}) == [], "it is not committed"
    assert script.report(1, {"out.0": DONE, "s.0~1": late}) == [_LEAVE]
    assert script.on(Exited(0, 101)) == []
    assert script.on(Exited(1, 102)) == [Finish(None)]


def test_one_that_has_left_does_not_come_back_while_another_takes_its_time() -> None:
    script = _Script("standby").up()
    script.report(0, {"s.0": DONE, "out.0~1": task_says(silent=True)})
    assert script.report(1, {"out.0": DONE, "s.0~1": task_says(silent=True)}) == [_LEAVE]
    assert script.on(Exited(0, 101)) == []
    script.on(Ticked(9.0))
    assert not [effect for effect in script.on(Ticked(20.0)) if isinstance(effect, StartWorker)]
    assert script.on(Exited(1, 102)) == [Finish(None)]


def test_what_was_finished_in_a_worker_that_is_gone_does_not_count() -> None:
    script = _Script("standby").up()
    script.report(1, {"out.0": DONE})
    script.dies(1)
    assert script.report(0, {"s.0": DONE, "out.0~1": task_says(silent=False)}) == []
    assert script.report(0, {"s.0": DONE, "out.0~1": DONE}) == [_LEAVE]


def test_a_drain_waits_for_the_copy_that_is_behind() -> None:
    script = _Script("active").up()
    script.on(StopAsked(drain=True))
    sent = {"s.0": task_says(sent={"0": 5}), "s.0~1": task_says(sent={"0": 4})}
    behind = {**sent, "out.0": task_says(next={"0": 5}), "out.0~1": task_says(next={"0": 4}, silent=True)}
    said: list[CoordinatorEffect] = []
    for at in (1.0, 2.0, 3.0):
        script.on(Ticked(at))
        said += script.answers(behind, paused=True)
    assert said == []
    taken = {**behind, "out.0~1": task_says(next={"0": 5}, silent=True)}
    for at in (4.0, 5.0):
        script.on(Ticked(at))
        said += script.answers(taken, paused=True)
    assert said == [_LEAVE]


def test_a_drain_goes_on_with_another_voice() -> None:
    script = _Script("standby").up()
    script.on(StopAsked(drain=True))
    assert "s.0~1" in _spoken(script.dies(0))
    taken = {name: task_says(sent={"0": 5}) for name in ("s.0", "s.0~1")}
    taken |= {name: task_says(next={"0": 5}) for name in ("out.0", "out.0~1")}
    said: list[CoordinatorEffect] = []
    for at in (1.0, 2.0):
        script.on(Ticked(at))
        said += script.answers(taken, paused=True)
    assert said == [_LEAVE]


# ---------------------------------------------------------------------- status


def test_the_report_of_a_task_is_that_of_the_copy_that_speaks_or_is_furthest() -> None:
    script = _Script("active").up()
    script.report(0, {"s.0": task_says(records_in=5), "out.0~1": task_says(records_in=9, silent=True)})
    script.report(1, {"s.0~1": task_says(records_in=7), "out.0": task_says(records_in=4)})
    found = script.machine.reports()
    assert {name: report["records_in"] for name, report in found.items()} == {"s.0": 7, "out.0": 4}
    copies = script.machine.copies()
    assert copies["out.0~1"] == {"worker": 0, "up": True, "silent": True, "records_in": 9}
    script.dies(0)
    assert copies.keys() == script.machine.copies().keys()
    assert not script.machine.copies()["s.0"]["up"]
