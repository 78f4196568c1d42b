"""What holds for every assignment: found by hypothesis, compared with a flow of least cost."""

from __future__ import annotations

import math
import pickle
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.replicate.assignment import Assignment, Copy, TaskLoad, WorkerSeen, assign, moved

from .assignment_oracle import check_rules, fit_and_moves, places_of

HOSTS = "abcd"
Job = tuple[list[TaskLoad], dict[str, int]]
"""Tasks, and how many copies each is to have."""


@st.composite
def clusters(draw: st.DrawFn, least: int = 1) -> list[WorkerSeen]:
    hosts = draw(st.lists(st.sampled_from(HOSTS), min_size=least, max_size=8))
    capacities = draw(st.sampled_from([(1.0,), (1.0, 2.0), (0.5, 1.0, 3.0)]))
    keeps = st.frozensets(st.sampled_from([f"t{at}" for at in range(12)]), max_size=4)
    return [WorkerSeen(at, host, draw(st.sampled_from(capacities)), draw(keeps)) for at, host in enumerate(hosts)]


@st.composite
def jobs(draw: st.DrawFn, weights: Sequence[float] = (1.0,)) -> Job:
    tasks = [TaskLoad(f"t{at}", draw(st.sampled_from(weights))) for at in range(draw(st.integers(0, 12)))]
    if draw(st.booleans()):
        return tasks, dict.fromkeys((task.name for task in tasks), draw(st.integers(1, 4)))
    return tasks, {task.name: draw(st.integers(1, 4)) for task in tasks}


@st.composite
def histories(draw: st.DrawFn) -> list[list[WorkerSeen]]:
    """Workers come and go; each has its host for ever."""
    everyone = draw(clusters(least=2))
    steps = draw(st.lists(st.sets(st.sampled_from(range(len(everyone))), min_size=1), min_size=2, max_size=5))
    return [[everyone[at] for at in sorted(step)] for step in steps]


def budgets_of(assignment: Assignment) -> dict[int | str, int]:
    return {share.worker: round(share.budget) for share in assignment.shares}


def shuffled(before: Assignment, seed: random.Random) -> Assignment:
    """The same, told in another order."""
    shares = [*before.shares]
    seed.shuffle(shares)
    names = [*before.active]
    seed.shuffle(names)
    return Assignment(tuple(shares), {name: before.active[name] for name in names}, before.notes)


# -------------------------------------------------------------------- budgets


@given(jobs(), clusters())
def test_all_copies_that_fit_are_placed_within_the_budgets(job: Job, workers: list[WorkerSeen]) -> None:
    after = assign(job[0], workers, job[1], None)
    check_rules(job[0], workers, job[1], after)
    assert all(share.load <= share.budget for share in after.shares)


@given(jobs(), st.integers(1, 4), st.integers(1, 3))
def test_hosts_of_one_size_have_the_budget_of_the_paper(job: Job, hosts: int, each: int) -> None:
    workers = [WorkerSeen(at, HOSTS[at % hosts]) for at in range(hosts * each)]
    places = len(set(places_of(workers).values()))
    copies = sum(min(count, places) for count in job[1].values())
    after = assign(job[0], workers, job[1], None)
    assert {share.budget for share in after.shares} == {math.ceil(copies / len(workers))}


@given(jobs(), st.lists(st.sampled_from(HOSTS), min_size=1, max_size=8))
def test_the_largest_budget_could_not_be_smaller(job: Job, hosts: list[str]) -> None:
    workers = [WorkerSeen(at, host) for at, host in enumerate(hosts)]
    after = assign(job[0], workers, job[1], None)
    largest = max(round(share.budget) for share in after.shares)
    if largest:
        fit, _ = fit_and_moves(job[0], workers, job[1], None, dict.fromkeys(range(len(hosts)), largest - 1))
        assert fit < sum(len(share.copies) for share in after.shares)


@given(jobs((0.1, 1.0, 2.5, 20.0)), histories())
def test_tasks_of_different_weights(job: Job, steps: list[list[WorkerSeen]]) -> None:
    weights = {task.name: task.weight for task in job[0]}
    before = None
    for workers in steps:
        before = assign(job[0], workers, job[1], before)
        check_rules(job[0], workers, job[1], before)
        places = places_of(workers)
        for over in (share for share in before.shares if share.load > share.budget + 1e-6):
            for copy in over.copies:
                taken = {places[before.worker_of[each]] for each in before.worker_of if each.task == copy.task}
                taken -= {places[over.worker]}
                room = [s for s in before.shares if s.load + weights[copy.task] < s.budget - 1e-6]
                assert not [share for share in room if places[share.worker] not in taken], "it should have gone there"


# ----------------------------------------------------------------- movements


@settings(max_examples=300)
@given(jobs(), histories())
def test_as_few_copies_move_as_the_budgets_allow(job: Job, steps: list[list[WorkerSeen]]) -> None:
    before = None
    for workers in steps:
        before = _checked(job[0], workers, job[1], before)


@given(jobs(), histories(), st.lists(st.integers(1, 4), min_size=5, max_size=5))
def test_as_few_move_when_tasks_and_copies_change_too(
    job: Job, steps: list[list[WorkerSeen]], counts: list[int]
) -> None:
    before = None
    for workers, count in zip(steps, counts, strict=False):
        tasks = job[0][count - 1 :]
        before = _checked(tasks, workers, dict.fromkeys((task.name for task in tasks), count), before)


def _checked(
    tasks: list[TaskLoad], workers: list[WorkerSeen], copies: dict[str, int], before: Assignment | None
) -> Assignment:
    after = assign(tasks, workers, copies, before)
    check_rules(tasks, workers, copies, after)
    assert all(share.load <= share.budget for share in after.shares)
    fit, least = fit_and_moves(tasks, workers, copies, before, budgets_of(after))
    assert fit == sum(len(share.copies) for share in after.shares)
    assert len(_pairs(after) - _pairs(before)) == least
    asked = {copy.task: copies.get(copy.task, 0) for copy in (before.worker_of if before else ())}
    if before is None or all(copy.number < asked[copy.task] for copy in before.worker_of):
        assert len(moved(before, after)) == least
    return after


def _pairs(assignment: Assignment | None) -> set[tuple[str, int | str]]:
    """Which task is where, whatever the number of the copy."""
    return {(copy.task, worker) for copy, worker in assignment.worker_of.items()} if assignment else set()


@pytest.mark.parametrize("seed", [*range(40), 125, 161])
def test_as_few_move_in_larger_clusters_too(seed: int) -> None:
    """In the last two histories a second host comes up: which of two copies stays on the first is to be decided."""
    chance = random.Random(seed)
    hosts, strengths = chance.randint(1, 6), [1.0, 1.0, 1.0, 2.0, 0.5]
    everyone = [
        WorkerSeen(
            at,
            f"h{chance.randrange(hosts)}",
            chance.choice(strengths) if seed % 2 else 1.0,
            frozenset(f"t{chance.randrange(30)}" for _ in range(chance.randrange(6))),
        )
        for at in range(chance.randint(1, 12))
    ]
    tasks = [TaskLoad(f"t{at}") for at in range(chance.randint(0, 30))]
    copies = {task.name: chance.randint(1, 4) if seed % 3 else 2 for task in tasks}
    before = None
    for _ in range(6):
        up = [worker for worker in everyone if chance.random() < 0.75] or everyone[:1]
        before = _checked(tasks, up, copies, before)


@given(jobs(), clusters())
def test_when_a_worker_joins_others_give_what_is_above_their_budget(job: Job, workers: list[WorkerSeen]) -> None:
    before = assign(job[0], workers, job[1], None)
    after = assign(job[0], [*workers, WorkerSeen(99, "new")], job[1], before)
    # With one host before, or with copies that found no place, more has to move.
    if len({worker.host for worker in workers}) > 1 and max(job[1].values(), default=1) <= 2:
        budgets = budgets_of(after)
        above = sum(max(0, len(before.of(worker.name)) - budgets[worker.name]) for worker in workers)
        assert len(moved(before, after)) == above


@settings(max_examples=30)
@given(st.integers(20, 120), st.integers(1, 3), st.integers(6, 12), st.randoms(use_true_random=False))
def test_in_a_usual_cluster_only_the_copies_of_a_lost_worker_move(
    tasks: int, copies: int, hosts: int, seed: random.Random
) -> None:
    job, workers = [TaskLoad(f"t{at}") for at in range(tasks)], [WorkerSeen(at, f"h{at}") for at in range(hosts)]
    before = assign(job, workers, copies, None)
    gone = seed.choice(workers)
    rest = [worker for worker in workers if worker != gone]
    after = assign(job, rest, copies, before)
    _, least = fit_and_moves(job, rest, copies, before, budgets_of(after))
    # More only where what is left of the budgets is on workers that have a copy already.
    assert len(before.of(gone.name)) <= len(moved(before, after)) == least <= len(before.of(gone.name)) + 2
    lost = set(before.of(gone.name))
    assert lost <= {Copy(task, number) for task, number, *_ in moved(before, after)}


@given(jobs((0.1, 1.0, 7.0)), histories())
def test_settled_once_more_nothing_changes(job: Job, steps: list[list[WorkerSeen]]) -> None:
    before = None
    for workers in steps:
        before = assign(job[0], workers, job[1], before)
        assert assign(job[0], workers, job[1], before) == before


# --------------------------------------------------------------- active copies


@given(jobs(), histories())
def test_a_copy_that_stays_keeps_its_number_and_a_promotion_moves_nothing(
    job: Job, steps: list[list[WorkerSeen]]
) -> None:
    before = assign(job[0], steps[0], job[1], None)
    for workers in steps[1:]:
        after = assign(job[0], workers, job[1], before)
        goes = {Copy(task, number) for task, number, *_ in moved(before, after)}
        for copy, worker in after.worker_of.items():
            assert (before.worker_of.get(copy) == worker) == (copy not in goes)
        for task, number in before.active.items():
            stayed = {copy.number for copy in after.worker_of if copy.task == task and copy not in goes}
            if number in stayed:
                assert after.active[task] == number, "nobody takes over from one that is there"
            elif stayed:
                assert after.active[task] in stayed, "one with state takes over"
        before = after


# --------------------------------------------------------------- determinism


@given(jobs((1.0, 0.3, 4.7)), histories(), st.randoms(use_true_random=False))
def test_the_order_of_what_is_given_does_not_matter(
    job: Job, steps: list[list[WorkerSeen]], seed: random.Random
) -> None:
    before = again = None
    for workers in steps:
        before = assign(job[0], workers, job[1], before)
        tasks, mixed, names = [*job[0]], [*workers], [*job[1]]
        for each in (tasks, mixed, names):
            seed.shuffle(each)
        other = assign(tasks, mixed, {name: job[1][name] for name in names}, again and shuffled(again, seed))
        assert other == before
        again = pickle.loads(pickle.dumps(other))
        assert again == before
        assert [*again.active] == [*before.active]
