from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.measure.limbs import LimbRange, carry, split_double, to_double, wide_to_double, widened
from headrace.model.jit import Ints

finite = st.floats(allow_nan=False, allow_infinity=False)


def bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def exact_sum(values: list[float], removed: int) -> float:
    """Add all, take the first `removed` out again, read."""
    limits = LimbRange()
    words: Ints = np.array([bits(value) for value in values], np.int64)
    limbs = np.zeros((1, 0), np.int64)
    more = limits.cover(words, np.ones(len(words), np.uint8))
    assert more is not None
    limbs = widened(limbs, *more)
    parts = np.zeros(4, np.int64)
    for sign, some in ((1, values), (-1, values[:removed])):
        for value in some:
            if value:
                at = split_double(bits(value), limits.base, parts)
                limbs[0, at : at + 3] += sign * (1 if value > 0 else -1) * parts[:3]
    carry(limbs[0])
    return float(to_double(limbs[0], limits.base, np.zeros(limits.size, np.int64)))


def fsum(values: list[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        return float("nan")


@given(st.lists(finite, min_size=1, max_size=30), st.integers(0, 30))
def test_sums_equal_fsum_after_removals(values: list[float], removed: int) -> None:
    removed = min(removed, len(values))
    expected = fsum(values[removed:])
    if not math.isnan(expected):
        assert exact_sum(values, removed) == expected


@pytest.mark.parametrize(
    "values",
    [
        [5e-324],
        [-5e-324, 1.0],
        [1e308, -1e308, 5e-324],
        [1.7976931348623157e308],
        [2.0**53, 1.0],  # half to even, down
        [2.0**53, 1.0, 5e-324],  # just above half
        [2.0**53 + 2, 1.0],  # half to even, up
        [1e16, 1.0, 1e-16, -1e16],
    ],
)
def test_sums_at_the_edges_of_a_double(values: list[float]) -> None:
    assert exact_sum(values, 0) == math.fsum(values)


def test_a_sum_past_the_largest_double_is_infinite() -> None:
    assert exact_sum([1.7e308, 1.7e308], 0) == math.inf
    assert exact_sum([-1.7e308, -1.7e308], 0) == -math.inf


def test_widening_keeps_negative_sums() -> None:
    limits = LimbRange()
    limits.cover(np.array([bits(1.0)]), np.ones(1, np.uint8))
    limbs = np.zeros((1, limits.size), np.int64)
    parts = np.zeros(4, np.int64)
    at = split_double(bits(1.0), limits.base, parts)
    limbs[0, at : at + 3] -= parts[:3]
    more = limits.cover(np.array([bits(1e-300), bits(1e300)]), np.ones(2, np.uint8))
    assert more is not None
    wide = widened(limbs, *more)
    carry(wide[0])
    assert to_double(wide[0], limits.base, np.zeros(limits.size, np.int64)) == -1.0


@given(st.lists(st.integers(-(2**127), 2**127 - 1), max_size=10))
def test_wide_integers_round_once(values: list[int]) -> None:
    low = np.array([(v & (2**64 - 1)) - ((v & 2**63) << 1) for v in values], np.int64)
    high = np.array([v >> 64 for v in values], np.int64)
    assert wide_to_double(low, high).tolist() == [float(v) for v in values]
