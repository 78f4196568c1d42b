"""How often workers may die before a flow ends."""

from __future__ import annotations

import pytest

from headrace.flow.deaths import Deaths


@pytest.mark.parametrize(("workers", "most"), [(1, 20), (5, 20), (32, 128)])
def test_so_many_may_die_in_a_minute(workers: int, most: int) -> None:
    """One process may have dozens of workers, which all die with it."""
    deaths = Deaths(workers)
    said = [
        deaths.died(number / most, number % workers, ("t.0",), "executor lost", is_silent=False, was_up=False)
        for number in range(most + 1)
    ]
    assert said[:-1] == [None] * most
    assert said[-1] == f"workers died {most + 1} times within 60 seconds; the last one said: executor lost"
