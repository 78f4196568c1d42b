"""What stages do: functions and classes, side outputs, errors."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import FlowError, StageFailed
from headrace.flow.batch_stages import ForBatch
from headrace.flow.operators import Behaviour, Identity, OnError
from headrace.flow.record_stages import ForRecord, Keyed

from .operator_cases import KEYED, NUMBERS, batch_of, cut_up, pairs, ran, rows, shape

_SIDE = OnError("side")
_NEVER_NULL = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def _inverse(record: dict[str, Any]) -> dict[str, Any]:
    return {"n": 12 // record["n"]}


def _inverses(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([pa.array([12 // n for n in batch.column("n").to_pylist()], pa.int64())], schema=NUMBERS)


# ----------------------------------------------------------------- good outputs


def test_as_it_is() -> None:
    assert ran(Identity().open(shape()), [batch_of(1, 2)]) == {"": rows(1, 2)}


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (None, {}),
        ({}, {}),
        ({"": None}, {}),
        (batch_of(7), {"": rows(7)}),
        (batch_of(), {}),
        (pa.Table.from_batches([batch_of(7), batch_of(8)]), {"": rows(7, 8)}),
        (pa.Table.from_batches([], NUMBERS), {}),
        ({"": batch_of(7), "odd": batch_of(9)}, {"": rows(7), "odd": rows(9)}),
        ({None: batch_of(7)}, {"": rows(7)}),
    ],
    ids=["nothing", "empty", "none", "batch", "no-rows", "table", "empty-table", "sides", "main"],
)
def test_what_a_function_over_batches_may_give(given_: Any, expected: Any) -> None:
    assert ran(ForBatch(lambda batch: given_).open(shape(odd=NUMBERS)), [batch_of(1)]) == expected


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (None, {}),
        ([], {}),
        ({"n": 7}, {"": rows(7)}),
        ([{"n": 7}, None, [{"n": 8}]], {"": rows(7, 8)}),
        (({"n": 7}, {"n": 8}), {"": rows(7, 8)}),
        (hr.side("odd", {"n": 9}), {"odd": rows(9)}),
        ([{"n": 7}, hr.side("odd", {"n": 9}, {"n": 11}), {"n": 8}], {"": rows(7, 8), "odd": rows(9, 11)}),
        (hr.side("odd"), {}),
    ],
    ids=["none", "empty", "record", "list", "tuple", "side", "mixed", "no-side"],
)
def test_what_a_function_over_records_may_give(given_: Any, expected: Any) -> None:
    assert ran(ForRecord(lambda record: given_).open(shape(odd=NUMBERS)), [batch_of(1)]) == expected
    keyed = Keyed(lambda state, record: (1, given_), ("n",))
    assert ran(keyed.open(shape(odd=NUMBERS)), [batch_of(1)]) == expected


def test_a_generator_gives_records() -> None:
    def twice(record: dict[str, Any]) -> Any:
        yield record
        yield {"n": record["n"] * 2}

    assert ran(ForRecord(twice).open(shape()), [batch_of(1, 2)]) == {"": rows(1, 2, 2, 4)}


def test_batches_leave_under_the_columns_that_were_said() -> None:
    """Metadata and nullability of what a function gives do not travel on."""
    said = pa.schema([pa.field("n", pa.int64(), nullable=False)], metadata={"a": "b"})
    ((_, batch),) = ForBatch(lambda b: b).open(shape(said)).apply(batch_of(1))
    assert batch.schema.equals(said, check_metadata=True)


# ---------------------------------------------------------------- wrong outputs


@pytest.mark.parametrize("policy", ["stop", "side"])
@pytest.mark.parametrize(
    "behaviour",
    [
        lambda how: ForBatch(lambda batch: batch, on_error=how),
        lambda how: ForBatch(lambda batch: pa.RecordBatch.from_arrays(batch.columns, schema=_NEVER_NULL), on_error=how),
        lambda how: ForRecord(lambda record: record, on_error=how),
        lambda how: Keyed(lambda state, record: (1, record), ("n",), on_error=how),
    ],
    ids=["batch", "batch-as-said", "record", "keyed"],
)
def test_nulls_where_none_are_allowed_name_the_stage_and_the_column(behaviour: Any, policy: str) -> None:
    operator = behaviour(OnError(policy)).open(shape(_NEVER_NULL))
    with pytest.raises(FlowError, match=r"stage parse gave 1 of 2 records with null in n, which .* nullable=True"):
        operator.apply(batch_of(1, None))
    assert ran(behaviour(OnError(policy)).open(shape(_NEVER_NULL)), [batch_of(1, 2)]) == {"": rows(1, 2)}


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (7, 'stage parse gave a int, not a record batch; for a function over records say each="record"'),
        ([batch_of(1)], "stage parse gave a list, not a record batch"),
        ({"odd": batch_of(1)}, r"stage parse gave something for a side output odd .*; give it sides=\{'odd': schema\}"),
        (pa.record_batch([[1]], names=["m"]), "stage parse gave the columns m int64, not n int64; give schema= the"),
        (pa.record_batch([["1"]], names=["n"]), "stage parse gave the columns n string, not n int64"),
        (pa.record_batch([[1], [2]], names=["n", "m"]), "stage parse gave the columns n int64, m int64, not n int64"),
    ],
    ids=["number", "list", "side", "name", "type", "more"],
)
def test_what_a_function_over_batches_must_not_give(given_: Any, message: str) -> None:
    for on_error in (OnError(), _SIDE):
        with pytest.raises(FlowError, match=message):
            ForBatch(lambda batch: given_, on_error).open(shape()).apply(batch_of(1, 2))


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (7, "stage parse gave 7, not a record: give a dict, a list of dicts, or None"),
        ("n", "stage parse gave 'n', not a record"),
        ([{"n": 1}, 7], "stage parse gave 7, not a record"),
        (
            {"n": "x"},
            r"stage parse: what it gave does not fit its columns \(ArrowInvalid.*\{'n': 'x'\}; its columns are n int64",
        ),
        (hr.side("odd", {"n": 1}), "stage parse gave something for a side output odd that it does not have"),
    ],
    ids=["number", "text", "in-list", "misfit", "side"],
)
def test_what_a_function_over_records_must_not_give(given_: Any, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        ForRecord(lambda record: given_).open(shape()).apply(batch_of(1))
    with pytest.raises(FlowError, match=message):
        Keyed(lambda state, record: (1, given_), ("n",)).open(shape()).apply(batch_of(1))


@pytest.mark.parametrize("given_", [None, 1, [1, 2], (1,), (1, 2, 3), {"n": 1}], ids=repr)
def test_a_function_over_keyed_state_gives_two_things(given_: Any) -> None:
    for on_error in (OnError(), _SIDE):
        with pytest.raises(FlowError, match=r"stage parse gave .*gives two things: .*\(return state, record\)"):
            Keyed(lambda state, record: given_, ("n",), on_error=on_error).open(shape()).apply(batch_of(1))


def test_a_misspelt_column_is_told_of() -> None:
    with pytest.raises(FlowError, match="m"):
        ForRecord(lambda record: {"m": 1}).open(shape()).apply(batch_of(1))


def test_the_record_that_does_not_fit_is_shown() -> None:
    with pytest.raises(FlowError, match=r"\{'n': 'three'\}"):
        ForRecord(lambda record: {"n": "three" if record["n"] == 3 else record["n"]}).open(shape()).apply(
            batch_of(1, 2, 3)
        )


# ------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    "behaviour",
    [ForRecord(_inverse), ForBatch(_inverses), Keyed(lambda state, record: (1, _inverse(record)), ("n",))],
    ids=["record", "batch", "keyed"],
)
def test_a_failure_names_the_stage_the_record_and_the_line(behaviour: Behaviour) -> None:
    with pytest.raises(StageFailed) as caught:
        behaviour.open(shape()).apply(batch_of(*range(3, 40), 0, 5))
    error = caught.value
    assert (error.stage, error.record) == ("parse", "{'n': 0}")
    assert error.problem.startswith("ZeroDivisionError: integer")
    assert "test_operators.py, line" in error.place
    assert "12 //" in error.place
    assert "stage parse: ZeroDivisionError" in str(error)
    assert "record {'n': 0}" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.stage, again.place) == (str(error), error.stage, error.place)


def test_a_failure_of_a_stage_class_names_what_it_can() -> None:
    class Bad(hr.Stage):
        def on_batch(self, batch: pa.RecordBatch) -> Any:
            raise ValueError("no\nsecond line")

        def on_end(self) -> Any:
            raise KeyError("late")

    operator = ForBatch(Bad, is_class=True).open(shape())
    with pytest.raises(StageFailed, match=r"stage parse: ValueError: no\n") as caught:
        operator.apply(batch_of(4, 5))
    assert caught.value.record == "one of 2 from {'n': 4}"
    assert "in on_batch" in caught.value.place
    with pytest.raises(StageFailed, match="KeyError: 'late'") as caught:
        operator.finish()
    assert "at the end of its input" in caught.value.record


def test_the_line_is_the_users_and_not_that_of_the_standard_library() -> None:
    def parse(record: dict[str, Any]) -> Any:
        return json.loads("{")

    with pytest.raises(StageFailed) as caught:
        ForRecord(parse).open(shape()).apply(batch_of(1))
    assert "test_operators.py" in caught.value.place


@pytest.mark.parametrize("on_error", [OnError(), _SIDE], ids=["stop", "side"])
def test_a_generator_that_raises_is_as_any_function(on_error: OnError) -> None:
    def gives(record: dict[str, Any]) -> Any:
        yield {"n": 12 // record["n"]}

    operator = ForRecord(gives, on_error).open(shape())
    if on_error == _SIDE:
        assert [each["n"] for each in ran(operator, [batch_of(1, 0, 2)])["errors"]] == [0]
    else:
        with pytest.raises(StageFailed, match="stage parse"):
            operator.apply(batch_of(1, 0, 2))


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 40), max_size=4))
@pytest.mark.parametrize("kind", ["record", "batch", "keyed"])
@settings(max_examples=40)
def test_bad_records_go_aside_and_none_is_lost(kind: str, numbers: list[int], cuts: list[int]) -> None:
    behaviours: dict[str, Behaviour] = {
        "record": ForRecord(_inverse, _SIDE),
        "batch": ForBatch(_inverses, _SIDE),
        "keyed": Keyed(lambda state, record: (1, _inverse(record)), ("n",), on_error=_SIDE),
    }
    found = ran(behaviours[kind].open(shape()), cut_up(batch_of(*numbers), cuts))
    assert found.get("", []) == rows(*(12 // n for n in numbers if n))
    assert [each["n"] for each in found.get("errors", [])] == [0] * numbers.count(0)
    assert all(each["reason"].startswith("ZeroDivisionError: ") for each in found.get("errors", []))


@pytest.mark.parametrize("kind", ["record", "batch", "keyed"])
@pytest.mark.parametrize(("retries", "good"), [(0, False), (1, False), (2, True), (9, True)])
def test_retries(kind: str, retries: int, good: bool) -> None:
    calls = []

    def flaky(*given: Any) -> Any:
        calls.append(given)
        if len(calls) <= 2:
            raise OSError("not now")
        return (1, given[-1]) if kind == "keyed" else given[-1]

    on_error = OnError("stop", retries)
    make: dict[str, Behaviour] = {
        "record": ForRecord(flaky, on_error),
        "batch": ForBatch(flaky, on_error),
        "keyed": Keyed(flaky, ("n",), on_error=on_error),
    }
    operator = make[kind].open(shape())
    if good:
        assert ran(operator, [batch_of(4)]) == {"": rows(4)}
        assert len(calls) == 3
    else:
        with pytest.raises(StageFailed, match="OSError: not now"):
            operator.apply(batch_of(4))
        assert len(calls) == retries + 1


@pytest.mark.parametrize(
    "on_error",
    [
        pytest.param(_SIDE, id="side"),
        pytest.param(OnError("stop", 1), id="retry"),
    ],
)
def test_a_function_that_fails_leaves_no_trace_in_the_state(on_error: OnError) -> None:
    calls = []

    def spoils(state: dict[str, int], record: dict[str, Any]) -> Any:
        calls.append(record)
        state["sum"] = state.get("sum", 0) + record["n"]
        if record["n"] == 13 and (on_error == _SIDE or len(calls) < 3):
            raise ValueError("unlucky")
        return state, {"n": state["sum"]}

    operator = Keyed(spoils, ("k",), initial={}, on_error=on_error).open(shape(given=KEYED))
    found = ran(operator, [pairs([("a", 1), ("a", 13), ("a", 2)])])
    assert found[""] == (rows(1, 3) if on_error == _SIDE else rows(1, 14, 16))
