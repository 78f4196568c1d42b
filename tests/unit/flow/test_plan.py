"""From a graph to tasks and channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flow.builder import Flow, Stream
from headrace.flow.plan import Plan, make_plan
from headrace.flow.routing import Route

_NUMBERS = pa.schema([("n", pa.int64())])


def _make(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, first + count), pa.int64())], schema=_NUMBERS)


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _begun(parallelism: int = 1) -> tuple[Flow, Stream]:
    flow = Flow("f")
    return flow, flow.source("s", hr.generate(_make, 10), parallelism=parallelism)


def _two(route: Route | None, producers: int, consumers: int) -> Plan:
    flow, stream = _begun(producers)
    flow.sink("out", stream, hr.callback(_same), parallelism=consumers, route=route)
    return make_plan(flow.graph())


def _channels(plan: Plan) -> dict[int, tuple[int, ...]]:
    """The producers of each consumer, by the numbers of its channels."""
    (edge,) = plan.edges
    return {
        task.index: tuple((channel - edge.first_channel) // edge.consumers for channel in task.channels)
        for task in plan.tasks.values()
        if task.vertex.name == "out"
    }


# ----------------------------------------------------------------------- fused


def test_forward_stages_run_as_one() -> None:
    flow, stream = _begun(2)
    a = flow.stage("a", _same, stream)
    flow.stage("b", _same, a)
    flow.sink("c", Stream(flow, "b"), hr.callback(_same))
    flow.sink("d", a, hr.callback(_same))
    flow.sink("e", a, hr.callback(_same), route=hr.rebalance())
    plan = make_plan(flow.graph())
    assert [(vertex.name, vertex.nodes) for vertex in plan.vertices] == [
        ("s", ("s", "a", "b", "c", "d")),
        ("e", ("e",)),
    ]
    assert [(node.name, output) for node, output in plan.fused("a")] == [("b", ""), ("d", "")]
    assert list(plan.tasks) == ["s.0", "s.1", "e.0", "e.1"]
    assert plan.tasks["s.0"].inbox is None
    assert plan.queues == ["f.in.e.0", "f.in.e.1"]
    assert plan.tasks["s.1"].blocking == ("f.in.e.0", "f.in.e.1")


def test_a_stage_with_two_inputs_begins_a_vertex() -> None:
    flow, stream = _begun()
    a, b = flow.stage("a", _same, stream), flow.stage("b", _same, stream)
    flow.sink("out", flow.stage("both", _same, a, b), hr.callback(_same))
    plan = make_plan(flow.graph())
    assert [vertex.nodes for vertex in plan.vertices] == [("s", "a", "b"), ("both", "out")]
    assert [(edge.node, edge.consumer, edge.vertex) for edge in plan.edges] == [("a", "both", "s"), ("b", "both", "s")]
    assert plan.fused("s") == [(plan.graph.node("a"), ""), (plan.graph.node("b"), "")]
    assert len(plan.tasks["both.0"].channels) == 2


def test_a_side_output_may_be_fused() -> None:
    flow, stream = _begun()
    some = flow.stage("some", _same, stream, sides={"late": _NUMBERS})
    flow.sink("out", some, hr.callback(_same))
    flow.sink("late", some.side("late"), hr.callback(_same))
    plan = make_plan(flow.graph())
    assert [vertex.nodes for vertex in plan.vertices] == [("s", "some", "out", "late")]
    assert [(node.name, output) for node, output in plan.fused("some")] == [("out", ""), ("late", "late")]


def test_the_start_of_a_loop_begins_a_vertex_and_does_not_block_itself() -> None:
    flow, stream = _begun()
    again = flow.loop("again", stream)
    less = flow.stage("less", _same, again)
    again.back(less)
    flow.sink("out", less, hr.callback(_same), route=hr.rebalance())
    plan = make_plan(flow.graph())
    assert [vertex.nodes for vertex in plan.vertices] == [("s",), ("again", "less"), ("out",)]
    task = plan.tasks["again.0"]
    back = [edge for edge in plan.edges if edge.back]
    assert [(edge.node, edge.consumer) for edge in back] == [("less", "again")]
    assert task.back_channels == (back[0].first_channel,)
    assert set(task.back_channels) < set(task.channels)
    assert task.blocking == ("f.in.out.0",)
    assert plan.tasks["s.0"].blocking == ("f.in.again.0",)


def test_a_loop_straight_back_to_itself() -> None:
    flow, stream = _begun()
    again = flow.loop("again", stream)
    again.back(again)
    flow.sink("out", again, hr.callback(_same))
    plan = make_plan(flow.graph())
    assert [vertex.nodes for vertex in plan.vertices] == [("s",), ("again", "out")]
    assert [node.name for node, _ in plan.fused("again")] == ["out"]


def test_queues_of_the_outside() -> None:
    flow = Flow("f")
    stream = flow.source("s", hr.queue("orders", _NUMBERS, producers=2))
    flow.sink("out", stream, hr.queue("clean"))
    plan = make_plan(flow.graph())
    task = plan.tasks["s.0"]
    assert (task.inbox, task.channels, task.blocking) == ("q.orders", (), ("q.clean",))
    assert plan.queues == ["q.orders", "q.clean"]


# -------------------------------------------------------------------- channels


@pytest.mark.parametrize(
    ("route", "producers", "consumers", "expected"),
    [
        (hr.rebalance(), 2, 3, {0: (0, 1), 1: (0, 1), 2: (0, 1)}),
        (hr.rescale(), 4, 2, {0: (0, 1), 1: (2, 3)}),
        (hr.rescale(), 2, 4, {0: (0,), 1: (0,), 2: (1,), 3: (1,)}),
        (hr.rescale(), 3, 2, {0: (0, 1), 1: (2,)}),
        (hr.rescale(), 2, 3, {0: (0,), 1: (0,), 2: (1,)}),
        (hr.rescale(), 2, 2, {0: (0,), 1: (1,)}),
        (hr.key("n"), 2, 2, {0: (0, 1), 1: (0, 1)}),
        (hr.shuffle(), 1, 2, {0: (0,), 1: (0,)}),
        (hr.broadcast(), 2, 2, {0: (0, 1), 1: (0, 1)}),
        (hr.custom(lambda batch, consumers: [0] * len(batch)), 1, 2, {0: (0,), 1: (0,)}),
    ],
    ids=str,
)
def test_the_channels_of_a_route(route: Route, producers: int, consumers: int, expected: Any) -> None:
    assert _channels(_two(route, producers, consumers)) == expected


@pytest.mark.parametrize("producers", range(1, 8))
@pytest.mark.parametrize("consumers", range(1, 8))
def test_rescale_leaves_nobody_out_and_has_no_channel_too_many(producers: int, consumers: int) -> None:
    found = _channels(_two(hr.rescale(), producers, consumers))
    assert all(found.values())
    assert sorted({producer for own in found.values() for producer in own}) == list(range(producers))
    assert sum(map(len, found.values())) == max(producers, consumers)


def test_forward_between_vertices() -> None:
    flow, stream = _begun(3)
    other = flow.source("t", hr.generate(_make, 10), parallelism=3)
    flow.sink("out", flow.stage("both", _same, stream, other), hr.callback(_same))
    plan = make_plan(flow.graph())
    first, second = plan.edges
    for index in range(3):
        assert plan.tasks[f"both.{index}"].channels == (first.channel(index, index), second.channel(index, index))


def test_no_two_channels_have_a_number() -> None:
    flow, stream = _begun(3)
    again = flow.loop("again", stream, parallelism=2)
    twice = flow.stage("twice", _same, again, again, parallelism=4)
    again.back(twice)
    again.back(twice, hr.broadcast())
    flow.sink("out", twice, hr.callback(_same), parallelism=3, route=hr.key("n"))
    plan = make_plan(flow.graph())
    numbers = [channel for task in plan.tasks.values() for channel in task.channels]
    assert len(numbers) == len(set(numbers))
    assert [edge.number for edge in plan.edges] == list(range(len(plan.edges)))
    used = [
        edge.channel(producer, consumer)
        for edge in plan.edges
        for producer in range(edge.producers)
        for consumer in edge.route.reaches(edge.place(producer))
    ]
    assert sorted(used) == sorted(numbers)


# ---------------------------------------------------------------------- layout


def _layout(
    function: Callable[[Any], Any] = _same,
    name: str = "a",
    parallelism: int = 2,
    route: Route | None = None,
    by: str = "n",
    records: int = 10,
    more: bool = False,
) -> Plan:
    flow = Flow("f")
    stream = flow.source("s", hr.generate(_make, records), parallelism=2)
    a = flow.stage(name, function, stream, parallelism=parallelism, route=route)
    flow.sink("out", flow.keyed("k", lambda state, record: (1, record), a, by=by), hr.callback(_same))
    if more:
        flow.sink("more", a, hr.callback(_same))
    return make_plan(flow.graph())


def test_the_layout_in_words() -> None:
    assert _layout(route=hr.rebalance()).layout == {
        "s": "s, parallelism 2",
        "a": "a, parallelism 2",
        "k": "k + out, parallelism 2",
        "s -> a": "rebalance",
        "a -> k": "key n",
        "the order of drawing": "s -> a, a -> k",
    }


@pytest.mark.parametrize(
    "changed", [{"name": "b"}, {"parallelism": 3}, {"route": hr.rebalance()}, {"more": True}], ids=str
)
def test_the_layout_changes_with_what_state_depends_on(changed: dict[str, Any]) -> None:
    assert _layout(**changed).layout != _layout().layout
    assert _layout(**changed).digest != _layout().digest


@pytest.mark.parametrize("changed", [{"function": lambda batch: batch}, {"records": 99}], ids=["function", "records"])
def test_the_layout_does_not_change_with_anything_else(changed: dict[str, Any]) -> None:
    assert _layout(**changed).layout == _layout().layout
    assert _layout(**changed).digest == _layout().digest


def test_the_key_is_part_of_the_layout() -> None:
    schema = pa.schema([("n", pa.int64()), ("m", pa.int64())])

    def drawn(by: str) -> Plan:
        flow = Flow("f")
        stream = flow.source(
            "s", hr.generate(lambda first, count: schema.empty_table().to_batches()[0], 0, schema=schema)
        )
        flow.sink("out", flow.keyed("k", lambda state, record: (1, record), stream, by=by), hr.callback(_same))
        return make_plan(flow.graph())

    assert drawn("n").layout != drawn("m").layout


def test_drawing_in_another_order_is_another_layout_or_has_the_same_channels() -> None:
    def drawn(names: str) -> Plan:
        flow, stream = _begun(2)
        for name in names:
            stage = flow.stage(name, _same, stream, route=hr.rebalance())
            flow.sink(f"out-{name}", stage, hr.callback(_same))
        return make_plan(flow.graph())

    one, other = drawn("ab"), drawn("ba")
    channels = [{name: task.channels for name, task in plan.tasks.items()} for plan in (one, other)]
    assert one.layout != other.layout or channels[0] == channels[1]


def test_the_seed_of_a_shuffle_is_part_of_the_layout() -> None:
    assert _two(hr.shuffle(1), 1, 3).layout != _two(hr.shuffle(2), 1, 3).layout
