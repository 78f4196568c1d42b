"""The order checker finds what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.testing.order import assert_in_source_order


def test_what_is_right_passes() -> None:
    assert_in_source_order([])
    assert_in_source_order([1, 2, 5], [5, 1, 2])
    assert_in_source_order(np.array([1, 1, 2, 2]), [1, 2], copies=2)


@pytest.mark.parametrize(
    ("found", "expected", "copies", "said"),
    [
        ([1, 3, 2], None, 1, "out of order: 2 comes after 3, at place 2 of 3"),
        ([1, 2, 2], None, 1, "2 is there 2 times, not once"),
        ([1, 2], [1, 2, 4, 5], 1, "2 of 4 are missing, the first of them 4"),
        ([1, 2, 7], [1, 2], 1, "1 are there that should not be, the first of them 7"),
        ([1, 1, 2], None, 2, "2 is there once, not 2 times"),
    ],
)
def test_what_is_wrong_is_named(found: list[int], expected: list[int] | None, copies: int, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        assert_in_source_order(found, expected, copies)
