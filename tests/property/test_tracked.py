"""Tracked flows in simulated worlds: never too early, always in the end, exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.flow.tracked import TaskTracking
from headrace.testing.random_tracking import check_one_order, check_tracked_flow


@pytest.mark.parametrize("first", range(0, 90, 30))
def test_random_flows_end_their_substreams(first: int) -> None:
    for seed in range(first, first + 30):
        failure = check_tracked_flow(seed)
        assert failure is None, f"seed {seed}: {failure.story()}"


def test_ends_come_in_the_order_of_the_source_to_all() -> None:
    for seed in range(15):
        failure = check_one_order(seed)
        assert failure is None, f"seed {seed}: {failure.story()}"


def _without_sends(self: TaskTracking, *given: Any) -> None:
    """A task that forgets to tell what it sent."""


def _without_holds(self: TaskTracking, labels: Any) -> None:
    """A task that forgets what it holds."""


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_note_sent", _without_sends),
        ("leaves", _without_sends),
        ("hold", _without_holds),
        ("finish", lambda self: None),
    ],
)
def test_a_planted_mistake_is_found(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any) -> None:
    monkeypatch.setattr(TaskTracking, name, wrong)
    assert any(_goes_wrong(seed) for seed in range(25))


def _goes_wrong(seed: int) -> bool:
    try:
        return check_tracked_flow(seed) is not None
    except Exception:
        return True  # even the sequential run has no end
