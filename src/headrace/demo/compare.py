"""The rule "more than 4 payments of a card within 5 minutes: block", with two kinds of windows, on Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.demo.bursts import WINDOW, Burst
from headrace.model.ticks import Tick

METRICS: Final = """\
SELECT count(*) AS payments_5m, sum(amount) AS spent_5m
FROM payments GROUP BY card OVER sliding 5 minutes;

SELECT avg(amount) AS usual_1h
FROM payments GROUP BY merchant OVER sliding 1 hour delayed by 5 minutes
"""

LIMIT: Final = 4
"""Payments of a card within five minutes that are still allowed."""

Sight: TypeAlias = tuple[str, Tick, int]
"""A card, a moment, and how many payments were counted there."""


@dataclass(frozen=True)
class Verdict:
    """What each kind of window counted when the fifth payment of a burst arrived."""

    burst: Burst
    sliding: int
    hopping: int

    @property
    def caught_by_sliding(self) -> bool:
        """The exact window sees more than the limit."""
        return self.sliding > LIMIT

    @property
    def caught_by_hopping(self) -> bool:
        """At least one of the hopping windows sees more than the limit."""
        return self.hopping > LIMIT


def hopping_windows(payments: DataFrame) -> DataFrame:
    """Spark's own hopping windows: card, start, payments, for every window with at least one payment."""
    window = F.window("ts", "5 minutes", "1 minute")
    counted = payments.groupBy("card", window).agg(F.count("*").alias("payments"))
    return counted.select("card", F.unix_micros("window.start").alias("start"), "payments")


def sliding_sights(scored: DataFrame, cards: Iterable[str]) -> list[Sight]:
    """What the exact metric said at every payment of these cards."""
    rows = scored.where(F.col("card").isin(list(cards))).select("card", F.unix_micros("ts"), "payments_5m")
    return [(card, Tick(ts), n) for card, ts, n in rows.collect()]


def hopping_sights(windows: DataFrame, cards: Iterable[str]) -> list[Sight]:
    """The hopping windows of these cards; the moment is the start of the window."""
    rows = windows.where(F.col("card").isin(list(cards))).select("card", "start", "payments")
    return [(card, Tick(start), n) for card, start, n in rows.collect()]


def judge(bursts: Iterable[Burst], sliding: Iterable[Sight], hopping: Iterable[Sight]) -> list[Verdict]:
    """One verdict for each burst, in the order of their fifth payments.

    Hopping gets its best case: the fullest of all windows that hold the fifth payment, known in full at once.
    """
    exact = {(card, ts): n for card, ts, n in sliding}
    by_card: dict[str, list[tuple[Tick, int]]] = defaultdict(list)
    for card, start, n in hopping:
        by_card[card].append((start, n))

    def fullest(burst: Burst) -> int:
        return max(n for start, n in by_card[burst.card] if start <= burst.fifth < start + WINDOW)

    verdicts = (Verdict(burst, exact[burst.card, burst.fifth], fullest(burst)) for burst in bursts)
    return sorted(verdicts, key=lambda verdict: verdict.burst.fifth)


def false_alarms(counted: DataFrame, count: str, bursts: Iterable[Burst]) -> int:
    """Cards over the limit that no thief has touched."""
    stolen = [burst.card for burst in bursts]
    return counted.where((F.col(count) > LIMIT) & ~F.col("card").isin(stolen)).select("card").distinct().count()
