"""How long things took: a histogram of fixed bounds, small enough to be sent about."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

BOUNDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02),
    *(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)


@dataclass
class Latencies:
    """In seconds. `counts` has one more than there are bounds: what took longer than the last."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.counts[bisect.bisect_left(BOUNDS, seconds)] += count
        self.total += seconds * count

    def as_json(self) -> dict[str, Any]:
        return {"counts": self.counts.copy(), "total": self.total}


def quantile(counts: Sequence[int], share: float) -> float | None:
    """The bound below which this share of them is; None where there are none, infinity past the last bound."""
    wanted, seen = share * sum(counts), 0
    for bound, count in zip((*BOUNDS, float("inf")), counts, strict=True):
        seen += count
        if seen and seen >= wanted:
            return bound
    return None
