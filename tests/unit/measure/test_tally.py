from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.measure.tally import COUNT, Tally, find, lower_count, raise_count


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 4), st.booleans()), max_size=200))
def test_counts_as_a_counter_does(steps: list[tuple[int, int, bool]]) -> None:
    tally = Tally()
    counts: Counter[tuple[int, int]] = Counter()
    for slot, code, adds in steps:
        tally.reserve(1)
        key = (slot, code)
        if adds:
            assert raise_count(tally.table, tally.used, slot, code) == counts[key]
            counts[key] += 1
        elif counts[key]:
            assert lower_count(tally.table, tally.used, slot, code) == counts[key]
            counts[key] -= 1
    assert int(tally.used[0]) == sum(count > 0 for count in counts.values())
    for (slot, code), count in counts.items():
        assert tally.table[find(tally.table, slot, code), COUNT] == count


def test_values_that_left_leave_no_trace() -> None:
    tally = Tally()
    for code in range(50_000):
        tally.reserve(1)
        raise_count(tally.table, tally.used, 1, code)
        if code >= 100:
            assert lower_count(tally.table, tally.used, 1, code - 100) == 1
    assert int(tally.used[0]) == 100
    assert len(tally.table) <= 1024


def test_groups_come_back_and_take_room() -> None:
    here, there = Tally(), Tally()
    here.reserve(3000)
    for code in range(1000):
        for slot in (1, 2, 5):
            raise_count(here.table, here.used, slot, -code * slot)
    groups = here.take_groups(np.array([5, 3, 1]))
    assert groups.lengths.tolist() == [2000, 0, 2000]
    assert groups.words[:2000:2].tolist() == [-code * 5 for code in range(999, -1, -1)]
    there.put_groups(np.array([1, 2, 3]), groups)
    assert int(there.used[0]) == 2000
    assert len(there.table) >= 4000
    assert there.take_groups(np.array([3])).words.tolist() == here.take_groups(np.array([1])).words.tolist()
