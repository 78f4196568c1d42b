from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

import headrace as hr
from headrace.testing.spark import spark  # noqa: F401

# The first example of a test compiles or loads kernels: a deadline would measure that.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test that fails stops the flows it has started: they would hold the task slots of those after it."""
    started: list[Any] = []
    start = hr.Flow.start

    def noted(*arguments: Any, **options: Any) -> Any:
        started.append(start(*arguments, **options))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hr.Flow, "start", noted)
        try:
            return (yield)
        except BaseException:
            for job in started:
                job.stop(drain=False, timeout_s=60)
            raise
