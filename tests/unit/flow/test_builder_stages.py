"""Drawing sources, stages and sinks: what they are made of, their options and their columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FlowError
from headrace.flow.builder import Flow

from .drawings import NUMBERS, any_sink, as_it_is, drawn, ignored


def test_a_function_that_raises_for_no_records_must_say_its_columns() -> None:
    flow, stream = drawn()

    def first(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.slice(batch["n"].to_pylist()[0])

    with pytest.raises(
        FlowError, match=r"stage x: cannot tell which columns it gives: it raised IndexError.*say schema=pa"
    ):
        flow.stage("x", first, stream)
    flow.stage("x", first, stream, schema=NUMBERS)
    assert flow.drawn("x").schema == NUMBERS


def test_a_function_over_batches_is_asked_for_its_columns() -> None:
    flow, stream = drawn()
    flow.stage("renamed", lambda b: b.rename_columns(["m"]), stream)
    flow.stage("table", lambda b: pa.Table.from_batches([b.rename_columns(["m"])]), stream)
    flow.stage("sided", lambda b: {"": b.rename_columns(["m"]), "late": b}, stream, sides={"late": NUMBERS})
    flow.stage("filter", ignored, stream)
    flow.stage("own", type("Own", (hr.Stage,), {"on_batch": lambda self, batch: batch}), stream)
    names = {name: flow.drawn(name).schema.names for name in ("renamed", "table", "sided", "filter", "own")}  # type: ignore[union-attr]
    assert names == {"renamed": ["m"], "table": ["m"], "sided": ["m"], "filter": ["n"], "own": ["n"]}


def test_a_stage_is_a_function_or_a_class() -> None:
    flow, stream = drawn()
    with pytest.raises(FlowError, match=r"stage x: 7 is neither a function nor a class of hr\.Stage"):
        flow.stage("x", 7, stream)  # type: ignore[arg-type]


def test_a_function_that_gives_a_list_is_told_of() -> None:
    flow, stream = drawn()
    with pytest.raises(FlowError, match="stage x"):
        flow.stage("x", lambda record: [record], stream)


@pytest.mark.parametrize("kind", ["source", "sink"])
def test_a_folder_is_neither_a_source_nor_a_sink(kind: str) -> None:
    flow, stream = drawn()

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
        {"sides": {"": NUMBERS}},
    ],
    ids=str,
)
def test_options_are_checked_when_they_are_given(options: dict[str, Any]) -> None:
    flow, stream = drawn()
    with pytest.raises(FlowError, match="x"):
        flow.stage("x", as_it_is, stream, **options)


@pytest.mark.parametrize("options", [{"on_error": "side"}, {"retries": 3}], ids=str)
def test_a_stage_with_its_own_state_cannot_be_tried_again(options: dict[str, Any]) -> None:
    flow, stream = drawn()
    with pytest.raises(FlowError, match="x"):
        flow.stage("x", type("Own", (hr.Stage,), {}), stream, **options)


def test_a_class_that_does_nothing_with_batches_is_told_of() -> None:
    class Lazy(hr.Stage):
        pass

    flow, stream = drawn()
    with pytest.raises(FlowError, match=r"stage x: class Lazy has no on_batch\(self, batch\); write one"):
        flow.stage("x", Lazy, stream)


def test_a_column_of_the_name_of_the_reason_is_told_of() -> None:
    flow, stream = drawn()
    named = flow.stage("named", lambda b: b.rename_columns(["reason"]), stream)
    with pytest.raises(FlowError, match="reason"):
        flow.stage("x", as_it_is, named, each="record", on_error="side")


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
    flow.sink("out", flow.keyed("x", lambda state, record: (1, record), stream, by="k"), any_sink())
    with pytest.raises(FlowError, match="k"):
        flow.graph()


@pytest.mark.parametrize("where", ["source", "stage"])
def test_columns_that_no_frame_carries_are_refused(where: str) -> None:
    """Frames have no dictionaries with them."""
    coded = pa.schema([("d", pa.dictionary(pa.int32(), pa.string()))])

    def draw() -> None:
        flow, stream = drawn()
        if where == "source":
            stream = flow.source("t", hr.generate(lambda first, count: pa.record_batch([], schema=coded), schema=coded))
        else:
            stream = flow.stage("t", as_it_is, stream, schema=coded)
        flow.sink("out", stream, any_sink(), parallelism=2)
        flow.graph()

    with pytest.raises(FlowError, match="t: column d is dictionary-encoded"):
        draw()
