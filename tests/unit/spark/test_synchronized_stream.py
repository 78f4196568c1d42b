from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.demo.programs import EventWindows
from headrace.errors import ProgramError
from headrace.flow.synchronized import planned
from headrace.spark.synchronized_stream import StreamingTask, sorted_as_spark
from headrace.synchronize.codec import Codec
from headrace.synchronize.inputs import Inputs
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
