"""Copies of a task that do not send the same are named, and nothing of it is merged in silence."""

from __future__ import annotations

import pickle
import time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CopiesDiffer
from headrace.flow.second_copies import SecondCopies
from headrace.model import frames


def _batch(values: list[float]) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.float64())})


class _Reader:
    def __init__(self) -> None:
        self._second = SecondCopies(lambda channel: f"sender {channel}", "reader.0")
        self._had = 0

    def take(self, first: int, values: list[float]) -> None:
        content = frames.encode(frames.data(3, first, _batch(values)))
        frame = frames.decode(content)
        self._second.look(frame, content, self._had)
        self._had = max(self._had, frame.end)


def test_equal_copies_pass_wherever_they_are_cut() -> None:
    reader = _Reader()
    reader.take(0, [0, 1, 2])
    reader.take(0, [0])
    reader.take(1, [1, 2, 3, 4])
    reader.take(3, [3])
    reader.take(0, [0, 1, 2, 3, 4])


def test_the_first_record_that_differs_is_named() -> None:
    reader = _Reader()
    reader.take(0, [0, 1, 2])
    with pytest.raises(CopiesDiffer, match=r"copies of sender 3 .*record 1 .*reader.0 is .*1\.0.* and .*7\.0") as found:
        reader.take(0, [0, 7, 2, 3])
    assert (found.value.task, found.value.number) == ("sender 3", 1)
    assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)


def test_what_is_not_a_number_is_the_same() -> None:
    reader = _Reader()
    reader.take(0, [float("nan"), 1.0])
    reader.take(0, [float("nan")])
    reader.take(0, [float("nan"), 1.0, 2.0])


def test_what_is_long_gone_is_not_compared() -> None:
    reader = _Reader()
    reader.take(0, [1.0] * 300_000)
    for at in range(4):
        reader.take(300_000 * (at + 1), [2.0] * 300_000)
    reader.take(0, [9.0])


def test_a_copy_that_is_far_behind_costs_no_more_than_one_that_is_not() -> None:
    """What it sends is compared with what it is about, not with all that came since."""
    reader, count = _Reader(), 4_000
    for at in range(count):
        reader.take(at, [float(at)])
    began = time.thread_time()
    for at in range(count):
        reader.take(at, [float(at)])
    behind_s, began = time.thread_time() - began, time.thread_time()
    for at in range(count, 2 * count):
        reader.take(at, [float(at)])
        reader.take(at, [float(at)])
    assert behind_s < 2 * (time.thread_time() - began)
    with pytest.raises(CopiesDiffer, match="record 17 "):
        reader.take(16, [16.0, 0.0])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=40), st.integers(0, 79))
def test_whatever_is_cut_and_comes_again_one_record_that_differs_is_found(
    cuts: list[tuple[int, int]], wrong: int
) -> None:
    reader, had = _Reader(), 0
    for first, count in cuts:
        first = min(first, had)
        reader.take(first, [float(n) for n in range(first, first + count)])
        had = max(had, first + count)
    if wrong < had:
        with pytest.raises(CopiesDiffer, match=f"record {wrong} "):
            reader.take(
                max(0, wrong - 3), [float(n) if n != wrong else -1.0 for n in range(max(0, wrong - 3), wrong + 1)]
            )
