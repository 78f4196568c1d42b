from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from headrace.demo.programs import EventWindows
from headrace.errors import ProgramError, StateMismatch
from headrace.flow.synchronized import planned
from headrace.spark.synchronized_stream import ITAG, RANK, StreamingTask, sorted_as_spark
from headrace.spark.waited import as_now
from headrace.synchronize.codec import Codec
from headrace.synchronize.inputs import Inputs
from headrace.synchronize.ranks import Ranks
from headrace.synchronize.versions import Version


def test_nulls_come_first_and_nan_last() -> None:
    nan = float("nan")
    rows = pa.table(
        {
            "a.b": pa.array([2.0, nan, None, -1.0, 0.0, nan, -0.0]),
            "text": pa.array(["x", "é", "x", None, "z", "a\U0001f600", "a"]),
        }
    )
    assert sorted_as_spark(rows).tolist() == [2, 3, 6, 4, 0, 5, 1]


def test_texts_are_in_the_order_of_their_bytes() -> None:
    texts = ["b", "", None, "\U0001f600", "￿", "é", "Z"]
    order = sorted_as_spark(pa.table({"text": texts})).tolist()
    found = [texts[at] for at in order]
    assert found == [None, *sorted((text for text in texts if text is not None), key=str.encode)]


@pytest.mark.parametrize(
    ("streams", "problem"),
    [
        (["a", None], "an event has no till: a null is no stream; leave such rows out before (row {'time': 2"),
        (["c", "a"], "an event is of stream c, and streams= are a, b (row {'time': 1"),
    ],
)
def test_a_stream_that_there_is_not_is_told_of_before_anything_is_kept(streams: list[Any], problem: str) -> None:
    program, names = EventWindows(), ("time", "kind", "value", "till")
    inputs = Inputs(program.name, "time", ("kind",), "till")
    task = StreamingTask(
        planned(program, inputs, 1, None, "sequential"), inputs, Codec(program), names, ("a", "b"), "nowhere", b""
    )
    rows = pa.table({"time": [1, 2], "kind": ["value"] * 2, "value": [5, 6], "till": pa.array(streams, pa.string())})
    with pytest.raises(ProgramError) as raised:
        task._newest(rows, Version(0))
    assert problem in str(raised.value)


def test_a_null_as_an_arrival_is_told_of_before_anything_is_kept() -> None:
    program, names = EventWindows(), ("time", "kind", "value", "offset")
    inputs = Inputs(program.name, "time", ("kind",), None, "offset")
    task = StreamingTask(
        planned(program, inputs, 1, None, "sequential"), inputs, Codec(program), names, ("None",), "nowhere", b""
    )
    arrivals = pa.array([(1 << 60) + 1, None, (1 << 60) + 3], pa.int64())
    rows = pa.table(
        {
            "time": [1, 2, 3], "kind": ["value"] * 3, "value": [5, 6, 7], "offset": arrivals,
            ITAG: pa.array([0, 0, 0], pa.int32()), RANK: arrivals,
        }
    )  # fmt: skip
    with pytest.raises(ProgramError, match="an event has no offset: a null cannot be ordered"):
        task._split(rows, Version(0), 1, 0)
    beat = rows.set_column(1, "kind", pa.array(["value", None, "value"]))
    ready, _ = task._split(beat, Version(0), 9, 0)
    assert ready.ranks.tolist() == [(1 << 60) + 1, (1 << 60) + 3]


@pytest.mark.parametrize("is_new", [True, False])
def test_events_that_have_waited_are_in_the_zone_that_the_session_has_now(is_new: bool) -> None:
    program, names = EventWindows(), ("time", "kind", "value", "seen")
    inputs = Inputs(program.name, "time", ("kind",))
    plan = planned(program, inputs, 1, None, "sequential")

    def events(hours: list[int], zone: str) -> pa.Table:
        times = [dt.datetime(2026, 10, 25, hour, 30, tzinfo=dt.UTC) for hour in hours]
        in_zone = pa.timestamp("us", zone)
        columns = {
            "time": pa.array(times, in_zone), "kind": ["value"] * len(hours), "value": hours,
            "seen": pa.array([[time] for time in times], pa.list_(in_zone)),
            ITAG: pa.array([0] * len(hours), pa.int32()), RANK: pa.array([0] * len(hours), pa.int64()),
        }  # fmt: skip
        return pa.table(columns)

    given = events([0], "Europe/Berlin").select(list(names)).schema
    ranks = Ranks(("barrier", "value"))
    task = StreamingTask(plan, inputs, Codec(program), names, ("None",), "nowhere", b"", ranks, given)
    rows = events([2, 0], "Europe/Berlin") if is_new else pa.table({})
    noon = int(dt.datetime(2026, 10, 25, 12, tzinfo=dt.UTC).timestamp()) * 1_000_000
    ready, _ = task._split(rows, Version(0, waiting=[events([1], "UTC")]), noon, 0)
    expected = events([0, 1, 2] if is_new else [1], "Europe/Berlin").select(list(names))
    assert pa.table(ready.batch).equals(expected)


@pytest.mark.parametrize("is_new", [True, False])
def test_events_that_have_waited_have_the_columns_that_events_have_now(is_new: bool) -> None:
    program, names = EventWindows(), ("source", "time", "kind", "value")
    inputs = Inputs(program.name, "time", ("kind",))
    given = pa.schema([("source", pa.string()), ("time", pa.int64()), ("kind", pa.string()), ("value", pa.int64())])
    plan = planned(program, inputs, 1, None, "sequential")
    ranks = Ranks(("barrier", "value"))
    task = StreamingTask(plan, inputs, Codec(program), names, ("None",), "nowhere", b"", ranks, given)
    own = {ITAG: pa.array([0], pa.int32()), RANK: pa.array([0], pa.int64())}
    waited = pa.table({"time": pa.array([1], pa.int32()), "kind": ["value"], "value": [7], "gone": ["x"], **own})
    row = {"source": "tap", "time": 2, "kind": "value", "value": 8}
    rows = pa.Table.from_batches([pa.RecordBatch.from_pylist([row], given)])
    for name, column in own.items():
        rows = rows.append_column(name, column)
    ready, _ = task._split(rows if is_new else pa.table({}), Version(0, waiting=[waited]), 9, 0)
    assert ready.batch.schema.equals(given)
    old = {"source": None, "time": 1, "kind": "value", "value": 7}
    assert ready.batch.to_pylist() == ([old, row] if is_new else [old])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([("time", pa.int64()), ("what", pa.string())], "have no column what, by which it goes now; keep the column"),
        (
            [("time", pa.int8()), ("what", pa.string())],
            "have time as int64, which does not fit int8 (ArrowInvalid: Integer value",
        ),
    ],
)
def test_events_that_have_waited_and_do_not_fit_any_more(given: Any, problem: str) -> None:
    waited = pa.table({"time": [1000], "kind": ["value"]})
    with pytest.raises(StateMismatch) as raised:
        as_now(waited, pa.schema(given), Inputs("EventWindows", "time", ("what",)))
    assert f"program EventWindows: events that wait since an earlier batch {problem}" in str(raised.value)


def test_events_that_have_waited_are_in_the_order_of_the_arrival_that_there_is_now() -> None:
    program, names = EventWindows(), ("time", "kind", "value", "offset")
    inputs = Inputs(program.name, "time", ("kind",), None, "offset")
    plan = planned(program, inputs, 1, None, "sequential")
    task = StreamingTask(plan, inputs, Codec(program), names, ("None",), "nowhere", b"")
    waited = {"time": [1, 1], "kind": ["value"] * 2, "value": [5, 6], "offset": [-1, -2]}
    own = {ITAG: pa.array([0, 0], pa.int32()), RANK: pa.array([1, 3], pa.int64())}
    ready, _ = task._split(pa.table({}), Version(0, waiting=[pa.table({**waited, **own})]), 9, 0)
    assert ready.ranks.tolist() == [-2, -1]
    assert ready.batch.column("value").to_pylist() == [6, 5]


def test_a_start_of_a_query_is_known_by_what_spark_says_of_its_jobs() -> None:
    program = EventWindows()
    inputs = Inputs(program.name, "time", ("kind",))
    plan = planned(program, inputs, 1, None, "sequential")
    one, other = (
        StreamingTask(plan, inputs, Codec(program), ("time",), ("None",), "nowhere", secret) for secret in (b"1", b"2")
    )
    run = "5e3c7b0e-4f0f-4bfb-9a35-0c2f6a1b7d11"
    said = f"takings<br/>id = 8744defe-3a8f-48da-b8d9-d213e69ed290<br/>runId = {run}<br/>batch = 7"
    assert one._run(said) == one._run(said) != other._run(said)
    assert [None if found is None else found[0] for found in map(one._run, [said, "mine", None])] == [run, None, None]
