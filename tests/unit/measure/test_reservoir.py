from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.measure.events import NUMBER_ROW, TIME_ROW
from headrace.measure.reservoir import EventReservoir
from headrace.model.jit import Ints

Batches = list[list[int]]
batches = st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=12), min_size=1, max_size=12)


def filled(times: Batches, memory_bytes: int = 1) -> tuple[EventReservoir, list[tuple[int, int]]]:
    """A reservoir of tiny chunks, nearly all of them on disk, and what should be in it."""
    reservoir = EventReservoir(rows=3, memory_bytes=memory_bytes, chunk_events=4)
    expected, number = [], 0
    for batch in times:
        events: Ints = np.zeros((3, len(batch)), np.int64)
        events[TIME_ROW] = batch
        events[NUMBER_ROW] = np.arange(number, number + len(batch))
        events[2] = events[NUMBER_ROW] * 10
        reservoir.push(events)
        expected += [(t, number + i) for i, t in enumerate(batch)]
        number += len(batch)
    return reservoir, sorted(expected)


def pairs(events: Ints) -> list[tuple[int, int]]:
    assert (events[2] == events[NUMBER_ROW] * 10).all()
    return list(zip(events[TIME_ROW].tolist(), events[NUMBER_ROW].tolist(), strict=True))


@given(batches, st.integers(-1, 31), st.integers(-1, 31), st.integers(1, 7))
def test_slices_give_every_event_once_in_order(times: Batches, after: int, up_to: int, limit: int) -> None:
    reservoir, expected = filled(times)
    at, found, ends = reservoir.after(after), [], False
    while not ends:
        events, at, ends = reservoir.slice(at, up_to, limit)
        assert events.shape[1] <= limit
        found += pairs(events)
    assert found == [pair for pair in expected if after < pair[0] <= up_to]


@given(batches, st.integers(-1, 31), st.integers(0, 200))
def test_position_among_equal_times_goes_by_arrival(times: Batches, edge: int, before: int) -> None:
    reservoir, expected = filled(times)
    events, _, _ = reservoir.slice(reservoir.after(edge, before), 100, 1000)
    assert pairs(events) == [(t, n) for t, n in expected if t > edge or (t == edge and n >= before)]


@given(batches, st.integers(-1, 31), st.integers(-1, 31))
def test_between_gives_the_same_as_slices(times: Batches, after: int, up_to: int) -> None:
    reservoir, expected = filled(times)
    found = [pair for events in reservoir.between(after, up_to) for pair in pairs(events)]
    assert found == [pair for pair in expected if after < pair[0] <= up_to]


def test_memory_is_bounded_and_files_go_away() -> None:
    reservoir, expected = filled([[t, t] for t in range(500)])
    assert len(reservoir) == len(expected) == 1000
    assert reservoir.spilled_chunks >= 240
    files = reservoir._scratch
    assert files is not None
    folder = Path(files.folder)
    assert len(list(folder.iterdir())) == reservoir.spilled_chunks
    reservoir.drop_until(400)
    assert len(list(folder.iterdir())) == reservoir.spilled_chunks < 60
    del reservoir, files
    assert not folder.exists()
