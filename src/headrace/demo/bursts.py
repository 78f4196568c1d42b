"""Card testing: a thief tries a stolen card with five small payments, then buys something dear.

Every burst fits into five minutes. What differs is how it lies on the clock, and that decides
whether windows that hop by a minute can see its five payments together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.model.ticks import MINUTE, SECOND, Tick

PAYMENTS_A_BURST: Final = 5
WINDOW: Final = 5 * MINUTE
HOP: Final = MINUTE

KINDS: Final = {
    "rapid": "within 80 seconds",
    "steady": "over 4 to 5 minutes",
    "paced": "across minute edges",
}


@dataclass(frozen=True)
class Burst:
    """Five payments of one stolen card within five minutes, and the purchase that follows."""

    kind: str
    card: str
    times: tuple[Tick, ...]
    purchase_cents: int

    @property
    def fifth(self) -> Tick:
        """When the rule "more than 4 payments within 5 minutes" has to fire."""
        return self.times[-1]


def burst_times(kind: str, minute: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Five rising times, in ticks, of a burst that starts in the minute beginning at tick `minute`."""
    match kind:
        case "rapid":
            gaps = rng.uniform(4, 20, PAYMENTS_A_BURST - 1)
            seconds = rng.uniform(0, 60) + np.concatenate(([0.0], np.cumsum(gaps)))
        case "steady":
            seconds = rng.uniform(0, 60) + _spread(rng.uniform(245, 295), rng)
        case "paced":
            # The first payment late in its minute, the fifth early in the fifth minute after it:
            # less than five minutes apart, but no window that starts on a minute holds both.
            first, fifth = rng.uniform(35, 55), 300 + rng.uniform(5, 25)
            seconds = first + _spread(fifth - first, rng)
        case _:
            raise ValueError(f"no such kind of burst: {kind}")
    # Payment systems stamp whole milliseconds.
    return minute + (seconds * 1_000).astype(np.int64) * (SECOND // 1_000)


def _spread(span: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Five offsets from 0 to `span`, evenly spaced but for a human wobble."""
    steps = np.linspace(0, span, PAYMENTS_A_BURST)
    steps[1:-1] += rng.uniform(-20, 20, PAYMENTS_A_BURST - 2)
    return steps
