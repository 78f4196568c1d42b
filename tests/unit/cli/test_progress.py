from __future__ import annotations

import pytest

from headrace.cli.progress import done_share


@pytest.mark.parametrize(
    ("stages", "expected", "share"),
    [
        ([], 2, 0.0),
        ([(0, 8)], 2, 0.0),
        ([(4, 8)], 2, 0.25),
        ([(8, 8), (1, 4)], 2, 0.625),
        # A skipped stage never finishes a task, and must not hold the bar back.
        ([(8, 8), (0, 8), (4, 4)], 3, 2 / 3),
        # More stages than expected: the bar still does not run over.
        ([(1, 1), (1, 1), (1, 2)], 2, 2.5 / 3),
        # Only the end of the work makes the bar full.
        ([(8, 8), (4, 4)], 2, 0.99),
        ([(0, 0)], 1, 0.0),
    ],
)
def test_the_bar_grows_with_finished_tasks(stages: list[tuple[int, int]], expected: int, share: float) -> None:
    assert done_share(stages, expected) == pytest.approx(share)
