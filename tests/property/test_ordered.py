"""Ordered flows in simulated worlds: whatever dies, a sink gets what the sequential run gives, in its order."""

from __future__ import annotations

import pytest

from headrace.testing.random_order import check_ordered_flow, check_relaxed_flow


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_random_flows_are_in_source_order(first: int) -> None:
    for seed in range(first, first + 40):
        failure = check_ordered_flow(seed)
        assert failure is None, f"seed {seed}: {failure.story()}"


@pytest.mark.parametrize("first", range(0, 80, 40))
def test_who_does_not_wait_loses_nothing(first: int) -> None:
    for seed in range(first, first + 40):
        failure = check_relaxed_flow(seed)
        assert failure is None, f"seed {seed}: {failure.story()}"
