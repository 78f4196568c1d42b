from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.demo.programs import EventWindows, KeyCounters
from headrace.synchronize.optimize import OPTIMIZERS, Optimizer, balanced, by_rate, cost_of, sequential
from headrace.synchronize.plan import Worker, make_plan
from headrace.synchronize.program import Program
from headrace.synchronize.tags import ImplementationTag, TagSpace, guessed_rates, tag_space
from headrace.testing.trees import describe

from .tree_cases import paper, windows


class Free(Program):
    """With any dependence."""

    outputs = pa.schema([])

    def __init__(self, pairs: frozenset[tuple[int, int]]):
        self._pairs = pairs

    def depends(self, a: int, b: int) -> bool:
        return (a, b) in self._pairs or (b, a) in self._pairs

    def init(self) -> int:
        return 0

    def update(self, state: int, event: Any) -> Any:
        return state, []

    def fork(self, state: int, left: Any, right: Any) -> tuple[int, int]:
        return state, 0

    def join(self, left: int, right: int) -> int:
        return left + right


@st.composite
def _spaces(draw: st.DrawFn) -> tuple[TagSpace, int]:
    count = draw(st.integers(1, 9))
    pairs = draw(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=2 * count))
    rates = [(tag, None, float(draw(st.integers(0, 5)))) for tag in range(count)]
    leaves = draw(st.integers(1, 8))
    return tag_space(Free(frozenset(pairs)), rates, leaves), leaves


def _leaves(worker: Worker) -> int:
    return sum(each.is_leaf for each in worker.all_below())


@settings(max_examples=150)
@given(_spaces(), st.sampled_from(sorted(OPTIMIZERS)), st.integers(1, 4))
def test_every_plan_is_valid_and_has_no_more_leaves_than_asked(
    drawn: tuple[TagSpace, int], name: str, tasks: int
) -> None:
    space, leaves = drawn
    root = OPTIMIZERS[name](space, leaves)
    plan = make_plan(space, root, tasks)  # raises PlanError where it is not
    assert _leaves(root) <= (1 if name == "sequential" else leaves)
    assert plan.tasks <= tasks
    assert OPTIMIZERS[name](space, leaves) == root, "the same again: all tasks must have one plan"


@pytest.mark.parametrize("optimizer", [by_rate, balanced])
def test_tags_that_are_independent_of_each_other_fill_the_leaves(optimizer: Optimizer) -> None:
    """Of equal rates: as many leaves as were asked for, or as there are tags, and no tree higher than it must be."""
    for leaves in range(1, 9):
        for tags in range(1, 20):
            entries = tuple(ImplementationTag(tag) for tag in range(tags))
            root = optimizer(TagSpace(Free(frozenset()), entries), leaves)
            assert _leaves(root) == min(leaves, tags)
            assert root.height == math.ceil(math.log2(_leaves(root)))


def test_a_hot_key_gets_several_leaves() -> None:
    rates: list[Any] = [(("increment", key), None, 1000.0 if key == 7 else 1.0) for key in range(10)]
    rates += [(("reset", key), None, 0.1) for key in range(10)]
    space = tag_space(KeyCounters(), rates, 4)
    hot = {number for number, entry in enumerate(space.entries) if entry.tag == ("increment", 7)}
    assert len(hot) == 4
    with_hot = [worker for worker in by_rate(space, 4).all_below() if worker.is_leaf and hot & set(worker.tags)]
    assert len(with_hot) >= 3


def test_the_rare_tags_are_at_the_top() -> None:
    space = tag_space(EventWindows(), guessed_rates(EventWindows(), 1), 4)
    for optimizer in (by_rate, balanced):
        root = optimizer(space, 4)
        assert [str(space.entries[tag]) for tag in root.tags] == ["barrier"]
        assert (_leaves(root), root.height) == (4, 2)


def test_keys_in_buckets_are_shared_out() -> None:
    space = tag_space(KeyCounters(), guessed_rates(KeyCounters(), 2), 8)
    root = by_rate(space, 8)
    loads = [sum(space.entries[tag].rate for tag in w.tags) for w in root.all_below() if w.is_leaf]
    assert len(loads) == 8
    assert max(loads) <= 1.2 * min(loads)
    assert [str(space.entries[tag]) for tag in root.tags] == ["other"]


def test_one_worker_for_all() -> None:
    assert describe(sequential(paper(), 8), paper()) == [
        "reset(1)@E1", "increment(1)@E1", "reset(2)@E0", "increment(2)@E2", "increment(2)@E3",
    ]  # fmt: skip
    assert by_rate(paper(), 1) == sequential(paper())


# ------------------------------------------------------------------------- cost


def test_what_the_plan_of_the_paper_costs() -> None:
    space = paper()
    cost = cost_of(make_plan(space, by_rate(space, 3), 3))
    assert cost.messages == 3 * 10 * 2, "of the resets of key 2, over two edges"
    assert cost.between_tasks == 3 * 10 * 1, "their worker shares a task with the busier of the two"
    assert cost.busiest == 300 + 10
    assert cost.critical_path == 4


def test_one_worker_sends_nothing() -> None:
    space = paper()
    cost = cost_of(make_plan(space, sequential(space)))
    assert (cost.messages, cost.between_tasks, cost.busiest, cost.critical_path) == (0, 0, 625, 0)


@pytest.mark.parametrize("tasks", [1, 2, 4])
def test_workers_of_one_task_send_nothing_between_tasks(tasks: int) -> None:
    cost = cost_of(windows(4, tasks))
    assert cost.messages == 3 * 10 * 6
    assert (cost.between_tasks == 0) == (tasks == 1)
    assert cost.between_tasks <= cost.messages
