"""Where copies run, by examples: who stays, who goes, who takes over, and what the user is told."""

from __future__ import annotations

import pytest

from headrace.errors import FlowError
from headrace.replicate.assignment import Assignment, Copy, Move, Share, TaskLoad, WorkerSeen, assign, moved

TASKS = [TaskLoad(name) for name in ("parse.0", "parse.1", "score.0", "score.1")]
ADA, BOB, CLEO = WorkerSeen(0, "ada"), WorkerSeen(1, "bob"), WorkerSeen(2, "cleo")


def names(assignment: Assignment) -> dict[int | str, list[str]]:
    """Active copies with a star."""
    return {
        share.worker: [f"{copy}{'*' if assignment.is_active(copy) else ''}" for copy in share.copies]
        for share in assignment.shares
    }


def numbered(count: int) -> list[TaskLoad]:
    return [TaskLoad(f"t{at}") for at in range(count)]


# ---------------------------------------------------------------- from nothing


def test_copies_are_shared_out() -> None:
    found = assign(TASKS, [ADA, BOB, CLEO], 2)
    assert names(found) == {
        0: ["parse.0*", "parse.1~1", "score.1*"],
        1: ["parse.0~1", "score.0*", "score.1~1"],
        2: ["parse.1*", "score.0~1"],
    }
    assert [(share.load, share.budget) for share in found.shares] == [(3, 3), (3, 3), (2, 3)]
    assert found.notes == ()
    assert found.worker_of[Copy("score.0", 1)] == 2
    assert found.of(2) == (("parse.1", 0), ("score.0", 1))
    assert found.of("nobody") == ()


def test_the_first_copy_is_the_active_one_and_every_worker_has_active_ones() -> None:
    found = assign(numbered(60), [WorkerSeen(at, f"h{at}") for at in range(6)], 3)
    assert set(found.active.values()) == {0}
    actives = [sum(found.is_active(copy) for copy in share.copies) for share in found.shares]
    assert sum(actives) == 60
    assert set(actives) <= {9, 10, 11}


def test_what_is_lost_with_a_worker_is_taken_over_by_many() -> None:
    workers = [WorkerSeen(at, f"h{at}") for at in range(6)]
    before = assign(numbered(60), workers, 2)
    after = assign(numbered(60), workers[1:], 2, before)
    took_over = [after.worker_of[Copy(*copy)] for copy in after.active.items() if before.active[copy[0]] != copy[1]]
    assert len(took_over) == 10
    assert len(set(took_over)) >= 4, "not one neighbour alone"


def test_each_task_may_have_another_number_of_copies() -> None:
    found = assign(TASKS, [ADA, BOB, CLEO], {"score.0": 3, "score.1": 2})
    assert {task.name: sum(copy.task == task.name for copy in found.worker_of) for task in TASKS} == {
        "parse.0": 1,
        "parse.1": 1,
        "score.0": 3,
        "score.1": 2,
    }


def test_a_strong_worker_has_more() -> None:
    found = assign(numbered(12), [ADA, WorkerSeen(1, "bob", capacity=2.0)], 1)
    assert [share.load for share in found.shares] == [4, 8]


def test_heavy_tasks_count_for_more() -> None:
    tasks = [TaskLoad("heavy", 6.0), *(TaskLoad(f"light.{at}") for at in range(6))]
    found = assign(tasks, [ADA, BOB], 1)
    assert names(found) == {0: ["heavy*"], 1: [f"light.{at}*" for at in range(6)]}


def test_names_are_ordered_as_people_do() -> None:
    found = assign(numbered(12), [WorkerSeen("w10", "bob"), WorkerSeen("w9", "ada")], 1)
    assert [share.worker for share in found.shares] == ["w9", "w10"]
    assert names(found)["w9"] == ["t0*", "t2*", "t4*", "t6*", "t8*", "t10*"]


# -------------------------------------------------------------- coming and going


def test_a_replica_takes_over_and_only_lost_copies_move() -> None:
    before = assign(TASKS, [ADA, BOB, CLEO], 2)
    after = assign(TASKS, [BOB, CLEO], 2, before)
    assert names(after) == {
        1: ["parse.0~1*", "parse.1~1", "score.0*", "score.1~1*"],
        2: ["parse.0", "parse.1*", "score.0~1", "score.1"],
    }
    assert moved(before, after) == [
        ("parse.1", 1, 0, 1),
        ("parse.0", 0, 0, 2),
        ("score.1", 0, 0, 2),
    ]


def test_a_worker_that_comes_back_gets_what_it_has_files_of() -> None:
    before = assign(TASKS, [BOB, CLEO], 2)
    back = WorkerSeen(0, "ada", keeps=frozenset({"score.0", "parse.1"}))
    after = assign(TASKS, [back, BOB, CLEO], 2, before)
    assert {task for task, *_ in moved(before, after)} == {"score.0", "parse.1"}
    assert {to for *_, to in moved(before, after)} == {0}


def test_a_task_that_runs_nowhere_goes_where_files_of_it_are() -> None:
    keeps = [WorkerSeen(at, f"h{at}", keeps=frozenset({f"t{5 - at}"})) for at in range(6)]
    found = assign(numbered(6), keeps, 1)
    assert names(found) == {at: [f"t{5 - at}*"] for at in range(6)}


def test_files_are_no_reason_to_exceed_a_budget() -> None:
    hoarder = WorkerSeen(0, "ada", keeps=frozenset(task.name for task in TASKS))
    found = assign(TASKS, [hoarder, BOB], 1)
    assert [share.load for share in found.shares] == [2, 2]


def test_of_those_with_files_the_one_with_the_least_load_gets_it() -> None:
    before = assign([TaskLoad("a"), TaskLoad("b")], [ADA, BOB, CLEO], 1)
    assert names(before) == {0: ["a*"], 1: ["b*"], 2: []}
    keep = frozenset({"new"})
    workers = [WorkerSeen(0, "ada", keeps=keep), BOB, WorkerSeen(2, "cleo", keeps=keep)]
    after = assign([TaskLoad("a"), TaskLoad("b"), TaskLoad("new"), *numbered(3)], workers, 1, before)
    assert after.worker_of[Copy("new", 0)] == 2


def test_replicas_move_before_active_copies() -> None:
    before = assign(numbered(4), [ADA, BOB], 2)
    after = assign(numbered(4), [ADA, BOB, CLEO], 2, before)
    assert [before.active[task] == number for task, number, *_ in moved(before, after)] == [False, False]
    assert after.active == before.active


def test_the_last_replica_may_only_run_where_there_is_no_room() -> None:
    """Room is left on cleo alone, where the active copy runs: so another one goes to cleo, and makes room."""
    before = Assignment(
        (
            Share(0, "ada", (Copy("a", 0), Copy("b", 0)), 2, 2),
            Share(1, "bob", (Copy("a", 1), Copy("b", 1)), 2, 2),
            Share(2, "cleo", (Copy("c", 0),), 1, 2),
        ),
        {"a": 0, "b": 0, "c": 0},
    )
    after = assign([TaskLoad("a"), TaskLoad("b"), TaskLoad("c")], [ADA, BOB, CLEO], 2, before)
    assert names(after) == {0: ["b*", "c~1"], 1: ["a~1*", "b~1"], 2: ["a", "c*"]}
    assert moved(before, after) == [("c", 1, None, 0), ("a", 0, 0, 2)]


# ------------------------------------------------------------ numbers of copies


def test_fewer_copies_keep_the_first_number() -> None:
    before = assign(TASKS, [ADA, BOB, CLEO], 2)
    after = assign(TASKS, [BOB, CLEO], 2, before)
    assert after.active["parse.0"] == 1
    fewer = assign(TASKS, [BOB, CLEO], 1, after)
    assert fewer.active == dict.fromkeys(fewer.active, 0)
    assert [share.load for share in fewer.shares] == [2, 2]
    # Three of the first copies were on cleo; one goes to bob, who had the second copy of it.
    assert moved(after, fewer) == [("parse.0", 0, 2, 1)]


def test_more_copies_leave_those_that_are_there() -> None:
    before = assign(TASKS, [ADA, BOB, CLEO], 1)
    after = assign(TASKS, [ADA, BOB, CLEO], 2, before)
    assert after.active == before.active
    assert [(task, number, origin) for task, number, origin, _ in moved(before, after)] == [
        (task, 1, None) for task, *_ in moved(before, after)
    ]
    assert len(moved(before, after)) == 4


def test_a_worker_on_another_host_is_another_worker() -> None:
    before = assign(TASKS, [ADA, BOB], 1)
    after = assign(TASKS, [ADA, WorkerSeen(1, "cleo")], 1, before)
    assert moved(before, after) == [Move("parse.1", 0, 1, 1), Move("score.1", 0, 1, 1)]


def test_tasks_that_are_gone_are_forgotten() -> None:
    before = assign(TASKS, [ADA, BOB], 2)
    after = assign(TASKS[:1], [ADA, BOB], 2, before)
    assert names(after) == {0: ["parse.0*"], 1: ["parse.0~1"]}
    assert moved(before, after) == []
    assert moved(None, after) == [("parse.0", 0, None, 0), ("parse.0", 1, None, 1)]


# ------------------------------------------------------------------------ notes


def test_more_copies_than_hosts() -> None:
    found = assign(TASKS, [ADA, BOB, WorkerSeen(2, "bob")], {"parse.0": 3, "score.0": 4, "score.1": 4})
    assert found.notes[:2] == (
        "1 task asks for 3 copies, and there are 2 hosts: 2 of them run; add 1 host, or ask for 2 copies",
        "2 tasks ask for 4 copies, and there are 2 hosts: 2 of each run; add 2 hosts, or ask for 2 copies",
    )
    assert assign(TASKS, [ADA], 2).notes == (
        "4 tasks ask for 2 copies, and there is 1 worker: 1 of each runs; add 1 worker, best on another host, or ask "
        "for 1 copy",
    )


def test_one_machine() -> None:
    found = assign(TASKS, [WorkerSeen(at, "ada") for at in range(4)], 2)
    assert all(len({copy.task for copy in share.copies}) == 2 for share in found.shares)
    assert found.notes == (
        "all 4 workers are on host ada: copies of a task run in different workers, but if the machine is lost, all "
        "copies are; add a worker on another host",
    )
    assert assign(TASKS, [WorkerSeen(at, "ada") for at in range(4)], 1).notes == ()


def test_a_host_that_must_carry_more() -> None:
    found = assign(numbered(6), [ADA, *(WorkerSeen(at, "bob") for at in (1, 2, 3))], 2)
    assert [(share.load, share.budget) for share in found.shares] == [(6, 6), (2, 2), (2, 2), (2, 2)]
    assert found.notes == (
        "1 worker carries more than an even budget (worker 0: 6, even would be 3): no task runs twice on one host, so "
        "others cannot take it; add workers on host ada",
    )


def test_no_worker() -> None:
    found = assign(TASKS, [], 2)
    assert found == Assignment((), {}, ("4 tasks cannot run: there is no worker; start one",))
    assert assign([], [], 2).notes == ()


# ---------------------------------------------------------------------- explain


def test_explain() -> None:
    before = assign(TASKS, [ADA, BOB, CLEO], 2)
    after = assign([*TASKS, TaskLoad("out.0")], [BOB, CLEO], {**{t.name: 2 for t in TASKS}, "out.0": 3}, before)
    assert after.explain().splitlines() == [
        "worker  host  load  budget  copies (● active, ○ replica)",
        "1       bob      5       5  ● out.0  ● parse.0~1  ○ parse.1~1  ● score.0  ● score.1~1",
        "2       cleo     5       5  ○ out.0~1  ○ parse.0  ● parse.1  ○ score.0~1  ○ score.1",
        "note: 1 task asks for 3 copies, and there are 2 hosts: 2 of them run; add 1 host, or ask for 2 copies",
    ]


def test_explain_many() -> None:
    found = assign(numbered(2000), [ADA, WorkerSeen("b", "a-host-with-a-long-name")], 1).explain().splitlines()
    assert found[1].startswith("0       ada                      1,000   1,000  ● t0  ● t2  ● t4")
    assert found[2].startswith(" " * 48 + "● t")
    assert found[-1].endswith("and 976 more")
    assert max(len(line) for line in found) <= 110


def test_explain_idle_and_fractions() -> None:
    found = assign([TaskLoad("a", 2.5), TaskLoad("b", 0.04)], [ADA, BOB, CLEO], 1).explain().splitlines()
    assert found == [
        "worker  host  load  budget  copies (● active, ○ replica)",
        "0       ada    2.5     2.1  ● a",
        "1       bob   0.04     2.1  ● b",
        "2       cleo     0     2.1  nothing",
        "note: worker 0 carries 2.5, above its budget of 2.1: nothing of it fits elsewhere; add a worker, or split its "
        "heaviest task",
    ]


# ----------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("tasks", "workers", "copies", "message"),
    [
        ([TaskLoad("a"), TaskLoad("a")], [ADA], 1, "task a is there twice; give each a name of its own"),
        ([], [ADA, WorkerSeen(0, "bob")], 1, "worker 0 is there twice; give each a name of its own"),
        ([TaskLoad("a", 0.0)], [ADA], 1, "task a: weight=0.0; use a number above 0"),
        ([TaskLoad("a", float("nan"))], [ADA], 1, "task a: weight=nan; use a number above 0"),
        ([], [WorkerSeen(0, "ada", -1.0)], 1, "worker 0: capacity=-1.0; use a number above 0"),
        ([TaskLoad("a")], [ADA], 0, "task a: copies=0; use a number from 1 on"),
        ([TaskLoad("a")], [ADA], True, "task a: copies=True; use a number from 1 on"),
        ([TaskLoad("a")], [ADA], {"b": 2}, "copies are asked for of b, which is not among the 1 tasks"),
    ],
)
def test_what_cannot_be_assigned(
    tasks: list[TaskLoad], workers: list[WorkerSeen], copies: dict[str, int] | int, message: str
) -> None:
    with pytest.raises(FlowError) as caught:
        assign(tasks, workers, copies)
    assert str(caught.value) == message
