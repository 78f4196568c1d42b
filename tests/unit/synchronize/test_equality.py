"""States and rows are compared by value, and drift of floats is told from what is wrong."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from headrace.synchronize.equality import differences, row_differences

from . import check_programs as programs


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (float("nan"), float("nan"), None),
        ({"a": [1.0, None]}, {"a": [1, None]}, None),
        ({1: 2, 3: 4}, {3: 4, 1: 2}, None),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), None),
        ({1: 0}, {}, "at [1]: 0 and nothing"),
        ((1, 2), [1, 2], "(1, 2) and [1, 2]"),
        ({"a": (1, [2, 3])}, {"a": (1, [2, 4])}, "at ['a'][1][1]: 3 and 4"),
        (np.array([1, 2]), np.array([1, 3]), "at [1]: 2 and 3"),
        (programs.Orders(1, 2), programs.Orders(1, 3), "at .rate: 2 and 3"),
        (np.datetime64("NaT", "s"), np.datetime64("NaT", "s"), None),
        (Decimal("sNaN"), Decimal("sNaN"), None),
        (0.1 + 0.2, 0.3, "0.30000000000000004 and 0.3"),
    ],
)
def test_states_are_compared_by_value(one: Any, other: Any, difference: str | None) -> None:
    found = list(differences(one, other))
    assert [str(each) for each in found] == ([] if difference is None else [difference])
    assert all(each.is_drift == isinstance(one, float) for each in found)


def test_rows_are_compared_whatever_their_order() -> None:
    assert not list(row_differences([(1, "a"), (2, "b")], [(2, "b"), (1, "a")]))
    assert [str(each) for each in row_differences([(1,), (1,)], [(1,)])] == ["at the outputs: (1,) and no such row"]
    assert [each.is_drift for each in row_differences([(0.3,), (1,)], [(1,), (0.1 + 0.2,)])] == [True]
    assert not list(row_differences([(0.3,)], [(0.1 + 0.2,)], tolerance=1e-9))
