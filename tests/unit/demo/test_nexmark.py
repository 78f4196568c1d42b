from __future__ import annotations

import pickle
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.demo.nexmark import ACTIVE, FIRST_ID, LEAD, SCHEMA, WINDOW, Nexmark, query_8
from headrace.flow.sequential import run_sequentially
from headrace.model.ticks import SECOND, Ticks

EVENTS = 20_000
SITE = Nexmark(per_second=500, seed=3)


def _all() -> pa.RecordBatch:
    return SITE.make(0, EVENTS)


@given(first=st.integers(0, 1 << 40), count=st.integers(0, 50), seed=st.integers(0, 1000), data=st.data())
def test_an_event_is_the_same_whatever_it_is_asked_for_with(first: int, count: int, seed: int, data: Any) -> None:
    site = Nexmark(100, seed)
    made = site.make(first, count)
    assert made.schema == SCHEMA
    order = np.array(data.draw(st.permutations(range(count))), np.int64)
    assert site.events(first + order).equals(made.take(pa.array(order)))
    cut = data.draw(st.integers(0, count))
    parts = [site.make(first, cut), site.make(first + cut, count - cut)]
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([made])) or not count


def test_another_seed_gives_other_events_and_the_site_can_be_sent_to_workers() -> None:
    assert not Nexmark(100, 1).make(0, 100).equals(Nexmark(100, 2).make(0, 100))
    assert pickle.loads(pickle.dumps(SITE)).make(5, 5).equals(SITE.make(5, 5))


def test_one_person_to_three_auctions_each_with_an_id_of_its_own() -> None:
    events = _all()
    persons, auctions = (events.filter(pc.equal(events["kind"], kind)) for kind in ("person", "auction"))
    assert persons["id"].to_pylist() == list(range(FIRST_ID, FIRST_ID + EVENTS // 4))
    assert auctions["id"].to_pylist() == list(range(FIRST_ID, FIRST_ID + 3 * EVENTS // 4))
    for column in ("name", "email", "city", "state"):
        assert persons[column].null_count == 0
    for column in ("seller", "category", "initial_bid", "reserve", "expires"):
        assert persons[column].null_count == len(persons)
        assert auctions[column].null_count == 0
    assert auctions["email"].null_count == len(auctions)
    assert pc.all(pc.greater(auctions["expires"], auctions["ts"])).as_py()
    assert pc.all(pc.greater(auctions["reserve"], auctions["initial_bid"])).as_py()


def test_most_sellers_are_hot_and_all_are_recent_and_some_come_after_their_auctions() -> None:
    events = _all()
    auctions = events.filter(pc.equal(events["kind"], "auction"))
    newest = auctions["n"].to_numpy() // 4
    sellers = auctions["seller"].to_numpy() - FIRST_ID
    is_hot = sellers == newest // 100 * 100
    assert 0.73 < is_hot.mean() < 0.77
    ages = (newest - sellers)[~is_hot]
    assert ages.min() == -LEAD
    assert ages.max() == ACTIVE - 1
    # Evenly among those who are active: the mean age is about the middle, once there are so many.
    late = ages[newest[~is_hot] > ACTIVE]
    assert abs(late.mean() - (ACTIVE - 1 - LEAD) / 2) < 25


def test_times_rise_at_the_rate_and_the_last_event_of_a_window_is_known() -> None:
    numbers = np.arange(EVENTS)
    ticks = SITE.ticks(numbers)
    assert set(np.diff(ticks).tolist()) == {2000}
    assert ticks[0] % WINDOW == 0
    for step in (1, 3):
        lasts = [np.flatnonzero(SITE.ends_window(own, step)) for own in (numbers[split::step] for split in range(step))]
        for split, found in enumerate(lasts):
            own = ticks[split::step] // WINDOW
            whole = [int(np.flatnonzero(own == window)[-1]) for window in np.unique(own)]
            assert found.tolist()[: len(whole) - 1] == whole[:-1]


def _by_hand(events: pa.RecordBatch, window: Ticks) -> list[dict[str, Any]]:
    rows = events.select(["kind", "id", "name", "seller"]).to_pylist()
    starts = (events["ts"].cast(pa.int64()).to_numpy() // window * window).tolist()
    opened = {(s, row["seller"]) for s, row in zip(starts, rows, strict=True) if row["kind"] == "auction"}
    found = [(s, row["id"], row["name"]) for s, row in zip(starts, rows, strict=True) if row["kind"] == "person"]
    return [{"window": s, "id": i, "name": name} for s, i, name in sorted(found) if (s, i) in opened]


@pytest.mark.parametrize("window", [WINDOW, Ticks(SECOND), Ticks(60 * SECOND)])
def test_query_8_is_what_duckdb_says_and_what_a_loop_says(window: Ticks) -> None:
    events = pa.Table.from_batches([_all()])
    shuffled = events.take(pa.array(np.random.default_rng(0).permutation(EVENTS)))
    found = query_8(shuffled, window)
    plain = found.set_column(0, "window", found["window"].cast(pa.int64())).to_pylist()
    assert plain == _by_hand(_all(), window)
    asked = (
        duckdb.connect()
        .execute(
            f"""
        WITH e AS (SELECT *, epoch_us(ts) // {window} * {window} AS w FROM events)
        SELECT w AS window, id, name FROM e WHERE kind = 'person'
          AND (w, id) IN (SELECT (w, seller) FROM e WHERE kind = 'auction') ORDER BY w, id
        """
        )
        .fetchall()
    )
    assert [tuple(row.values()) for row in plain] == asked
    assert 10 < len(plain) < EVENTS // 4


def test_an_auction_of_the_next_window_does_not_count() -> None:
    events = SITE.make(0, 8)
    person, auction = events.slice(4, 1), events.slice(5, 1)
    own = pa.array([person["id"][0].as_py()], pa.int64())

    def at(batch: pa.RecordBatch, tick: int) -> pa.RecordBatch:
        columns = dict(zip(SCHEMA.names, batch.columns, strict=True))
        columns |= {"ts": pa.array([tick]).cast(SCHEMA.field("ts").type), "seller": own}
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=SCHEMA)

    last = WINDOW - 1
    for tick, count in ((0, 1), (last, 1), (last + 1, 0), (-1, 0)):
        assert len(query_8(pa.Table.from_batches([at(auction, tick), at(person, 0)]))) == count


def test_a_flow_reads_it() -> None:
    flow = hr.Flow("nexmark")
    flow.sink("out", flow.source("events", hr.generate(SITE.make, 100), parallelism=2), hr.callback(print))
    assert run_sequentially(flow.graph())["out"].sort_by("n").equals(pa.Table.from_batches([SITE.make(0, 100)]))
