"""Copies of tasks in simulated worlds: whatever dies, what leaves is what the sequential run gives, once."""

from __future__ import annotations

import pytest

from headrace.testing.masking import masked
from headrace.testing.random_copies import ORDERS, check_copied_flow, check_other_flow


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", ["active", "standby"])
def test_copies_agree_and_nothing_is_lost(order: str, mode: str) -> None:
    for seed in range(15):
        failure = check_copied_flow(seed, order=order, mode=mode)
        assert failure is None, failure.story()


def test_ordered_and_tracked_flows_have_copies_too() -> None:
    for seed in range(12):
        failure = check_other_flow(seed)
        assert failure is None, failure.story()


def test_copies_that_do_not_agree_are_found() -> None:
    """What the others are measured against: each copy takes what comes as it comes."""
    failures = [check_copied_flow(seed, (), order="arrival", mode="active") for seed in range(10)]
    assert any(failure is not None and "record" in failure.problem for failure in failures)


@pytest.mark.parametrize("order", ["queue", "round-robin"])
def test_a_failure_is_not_seen(order: str) -> None:
    for seed in range(2):
        found = masked(seed, order)
        assert found.worst_s <= found.limit_s, found


def test_without_copies_it_is() -> None:
    assert any(found.worst_s > 5 * found.limit_s for found in (masked(seed, "queue", "none") for seed in range(2)))
