"""Drawing a flow: what is wrong is said at once, with the name of the stage and the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FlowError
from headrace.flow.builder import Flow
from headrace.flow.routing import Forward, Key, Rebalance

from .drawings import NUMBERS, any_sink, as_it_is, drawn, some_numbers

_TEXTS = pa.schema([("t", pa.string())])


def _texts() -> Any:
    return hr.generate(lambda first, count: pa.record_batch([pa.array(["x"] * count)], schema=_TEXTS), 10)


# --------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["", "1a", "a b", "a.b", "ä", "a" * 61, "a\n", "-a", None, 7])
def test_a_bad_name_is_refused_wherever_it_is_given(name: Any) -> None:
    flow, stream = drawn()
    attempts: list[Callable[[], Any]] = [
        lambda: Flow(name),
        lambda: flow.source(name, some_numbers()),
        lambda: flow.stage(name, as_it_is, stream),
        lambda: flow.keyed(name, lambda state, record: (state, record), stream, by="n"),
        lambda: flow.loop(name, stream),
        lambda: flow.sink(name, stream, any_sink()),
    ]
    for attempt in attempts:
        with pytest.raises(FlowError, match=r"name .*: a name is up to 60 letters, digits, - and _"):
            attempt()


@pytest.mark.parametrize("name", ["a", "A-b_9", "a" * 60])
def test_a_good_name_is_taken(name: str) -> None:
    assert Flow(name).name == name


@pytest.mark.parametrize("kind", ["source", "stage", "sink"])
def test_no_two_of_one_name(kind: str) -> None:
    flow, stream = drawn()
    flow.stage("x", as_it_is, stream)
    add: dict[str, Callable[[], Any]] = {
        "source": lambda: flow.source("x", some_numbers()),
        "stage": lambda: flow.stage("x", as_it_is, stream),
        "sink": lambda: flow.sink("x", stream, any_sink()),
    }
    with pytest.raises(FlowError, match=f"{kind} x: there is a stage of this name already"):
        add[kind]()


# -------------------------------------------------------------------- inputs


def test_a_stage_needs_an_input() -> None:
    flow, _ = drawn()
    with pytest.raises(FlowError, match=r"stage lonely has no input; name the streams it reads, or use flow\.source"):
        flow.stage("lonely", as_it_is)
    with pytest.raises(FlowError, match="lonely has no input"):
        flow.loop("lonely")
    with pytest.raises(FlowError, match="lonely has no input"):
        flow.keyed("lonely", lambda state, record: (state, None), by="n")


def test_a_stream_of_another_flow_is_refused() -> None:
    flow, stream = drawn()
    other = Flow("other")
    theirs = other.source("theirs", some_numbers())
    message = "its input theirs belongs to another flow, other"
    with pytest.raises(FlowError, match=f"x: {message}"):
        flow.stage("x", as_it_is, stream, theirs)
    with pytest.raises(FlowError, match=f"x: {message}"):
        flow.sink("x", theirs, any_sink())
    loop = flow.loop("again", stream)
    with pytest.raises(FlowError, match=f"again: {message}"):
        loop.back(theirs)


def test_an_input_must_be_a_stream() -> None:
    flow, _ = drawn()
    with pytest.raises(FlowError, match=r"x: its input must be what flow\.source or flow\.stage gave, not 's'"):
        flow.stage("x", as_it_is, "s")  # type: ignore[arg-type]


def test_inputs_must_have_the_same_columns() -> None:
    flow, numbers = drawn()
    texts = flow.source("t", _texts())
    with pytest.raises(
        FlowError, match="stage both: its inputs have different columns: s gives n int64, t gives t string; let a"
    ):
        flow.stage("both", as_it_is, numbers, texts)


def test_what_comes_back_must_have_the_same_columns() -> None:
    flow, numbers = drawn()
    loop = flow.loop("again", numbers)
    other = flow.stage("other", lambda b: b.rename_columns(["m"]), loop)
    flow.sink("out", loop, any_sink())
    loop.back(other)
    with pytest.raises(
        FlowError, match="stage again: what comes back from other has the columns m int64, not n int64; let a"
    ):
        flow.graph()


# ------------------------------------------------------------- routes and keys


def test_forward_needs_equal_parallelism() -> None:
    flow, stream = drawn()
    wide = flow.stage("wide", as_it_is, stream, parallelism=3, route=hr.forward())
    flow.sink("out", wide, any_sink())
    with pytest.raises(
        FlowError, match=r"stage wide, from s: forward needs equal parallelism, not 1 and 3; use route=hr\.rebalance"
    ):
        flow.graph()


def test_a_key_must_be_in_the_data() -> None:
    flow, stream = drawn()
    flow.sink("out", flow.keyed("count", lambda state, record: (1, record), stream, by=("n", "m")), any_sink())
    with pytest.raises(FlowError, match="stage count, from s: key column m is not in the data; it has n"):
        flow.graph()


def test_routes_that_are_not_given_are_chosen() -> None:
    flow, stream = drawn()
    same = flow.stage("same", as_it_is, stream)
    wide = flow.stage("wide", as_it_is, same, parallelism=4)
    flow.sink("out", flow.keyed("k", lambda state, record: (1, record), wide, by="n"), any_sink(), parallelism=2)
    graph = flow.graph()
    assert [graph.node(name).inputs[0].route for name in ("same", "wide", "k", "out")] == [
        Forward(),
        Rebalance(),
        Key(("n",)),
        Rebalance(),
    ]


@pytest.mark.parametrize("parallelism", [-1, 10_001, 1.5, "4", True])
def test_parallelism_is_a_number_of_tasks(parallelism: Any) -> None:
    flow, stream = drawn()
    message = f"x: parallelism must be a number from 1 to 10000, not {parallelism!r}"
    with pytest.raises(FlowError, match=message):
        flow.stage("x", as_it_is, stream, parallelism=parallelism)
    with pytest.raises(FlowError, match=message):
        flow.sink("x", stream, any_sink(), parallelism=parallelism)
    with pytest.raises(FlowError, match=message):
        flow.source("x", some_numbers(), parallelism=parallelism)


@pytest.mark.parametrize("kind", ["stage", "sink"])
def test_no_tasks_at_all_are_refused(kind: str) -> None:
    flow, stream = drawn()
    draw: dict[str, Callable[[], Any]] = {
        "stage": lambda: flow.stage("x", as_it_is, stream, parallelism=0),
        "sink": lambda: flow.sink("x", stream, any_sink(), parallelism=0),
    }
    with pytest.raises(FlowError, match="x: parallelism must be a number from 1 to 10000, not 0"):
        draw[kind]()


def test_a_source_with_splits_has_a_task_for_each() -> None:
    flow = Flow("f")
    with pytest.raises(FlowError, match="source q: it has 1 splits, one task each; leave parallelism=3 out"):
        flow.source("q", hr.queue("orders", NUMBERS), parallelism=3)
    flow.source("q", hr.queue("orders", NUMBERS), parallelism=1)
    with pytest.raises(FlowError, match=r"queue bare: as a source it needs its columns, hr\.queue\('bare', schema\)"):
        flow.source("b", hr.queue("bare"))


# ------------------------------------------------------------------- loose ends


def test_a_flow_needs_a_source() -> None:
    with pytest.raises(FlowError, match=r"flow empty has no source; begin with flow\.source\(name, \.\.\.\)"):
        Flow("empty").graph()


def test_what_nobody_reads_is_refused() -> None:
    flow, stream = drawn()
    with pytest.raises(FlowError, match="source s: nothing reads it; give it a sink"):
        flow.graph()
    flow.stage("x", as_it_is, stream)
    with pytest.raises(FlowError, match="stage x: nothing reads it; give it a sink"):
        flow.graph()


def test_a_side_output_that_nobody_reads_is_refused() -> None:
    flow, stream = drawn()
    some = flow.stage("some", as_it_is, stream, sides={"late": NUMBERS, "bad": NUMBERS})
    flow.sink("out", some, any_sink())
    flow.sink("late", some.side("late"), any_sink(), parallelism=1)
    with pytest.raises(FlowError, match=r"stage some: nothing reads its side output bad; .*stream\.side\('bad'\)"):
        flow.graph()
    flow.sink("bad", some.side("bad"), any_sink())
    assert flow.graph().node("bad").inputs[0].output == "bad"


def test_the_side_output_of_errors_must_be_read() -> None:
    flow, stream = drawn()
    some = flow.stage("some", as_it_is, stream, each="record", on_error="side")
    flow.sink("out", some, any_sink())
    with pytest.raises(FlowError, match="stage some: nothing reads its side output errors"):
        flow.graph()
    flow.sink("errors", some.side("errors"), any_sink())
    assert flow.graph().node("some").schema_of("errors") == pa.schema([("n", pa.int64()), ("reason", pa.string())])


def test_an_unknown_side_output_is_refused() -> None:
    flow, stream = drawn()
    some = flow.stage("some", as_it_is, stream, sides={"late": NUMBERS})
    with pytest.raises(FlowError, match="stage some has no side output early; it has late"):
        some.side("early")
    with pytest.raises(FlowError, match=r"stage s has no side output early; it has none: give it sides=\{\.\.\.\}"):
        stream.side("early")


def test_a_loop_must_be_closed() -> None:
    flow, stream = drawn()
    again = flow.loop("again", stream)
    flow.sink("out", again, any_sink())
    with pytest.raises(
        FlowError, match=r"loop again: nothing is sent back; close it with again\.back\(stream\), or leave it out"
    ):
        flow.graph()
    again.back(flow.stage("less", as_it_is, again))
    graph = flow.graph()
    assert [(arrow.node, arrow.back) for arrow in graph.node("again").inputs] == [("s", False), ("less", True)]


# ------------------------------------------------------------------ a good one


def test_a_good_drawing_gives_its_graph() -> None:
    flow = Flow("trades")
    raw = flow.source("capture", some_numbers(), parallelism=2)
    parsed = flow.stage("parse", as_it_is, raw, parallelism=3, each="record", on_error="side")
    flow.sink("clean", parsed, any_sink())
    flow.sink("bad", parsed.side("errors"), any_sink(), parallelism=1)
    graph = flow.graph()
    assert graph.name == "trades"
    assert [(node.kind, node.name, node.parallelism) for node in graph.nodes] == [
        ("source", "capture", 2),
        ("stage", "parse", 3),
        ("sink", "clean", 3),
        ("sink", "bad", 1),
    ]
    assert [(node.name, arrow.output) for node, arrow in graph.consumers("parse")] == [("clean", ""), ("bad", "errors")]
    assert all(arrow.route is not None for node in graph.nodes for arrow in node.inputs)


def test_a_flow_may_be_drawn_further_after_a_look() -> None:
    flow, stream = drawn()
    flow.sink("out", stream, any_sink())
    before = flow.graph()
    flow.sink("more", stream, any_sink())
    assert len(before.nodes) == 2
    assert len(flow.graph().nodes) == 3


def test_errors_can_cross_processes() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(FlowError("stage x: it is bad")))
    assert isinstance(error, FlowError)
    assert str(error) == "stage x: it is bad"
