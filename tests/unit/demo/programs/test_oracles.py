"""The sequential run gives what an independent computation gives; data is the same for the same seed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.demo.programs import PROGRAMS, event_windows, page_views, smart_home
from headrace.demo.programs.outliers import Outliers
from headrace.demo.programs.smart_home import SmartHome
from headrace.synchronize.sequential import run_sequentially
from headrace.testing.trees import in_order

from .cases import EVENTS, NAMES, SMALL, bag, example_table, small


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_sequential_run_gives_what_is_expected(name: str, ties: bool, seed: int) -> None:
    example = PROGRAMS[name]
    events = small(name, ties=ties, seed=seed)
    _, found = run_sequentially(example.program(), events)
    wanted = example.expected(events)
    assert found.num_rows > 0
    assert found.schema == wanted.schema
    assert bag(found) == bag(wanted)


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_give_what_is_expected(name: str) -> None:
    example, events = PROGRAMS[name], example_table(name)
    _, found = run_sequentially(example.program(), events)
    assert found.num_rows > 0
    assert bag(found) == bag(example.expected(events))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_expected_does_not_hang_on_the_order_of_the_rows_of_different_streams(name: str) -> None:
    events = small(name, ties=True)
    by_stream = events.take(pa.array(np.argsort(events.column("stream").to_numpy(), kind="stable")))
    assert bag(PROGRAMS[name].expected(by_stream)) == bag(PROGRAMS[name].expected(events))


@pytest.mark.parametrize("name", NAMES)
def test_no_events_give_nothing(name: str) -> None:
    assert PROGRAMS[name].expected(EVENTS[name].empty_table()).num_rows == 0


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_events_are_in_order_and_rise_within_a_stream_unless_ties_are_wanted(name: str, ties: bool) -> None:
    events = small(name, ties=ties)
    assert in_order(events, "time", ["stream"]).equals(events)
    times, streams = events.column("time").to_numpy(), events.column("stream").to_numpy()
    gaps = np.concatenate([np.diff(times[streams == stream]) for stream in set(streams.tolist())])
    assert gaps.min() == 0 if ties else gaps.min() > 0
    shared = {time: set() for time in times.tolist()}  # type: dict[int, set[str]]
    for time, kind in zip(times.tolist(), events.column("kind").to_pylist(), strict=True):
        shared[time].add(kind)
    assert any(len(kinds) > 1 for kinds in shared.values()) == ties, "events that depend on each other share a time"


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_events(name: str) -> None:
    assert small(name, seed=5).equals(small(name, seed=5))
    assert not small(name, seed=5).equals(small(name, seed=6))
    assert small(name).schema == EVENTS[name]


def test_sizes_are_as_asked_for() -> None:
    events = event_windows.generate(streams=3, windows=2)
    assert events.num_rows == 3 * 2 * 10_000 + 2
    counts = np.diff([0, *np.flatnonzero(events.column("kind").to_numpy() == "barrier")])
    assert counts.tolist() == [30_000, 30_001]
    views = page_views.generate(views=200_000)
    pages = views.filter(pa.compute.equal(views.column("kind"), "view")).column("page").to_numpy()
    assert (pages < 2).mean() > 0.998
    assert len(set(pages.tolist())) == 10
    assert views.num_rows == 200_000 + 20


def test_some_candidates_are_no_outliers_and_some_are() -> None:
    program, candidates = Outliers(), 0
    state, found = program.init(), 0
    for event in small("outliers").to_pylist():
        row = type("Event", (), event)
        if event["kind"] == "query":
            candidates += len(state.seen.candidates)
        state, given = program.update(state, row)
        found += len(list(given))
    assert 0 < found < candidates


def test_slices_may_be_short() -> None:
    events = smart_home.generate(slices=200, slice_s=900, houses=2, loads_per_slice=1)
    _, found = run_sequentially(SmartHome(slice_s=900), events)
    assert bag(found) == bag(smart_home.expected(events, slice_s=900))


def test_all_programs_have_small_data() -> None:
    assert set(SMALL) == set(PROGRAMS) == set(EVENTS)
