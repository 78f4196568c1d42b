from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.demo.programs import EventWindows, KeyCounters
from headrace.errors import ProgramError
from headrace.synchronize.inputs import Inputs, inputs_of, ticks_of
from headrace.synchronize.program import Program
from headrace.synchronize.tags import said_rates


class Bare(Program):
    outputs = pa.schema([("n", pa.int64())])

    def depends(self, a: Any, b: Any) -> bool:
        return True

    def init(self) -> int:
        return 0

    def update(self, state: int, event: Any) -> Any:
        return state, []


def test_what_is_said_is_more_than_what_the_program_says() -> None:
    assert inputs_of(KeyCounters(), None, None, None, None) == Inputs("KeyCounters", "time", ("kind", "key"))
    found = inputs_of(KeyCounters(), "ts", "k", "where", "n")
    assert found == Inputs("KeyCounters", "ts", ("k",), "where", "n")
    assert found.names == ["ts", "k", "where", "n"]


@pytest.mark.parametrize(
    ("time", "tag", "message"),
    [
        (None, "k", "program Bare: say time=, the column with the time of events"),
        ("t", None, "program Bare: say tag=, the column with the tag of events"),
        ("t", (), "program Bare: tag= is empty; say the column with the tag of events, or several"),
        ("t", 5, "program Bare: tag= has 5, which is no name; say the column with the tag of events, or several"),
    ],
)
def test_what_is_not_said_is_asked_for(time: Any, tag: Any, message: str) -> None:
    with pytest.raises(ProgramError) as raised:
        inputs_of(Bare(), time, tag, None, None)
    assert str(raised.value) == message


def test_a_column_of_outputs_that_is_there_twice() -> None:
    class Twice(Bare):
        outputs = pa.schema([("n", pa.int64()), ("m", pa.int64()), ("n", pa.string())])

    with pytest.raises(ProgramError, match="its outputs have the column n twice; give one of them another name"):
        inputs_of(Twice(), "t", "k", None, None)
    with pytest.raises(ProgramError, match="its outputs have the column n twice"):
        hr.check(Twice(), [{"k": "a"}], tag="k")


@pytest.mark.parametrize(
    ("tags", "problem"),
    [
        (("a", "b", "a"), "tags has a twice; leave one of them out"),
        ((0.5, float("nan")), "tags has nan, and what is not a number equals no tag"),
        ("ab", "tags is 'ab'; list them, such as"),
        (7, "tags is 7; list them, such as"),
        ((("a", 1),), r"tags has \('a', 1\); a tag is the value of the one column of tag="),
    ],
)
def test_tags_that_are_none(tags: Any, problem: str) -> None:
    class Listed(Bare):
        pass

    Listed.tags = tags
    with pytest.raises(ProgramError, match=problem):
        said_rates(Listed(), 1, None)
    with pytest.raises(ProgramError, match=problem):
        hr.check(Listed(), [{"k": "a"}], tag="k")


def test_examples_that_raise_are_named_with_their_line() -> None:
    class Raising(Bare):
        def examples(self) -> Any:
            return [1 / 0]

    with pytest.raises(hr.StageFailed, match=r"Raising.examples: ZeroDivisionError(.|\n)*test_inputs.py, line"):
        hr.check(Raising(), tag="k")


def test_something_else_than_a_program() -> None:
    with pytest.raises(
        ProgramError, match=r"EventWindows: it is no hr.Program; make one: synchronize\(MyProgram\(\)\)"
    ):
        inputs_of(EventWindows, None, None, None, None)
    with pytest.raises(ProgramError, match=r"7: it is no hr\.Program"):
        inputs_of(7, None, None, None, None)


@pytest.mark.parametrize("name", ["outputs", "depends"])
def test_a_program_that_lacks_something(name: str) -> None:
    class Lacking(Bare):
        @property
        def lacking(self) -> None:
            raise AttributeError(name)

    setattr(Lacking, name, Lacking.lacking)
    with pytest.raises(ProgramError, match=f"program Lacking: it has no {name}; see hr.Program"):
        inputs_of(Lacking(), "t", "k", None, None)


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        (Inputs("P", "ts", ("k",)), "time='ts'"),
        (Inputs("P", "t", ("k", "key")), "tag='key'"),
        (Inputs("P", "t", ("k",), "s"), "stream='s'"),
        (Inputs("P", "t", ("k",), None, "n"), "arrival='n'"),
    ],
)
def test_a_column_that_is_not_there(inputs: Inputs, what: str) -> None:
    with pytest.raises(ProgramError) as raised:
        inputs.check(["t", "k"])
    assert str(raised.value) == f"program P: {what}: the events have no such column; they have t, k"
    Inputs("P", "t", ("k",)).check(["t", "k"])


_MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC)
_MICROS = 1704164645000006


@pytest.mark.parametrize(
    ("column", "ticks"),
    [
        (pa.array([3, -4], pa.int64()), [3, -4]),
        (pa.array([3, 4], pa.int8()), [3, 4]),
        (pa.array([3], pa.uint64()), [3]),
        (pa.array([], pa.int64()), []),
        (pa.array([_MOMENT], pa.timestamp("us", "UTC")), [_MICROS]),
        (pa.array([_MOMENT], pa.timestamp("us", "Asia/Tokyo")), [_MICROS]),
        (pa.array([_MICROS * 1000 + 7], pa.int64()).cast(pa.timestamp("ns")), [_MICROS]),
        (pa.array([_MICROS // 1_000_000], pa.int64()).cast(pa.timestamp("s")), [_MICROS // 1_000_000 * 1_000_000]),
        (pa.array([dt.date(1970, 1, 11)]), [10]),
    ],
)
def test_times_as_numbers(column: pa.Array, ticks: list[int]) -> None:
    found = ticks_of(column, "P", "time")
    assert found.tolist() == ticks
    assert found.dtype == "int64"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1, None]), "an event has no ts: a null cannot be ordered; leave such events out before"),
        (pa.array([1.5]), "ts is double; a time is a number, a date or a time stamp"),
        (pa.array(["a"]), "ts is string; a time is a number, a date or a time stamp"),
        (pa.array([1 << 63], pa.uint64()), "ts is 9223372036854775808; a time must fit into 64 bits with a sign"),
    ],
)
def test_times_that_are_none(column: pa.Array, message: str) -> None:
    with pytest.raises(ProgramError) as raised:
        ticks_of(column, "P", "ts")
    assert str(raised.value) == f"program P: {message}"
