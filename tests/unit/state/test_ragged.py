from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.ragged import Ints, Ragged, beside, joined, reach, split

Runs = list[list[int]]
runs_of_groups = st.lists(st.lists(st.integers(-5, 5), max_size=4), max_size=6)


def ragged(runs: Runs) -> Ragged:
    return Ragged(ints([len(run) for run in runs]), ints([word for run in runs for word in run]))


def ints(numbers: list[int]) -> Ints:
    return np.array(numbers, np.int64)


def runs_of(found: Ragged) -> Runs:
    # What kernels are compiled for.
    for array in (found.lengths, found.words):
        assert array.dtype == np.int64
        assert array.flags.c_contiguous
    ends = np.cumsum(found.lengths).tolist()
    assert len(found.words) == (ends[-1] if ends else 0)
    return [found.words[end - length : end].tolist() for end, length in zip(ends, found.lengths, strict=True)]


@given(runs_of_groups, st.data())
def test_groups_are_picked_and_cut(runs: Runs, data: st.DataObject) -> None:
    groups = ragged(runs)
    assert runs_of(groups) == runs
    assert groups.heads().tolist() == [run[0] if run else 0 for run in runs]
    places = data.draw(st.lists(st.integers(0, len(runs) - 1)) if runs else st.just([]))
    assert runs_of(groups.pick(ints(places))) == [runs[place] for place in places]
    cuts = [data.draw(st.integers(0, len(run))) for run in runs]
    first, rest = groups.cut(ints(cuts))
    assert runs_of(first) == [run[:cut] for run, cut in zip(runs, cuts, strict=True)]
    assert runs_of(rest) == [run[cut:] for run, cut in zip(runs, cuts, strict=True)]
    assert runs_of(beside([first, rest])) == runs


@given(st.integers(1, 4), st.integers(0, 5), st.data())
def test_parts_are_joined_and_split(count: int, size: int, data: st.DataObject) -> None:
    some = st.lists(st.lists(st.integers(-5, 5), max_size=3), min_size=size, max_size=size)
    parts = [data.draw(some) for _ in range(count)]
    whole = joined([ragged(part) for part in parts])
    assert [runs_of(part) for part in split(whole, count)] == parts
    for group in range(size):
        assert (whole.lengths[group] == 0) == (not any(part[group] for part in parts))


@given(runs_of_groups)
def test_rows_and_back(runs: Runs) -> None:
    rows = ragged(runs).to_rows(4)
    assert rows.tolist() == [run + [0] * (4 - len(run)) for run in runs]
    assert runs_of(Ragged.of_rows(rows, ragged(runs).lengths)) == runs


def test_groups_at_some_places() -> None:
    assert runs_of(ragged([[1], [2, 3]]).spread(np.array([False, True, True]))) == [[], [1], [2, 3]]
    assert reach(ints([3, 1])) == 4
    assert reach(ints([])) == 0
