from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

import pytest

from headrace.demo.programs import EventWindows
from headrace.errors import PlanError, ProgramError
from headrace.synchronize.optimize import by_rate
from headrace.synchronize.plan import Worker, make_plan
from headrace.synchronize.program import Program, fork, pairs_of
from headrace.synchronize.tags import OTHER, Bucket, tag_space
from headrace.testing.trees import describe

from .tree_cases import I1, I2A, I2B, R1, R2, Clicks, Orders, Shop, Typed, nested, paper, typed_space, windows


def _refused(root: Worker, message: str) -> None:
    with pytest.raises(PlanError) as raised:
        make_plan(paper(), root)
    assert str(raised.value) == f"program KeyCounters: {message}"


def test_example_4_3_of_the_paper() -> None:
    space = paper()
    plan = make_plan(space, by_rate(space, 3), 3)
    assert describe(plan.root, space) == [
        [],
        ["reset(1)@E1", "increment(1)@E1"],
        [["reset(2)@E0"], ["increment(2)@E2"], ["increment(2)@E3"]],
    ]
    assert [member.name for member in plan.members] == ["w0", "w1", "w2", "w3", "w4"]
    assert plan.owner == (1, 1, 2, 3, 4)
    assert plan.subtrees[2] == {R2, I2A, I2B}
    assert plan.above(plan.members[4]) == {R2}
    assert plan.above(plan.members[1]) == frozenset()
    assert [plan.rate_of(member) for member in plan.members] == [0, 115, 10, 200, 300]
    assert plan.root.height == 2


# --------------------------------------------------------------------------- V2


def test_workers_side_by_side_that_depend_on_each_other() -> None:
    root = Worker((), (Worker((R1, I1, R2)), Worker((), (Worker((I2A,)), Worker((I2B,))))))
    _refused(
        root,
        "worker {reset(1)@E1, increment(1)@E1, reset(2)@E0} and worker {increment(2)@E2} run side by side, and "
        "reset(2)@E0 depends on increment(2)@E2; give one of the two to a worker above both",
    )


def test_it_does_not_matter_how_deep_they_are() -> None:
    left = Worker((), (Worker((I1,)), Worker((I2A,))))
    right = Worker((R1,), (Worker((I2B,)), Worker((R2,))))
    with pytest.raises(
        PlanError, match=re.escape("worker {increment(1)@E1} and worker {reset(1)@E1} run side by side")
    ):
        make_plan(paper(), Worker((), (left, right)))


def test_a_tag_that_depends_on_itself_cannot_be_on_two_sides() -> None:
    space = tag_space(EventWindows(), [("barrier", "a", 1.0), ("barrier", "b", 1.0)], 2)
    with pytest.raises(PlanError, match=r"\{barrier@a\} and worker \{barrier@b\} run side by side, and barrier@a dep"):
        make_plan(space, Worker((), (Worker((0,)), Worker((1,)))))


# ----------------------------------------------------------------------- shape

_Any: Any = Worker


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"an optimizer gave None, which is no worker; give Worker\(tags\) or Worker\(tags, \(left, right\)\)"),
        ((0, 1), r"an optimizer gave \(0, 1\), which is no worker"),
        (_Any((R1,), (Worker((I1,)), "I2A")), "an optimizer gave 'I2A', which is no worker"),
        (
            _Any((R1,), (Worker((I1,)),)),
            r"a worker has the children \(Worker\(.*\),\); they are two workers, or None",
        ),
        (_Any((R1,), 7), "a worker has the children 7; they are two workers, or None"),
        (
            _Any(("a",)),
            r"a worker has the tags \('a',\); they are the numbers of implementation tags, such as \(0, 2",
        ),
        (_Any((0.0, 1)), r"a worker has the tags \(0.0, 1\); they are the numbers"),
        (_Any(3), "a worker has the tags 3; they are the numbers"),
    ],
)
def test_something_else_than_a_tree_of_workers(given: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan(paper(), given)


# --------------------------------------------------------------- all tags, once


def test_a_tag_that_nobody_takes() -> None:
    _refused(Worker((R1, I1, R2)), "no worker takes increment(2)@E2, increment(2)@E3")


def test_a_tag_that_two_take() -> None:
    root = Worker((R1, R2, I2A), (Worker((I1, I2A)), Worker((I2B,))))
    _refused(
        root,
        "increment(2)@E2 belongs to worker {reset(1)@E1, reset(2)@E0, increment(2)@E2} and to "
        "worker {increment(1)@E1, increment(2)@E2}; give it to one",
    )


def test_a_tag_that_there_is_not() -> None:
    _refused(Worker((R1, I1, R2, I2A, I2B, 5)), "5 is the number of no implementation tag")
    _refused(Worker((R1, I1, R2, I2A, I2B, -1)), "-1 is the number of no implementation tag")


def test_a_leaf_without_tags() -> None:
    root = Worker((R1, I1, R2), (Worker((I2A, I2B)), Worker(())))
    _refused(root, "a leaf of the plan has no tags, so nothing comes to it; leave it out")


# --------------------------------------------------------------------------- V1


def test_workers_have_the_types_that_their_forks_give() -> None:
    root = Worker((3,), (Worker((0,)), Worker((), (Worker((1,)), Worker((2,))))))
    plan = make_plan(typed_space(), root)
    assert [member.kind for member in plan.members] == [Shop, Orders, Clicks, Clicks, Clicks]
    found = [None if member.pair is None else (member.pair.fork, member.pair.join) for member in plan.members]
    assert found == [("apart", "together"), None, ("halves", "whole"), None, None]


def test_a_worker_that_no_type_of_state_fits() -> None:
    """Orders come from the left of a fork only."""
    root = Worker((3,), (Worker((), (Worker((1,)), Worker((2,)))), Worker((0,))))
    with pytest.raises(PlanError) as raised:
        make_plan(typed_space(), root)
    assert str(raised.value) == (
        "program Typed: no sequence of its forks gives each worker a type of state that handles its tags, from Shop "
        "on: worker {} would have Orders as its state, which does not handle click/0, click/1; see handles() and the "
        "forks that are marked @hr.fork"
    )


def test_a_worker_whose_type_of_state_has_no_fork() -> None:
    class Sorted(Typed):
        depends = MappingProxyType({"total": ("total", "order", "click")})

    orders = tag_space(Sorted(), [("order", "a", 1.0), ("order", "b", 1.0), ("click", "c", 1.0)], 3)
    with pytest.raises(PlanError, match=r"worker \{\} would have Orders as its state, which has no fork"):
        make_plan(orders, Worker((), (Worker((), (Worker((0,)), Worker((1,)))), Worker((2,)))))


def test_buckets_and_all_else_can_be_asked_for_their_types() -> None:
    class Keyed(Typed):
        tags = None

        def handles(self, kind: type, tag: object) -> bool:
            assert isinstance(tag, tuple)
            return kind is Shop or tag[0] == ("order" if kind is Orders else "click")

    rates = [(Bucket("order", 1), None, 1.0), (Bucket("click", 1), None, 1.0), (OTHER, None, 0.0)]
    plan = make_plan(tag_space(Keyed(), rates, 2, is_cut=False), Worker((2,), (Worker((0,)), Worker((1,)))))
    assert [member.kind for member in plan.members] == [Shop, Orders, Clicks]


def test_a_program_without_forks_has_one_worker() -> None:
    class Alone(EventWindows):
        fork = Program.fork
        join = Program.join

    space = tag_space(Alone(), [("value", "a", 1.0), ("value", "b", 1.0)], 2)
    assert make_plan(space, Worker((0, 1))).tasks == 1
    with pytest.raises(PlanError, match="Alone: it has no fork and no join, so it can have one worker only"):
        make_plan(space, Worker((), (Worker((0,)), Worker((1,)))))


def test_a_fork_without_a_join_is_told_of() -> None:
    class Half(EventWindows):
        join = Program.join

    class Marked(Typed):
        together = None

        @fork(Shop, Clicks, Orders)
        def turned(self, state: Shop, left: object, right: object) -> tuple[Clicks, Orders]:
            return Clicks(state.clicks), Orders(state.orders)

    with pytest.raises(ProgramError, match="Half: it has a fork and no join"):
        pairs_of(Half())
    with pytest.raises(ProgramError, match=r"no method is marked @hr.join\((Orders, Clicks|Clicks, Orders), Shop\)"):
        pairs_of(Marked())


# -------------------------------------------------------------------- placement


def test_leaves_are_shared_out_evenly_and_others_are_with_their_busier_child() -> None:
    space = paper()
    plan = make_plan(space, by_rate(space, 3), 2)
    tasks = {member.name: member.task for member in plan.members}
    assert tasks == {"w4": 0, "w3": 1, "w1": 1, "w2": 0, "w0": 0}


def test_there_are_no_more_tasks_than_leaves() -> None:
    assert windows(3, tasks=8).tasks == 3
    assert {member.task for member in windows(3, tasks=8).members} == {0, 1, 2}


def test_a_tree_that_leans() -> None:
    assert nested((0,), [Worker((1,)), Worker((2,)), Worker((3,))]).height == 2
