from __future__ import annotations

from collections import Counter

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
