"""The state of stages: kept, sent on, brought back, the same wherever the input is cut."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import FlowError
from headrace.flow.batch_stages import ForBatch
from headrace.flow.operators import Behaviour, Identity, Operator
from headrace.flow.record_stages import ForRecord, Keyed

from .operator_cases import NUMBERS, batch_of, cut_up, pairs, ran, rows, shape


def _odd_aside(batch: pa.RecordBatch) -> dict[str, pa.RecordBatch | None]:
    numbers = batch.column("n").to_pylist()
    return {"": batch_of(*(n for n in numbers if n % 2 == 0)), "odd": batch_of(*(n for n in numbers if n % 2))}


class _Total(hr.Stage):
    """The sum so far of each record, and at the end how many there were."""

    def __init__(self) -> None:
        self.sum = self.seen = 0

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = []
        for number in batch.column("n").to_pylist():
            self.sum, self.seen = self.sum + number, self.seen + 1
            found.append(self.sum)
        return batch_of(*found)

    def on_end(self) -> pa.RecordBatch:
        return batch_of(self.seen)

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


# ------------------------------------------------------------ stages with state


def test_a_stage_class_keeps_state_and_has_a_last_word() -> None:
    operator = ForBatch(_Total, is_class=True).open(shape())
    assert ran(operator, [batch_of(1, 2), batch_of(3)]) == {"": rows(1, 3, 6, 3)}


def test_tasks_do_not_share_a_stage() -> None:
    behaviour = ForBatch(_Total, is_class=True)
    ran(behaviour.open(shape()), [batch_of(5)])
    assert ran(behaviour.open(shape()), [batch_of(1)], end=False) == {"": rows(1)}


def test_keyed_state() -> None:
    operator = Keyed(_running, ("k",)).open(shape())
    batch = pairs([("a", 1), ("b", 5), ("a", 2), (None, 4), ("b", -1), ("a", 0), ("a", 3), (None, 1), ("b", 1)])
    assert ran(operator, [batch]) == {"": rows(1, 5, 3, 4, -1, 3, 5, 5)}


def test_each_key_begins_with_its_own_initial_state() -> None:
    def append(state: list[int], record: dict[str, Any]) -> Any:
        state.append(record["n"])
        return state, {"n": len(state)}

    operator = Keyed(append, ("k",), initial=[]).open(shape())
    assert ran(operator, [pairs([("a", 1), ("b", 1), ("a", 1)])]) == {"": rows(1, 1, 2)}
    with pytest.raises(FlowError, match="stage parse: initial= cannot be kept: a object is not"):
        Keyed(append, ("k",), initial=object()).open(shape())


# -------------------------------------------------------------- where it is cut


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
    batch = pairs(records) if name == "keyed" else batch_of(*(number for _, number in records))
    whole, parts = (_BEHAVIOURS[name].open(shape(odd=NUMBERS)) for _ in range(2))
    assert ran(parts, cut_up(batch, cuts)) == ran(whole, [batch])
    if name in ("keyed", "class"):
        assert parts.content() == whole.content()


def test_a_state_that_is_sent_on_is_what_it_was_then() -> None:
    def count(state: dict[str, int], record: dict[str, Any]) -> Any:
        state["n"] += 1
        return state, state

    operator = Keyed(count, ("k",), initial={"n": 0}).open(shape())
    assert ran(operator, [pairs([("a", 1), ("a", 1), ("a", 1)])]) == {"": rows(1, 2, 3)}


def test_not_a_number_is_one_key() -> None:
    schema = pa.schema([("k", pa.float64())])
    operator = Keyed(lambda state, record: ((state or 0) + 1, {"n": (state or 0) + 1}), ("k",)).open(
        shape(given=schema)
    )
    batch = pa.record_batch([pa.array([float("nan")] * 3)], schema=schema)
    assert ran(operator, [batch]) == {"": rows(1, 2, 3)}


def test_keys_in_nanoseconds_are_the_same_after_a_restart() -> None:
    schema = pa.schema([("k", pa.timestamp("ns"))])
    behaviour = Keyed(lambda state, record: ((state or 0) + 1, {"n": (state or 0) + 1}), ("k",))
    batch = pa.record_batch([pa.array([1, 2], pa.timestamp("ns"))], schema=schema)
    first, second = (behaviour.open(shape(given=schema)) for _ in range(2))
    ran(first, [batch])
    second.restore([first.content()])
    assert ran(second, [batch]) == ran(first, [batch])


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
    operator = behaviour.open(shape())
    parts: list[bytes] = []
    for records, then in steps:
        batch = pairs(records) if name == "keyed" else batch_of(*(number for _, number in records))
        operator.apply(batch)
        if then == "changes":
            changes = operator.changes()
            parts += [changes] if changes is not None else []
            assert operator.changes() is None
        elif then == "content":
            parts = [operator.content()]
        if then != "nothing":
            again = behaviour.open(shape())
            again.restore(parts)
            assert _plain(again) == _plain(operator)
            probe = pairs([(k, 1) for k in ("a", "b", "c", None)]) if name == "keyed" else batch_of(1)
            copy = behaviour.open(shape())
            copy.restore([operator.content()])
            parts = [operator.content()] if then == "content" else parts
            assert ran(again, [probe], end=False) == ran(copy, [probe], end=False)


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
    operator = behaviour.open(shape())
    assert operator.changes() is None
    operator.apply(pairs([("a", 1), ("b", 2)]))
    base = operator.content()
    assert operator.changes() is None
    operator.apply(pairs([("a", 5)]))
    first = operator.changes()
    operator.apply(pairs([("a", 0), ("c", 3)]))
    second = operator.changes()
    assert first is not None
    assert second is not None
    assert json.loads(first) == [[["a"], 6]]
    assert json.loads(second) == [[["a"], None], [["c"], 3]]
    again = behaviour.open(shape())
    again.restore([base, first, second])
    assert sorted(json.loads(again.content())) == [[["b"], 2], [["c"], 3]]


def test_a_forgotten_key_takes_no_room() -> None:
    operator = Keyed(_running, ("k",)).open(shape())
    operator.apply(pairs([(str(n), 1) for n in range(100)]))
    operator.apply(pairs([(str(n), 0) for n in range(100)]))
    assert operator.content() == b"[]"


def test_a_stage_class_whose_state_is_the_same_has_no_changes() -> None:
    operator = ForBatch(_Total, is_class=True).open(shape())
    assert operator.changes() is not None
    operator.apply(batch_of())
    assert operator.changes() is None
    operator.apply(batch_of(1))
    assert operator.changes() is not None


def test_state_that_cannot_be_kept_is_told_of() -> None:
    class Bad(hr.Stage):
        def on_batch(self, batch: pa.RecordBatch) -> Any:
            return batch

        def snapshot(self) -> Any:
            return {"a": object()}

    with pytest.raises(FlowError, match="stage parse: its snapshot cannot be kept: a object is not a plain value"):
        ForBatch(Bad, is_class=True).open(shape()).changes()
    operator = Keyed(lambda state, record: (object(), None), ("n",)).open(shape())
    operator.apply(batch_of(1))
    with pytest.raises(FlowError, match="stage parse: the state of a key cannot be kept: a object"):
        operator.changes()
