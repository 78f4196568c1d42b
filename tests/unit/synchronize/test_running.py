from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest

from headrace.demo.programs import EventWindows
from headrace.errors import HeadraceError, ProgramError, StageFailed
from headrace.synchronize.running import Running, event_type, rows_to_batch
from headrace.synchronize.sequential import run_sequentially

_EVENTS = pa.record_batch({"time": [1, 2, 3], "kind": ["value", "value", "barrier"], "value": [5, 6, 0]})


class Rowwise(EventWindows):
    update_batch: Any = None


def _run(program: EventWindows, events: pa.RecordBatch = _EVENTS) -> tuple[Any, pa.Table]:
    running = Running(program, events.schema)
    state = running.run(program.init(), events)
    return state, pa.Table.from_batches(running.fetch(), schema=program.outputs)


def _failure(program: EventWindows, kind: type[HeadraceError] = StageFailed) -> str:
    with pytest.raises(kind) as raised:
        _run(program)
    return str(raised.value)


def test_what_update_gives_is_there_once() -> None:
    running = Running(Rowwise(), _EVENTS.schema)
    assert running.run(0, _EVENTS) == 0
    assert [batch.to_pylist() for batch in running.fetch()] == [[{"time": 3, "total": 11}]]
    assert running.fetch() == []


def test_columns_and_rows_give_the_same() -> None:
    assert Running(EventWindows(), _EVENTS.schema).is_columnar
    assert _run(EventWindows()) == _run(Rowwise())
    assert run_sequentially(EventWindows(), _EVENTS) == _run(Rowwise())


@pytest.mark.parametrize("given", [[], (), None, iter(())])
def test_nothing_may_be_given_in_several_ways(given: Any) -> None:
    class Silent(Rowwise):
        def update(self, state: Any, event: Any) -> Any:
            return state + 1, given

    assert _run(Silent()) == (3, Silent.outputs.empty_table())


def test_rows_may_be_dicts_tuples_lists_and_made_one_by_one() -> None:
    class Several(Rowwise):
        def update(self, state: Any, event: Any) -> Any:
            return state, (row for row in [{"total": 1, "time": event.time}, (event.time, 2), [event.time, 3]])

    assert _run(Several())[1].column("total").to_pylist() == [1, 2, 3] * 3


def test_columns_whose_names_are_no_names() -> None:
    event = event_type(["time", "the kind", "class"])([1, 2, 3])
    assert (event.time, event._1, event._2) == (1, 2, 3)


# ----------------------------------------------------------------------- errors


def test_an_update_that_raises_names_the_event_and_the_line() -> None:
    class Divides(Rowwise):
        def update(self, state: Any, event: Any) -> Any:
            return state + 10 // event.value, []

    message = _failure(Divides())
    assert "stage Divides: ZeroDivisionError" in message
    assert "test_running.py" in message
    assert "10 // event.value" in message
    assert "Event(time=3, kind='barrier', value=0)" in message


def test_an_update_that_exits_is_as_one_that_raises() -> None:
    class Exits(Rowwise):
        def update(self, state: Any, event: Any) -> Any:
            if event.value == 0:
                sys.exit(3)
            return state, []

    message = _failure(Exits())
    assert "stage Exits: SystemExit: 3" in message
    assert "sys.exit(3)" in message
    assert "Event(time=3, kind='barrier', value=0)" in message


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
def test_what_is_meant_for_the_worker_goes_through(kind: type[BaseException]) -> None:
    class Stopped(Rowwise):
        def update(self, state: Any, event: Any) -> Any:
            raise kind

    with pytest.raises(kind):
        _failure(Stopped())


def test_rows_that_raise_while_they_are_made() -> None:
    class Late(Rowwise):
        def update(self, state: Any, event: Any) -> Any:
            return state, (1 // value for value in [event.value])

    assert "1 // value" in _failure(Late())


def test_an_update_that_raises_over_what_it_unpacks_itself_is_not_mistaken() -> None:
    class Unpacks(Rowwise):
        def update(self, state: Any, event: Any) -> Any:
            first, second = event.value
            return state, [first, second]

    message = _failure(Unpacks())
    assert "must give" not in message
    assert "first, second = event.value" in message


@pytest.mark.parametrize("given", [7, None, (1, 2, 3)])
def test_an_update_that_gives_no_pair(given: Any) -> None:
    class Lone(Rowwise):
        def update(self, state: Any, event: Any) -> Any:
            return given

    message = _failure(Lone())
    assert "update must give (state, outputs), a pair" in message
    assert "Event(time=1" in message


@pytest.mark.parametrize("given", [7, None, (1, 2, 3)])
def test_a_fork_that_gives_no_pair(given: Any) -> None:
    class Lone(Rowwise):
        def fork(self, state: Any, left: Any, right: Any) -> Any:
            return given

    with pytest.raises(ProgramError, match=r"fork must give \(left, right\), a pair, and gave"):
        Running(Lone(), pa.schema([])).fork("fork", 0, None, None)


def test_outputs_that_are_no_rows() -> None:
    class Number(Rowwise):
        def update(self, state: Any, event: Any) -> Any:
            return state, 7

    assert "update must give (state, outputs), a pair: 'int' object is not iterable" in _failure(Number())


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ((1,), "it has 1 values, not 2"),
        ((1, "x"), "x"),
        ({"time": 1}, "KeyError: 'total'"),
        (5, "has no len"),
        ((1, 1 << 70), "too large"),
    ],
)
def test_a_row_that_does_not_fit_is_named(row: Any, why: str) -> None:
    with pytest.raises(ProgramError) as raised:
        rows_to_batch(Rowwise(), [(1, 2), row])
    message = str(raised.value)
    assert message.startswith(
        f"program Rowwise: update gave {row!r}, which does not fit its outputs, time int64, total"
    )
    assert why in message


def test_an_update_batch_that_raises_names_the_events_and_the_line() -> None:
    class Divides(EventWindows):
        def update_batch(self, state: Any, events: Any) -> Any:
            return 1 // 0, None

    message = _failure(Divides())
    assert "1 // 0" in message
    assert "Event(time=1, kind='value', value=5) and the 2 events behind it" in message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([(1, 2)], "update_batch gave list, and its outputs are a record batch of ['time', 'total']"),
        (_EVENTS, "update_batch gave ['time', 'kind', 'value'], and its outputs are"),
        (
            pa.record_batch({"time": [1], "total": ["x"]}),
            "what update_batch gave does not fit its outputs, time int64, total int64 (ArrowInvalid",
        ),
    ],
)
def test_an_update_batch_that_gives_something_else(given: Any, message: str) -> None:
    class Strange(EventWindows):
        def update_batch(self, state: Any, events: Any) -> Any:
            return state, given

    assert message in _failure(Strange(), ProgramError)


def test_an_update_batch_of_a_narrower_type_is_cast() -> None:
    class Narrow(EventWindows):
        def update_batch(self, state: Any, events: Any) -> Any:
            return state, pa.record_batch({"time": pa.array([1], pa.int32()), "total": pa.array([2], pa.int16())})

    assert _run(Narrow())[1].schema == EventWindows.outputs


def test_a_fork_and_a_join_that_raise_name_themselves() -> None:
    class Torn(EventWindows):
        def fork(self, state: Any, left: Any, right: Any) -> Any:
            return left.more, right

        def join(self, left: Any, right: Any) -> Any:
            return left + right.more

    running = Running(Torn(), _EVENTS.schema)
    with pytest.raises(StageFailed, match=r"stage Torn.fork: .*\n.*\n  record 17"):
        running.fork("fork", 17, None, None)
    with pytest.raises(StageFailed, match=r"stage Torn.join: AttributeError.*\n.*right.more\n  record 17 and 18"):
        running.join("join", 17, 18)
