"""Card payments at a steady rate, with a few very busy cards: a Parquet file for a race."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headrace.model.ticks import SECOND, Tick

_START: Final = Tick(1_772_496_000_000_000)  # 2026-03-03 00:00 UTC
_MERCHANTS: Final = 5_000
ROW_GROUP: Final = 250_000


@dataclass(frozen=True)
class Payments:
    """`rows` payments, uniform over `seconds`, no two at the same time; cards are drawn by Zipf's law.

    `tick_micros` all times are multiples of so many microseconds
    `hot_share`   this part of all payments goes to one card more
    `late_share`  this part arrives up to `late_seconds` after its time; a column `arrival` has the order
    """

    rows: int
    seconds: int
    cards: int = 100_000
    power: float = 1.2
    hot_share: float = 0.0
    late_share: float = 0.0
    late_seconds: int = 60
    tick_micros: int = 1
    seed: int = 2026

    def write(self, path: Path) -> Path:
        """One Parquet file in the order of time (or of arrival, if some are late)."""
        pq.write_table(self.table(), path, row_group_size=ROW_GROUP)
        return path

    def table(self) -> pa.Table:
        """The payments as they are written."""
        rng = np.random.default_rng(self.seed)
        times = self._times(rng)
        card = self._card_numbers(rng)
        merchant = rng.integers(0, _MERCHANTS, self.rows)
        table = pa.table(
            {
                "txn": pa.array(np.arange(1, self.rows + 1)),
                "ts": pa.array(times).cast(pa.timestamp("us", "UTC")),
                "card": _names("card", self.cards).take(pa.array(card)),
                "merchant": _names("merchant", _MERCHANTS).take(pa.array(merchant)),
                "amount": pa.array(np.round(rng.lognormal(3.0, 1.0, self.rows), 2)),
            }
        )
        return self._with_arrival(table, times, rng) if self.late_share else table

    def _times(self, rng: np.random.Generator) -> NDArray[np.int64]:
        # Sorted draws from a range that is `rows` shorter, spread by their rank: uniform and distinct.
        ticks = self.seconds * SECOND // self.tick_micros
        draws = np.sort(rng.integers(0, ticks - self.rows, self.rows))
        return _START + (draws + np.arange(self.rows)) * self.tick_micros

    def _card_numbers(self, rng: np.random.Generator) -> NDArray[np.int64]:
        weights = np.cumsum(np.arange(1, self.cards + 1) ** -self.power)
        rank = np.searchsorted(weights, rng.uniform(0, weights[-1], self.rows))
        if self.hot_share:
            rank = np.where(rng.uniform(0, 1, self.rows) < self.hot_share, 0, rank)
        # Busy cards may have any number, so that no system gains from their order.
        return rng.permutation(self.cards)[rank].astype(np.int64)

    def _with_arrival(self, table: pa.Table, times: NDArray[np.int64], rng: np.random.Generator) -> pa.Table:
        late = rng.uniform(0, 1, self.rows) < self.late_share
        delay = np.where(late, rng.integers(1, self.late_seconds * SECOND, self.rows), 0)
        arrived = table.take(pa.array(np.argsort(times + delay, kind="stable")))
        return arrived.append_column("arrival", pa.array(np.arange(self.rows)))


def _names(word: str, count: int) -> pa.Array:
    width = len(str(count - 1))
    return pa.array([f"{word}-{number:0{width}d}" for number in range(count)])
