"""How much each worker should carry, where no task may run twice in one place of failure.

Without that rule everybody's share is the same for the same capacity. With it, `k` places can take no more than
`most(k)`, the sum of `weight * min(copies, k)` over the tasks: a host with half of all workers cannot have half of all
copies if every task has three. What large places cannot take goes to the small ones, and is shared evenly there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

ROUNDING: Final = 1e-9
"""Sums of weights differ by so little when they are the same."""


def fair_shares(
    weights: Sequence[float], copies: Sequence[int], capacities: Sequence[float], places: Sequence[int]
) -> list[float]:
    """What each worker should carry; together, all copies."""
    room: dict[int, list[float]] = {}
    for place, capacity in zip(places, capacities, strict=True):
        room.setdefault(place, []).append(capacity)
    sizes = {place: math.fsum(each) for place, each in room.items()}
    largest_first = sorted(sizes, key=lambda place: (-sizes[place], place))
    by_copies = {
        count: math.fsum(weight for weight, each in zip(weights, copies, strict=True) if each == count)
        for count in sorted(set(copies))
    }
    corners = [(0.0, 0.0)]
    for count, place in enumerate(largest_first, 1):
        most = math.fsum(weight * min(each, count) for each, weight in by_copies.items())
        corners.append((corners[-1][0] + sizes[place], most))
    levels = _levels(corners)
    level_of = dict(zip(largest_first, levels, strict=True))
    return [level_of[place] * capacity for place, capacity in zip(places, capacities, strict=True)]


def rounded_up(shares: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Budgets: shares in whole tasks. Where tasks weigh differently, an average task above the share.

    With tasks of one weight there is always a placement that keeps them: the shares themselves are one, in fractions.
    """
    if len(set(weights)) <= 1:
        weight = weights[0] if weights else 1.0
        return [math.ceil(share / weight * (1 - ROUNDING)) * weight for share in shares]
    average = math.fsum(weights) / len(weights)
    return [share + average for share in shares]


def _levels(corners: Sequence[tuple[float, float]]) -> list[float]:
    """The slope, from each corner to the next, of the line below all corners that bends only upwards.

    The first stretch holds the places that are filled to what they can take; each later one carries more.
    """
    hull = [0]
    for at in range(1, len(corners)):
        while len(hull) > 1 and _slope(corners, hull[-2], hull[-1]) >= _slope(corners, hull[-1], at) * (1 - ROUNDING):
            hull.pop()
        hull.append(at)
    stretches = pairwise(hull)
    return [_slope(corners, first, last) for first, last in stretches for _ in range(first, last)]


def _slope(corners: Sequence[tuple[float, float]], first: int, last: int) -> float:
    (x, y), (to_x, to_y) = corners[first], corners[last]
    return (to_y - y) / (to_x - x)
