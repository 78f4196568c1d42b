"""A believable day of card payments, drawn from a seed: the same seed gives the same day, to the bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.demo.bursts import KINDS, PAYMENTS_A_BURST, Burst, burst_times
from headrace.model.ticks import DAY, HOUR, MILLISECOND, MINUTE, Tick

DAY_START: Final = Tick(1_772_496_000_000_000)  # 2026-03-03 00:00 UTC, a Tuesday

SCHEMA: Final = pa.schema(
    [
        ("txn", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("card", pa.string()),
        ("merchant", pa.string()),
        ("category", pa.string()),
        ("amount", pa.decimal128(10, 2)),
    ]
)


@dataclass(frozen=True)
class Category:
    """A kind of merchant: its share of all payments, its typical amount, and how far amounts scatter."""

    name: str
    share: float
    median: float
    sigma: float
    merchants: int


CATEGORIES: Final = (
    Category("groceries", 0.30, 31.0, 0.70, 600),
    Category("cafe", 0.18, 6.5, 0.45, 500),
    Category("online", 0.18, 27.0, 0.90, 800),
    Category("restaurant", 0.12, 34.0, 0.60, 500),
    Category("pharmacy", 0.08, 18.0, 0.60, 230),
    Category("fuel", 0.08, 48.0, 0.35, 150),
    Category("electronics", 0.04, 140.0, 0.80, 120),
    Category("travel", 0.02, 240.0, 0.90, 100),
)

# How busy each hour of the day is: quiet nights, a peak at lunch and one after work.
_RHYTHM: Final = np.array([3, 2, 1, 1, 1, 2, 6, 14, 22, 24, 26, 31, 38, 36, 30, 29, 32, 39, 44, 40, 30, 21, 13, 7])

_QUIET: Final = 40 * MINUTE  # a stolen card's owner does not pay this close to the burst


@dataclass(frozen=True)
class Day:
    """The payments in the order of their times, and the fraud that was planted among them."""

    payments: pa.Table
    bursts: tuple[Burst, ...]


@dataclass
class _Columns:
    """The payments as plain arrays, before they are sorted and named."""

    ts: NDArray[np.int64]
    card: NDArray[np.int64]
    merchant: NDArray[np.int64]
    category: NDArray[np.int64]
    cents: NDArray[np.int64]


def make_day(seed: int = 2026, payments: int = 200_000, bursts_a_kind: int = 12) -> Day:
    """About `payments` payments over one day, with `bursts_a_kind` bursts of card testing of every kind."""
    rng = np.random.default_rng(seed)
    cards = max(200, payments * 2 // 5)
    everyday = _everyday(payments, cards, rng)
    stolen = rng.choice(cards, size=bursts_a_kind * len(KINDS), replace=False)
    bursts = _plan_bursts(stolen, bursts_a_kind, rng)
    planted = _planted(bursts, stolen, rng)
    return Day(_table(_join(_without_neighbours(everyday, bursts, stolen, cards), planted)), bursts)


def _everyday(payments: int, cards: int, rng: np.random.Generator) -> _Columns:
    category = rng.choice(len(CATEGORIES), size=payments, p=[c.share for c in CATEGORIES])
    cents = np.empty(payments, np.int64)
    merchant = np.empty(payments, np.int64)
    for number, kind in enumerate(CATEGORIES):
        rows = np.flatnonzero(category == number)
        cents[rows] = np.maximum(50, np.rint(100 * rng.lognormal(np.log(kind.median), kind.sigma, len(rows))))
        merchant[rows] = _zipf(kind.merchants, 0, 1.0, len(rows), rng)
    # Zipf-Mandelbrot: a few busy cards, but nobody pays a hundred times a day.
    card = _zipf(cards, 300, 0.5, payments, rng)
    return _Columns(_times(payments, rng), rng.permutation(cards)[card], merchant, category.astype(np.int64), cents)


def _zipf(size: int, shift: float, power: float, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Ranks 0 to size-1, rank r drawn with a weight of (r + 1 + shift) ** -power."""
    weights = np.cumsum((np.arange(size) + 1.0 + shift) ** -power)
    return np.searchsorted(weights, rng.uniform(0, weights[-1], draws)).astype(np.int64)


def _times(payments: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Times over the day in whole milliseconds, as busy as the rhythm says."""
    busy = np.concatenate(([0.0], np.cumsum(_RHYTHM / _RHYTHM.sum())))
    hours = np.interp(rng.uniform(0, 1, payments), busy, np.arange(25))
    return DAY_START + (hours * (HOUR // MILLISECOND)).astype(np.int64) * MILLISECOND


def _plan_bursts(stolen: NDArray[np.int64], each: int, rng: np.random.Generator) -> tuple[Burst, ...]:
    # Between 7:00 and 23:00, so that the purchase still falls into the day.
    minutes = DAY_START + rng.choice(np.arange(7 * 60, 23 * 60), size=len(stolen), replace=False) * MINUTE
    kinds = [kind for kind in KINDS for _ in range(each)]
    bursts = []
    for kind, card, minute in zip(kinds, stolen, minutes, strict=True):
        times = tuple(Tick(int(t)) for t in burst_times(kind, int(minute), rng))
        bursts.append(Burst(kind, _card_name(int(card)), times, int(rng.integers(400_00, 1_500_00))))
    return tuple(bursts)


def _planted(bursts: tuple[Burst, ...], stolen: NDArray[np.int64], rng: np.random.Generator) -> _Columns:
    """Five tiny payments at one online shop for every burst, then the purchase 8 to 30 minutes later."""
    tests = len(bursts) * PAYMENTS_A_BURST
    shop = np.repeat(rng.integers(0, _category("online").merchants, len(bursts)), PAYMENTS_A_BURST)
    fifth = np.array([burst.fifth for burst in bursts], np.int64)
    later = fifth + rng.integers(8 * 60_000, 30 * 60_000, len(bursts)) * MILLISECOND
    return _Columns(
        ts=np.concatenate([np.array([burst.times for burst in bursts], np.int64).ravel(), later]),
        card=np.concatenate([np.repeat(stolen, PAYMENTS_A_BURST), stolen]),
        merchant=np.concatenate([shop, rng.integers(0, _category("electronics").merchants, len(bursts))]),
        category=np.concatenate([np.full(tests, _number("online")), np.full(len(bursts), _number("electronics"))]),
        cents=np.concatenate([rng.integers(49, 300, tests), [burst.purchase_cents for burst in bursts]]),
    )


def _without_neighbours(
    everyday: _Columns, bursts: tuple[Burst, ...], stolen: NDArray[np.int64], cards: int
) -> _Columns:
    """Everyday payments without those of a stolen card near its burst: the burst alone decides what is seen."""
    start = np.full(cards, DAY_START - 10 * DAY)
    start[stolen] = [burst.times[0] for burst in bursts]
    keep = np.abs(everyday.ts - start[everyday.card]) > _QUIET
    return _Columns(*(column[keep] for column in vars(everyday).values()))


def _join(one: _Columns, other: _Columns) -> _Columns:
    pairs = zip(vars(one).values(), vars(other).values(), strict=True)
    return _Columns(*(np.concatenate(pair) for pair in pairs))


def _table(columns: _Columns) -> pa.Table:
    order = np.lexsort((columns.card, columns.ts))
    category = columns.category[order]
    offsets = np.cumsum([0, *(kind.merchants for kind in CATEGORIES)])
    merchants = [f"{kind.name}-{number:03d}" for kind in CATEGORIES for number in range(kind.merchants)]
    cards = [_card_name(card) for card in range(int(columns.card.max()) + 1)]
    return pa.table(
        [
            pa.array(np.arange(1, len(order) + 1)),
            pa.array(columns.ts[order]).cast(SCHEMA.field("ts").type),
            pa.array(cards).take(pa.array(columns.card[order])),
            pa.array(merchants).take(pa.array(offsets[category] + columns.merchant[order])),
            pa.array([kind.name for kind in CATEGORIES]).take(pa.array(category)),
            _money(columns.cents[order]),
        ],
        schema=SCHEMA,
    )


def _money(cents: NDArray[np.int64]) -> pa.Array:
    """Whole cents as decimal(10, 2): the 128-bit words are the cents, their upper halves the sign."""
    words = np.empty((len(cents), 2), np.int64)
    words[:, 0], words[:, 1] = cents, cents >> 63
    return pa.Array.from_buffers(SCHEMA.field("amount").type, len(cents), [None, pa.py_buffer(words)])


def _card_name(number: int) -> str:
    return f"card-{number:05d}"


def _number(category: str) -> int:
    return next(number for number, kind in enumerate(CATEGORIES) if kind.name == category)


def _category(name: str) -> Category:
    return CATEGORIES[_number(name)]
