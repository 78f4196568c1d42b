"""update_batch is update, event by event: over any run, cut anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.demo.programs import PROGRAMS, EventWindows, Fraud, SmartHome
from headrace.demo.programs.arrays import totals_between
from headrace.synchronize.sequential import run_sequentially

from .cases import COLUMNAR, EVENTS, bag, run_columns, small

ANY_INT = st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1))
VALUES: dict[str, dict[str, Any]] = {
    "key_counters": {"kind": st.sampled_from(["increment", "reset"]), "key": st.integers(0, 2)},
    "event_windows": {"kind": st.sampled_from(["value", "value", "barrier"]), "value": st.integers(-5, 5)},
    "page_views": {
        "kind": st.sampled_from(["view", "update"]),
        "page": st.integers(0, 2),
        "user": st.none() | st.integers(0, 9),
        "info": st.none() | st.integers(0, 9),
    },
    "fraud": {
        "kind": st.sampled_from(["transaction", "transaction", "rule"]),
        "value": st.sampled_from([0, 1, 999, 1000, 1001, 2000, -1, -1000]),
    },
    "smart_home": {
        "kind": st.sampled_from(["load", "load", "end"]),
        "house": st.integers(0, 1),
        "household": st.integers(0, 1),
        "plug": st.integers(0, 1),
        "value": st.integers(0, 50) | st.integers(0, 1 << 53),
    },
}


def rows_of(name: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.fixed_dictionaries({"time": st.integers(0, 9), **VALUES[name], "stream": st.just("s")}))


@pytest.mark.parametrize("name", COLUMNAR)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_runs_of_any_shape_give_what_single_events_give(name: str, data: st.DataObject) -> None:
    program = PROGRAMS[name].program()
    events = pa.Table.from_pylist(data.draw(rows_of(name)), EVENTS[name])
    cuts = sorted(data.draw(st.lists(st.integers(0, events.num_rows), max_size=4)))
    state, wanted = run_sequentially(program, events)
    found_state, found = run_columns(program, events, cuts)
    assert found_state == state
    assert found.to_pylist() == wanted.to_pylist(), "also in the same order"


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", COLUMNAR)
def test_long_runs_give_what_single_events_give(name: str, ties: bool) -> None:
    program, events = PROGRAMS[name].program(), small(name, ties=ties)
    rng = np.random.default_rng(7)
    state, wanted = run_sequentially(program, events)
    for count in (0, 1, 5, 50):
        cuts = np.sort(rng.integers(0, events.num_rows, count)).tolist()
        found_state, found = run_columns(program, events, cuts)
        assert found_state == state
        assert bag(found) == bag(wanted)


@pytest.mark.parametrize("name", COLUMNAR)
def test_states_of_runs_are_plain_values(name: str) -> None:
    """Not NumPy's numbers, which would come back from another worker as something else."""
    state, _ = run_columns(PROGRAMS[name].program(), small(name), [10])
    assert "np." not in repr(state)


def test_the_programs_that_must_be_columnar_are() -> None:
    assert set(COLUMNAR) >= {"event_windows", "page_views", "fraud"}
    assert set(COLUMNAR) == set(VALUES)


@given(st.lists(ANY_INT, max_size=20), st.lists(st.integers(0, 20), max_size=4), st.integers(-(1 << 70), 1 << 70))
def test_sums_are_exact_whatever_their_size(values: list[int], cuts: list[int], first: int) -> None:
    cuts = sorted({cut for cut in cuts if cut < len(values)})
    found = totals_between(np.array(values, np.int64), np.array(cuts, np.int64), first).tolist()
    wanted = [sum(values[a:b]) for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]
    assert found == [wanted[0] + first, *wanted[1:]]


@pytest.mark.parametrize("program", [EventWindows(), Fraud(), SmartHome()])
def test_sums_beyond_64_bits_are_kept_in_the_state(program: Any) -> None:
    kind = "load" if isinstance(program, SmartHome) else program.tags[0]
    row = {"kind": kind, "house": 1, "household": 1, "plug": 1, "stream": "s"}
    rows = [{**row, "time": time, "value": (1 << 63) - 1 - time} for time in range(5)]
    events = pa.Table.from_pylist(rows, EVENTS["smart_home"])
    assert run_columns(program, events, [2])[0] == run_sequentially(program, events)[0]


@pytest.mark.parametrize("program", [EventWindows(), Fraud(), SmartHome()])
def test_a_value_that_is_missing_is_an_error_in_both(program: Any) -> None:
    kind = "load" if isinstance(program, SmartHome) else program.tags[0]
    row = {"time": 1, "kind": kind, "house": 1, "household": 1, "plug": 1, "value": None, "stream": "s"}
    events = pa.Table.from_pylist([row], EVENTS["smart_home"])
    with pytest.raises(ValueError, match="column value has 1 rows without a value"):
        run_columns(program, events, [])
    with pytest.raises(Exception, match="None"):
        run_sequentially(program, events)
