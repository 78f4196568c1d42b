"""Ordered streams before anything runs: their paths, and what is refused with the reason."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FlowError
from headrace.flow.builder import Flow, Stream
from headrace.flow.plan import make_plan
from headrace.order.paths import all_paths
from headrace.testing.flows import numbers

from .ordered_cases import Keeps, anew, drawn, ignored, plan_of, same

# ------------------------------------------------------------------------- paths


def test_the_twelve_paths_of_the_paper() -> None:
    plan = plan_of(("a", 3), ("b", 4))
    paths = all_paths([f"b.{i}" for i in range(4)], plan.paths)
    assert len(paths) == 12
    assert paths[0] == ["s.0", "a.0", "b.0"]
    assert {tuple(path) for path in paths} == {("s.0", f"a.{a}", f"b.{b}") for a in range(3) for b in range(4)}
    merges = plan.tasks["out.0"].merges
    assert (len({each.queue for each in merges}), [each.paths for each in merges]) == (4, [3, 3, 3, 3])


def test_the_thirty_paths_of_its_pipeline() -> None:
    flow, stream = drawn(("filter", 15))
    mapped = flow.stage("map", same, stream, parallelism=15)
    last = flow.stage("last", same, mapped, parallelism=2, route=hr.rebalance())
    flow.sink("out", last.ordered(), hr.callback(ignored))
    assert "to out by rebalance, in source order: 2 channels, 30 paths" in flow.explain()


@pytest.mark.parametrize(
    ("route", "count"), [(hr.rescale(), 4), (hr.key("k"), 8), (hr.shuffle(1), 8), (hr.custom(lambda b, n: [0]), 8)]
)
def test_a_route_says_where_paths_may_lead_and_one_that_does_not_leads_everywhere(route: Any, count: int) -> None:
    flow, stream = drawn(("a", 2))
    given = flow.stage("b", same, stream, parallelism=4, route=route)
    flow.sink("out", given.ordered(), hr.callback(ignored))
    assert sum(each.paths for each in make_plan(flow.graph()).tasks["out.0"].merges) == count


def test_each_task_that_merges_has_its_own_queues() -> None:
    plan = plan_of(("a", 3), parallelism=2)
    assert [len(plan.tasks[f"out.{i}"].merges) for i in range(2)] == [3, 3]
    queues = [each.queue for i in range(2) for each in plan.tasks[f"out.{i}"].merges]
    assert len(set(queues)) == 6
    assert set(queues) <= set(plan.queues)


def test_a_task_waits_for_room_only_where_no_merge_has_any() -> None:
    task = plan_of(("a", 3), ("b", 2), parallelism=3).tasks["b.1"]
    assert (task.blocking, len(task.pooled)) == ((), 3)


# ----------------------------------------------------------------------- refused


def _loop(flow: Flow, stream: Stream) -> Stream:
    again = flow.loop("again", stream)
    given = flow.stage("round", same, again)
    again.back(given)
    return given


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda f, s: f.stage("x", anew, s).ordered(), "stage x .*anew makes new batches.*say one_to_one=True"),
        (lambda f, s: f.stage("x", Keeps, s).ordered(), 'class Keeps may keep records back.*order = "columns"'),
        (lambda f, s: _loop(f, s).ordered(), "loop again .* may go round any number of times"),
        (
            lambda f, s: f.stage("x", same, s, f.source("t", hr.generate(numbers, 3))).ordered(),
            "no order among the 2 tasks of s, t; .*stream.ordered\\(by=column\\)",
        ),
        (lambda f, s: s.ordered(by="m"), "source s: it has no column m to order by; it has n, k"),
        (
            lambda f, s: f.stage("x", same, s.ordered(), f.stage("y", same, s)),
            "some of its inputs are ordered and y is not",
        ),
        (lambda f, s: f.stage("x", same, s.ordered(by="n")).ordered(), "is ordered in different ways"),
    ],
)
def test_what_cannot_be_proved_is_refused_with_the_reason(draw: Any, said: str) -> None:
    flow, stream = drawn()
    flow.sink("out", draw(flow, stream), hr.callback(ignored))
    with pytest.raises(FlowError, match=said):
        flow.graph()


def test_a_text_is_nothing_to_order_by() -> None:
    schema = pa.schema([("name", pa.string())])
    flow, stream = drawn(source=hr.generate(lambda f, c: pa.record_batch({"name": ["a"] * c}), 3, schema=schema))
    flow.sink("out", stream.ordered(by="name"), hr.callback(ignored))
    with pytest.raises(FlowError, match="name is string; order by whole numbers or timestamps"):
        flow.graph()


def test_too_many_paths() -> None:
    flow, stream = drawn(*((f"x{number}", 40) for number in range(3)))
    flow.sink("out", stream.ordered(), hr.callback(ignored))
    with pytest.raises(FlowError, match="sink out: 64,000 data paths lead to it, and 50,000 are the most"):
        flow.explain()
