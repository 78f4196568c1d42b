"""What stages do: functions and classes, errors, side outputs, state."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import FlowError, StageFailed
from headrace.flow.batch_stages import ForBatch
from headrace.flow.operators import MAIN, Behaviour, Identity, OnError, Operator, Shape
from headrace.flow.record_stages import ForRecord, Keyed

_NUMBERS = pa.schema([("n", pa.int64())])
_KEYED = pa.schema([("k", pa.string()), ("n", pa.int64())])
_SIDE = OnError("side")


def _shape(main: pa.Schema = _NUMBERS, given: pa.Schema = _NUMBERS, **sides: pa.Schema) -> Shape:
    return Shape("parse", {MAIN: main, "errors": given.append(pa.field("reason", pa.string())), **sides})


def _batch(*numbers: int | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=_NUMBERS)


def _pairs(records: Sequence[tuple[str | None, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": key, "n": number} for key, number in records], _KEYED)


def _ran(operator: Operator, batches: Sequence[pa.RecordBatch], end: bool = True) -> dict[str, list[Any]]:
    """The records of each output."""
    found: dict[str, list[Any]] = {}
    outputs = [pair for batch in batches for pair in operator.apply(batch)]
    for name, batch in [*outputs, *(operator.finish() if end else [])]:
        found.setdefault(name, []).extend(batch.to_pylist())
    return {name: records for name, records in found.items() if records}


def _n(*numbers: int) -> list[dict[str, int]]:
    return [{"n": number} for number in numbers]


def _inverse(record: dict[str, Any]) -> dict[str, Any]:
    return {"n": 12 // record["n"]}


def _inverses(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([pa.array([12 // n for n in batch.column("n").to_pylist()], pa.int64())], schema=_NUMBERS)


def _odd_aside(batch: pa.RecordBatch) -> dict[str, pa.RecordBatch | None]:
    numbers = batch.column("n").to_pylist()
    return {"": _batch(*(n for n in numbers if n % 2 == 0)), "odd": _batch(*(n for n in numbers if n % 2))}


class _Total(hr.Stage):
    """The sum so far of each record, and at the end how many there were."""

    def __init__(self) -> None:
        self.sum = self.seen = 0

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = []
        for number in batch.column("n").to_pylist():
            self.sum, self.seen = self.sum + number, self.seen + 1
            found.append(self.sum)
        return _batch(*found)

    def on_end(self) -> pa.RecordBatch:
        return _batch(self.seen)

    def snapshot(self) -> Any:
        return {"sum": self.sum, "seen": self.seen}

    def restore(self, state: Any) -> None:
        self.sum, self.seen = state["sum"], state["seen"]


def _running(state: int | None, record: dict[str, Any]) -> tuple[int | None, Any]:
    """The sum of a key; a 0 forgets it, a negative number gives nothing."""
    total = (state or 0) + record["n"]
    if record["n"] == 0:
        return None, {"n": -1}
    return total, None if record["n"] < 0 else [{"n": total}]


# ----------------------------------------------------------------- good outputs


def test_as_it_is() -> None:
    assert _ran(Identity().open(_shape()), [_batch(1, 2)]) == {"": _n(1, 2)}


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (None, {}),
        ({}, {}),
        ({"": None}, {}),
        (_batch(7), {"": _n(7)}),
        (_batch(), {}),
        (pa.Table.from_batches([_batch(7), _batch(8)]), {"": _n(7, 8)}),
        (pa.Table.from_batches([], _NUMBERS), {}),
        ({"": _batch(7), "odd": _batch(9)}, {"": _n(7), "odd": _n(9)}),
        ({None: _batch(7)}, {"": _n(7)}),
    ],
    ids=["nothing", "empty", "none", "batch", "no-rows", "table", "empty-table", "sides", "main"],
)
def test_what_a_function_over_batches_may_give(given_: Any, expected: Any) -> None:
    assert _ran(ForBatch(lambda batch: given_).open(_shape(odd=_NUMBERS)), [_batch(1)]) == expected


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (None, {}),
        ([], {}),
        ({"n": 7}, {"": _n(7)}),
        ([{"n": 7}, None, [{"n": 8}]], {"": _n(7, 8)}),
        (({"n": 7}, {"n": 8}), {"": _n(7, 8)}),
        (hr.side("odd", {"n": 9}), {"odd": _n(9)}),
        ([{"n": 7}, hr.side("odd", {"n": 9}, {"n": 11}), {"n": 8}], {"": _n(7, 8), "odd": _n(9, 11)}),
        (hr.side("odd"), {}),
    ],
    ids=["none", "empty", "record", "list", "tuple", "side", "mixed", "no-side"],
)
def test_what_a_function_over_records_may_give(given_: Any, expected: Any) -> None:
    assert _ran(ForRecord(lambda record: given_).open(_shape(odd=_NUMBERS)), [_batch(1)]) == expected
    keyed = Keyed(lambda state, record: (1, given_), ("n",))
    assert _ran(keyed.open(_shape(odd=_NUMBERS)), [_batch(1)]) == expected


def test_a_generator_gives_records() -> None:
    def twice(record: dict[str, Any]) -> Any:
        yield record
        yield {"n": record["n"] * 2}

    assert _ran(ForRecord(twice).open(_shape()), [_batch(1, 2)]) == {"": _n(1, 2, 2, 4)}


def test_batches_leave_under_the_columns_that_were_said() -> None:
    """Metadata and nullability of what a function gives do not travel on."""
    said = pa.schema([pa.field("n", pa.int64(), nullable=False)], metadata={"a": "b"})
    ((_, batch),) = ForBatch(lambda b: b).open(_shape(said)).apply(_batch(1))
    assert batch.schema.equals(said, check_metadata=True)


def test_a_stage_class_keeps_state_and_has_a_last_word() -> None:
    operator = ForBatch(_Total, is_class=True).open(_shape())
    assert _ran(operator, [_batch(1, 2), _batch(3)]) == {"": _n(1, 3, 6, 3)}


def test_tasks_do_not_share_a_stage() -> None:
    behaviour = ForBatch(_Total, is_class=True)
    _ran(behaviour.open(_shape()), [_batch(5)])
    assert _ran(behaviour.open(_shape()), [_batch(1)], end=False) == {"": _n(1)}


def test_keyed_state() -> None:
    operator = Keyed(_running, ("k",)).open(_shape())
    batch = _pairs([("a", 1), ("b", 5), ("a", 2), (None, 4), ("b", -1), ("a", 0), ("a", 3), (None, 1), ("b", 1)])
    assert _ran(operator, [batch]) == {"": _n(1, 5, 3, 4, -1, 3, 5, 5)}


def test_each_key_begins_with_its_own_initial_state() -> None:
    def append(state: list[int], record: dict[str, Any]) -> Any:
        state.append(record["n"])
        return state, {"n": len(state)}

    operator = Keyed(append, ("k",), initial=[]).open(_shape())
    assert _ran(operator, [_pairs([("a", 1), ("b", 1), ("a", 1)])]) == {"": _n(1, 1, 2)}
    with pytest.raises(FlowError, match="stage parse: initial= cannot be kept: a object is not"):
        Keyed(append, ("k",), initial=object()).open(_shape())


# ---------------------------------------------------------------- wrong outputs


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (7, 'stage parse gave a int, not a record batch; for a function over records say each="record"'),
        ([_batch(1)], "stage parse gave a list, not a record batch"),
        ({"odd": _batch(1)}, r"stage parse gave something for a side output odd .*; give it sides=\{'odd': schema\}"),
        (pa.record_batch([[1]], names=["m"]), "stage parse gave the columns m int64, not n int64; give schema= the"),
        (pa.record_batch([["1"]], names=["n"]), "stage parse gave the columns n string, not n int64"),
        (pa.record_batch([[1], [2]], names=["n", "m"]), "stage parse gave the columns n int64, m int64, not n int64"),
    ],
    ids=["number", "list", "side", "name", "type", "more"],
)
def test_what_a_function_over_batches_must_not_give(given_: Any, message: str) -> None:
    for on_error in (OnError(), _SIDE):
        with pytest.raises(FlowError, match=message):
            ForBatch(lambda batch: given_, on_error).open(_shape()).apply(_batch(1, 2))


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
        ForRecord(lambda record: given_).open(_shape()).apply(_batch(1))
    with pytest.raises(FlowError, match=message):
        Keyed(lambda state, record: (1, given_), ("n",)).open(_shape()).apply(_batch(1))


@pytest.mark.parametrize("given_", [None, 1, [1, 2], (1,), (1, 2, 3), {"n": 1}], ids=repr)
def test_a_function_over_keyed_state_gives_two_things(given_: Any) -> None:
    for on_error in (OnError(), _SIDE):
        with pytest.raises(FlowError, match=r"stage parse gave .*gives two things: .*\(return state, record\)"):
            Keyed(lambda state, record: given_, ("n",), on_error=on_error).open(_shape()).apply(_batch(1))


def test_a_misspelt_column_is_told_of() -> None:
    with pytest.raises(FlowError, match="m"):
        ForRecord(lambda record: {"m": 1}).open(_shape()).apply(_batch(1))


def test_the_record_that_does_not_fit_is_shown() -> None:
    with pytest.raises(FlowError, match=r"\{'n': 'three'\}"):
        ForRecord(lambda record: {"n": "three" if record["n"] == 3 else record["n"]}).open(_shape()).apply(
            _batch(1, 2, 3)
        )


# ------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    "behaviour",
    [ForRecord(_inverse), ForBatch(_inverses), Keyed(lambda state, record: (1, _inverse(record)), ("n",))],
    ids=["record", "batch", "keyed"],
)
def test_a_failure_names_the_stage_the_record_and_the_line(behaviour: Behaviour) -> None:
    with pytest.raises(StageFailed) as caught:
        behaviour.open(_shape()).apply(_batch(*range(3, 40), 0, 5))
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

    operator = ForBatch(Bad, is_class=True).open(_shape())
    with pytest.raises(StageFailed, match=r"stage parse: ValueError: no\n") as caught:
        operator.apply(_batch(4, 5))
    assert caught.value.record == "one of 2 from {'n': 4}"
    assert "in on_batch" in caught.value.place
    with pytest.raises(StageFailed, match="KeyError: 'late'") as caught:
        operator.finish()
    assert "at the end of its input" in caught.value.record


def test_the_line_is_the_users_and_not_that_of_the_standard_library() -> None:
    def parse(record: dict[str, Any]) -> Any:
        return json.loads("{")

    with pytest.raises(StageFailed) as caught:
        ForRecord(parse).open(_shape()).apply(_batch(1))
    assert "test_operators.py" in caught.value.place


@pytest.mark.parametrize("on_error", [OnError(), _SIDE], ids=["stop", "side"])
def test_a_generator_that_raises_is_as_any_function(on_error: OnError) -> None:
    def gives(record: dict[str, Any]) -> Any:
        yield {"n": 12 // record["n"]}

    operator = ForRecord(gives, on_error).open(_shape())
    if on_error == _SIDE:
        assert [each["n"] for each in _ran(operator, [_batch(1, 0, 2)])["errors"]] == [0]
    else:
        with pytest.raises(StageFailed, match="stage parse"):
            operator.apply(_batch(1, 0, 2))


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 40), max_size=4))
@pytest.mark.parametrize("kind", ["record", "batch", "keyed"])
@settings(max_examples=40)
def test_bad_records_go_aside_and_none_is_lost(kind: str, numbers: list[int], cuts: list[int]) -> None:
    behaviours: dict[str, Behaviour] = {
        "record": ForRecord(_inverse, _SIDE),
        "batch": ForBatch(_inverses, _SIDE),
        "keyed": Keyed(lambda state, record: (1, _inverse(record)), ("n",), on_error=_SIDE),
    }
    found = _ran(behaviours[kind].open(_shape()), _cut(_batch(*numbers), cuts))
    assert found.get("", []) == _n(*(12 // n for n in numbers if n))
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
    operator = make[kind].open(_shape())
    if good:
        assert _ran(operator, [_batch(4)]) == {"": _n(4)}
        assert len(calls) == 3
    else:
        with pytest.raises(StageFailed, match="OSError: not now"):
            operator.apply(_batch(4))
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

    operator = Keyed(spoils, ("k",), initial={}, on_error=on_error).open(_shape(given=_KEYED))
    found = _ran(operator, [_pairs([("a", 1), ("a", 13), ("a", 2)])])
    assert found[""] == (_n(1, 3) if on_error == _SIDE else _n(1, 14, 16))


# -------------------------------------------------------------- where it is cut


def _cut(batch: pa.RecordBatch, cuts: Sequence[int]) -> list[pa.RecordBatch]:
    bounds = [0, *sorted(min(cut, batch.num_rows) for cut in cuts), batch.num_rows]
    return [batch.slice(start, end - start) for start, end in pairwise(bounds)]


_BEHAVIOURS: dict[str, Behaviour] = {
    "identity": Identity(),
    "batch": ForBatch(_odd_aside),
    "record": ForRecord(lambda r: [r, hr.side("odd", r)] if r["n"] % 2 else None),
    "keyed": Keyed(_running, ("k",)),
    "class": ForBatch(_Total, is_class=True),
}


@pytest.mark.parametrize("name", _BEHAVIOURS)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(-3, 6)), max_size=30),
    st.lists(st.integers(0, 30), max_size=6),
)
@settings(max_examples=40)
def test_where_the_input_is_cut_does_not_matter(
    name: str, records: list[tuple[str | None, int]], cuts: list[int]
) -> None:
    batch = _pairs(records) if name == "keyed" else _batch(*(number for _, number in records))
    whole, parts = (_BEHAVIOURS[name].open(_shape(odd=_NUMBERS)) for _ in range(2))
    assert _ran(parts, _cut(batch, cuts)) == _ran(whole, [batch])
    if name in ("keyed", "class"):
        assert parts.content() == whole.content()


def test_a_state_that_is_sent_on_is_what_it_was_then() -> None:
    def count(state: dict[str, int], record: dict[str, Any]) -> Any:
        state["n"] += 1
        return state, state

    operator = Keyed(count, ("k",), initial={"n": 0}).open(_shape())
    assert _ran(operator, [_pairs([("a", 1), ("a", 1), ("a", 1)])]) == {"": _n(1, 2, 3)}


def test_not_a_number_is_one_key() -> None:
    schema = pa.schema([("k", pa.float64())])
    operator = Keyed(lambda state, record: ((state or 0) + 1, {"n": (state or 0) + 1}), ("k",)).open(
        _shape(given=schema)
    )
    batch = pa.record_batch([pa.array([float("nan")] * 3)], schema=schema)
    assert _ran(operator, [batch]) == {"": _n(1, 2, 3)}


def test_keys_in_nanoseconds_are_the_same_after_a_restart() -> None:
    schema = pa.schema([("k", pa.timestamp("ns"))])
    behaviour = Keyed(lambda state, record: ((state or 0) + 1, {"n": (state or 0) + 1}), ("k",))
    batch = pa.record_batch([pa.array([1, 2], pa.timestamp("ns"))], schema=schema)
    first, second = (behaviour.open(_shape(given=schema)) for _ in range(2))
    _ran(first, [batch])
    second.restore([first.content()])
    assert _ran(second, [batch]) == _ran(first, [batch])


# ------------------------------------------------------------------------ state


@pytest.mark.parametrize("name", ["keyed", "class"])
@given(data=st.data())
@settings(max_examples=60)
def test_state_comes_back_at_every_prefix(name: str, data: st.DataObject) -> None:
    """From a content and the changes after it, as the commits of a task have them."""
    steps = data.draw(
        st.lists(
            st.tuples(
                st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-2, 4)), max_size=6),
                st.sampled_from(["nothing", "changes", "content"]),
            ),
            max_size=8,
        )
    )
    behaviour = _BEHAVIOURS[name]
    operator = behaviour.open(_shape())
    parts: list[bytes] = []
    for records, then in steps:
        batch = _pairs(records) if name == "keyed" else _batch(*(number for _, number in records))
        operator.apply(batch)
        if then == "changes":
            changes = operator.changes()
            parts += [changes] if changes is not None else []
            assert operator.changes() is None
        elif then == "content":
            parts = [operator.content()]
        if then != "nothing":
            again = behaviour.open(_shape())
            again.restore(parts)
            assert _plain(again) == _plain(operator)
            probe = _pairs([(k, 1) for k in ("a", "b", "c", None)]) if name == "keyed" else _batch(1)
            copy = behaviour.open(_shape())
            copy.restore([operator.content()])
            parts = [operator.content()] if then == "content" else parts
            assert _ran(again, [probe], end=False) == _ran(copy, [probe], end=False)


def _plain(operator: Operator) -> Any:
    """Its state, whatever the order of keys. Asking for the content takes changes along, so ask a copy of it."""
    found = json.loads(_peek(operator))
    return sorted(found, key=repr) if isinstance(found, list) else found


def _peek(operator: Operator) -> bytes:
    dirty = getattr(operator, "_dirty", None)
    content = operator.content()
    if dirty is not None:
        operator._dirty = dirty  # type: ignore[attr-defined]
    return content


def test_changes_are_of_the_keys_that_changed_alone_and_apply_in_order() -> None:
    behaviour = Keyed(_running, ("k",))
    operator = behaviour.open(_shape())
    assert operator.changes() is None
    operator.apply(_pairs([("a", 1), ("b", 2)]))
    base = operator.content()
    assert operator.changes() is None
    operator.apply(_pairs([("a", 5)]))
    first = operator.changes()
    operator.apply(_pairs([("a", 0), ("c", 3)]))
    second = operator.changes()
    assert first is not None
    assert second is not None
    assert json.loads(first) == [[["a"], 6]]
    assert json.loads(second) == [[["a"], None], [["c"], 3]]
    again = behaviour.open(_shape())
    again.restore([base, first, second])
    assert sorted(json.loads(again.content())) == [[["b"], 2], [["c"], 3]]


def test_a_forgotten_key_takes_no_room() -> None:
    operator = Keyed(_running, ("k",)).open(_shape())
    operator.apply(_pairs([(str(n), 1) for n in range(100)]))
    operator.apply(_pairs([(str(n), 0) for n in range(100)]))
    assert operator.content() == b"[]"


def test_a_stage_class_whose_state_is_the_same_has_no_changes() -> None:
    operator = ForBatch(_Total, is_class=True).open(_shape())
    assert operator.changes() is not None
    operator.apply(_batch())
    assert operator.changes() is None
    operator.apply(_batch(1))
    assert operator.changes() is not None


def test_state_that_cannot_be_kept_is_told_of() -> None:
    class Bad(hr.Stage):
        def on_batch(self, batch: pa.RecordBatch) -> Any:
            return batch

        def snapshot(self) -> Any:
            return {"a": object()}

    with pytest.raises(FlowError, match="stage parse: its snapshot cannot be kept: a object is not a plain value"):
        ForBatch(Bad, is_class=True).open(_shape()).changes()
    operator = Keyed(lambda state, record: (object(), None), ("n",)).open(_shape())
    operator.apply(_batch(1))
    with pytest.raises(FlowError, match="stage parse: the state of a key cannot be kept: a object"):
        operator.changes()
