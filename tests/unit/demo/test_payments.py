from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.demo.bursts import HOP, KINDS, PAYMENTS_A_BURST, WINDOW, Burst, burst_times
from headrace.demo.payments import CATEGORIES, DAY_START, SCHEMA, make_day
from headrace.model.ticks import DAY, MINUTE


def fullest_hopping_window(times: list[int]) -> int:
    """How many of the times the fullest window that starts on a full minute holds."""
    starts = range(times[0] // HOP * HOP - WINDOW, times[-1] + HOP, HOP)
    return max(sum(start <= time < start + WINDOW for time in times) for start in starts)


@pytest.mark.parametrize("kind", KINDS)
def test_every_burst_fits_into_the_sliding_window(kind: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(500):
        times = burst_times(kind, 17 * MINUTE, rng)
        assert len(times) == PAYMENTS_A_BURST
        assert np.all(np.diff(times) > 0)
        assert times[-1] - times[0] < WINDOW


def test_hopping_windows_never_hold_a_paced_burst_and_always_a_rapid_one() -> None:
    rng = np.random.default_rng(2)
    for _ in range(500):
        assert fullest_hopping_window(burst_times("paced", 17 * MINUTE, rng).tolist()) == 4
        assert fullest_hopping_window(burst_times("rapid", 17 * MINUTE, rng).tolist()) == 5


def test_an_unknown_kind_of_burst_is_refused() -> None:
    with pytest.raises(ValueError, match="no such kind of burst: slow"):
        burst_times("slow", 0, np.random.default_rng(0))


def test_the_same_seed_gives_the_same_day_and_another_seed_another() -> None:
    first, again, other = make_day(3, 5_000), make_day(3, 5_000), make_day(4, 5_000)
    assert first.payments.equals(again.payments)
    assert first.bursts == again.bursts
    assert not first.payments.equals(other.payments)


def test_a_day_has_the_schema_the_order_and_the_amounts_of_payments() -> None:
    payments = make_day(5, 20_000).payments
    assert payments.schema == SCHEMA
    assert payments["txn"].to_pylist() == list(range(1, len(payments) + 1))
    ticks = payments["ts"].cast(pa.int64()).to_numpy()
    assert np.all(np.diff(ticks) >= 0)
    assert ticks[0] >= DAY_START
    assert ticks[-1] < DAY_START + DAY
    assert pc.min(payments["amount"]).as_py() >= Decimal("0.49")
    assert set(payments["category"].unique().to_pylist()) == {category.name for category in CATEGORIES}


def test_only_stolen_cards_pay_more_than_four_times_within_five_minutes() -> None:
    day = make_day(6, 20_000)
    stolen = {burst.card: burst for burst in day.bursts}
    busy = cards_over_the_limit(day.payments)
    assert busy == set(stolen)


def test_the_planted_payments_are_in_the_data() -> None:
    day = make_day(7, 5_000)
    rows = set(zip(day.payments["card"].to_pylist(), day.payments["ts"].cast(pa.int64()).to_pylist(), strict=True))
    for burst in day.bursts:
        assert {(burst.card, time) for time in burst.times} <= rows
        assert burst.purchase_cents in amounts_of(day.payments, burst)


def cards_over_the_limit(payments: pa.Table) -> set[str]:
    times: dict[str, list[int]] = {}
    for card, tick in zip(payments["card"].to_pylist(), payments["ts"].cast(pa.int64()).to_pylist(), strict=True):
        times.setdefault(card, []).append(tick)
    return {card for card, ts in times.items() if any(b - a < WINDOW for a, b in zip(ts, ts[4:], strict=False))}


def amounts_of(payments: pa.Table, burst: Burst) -> list[int]:
    return [int(amount * 100) for amount in payments.filter(pc.field("card") == burst.card)["amount"].to_pylist()]
