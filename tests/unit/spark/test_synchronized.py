"""What `hr.synchronize` plans before any row is read."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.demo.programs import EventWindows


@pytest.mark.parametrize(("said", "tasks"), [(None, 2), (1, 1), (3, 2)])
def test_there_are_no_more_tasks_than_slots(said: Any, tasks: int) -> None:
    made = hr.synchronize(EventWindows(), parallelism=4, tasks=said, rates={"barrier": 1, "value": 100})
    assert made.plan(made._said(), slots=2).tasks == tasks
