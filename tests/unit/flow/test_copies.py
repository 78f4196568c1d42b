"""Copies of tasks: their names, how many there are, who keeps silent, and what is refused before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FlowError
from headrace.flow.builder import Flow
from headrace.flow.copies import Replication, agreed, by_task, copy_name, copy_of, replication, task_of
from headrace.flow.graph import Graph
from headrace.flow.plan import Plan, make_plan

from .coordinator_script import ignored, make


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _plan(sink: Any = None, parallelism: int = 1) -> Plan:
    """A source, a stage with tasks of its own, and a sink that runs with the stage."""
    flow = Flow("f")
    numbers = flow.source("s", hr.generate(make, 10))
    same = flow.stage("same", _same, numbers, parallelism=parallelism, route=hr.rebalance())
    flow.sink("out", same, hr.queue("out") if sink is None else sink)
    return make_plan(flow.graph())


def _tracked() -> Plan:
    flow = Flow("f")
    numbers = flow.source("s", hr.generate(make, 10)).tracked(by="n")
    flow.sink("ends", flow.ends("told", numbers), hr.queue("ends"))
    flow.sink("out", numbers, hr.queue("out"), route=hr.rebalance())
    return make_plan(flow.graph())


# ----------------------------------------------------------------------- names


def test_the_first_copy_has_the_name_of_its_task() -> None:
    assert [copy_name("score.0", copy) for copy in (0, 1, 12)] == ["score.0", "score.0~1", "score.0~12"]


@pytest.mark.parametrize("copy", [0, 1, 10])
def test_a_name_tells_its_task_and_its_number(copy: int) -> None:
    name = copy_name("a-b.3", copy)
    assert (task_of(name), copy_of(name)) == ("a-b.3", copy)


def test_copies_are_found_by_their_tasks() -> None:
    assert by_task(["a.0", "b.0", "a.0~1", "b.0~2"]) == {"a.0": ["a.0", "a.0~1"], "b.0": ["b.0", "b.0~2"]}


# ------------------------------------------------------------------- how many


def test_all_tasks_have_as_many_copies_and_the_first_ones_come_first() -> None:
    found = replication("active", 2, _plan(parallelism=2))
    assert found.copies(_plan(parallelism=2)) == {"s.0": 2, "same.0": 2, "same.1": 2}
    assert found.names(_plan(parallelism=2)) == ["s.0", "same.0", "same.1", "s.0~1", "same.0~1", "same.1~1"]
    assert found.most == 2


def test_stages_may_have_copies_of_their_own() -> None:
    found = replication("active", {"same": 3}, _plan())
    assert found.copies(_plan()) == {"s.0": 1, "same.0": 3}
    assert found.names(_plan()) == ["s.0", "same.0", "same.0~1", "same.0~2"]
    assert found.most == 3


def test_of_stages_that_run_as_one_the_most_copies_count() -> None:
    assert replication("active", {"out": 2}, _plan()).copies(_plan())["same.0"] == 2
    assert replication("active", {"same": 2, "out": 4}, _plan()).copies(_plan())["same.0"] == 4


@pytest.mark.parametrize(("mode", "replicas"), [("none", 3), ("active", 1), ("standby", {"same": 1}), ("active", {})])
def test_one_copy_is_no_replication(mode: str, replicas: int | Mapping[str, int]) -> None:
    assert replication(mode, replicas, _plan()) == Replication()
    assert Replication().names(_plan()) == ["s.0", "same.0"]


# ------------------------------------------------------------------- who speaks


def test_in_standby_one_copy_speaks() -> None:
    found = replication("standby", {"same": 2}, _plan())
    assert found.one_speaks(_plan(), "same.0")
    assert not found.one_speaks(_plan(), "s.0"), "it has no other copy"


@pytest.mark.parametrize(
    ("sink", "one"),
    [
        (hr.queue("out"), False),
        (hr.parquet("folder"), False),
        (hr.callback(ignored), True),
        (hr.kafka("t", "nowhere:1", every_copy=True), False),
        (hr.kafka("t", "nowhere:1"), True),
    ],
    ids=["queue", "parquet", "callback", "kafka, every copy", "kafka"],
)
def test_active_copies_all_speak_where_the_sink_keeps_the_first(sink: Any, one: bool) -> None:
    flow = Flow("f")
    values = flow.stage("same", _values, flow.source("s", hr.generate(make, 10)), route=hr.rebalance())
    flow.sink("out", values, sink)
    plan = make_plan(flow.graph())
    found = replication("active", 2, plan)
    assert found.one_speaks(plan, "same.0") == one
    assert not found.one_speaks(plan, "s.0"), "it has no sink"


def _values(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"value": batch.column("n").cast(pa.string())})


# --------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("mode", "replicas", "told"),
    [
        ("passive", 2, r"mode='passive': there are active, standby, none"),
        ("active", 0, r"replicas: 0; give a number of copies, 1 for no replication"),
        ("active", -1, r"replicas: -1; give a number of copies"),
        ("active", True, r"replicas: True; give a number of copies"),
        ("active", 1.5, r"replicas: 1\.5; give a number of copies"),
        ("none", 0, r"replicas: 0; give a number of copies"),
        ("active", {"same": 0}, r"replicas of same: 0; give a number of copies"),
        ("active", {"same": True}, r"replicas of same: True; give a number of copies"),
        ("active", {"sam": 2}, r"replicas of sam: there is no such stage; there are out, s, same"),
    ],
)
def test_what_makes_no_sense_is_named_with_its_fix(mode: str, replicas: Any, told: str) -> None:
    with pytest.raises(FlowError, match=f"^{told}"):
        replication(mode, replicas, _plan())


def test_what_is_tracked_has_no_silent_copies() -> None:
    with pytest.raises(
        FlowError, match=r'stage s is tracked.*\(mode standby\).*use mode="active".*replicas=\{"s": 1\}'
    ):
        replication("standby", 2, _tracked())
    assert replication("active", 2, _tracked()).most == 2
    assert replication("standby", {"out": 1}, _tracked()) == Replication()


def test_what_is_tracked_has_no_copies_where_the_sink_wants_one_voice() -> None:
    flow = Flow("f")
    numbers = flow.source("s", hr.generate(make, 10)).tracked(by="n")
    flow.sink("ends", flow.ends("told", numbers), hr.queue("ends"))
    flow.sink("out", numbers, hr.callback(ignored), route=hr.rebalance())
    with pytest.raises(FlowError, match=r"stage out is tracked.*its sink does not keep the first copy of a record"):
        replication("active", 2, make_plan(flow.graph()))


# ------------------------------------------------------------------- agreement


def _drawn(kind: str = "plain") -> Graph:
    flow = Flow("f")
    numbers: Any = flow.source("s", hr.generate(make, 10))
    if kind == "loop":
        numbers = again = flow.loop("again", numbers)
        again.back(again)
    if kind == "tracked":
        numbers = numbers.tracked(by="n")
        flow.sink("ends", flow.ends("told", numbers), hr.queue("ends"))
    same = flow.stage("same", _same, numbers, parallelism=2, route=hr.rebalance())
    flow.sink("out", same.ordered() if kind == "ordered" else same, hr.queue("out"), route=hr.rebalance())
    return flow.graph()


@pytest.mark.parametrize("order", ["round-robin", "leader"])
@pytest.mark.parametrize(
    ("kind", "told"),
    [("ordered", "sink out is ordered"), ("loop", "(stage|loop) again is in a loop"), ("tracked", "is tracked")],
)
def test_what_copies_do_not_agree_on_is_named_with_its_fix(order: str, kind: str, told: str) -> None:
    with pytest.raises(FlowError, match=f'{told}: with order="{order}" copies do not agree on that.*order="queue"'):
        agreed(order, _drawn(kind))
    assert agreed("queue", _drawn(kind)).agreement == "queue"


@pytest.mark.parametrize("order", ["queue", "round-robin", "leader", "arrival"])
def test_an_order_is_part_of_the_layout(order: str) -> None:
    plan = make_plan(agreed(order, _drawn()))
    assert plan.graph.agreement == order
    assert plan.layout.get("the order of inputs", "queue") == order


def test_an_order_that_there_is_not_is_named() -> None:
    with pytest.raises(FlowError, match=r"^order='first': there are queue, round-robin, leader$"):
        agreed("first", _drawn())
