"""A big table of payments for tests, the same for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

EVERY_AGGREGATION = """
    SELECT count(*) AS n_{w}, count(country) AS countries_{w},
           sum(qty) AS qty_{w}, sum(amount) AS spent_{w}, sum(score) AS score_{w},
           avg(qty) AS mean_qty_{w}, avg(amount) AS mean_amount_{w}, avg(score) AS mean_score_{w},
           stdDev(amount) AS spread_{w}, min(amount) AS least_{w}, max(country) AS greatest_{w},
           first(country) AS first_{w}, last(amount) AS last_{w}, prev(qty) AS prev_{w},
           countDistinct(merchant) AS merchants_{w}, median(amount) AS median_{w}, percentile(price, 0.9) AS p90_{w},
           topK(country, 3) AS top_{w}
    FROM payments GROUP BY card OVER {window}"""
"""Every aggregation over the columns of `payments`; put in a `window` and a name `w` for it."""

_COUNTRIES = np.array(["DE", "FR", "PT", "US", "JP", "BR", "IN", "ÅL"])


def payments(rows: int, seed: int = 5) -> pa.Table:
    """Payments at distinct times over thirty days, some cards busier than others, three nulls in a hundred arguments.

    `score` has both signs and 36 orders of magnitude, so that a plain sum of it is wrong; `price` is above zero.
    """
    dice = np.random.default_rng(seed)
    milliseconds = dice.choice(30 * 86_400_000, rows, replace=False).astype(np.int64)
    cards = (max(1, rows // 200) * dice.random(rows) ** 1.5).astype(np.int64)

    def some_null(values: Any, type: pa.DataType) -> pa.Array:
        return pa.array(values, type, mask=dice.random(rows) < 0.03)

    return pa.table(
        {
            "id": pa.array(dice.permutation(rows), pa.int64()),
            "ts": pa.array(1_717_200_000_000_000 + milliseconds * 1_000, pa.timestamp("us", "UTC")),
            "card": pa.array([f"card-{card}" for card in cards.tolist()], pa.string()),
            "merchant": some_null(dice.integers(0, 500, rows), pa.int32()),
            "qty": some_null(dice.integers(-1_000, 1_000_000_000_000, rows), pa.int64()),
            "amount": from_cents(some_null(dice.integers(-5_000, 100_000, rows), pa.int64())),
            "score": some_null(dice.choice([-1.0, 1.0], rows) * 10.0 ** dice.uniform(-18, 18, rows), pa.float64()),
            "price": some_null(np.exp(dice.normal(3, 2, rows)), pa.float64()),
            "country": some_null(_COUNTRIES[dice.integers(0, len(_COUNTRIES), rows)], pa.string()),
        }
    )


def from_cents(cents: pa.Array) -> pa.Array:
    """Whole cents as decimal(10, 2): the same digits, read with a scale."""
    wide = cents.cast(pa.decimal128(38, 0))
    return pa.Array.from_buffers(pa.decimal128(10, 2), len(wide), wide.buffers(), wide.null_count)
