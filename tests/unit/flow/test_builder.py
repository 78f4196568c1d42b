"""Drawing a flow: what is wrong is said at once, with the name of the stage and the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FlowError
from headrace.flow.builder import Flow, Stream
from headrace.flow.routing import Forward, Key, Rebalance

_NUMBERS = pa.schema([("n", pa.int64())])
_TEXTS = pa.schema([("t", pa.string())])


def _numbers(records: int = 10) -> Any:
    return hr.generate(
        lambda first, count: pa.record_batch([pa.array(range(first, first + count))], schema=_NUMBERS), records
    )


def _texts() -> Any:
    return hr.generate(lambda first, count: pa.record_batch([pa.array(["x"] * count)], schema=_TEXTS), 10)


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _ignored(batch: pa.RecordBatch) -> None:
    return None


def _drawn() -> tuple[Flow, Stream]:
    flow = Flow("f")
    return flow, flow.source("s", _numbers())


def _sink() -> Any:
    return hr.callback(_ignored)


# --------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["", "1a", "a b", "a.b", "ä", "a" * 61, "a\n", "-a", None, 7])
def test_a_bad_name_is_refused_wherever_it_is_given(name: Any) -> None:
    flow, stream = _drawn()
    attempts: list[Callable[[], Any]] = [
        lambda: Flow(name),
        lambda: flow.source(name, _numbers()),
        lambda: flow.stage(name, _same, stream),
        lambda: flow.keyed(name, lambda state, record: (state, record), stream, by="n"),
        lambda: flow.loop(name, stream),
        lambda: flow.sink(name, stream, _sink()),
    ]
    for attempt in attempts:
        with pytest.raises(FlowError, match=r"name .*: a name is up to 60 letters, digits, - and _"):
            attempt()


@pytest.mark.parametrize("name", ["a", "A-b_9", "a" * 60])
def test_a_good_name_is_taken(name: str) -> None:
    assert Flow(name).name == name


@pytest.mark.parametrize("kind", ["source", "stage", "sink"])
def test_no_two_of_one_name(kind: str) -> None:
    flow, stream = _drawn()
    flow.stage("x", _same, stream)
    add: dict[str, Callable[[], Any]] = {
        "source": lambda: flow.source("x", _numbers()),
        "stage": lambda: flow.stage("x", _same, stream),
        "sink": lambda: flow.sink("x", stream, _sink()),
    }
    with pytest.raises(FlowError, match=f"{kind} x: there is a stage of this name already"):
        add[kind]()


# -------------------------------------------------------------------- inputs


def test_a_stage_needs_an_input() -> None:
    flow, _ = _drawn()
    with pytest.raises(FlowError, match=r"stage lonely has no input; name the streams it reads, or use flow\.source"):
        flow.stage("lonely", _same)
    with pytest.raises(FlowError, match="lonely has no input"):
        flow.loop("lonely")
    with pytest.raises(FlowError, match="lonely has no input"):
        flow.keyed("lonely", lambda state, record: (state, None), by="n")


def test_a_stream_of_another_flow_is_refused() -> None:
    flow, stream = _drawn()
    other = Flow("other")
    theirs = other.source("theirs", _numbers())
    message = "its input theirs belongs to another flow, other"
    with pytest.raises(FlowError, match=f"x: {message}"):
        flow.stage("x", _same, stream, theirs)
    with pytest.raises(FlowError, match=f"x: {message}"):
        flow.sink("x", theirs, _sink())
    loop = flow.loop("again", stream)
    with pytest.raises(FlowError, match=f"again: {message}"):
        loop.back(theirs)


def test_an_input_must_be_a_stream() -> None:
    flow, _ = _drawn()
    with pytest.raises(FlowError, match=r"x: its input must be what flow\.source or flow\.stage gave, not 's'"):
        flow.stage("x", _same, "s")  # type: ignore[arg-type]


def test_inputs_must_have_the_same_columns() -> None:
    flow, numbers = _drawn()
    texts = flow.source("t", _texts())
    with pytest.raises(
        FlowError, match="stage both: its inputs have different columns: s gives n int64, t gives t string; let a"
    ):
        flow.stage("both", _same, numbers, texts)


def test_what_comes_back_must_have_the_same_columns() -> None:
    flow, numbers = _drawn()
    loop = flow.loop("again", numbers)
    other = flow.stage("other", lambda b: b.rename_columns(["m"]), loop)
    flow.sink("out", loop, _sink())
    loop.back(other)
    with pytest.raises(
        FlowError, match="stage again: what comes back from other has the columns m int64, not n int64; let a"
    ):
        flow.graph()


# ------------------------------------------------------------- routes and keys


def test_forward_needs_equal_parallelism() -> None:
    flow, stream = _drawn()
    wide = flow.stage("wide", _same, stream, parallelism=3, route=hr.forward())
    flow.sink("out", wide, _sink())
    with pytest.raises(
        FlowError, match=r"stage wide, from s: forward needs equal parallelism, not 1 and 3; use route=hr\.rebalance"
    ):
        flow.graph()


def test_a_key_must_be_in_the_data() -> None:
    flow, stream = _drawn()
    flow.sink("out", flow.keyed("count", lambda state, record: (1, record), stream, by=("n", "m")), _sink())
    with pytest.raises(FlowError, match="stage count, from s: key column m is not in the data; it has n"):
        flow.graph()


def test_routes_that_are_not_given_are_chosen() -> None:
    flow, stream = _drawn()
    same = flow.stage("same", _same, stream)
    wide = flow.stage("wide", _same, same, parallelism=4)
    flow.sink("out", flow.keyed("k", lambda state, record: (1, record), wide, by="n"), _sink(), parallelism=2)
    graph = flow.graph()
    assert [graph.node(name).inputs[0].route for name in ("same", "wide", "k", "out")] == [
        Forward(),
        Rebalance(),
        Key(("n",)),
        Rebalance(),
    ]


@pytest.mark.parametrize("parallelism", [-1, 10_001, 1.5, "4", True])
def test_parallelism_is_a_number_of_tasks(parallelism: Any) -> None:
    flow, stream = _drawn()
    message = f"x: parallelism must be a number from 1 to 10000, not {parallelism!r}"
    with pytest.raises(FlowError, match=message):
        flow.stage("x", _same, stream, parallelism=parallelism)
    with pytest.raises(FlowError, match=message):
        flow.sink("x", stream, _sink(), parallelism=parallelism)
    with pytest.raises(FlowError, match=message):
        flow.source("x", _numbers(), parallelism=parallelism)


@pytest.mark.parametrize("kind", ["stage", "sink"])
def test_no_tasks_at_all_are_refused(kind: str) -> None:
    flow, stream = _drawn()
    draw: dict[str, Callable[[], Any]] = {
        "stage": lambda: flow.stage("x", _same, stream, parallelism=0),
        "sink": lambda: flow.sink("x", stream, _sink(), parallelism=0),
    }
    with pytest.raises(FlowError, match="x: parallelism must be a number from 1 to 10000, not 0"):
        draw[kind]()


def test_a_source_with_splits_has_a_task_for_each() -> None:
    flow = Flow("f")
    with pytest.raises(FlowError, match="source q: it has 1 splits, one task each; leave parallelism=3 out"):
        flow.source("q", hr.queue("orders", _NUMBERS), parallelism=3)
    flow.source("q", hr.queue("orders", _NUMBERS), parallelism=1)
    with pytest.raises(FlowError, match=r"queue bare: as a source it needs its columns, hr\.queue\('bare', schema\)"):
        flow.source("b", hr.queue("bare"))


# ------------------------------------------------------------------- loose ends


def test_a_flow_needs_a_source() -> None:
    with pytest.raises(FlowError, match=r"flow empty has no source; begin with flow\.source\(name, \.\.\.\)"):
        Flow("empty").graph()


def test_what_nobody_reads_is_refused() -> None:
    flow, stream = _drawn()
    with pytest.raises(FlowError, match="source s: nothing reads it; give it a sink"):
        flow.graph()
    flow.stage("x", _same, stream)
    with pytest.raises(FlowError, match="stage x: nothing reads it; give it a sink"):
        flow.graph()


def test_a_side_output_that_nobody_reads_is_refused() -> None:
    flow, stream = _drawn()
    some = flow.stage("some", _same, stream, sides={"late": _NUMBERS, "bad": _NUMBERS})
    flow.sink("out", some, _sink())
    flow.sink("late", some.side("late"), _sink(), parallelism=1)
    with pytest.raises(FlowError, match=r"stage some: nothing reads its side output bad; .*stream\.side\('bad'\)"):
        flow.graph()
    flow.sink("bad", some.side("bad"), _sink())
    assert flow.graph().node("bad").inputs[0].output == "bad"


def test_the_side_output_of_errors_must_be_read() -> None:
    flow, stream = _drawn()
    some = flow.stage("some", _same, stream, each="record", on_error="side")
    flow.sink("out", some, _sink())
    with pytest.raises(FlowError, match="stage some: nothing reads its side output errors"):
        flow.graph()
    flow.sink("errors", some.side("errors"), _sink())
    assert flow.graph().node("some").schema_of("errors") == pa.schema([("n", pa.int64()), ("reason", pa.string())])


def test_an_unknown_side_output_is_refused() -> None:
    flow, stream = _drawn()
    some = flow.stage("some", _same, stream, sides={"late": _NUMBERS})
    with pytest.raises(FlowError, match="stage some has no side output early; it has late"):
        some.side("early")
    with pytest.raises(FlowError, match=r"stage s has no side output early; it has none: give it sides=\{\.\.\.\}"):
        stream.side("early")


def test_a_loop_must_be_closed() -> None:
    flow, stream = _drawn()
    again = flow.loop("again", stream)
    flow.sink("out", again, _sink())
    with pytest.raises(
        FlowError, match=r"loop again: nothing is sent back; close it with again\.back\(stream\), or leave it out"
    ):
        flow.graph()
    again.back(flow.stage("less", _same, again))
    graph = flow.graph()
    assert [(arrow.node, arrow.back) for arrow in graph.node("again").inputs] == [("s", False), ("less", True)]


# ---------------------------------------------------------------------- columns


def test_a_function_that_raises_for_no_records_must_say_its_columns() -> None:
    flow, stream = _drawn()

    def first(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(batch["n"].to_pylist()[0])

    with pytest.raises(
        FlowError, match=r"stage x: cannot tell which columns it gives: it raised IndexError.*say schema=pa"
    ):
        flow.stage("x", first, stream)
    flow.stage("x", first, stream, schema=_NUMBERS)
    assert flow.drawn("x").schema == _NUMBERS


def test_a_function_over_batches_is_asked_for_its_columns() -> None:
    flow, stream = _drawn()
    flow.stage("renamed", lambda b: b.rename_columns(["m"]), stream)
    flow.stage("table", lambda b: pa.Table.from_batches([b.rename_columns(["m"])]), stream)
    flow.stage("sided", lambda b: {"": b.rename_columns(["m"]), "late": b}, stream, sides={"late": _NUMBERS})
    flow.stage("filter", _ignored, stream)
    flow.stage("own", type("Own", (hr.Stage,), {"on_batch": lambda self, batch: batch}), stream)
    names = {name: flow.drawn(name).schema.names for name in ("renamed", "table", "sided", "filter", "own")}  # type: ignore[union-attr]
    assert names == {"renamed": ["m"], "table": ["m"], "sided": ["m"], "filter": ["n"], "own": ["n"]}


def test_a_stage_is_a_function_or_a_class() -> None:
    flow, stream = _drawn()
    with pytest.raises(FlowError, match=r"stage x: 7 is neither a function nor a class of hr\.Stage"):
        flow.stage("x", 7, stream)  # type: ignore[arg-type]


def test_a_function_that_gives_a_list_is_told_of() -> None:
    flow, stream = _drawn()
    with pytest.raises(FlowError, match="stage x"):
        flow.stage("x", lambda record: [record], stream)


@pytest.mark.parametrize("kind", ["source", "sink"])
def test_a_folder_is_neither_a_source_nor_a_sink(kind: str) -> None:
    flow, stream = _drawn()

    def as_a_sink() -> None:
        flow.sink("x", stream, "folder")  # type: ignore[arg-type]
        flow.graph()

    draw: dict[str, Callable[[], Any]] = {
        "source": lambda: flow.source("x", "folder"),  # type: ignore[arg-type]
        "sink": as_a_sink,
    }
    with pytest.raises(FlowError, match="folder"):
        draw[kind]()


@pytest.mark.parametrize(
    "options",
    [
        {"each": "row"},
        {"on_error": "skip"},
        {"retries": "3"},
        {"retries": -1},
        {"sides": {"late": None}},
        {"sides": {"": _NUMBERS}},
    ],
    ids=str,
)
def test_options_are_checked_when_they_are_given(options: dict[str, Any]) -> None:
    flow, stream = _drawn()
    with pytest.raises(FlowError, match="x"):
        flow.stage("x", _same, stream, **options)


@pytest.mark.parametrize("options", [{"on_error": "side"}, {"retries": 3}], ids=str)
def test_a_stage_with_its_own_state_cannot_be_tried_again(options: dict[str, Any]) -> None:
    flow, stream = _drawn()
    with pytest.raises(FlowError, match="x"):
        flow.stage("x", type("Own", (hr.Stage,), {}), stream, **options)


def test_a_class_that_does_nothing_with_batches_is_told_of() -> None:
    class Lazy(hr.Stage):
        pass

    flow, stream = _drawn()
    with pytest.raises(FlowError, match=r"stage x: class Lazy has no on_batch\(self, batch\); write one"):
        flow.stage("x", Lazy, stream)


def test_a_column_of_the_name_of_the_reason_is_told_of() -> None:
    flow, stream = _drawn()
    named = flow.stage("named", lambda b: b.rename_columns(["reason"]), stream)
    with pytest.raises(FlowError, match="reason"):
        flow.stage("x", _same, named, each="record", on_error="side")


@pytest.mark.parametrize(
    "of",
    [
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.time64("us"),
        pa.string_view(),
        pa.binary(2),
        pa.decimal256(60, 0),
    ],
    ids=str,
)
def test_a_key_of_a_type_that_has_no_hash_is_refused(of: pa.DataType) -> None:
    flow = Flow("f")
    schema = pa.schema([("k", of)])
    stream = flow.source(
        "s", hr.generate(lambda first, count: pa.record_batch([pa.nulls(count, of)], schema=schema), 1)
    )
    flow.sink("out", flow.keyed("x", lambda state, record: (1, record), stream, by="k"), _sink())
    with pytest.raises(FlowError, match="k"):
        flow.graph()


@pytest.mark.parametrize("where", ["source", "stage"])
def test_columns_that_no_frame_carries_are_refused(where: str) -> None:
    """Frames have no dictionaries with them."""
    coded = pa.schema([("d", pa.dictionary(pa.int32(), pa.string()))])

    def draw() -> None:
        flow, stream = _drawn()
        if where == "source":
            stream = flow.source("t", hr.generate(lambda first, count: pa.record_batch([], schema=coded), schema=coded))
        else:
            stream = flow.stage("t", _same, stream, schema=coded)
        flow.sink("out", stream, _sink(), parallelism=2)
        flow.graph()

    with pytest.raises(FlowError, match="t: column d is dictionary-encoded"):
        draw()


# ------------------------------------------------------------------ a good one


def test_a_good_drawing_gives_its_graph() -> None:
    flow = Flow("trades")
    raw = flow.source("capture", _numbers(), parallelism=2)
    parsed = flow.stage("parse", _same, raw, parallelism=3, each="record", on_error="side")
    flow.sink("clean", parsed, _sink())
    flow.sink("bad", parsed.side("errors"), _sink(), parallelism=1)
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
    flow, stream = _drawn()
    flow.sink("out", stream, _sink())
    before = flow.graph()
    flow.sink("more", stream, _sink())
    assert len(before.nodes) == 2
    assert len(flow.graph().nodes) == 3


def test_errors_can_cross_processes() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(FlowError("stage x: it is bad")))
    assert isinstance(error, FlowError)
    assert str(error) == "stage x: it is bad"
