"""Labels and marks as functions of users give them: of one type, one for each record, or refused with the reason."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import FlowError, StageFailed, SubstreamBroken
from headrace.flow.builder import Flow
from headrace.flow.sequential import run_sequentially

from .tracked_flows import CALL, SCHEMA, made, numbers, same

FEW = 5


def with_gaps(first: int, count: int) -> pa.RecordBatch:
    n = np.arange(first, first + count)
    return pa.record_batch([pa.array(n), pa.array(n // 4, mask=n == 7), pa.array(n % 4 == 3)], schema=SCHEMA)


def told(by: Any, source: Any = None, **how: Any) -> list[Any]:
    """The ends of a flow of two steps, in lots of a few records."""
    flow = Flow("f")
    kept = flow.stage("k", same, flow.source("s", source or numbers(40)), parallelism=2, route=hr.rebalance())
    flow.sink("done", flow.ends("ends", kept.tracked(by=by, **how)), CALL)
    found: list[Any] = run_sequentially(flow.graph(), FEW)["done"].column("substream").to_pylist()
    return sorted(found)


def test_labels_that_come_as_fractions_where_some_are_missing() -> None:
    """As pandas gives them: of one type, or one substream would be two."""
    assert told(lambda b: b["x"].to_pandas(), hr.generate(with_gaps, 40)) == list(range(10))


def test_labels_of_a_batch_without_any() -> None:
    """A list of nothing but None has no type."""
    assert told(
        lambda b: pa.array(["a"] * b.num_rows, pa.string()) if 5 not in b["n"].to_pylist() else [None] * FEW
    ) == ["a"]


@pytest.mark.parametrize(
    ("by", "problem"),
    [
        (lambda b: b["x"].to_pylist(), "values of no type for a batch of no records"),
        (lambda b: np.array([x * 2 for x in b["x"].to_pylist()]), "gave int64, and double for a batch of no records"),
        (lambda b: b["x"] if b["n"].to_pylist()[:1] != [5] else pc.divide(pc.add(b["x"], 0.5), 1), "truncated"),
        (lambda b: b["x"] if b["n"].to_pylist()[:1] != [5] else b["x"].cast(pa.string()), "gave string, and int64"),
        (lambda b: b["x"] if b["n"].to_pylist()[:1] != [5] else None, "gave None for 5 records"),
        (lambda b: b["x"] if b["n"].to_pylist()[:1] != [5] else [1, "a"] * 3, "which is no column of values"),
        (lambda b: b["x"] if b["n"].to_pylist()[:1] != [5] else b["x"].slice(1), "gave 4 labels for 5 records"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be(by: Any, problem: str) -> None:
    with pytest.raises(FlowError, match=problem) as raised:
        told(by)
    assert "<lambda>" in str(raised.value)


def test_a_function_that_raises_is_named_with_task_record_and_line() -> None:
    def order(batch: pa.RecordBatch) -> Any:
        if 7 in batch["n"].to_pylist():
            raise ValueError("no")
        return batch["x"]

    with pytest.raises(StageFailed, match=r"stage s\.0, tracked\(by=order\): ValueError: no\n.*in order.*\n.*'n': 5"):
        told(order)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (lambda b: None, "gave None for 0 records"),
        (lambda b: True, "gave True for 0 records"),
        (lambda b: [True], "gave 1 values for 0 records; give True or False for each"),
        (lambda b: [] if b.num_rows == 0 else [True], "gave 1 values for 5 records"),
        (lambda b: b["n"].cast(pa.string()), "gave string; give True and False"),
    ],
)
def test_marks_that_cannot_be(given: Any, problem: str) -> None:
    with pytest.raises(FlowError, match=problem):
        told("x", ends=hr.marker(given))


def test_a_marker_may_look_at_the_last_record() -> None:
    def last(batch: pa.RecordBatch) -> Any:
        return np.append(np.zeros(batch.num_rows - 1, bool), batch["n"][-1].as_py() % 5 == 4)

    assert told(lambda b: pc.divide(b["n"], 5), ends=hr.marker(last)) == list(range(8))


def test_a_marker_of_text_is_refused_before_it_starts() -> None:
    batch = pa.record_batch({"x": [1], "last": ["yes"]})
    with pytest.raises(FlowError, match=r"source s: its column last is string; hr.marker needs one of True and False"):
        told("x", hr.generate(lambda first, count: batch.slice(first, count), 1), ends=hr.marker("last"))


def cast(type: pa.DataType) -> Any:
    return lambda batch: batch.set_column(1, "x", batch["x"].cast(type))


@pytest.mark.parametrize("type", [pa.string(), pa.int32(), pa.float64()])
def test_a_label_that_is_cast_on_the_way(type: pa.DataType) -> None:
    flow = Flow("f")
    kept = flow.stage("text", cast(type), flow.source("s", numbers()), parallelism=2, route=hr.rebalance())
    flow.sink("done", flow.ends("ends", kept.tracked(by="x")), CALL)
    with pytest.raises(FlowError, match=rf"its x is int64, and {type} where it is tracked.* what it gives to text"):
        flow.graph()


def test_a_label_that_is_cast_beside_its_source() -> None:
    """What leaves the task is known by what it is then."""
    flow = Flow("f")
    kept = flow.stage("text", cast(pa.string()), flow.source("s", numbers())).tracked(by="x", ends=hr.marker("last"))
    flow.sink("out", kept, CALL, parallelism=2, route=hr.rebalance())
    flow.sink("done", flow.ends("ends", kept), CALL)
    assert run_sequentially(flow.graph(), FEW)["done"].column("substream").to_pylist() == ["0", "1", "2"]


def test_labels_that_are_made_beside_a_source_and_never_leave_it() -> None:
    flow = Flow("f")
    bare = flow.source("s", hr.generate(lambda first, count: made(first, count).select(["n"]), 12))
    kept = flow.stage("label", lambda b: b.append_column("x", b["n"]), bare).tracked(by="x")
    flow.sink("done", flow.ends("ends", kept), CALL)
    assert run_sequentially(flow.graph(), FEW)["done"].column("substream").to_pylist() == list(range(12))


def test_a_marker_that_nobody_has() -> None:
    flow = Flow("f")
    bare = flow.source("s", hr.generate(lambda first, count: made(first, count).select(["n"]), 12))
    kept = flow.stage("label", lambda b: b.append_column("x", b["n"]), bare).tracked(by="x", ends=hr.marker("last"))
    flow.sink("done", flow.ends("ends", kept), CALL)
    with pytest.raises(FlowError, match=r"stage label: it has no column last, by which a record closes its substream"):
        flow.graph()


def nanoseconds(step: int) -> Any:
    def made_at(first: int, count: int) -> pa.RecordBatch:
        n = np.arange(first, first + count)
        return pa.record_batch({"n": n, "x": pa.array((n // 4 - 2) * step, pa.timestamp("ns"))})

    return hr.generate(made_at, 20)


@pytest.mark.parametrize("step", [1, 999, 1000])
@pytest.mark.parametrize("ends", [None, hr.rising()])
def test_time_stamps_within_one_microsecond_are_substreams_of_their_own(step: int, ends: Any) -> None:
    assert len(told("x", nanoseconds(step), ends=ends)) == 5


def test_labels_in_nanoseconds_fall_back_by_microseconds() -> None:
    def falling(first: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"x": pa.array([2000, 1500, 500][first : first + count], pa.timestamp("ns"))})

    source = hr.generate(falling, 3)
    with pytest.raises(SubstreamBroken, match="comes after higher ones"):
        told("x", source, ends=hr.rising(slack=1))
    assert len(told("x", source, ends=hr.rising(slack=2))) == 3


def test_windows_of_times_before_1970_in_nanoseconds() -> None:
    batch = pa.record_batch({"ts": pa.array([-1, None, 999], pa.timestamp("ns"))})
    assert hr.windows("ts", 1e-6)(batch).to_pylist() == [-1, None, 0]


@pytest.mark.parametrize("type", [pa.string(), pa.float64(), pa.date32()])
def test_windows_of_what_is_no_time(type: pa.DataType) -> None:
    batch = pa.record_batch({"ts": pa.array([None], type)})
    with pytest.raises(
        FlowError, match=rf"column ts is {re.escape(str(type))}; give time stamps, or whole numbers of microseconds"
    ):
        told(hr.windows("ts", 10), hr.generate(lambda first, count: batch.slice(first, count), 1))


def test_whole_numbers_that_rise_beyond_what_is_counted() -> None:
    batch = pa.record_batch({"x": pa.array([1 << 63], pa.uint64())})
    with pytest.raises(FlowError, match=r"whole numbers below 2\*\*63"):
        told("x", hr.generate(lambda first, count: batch.slice(first, count), 1), ends=hr.rising())


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), "10", None, 0, -1, True])
def test_lengths_of_windows(seconds: Any) -> None:
    with pytest.raises(FlowError, match="give a length above 0, in seconds"):
        hr.windows("ts", seconds)


@pytest.mark.parametrize("slack", [1 << 70, -1, 1.5, True])
def test_how_far_labels_fall_back(slack: Any) -> None:
    with pytest.raises(FlowError, match="give how far labels may fall back"):
        hr.rising(slack)


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"flush_s": None}, "flush_s is from 0 to 60"),
        ({"slack_s": "1"}, "slack_s is above 0"),
        ({"slack_s": float("nan")}, "slack_s is above 0"),
        ({"ends": False}, "use hr.marker, hr.rising or hr.whenever"),
    ],
)
def test_arguments_that_cannot_be(how: dict[str, Any], problem: str) -> None:
    with pytest.raises(FlowError, match=problem):
        Flow("f").source("s", numbers()).tracked(by="x", **how)
