"""Routing is a pure function of the records and of how many went before: cut anywhere, the same goes to the same."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import FlowError
from headrace.flow.hashing import hash_longs, hash_rows
from headrace.flow.routing import Place, Route, split
from headrace.measure.events import Grouping
from headrace.measure.keys import BytesIndex

_SCHEMA = pa.schema([("n", pa.int64()), ("k", pa.string())])


def _choose(batch: pa.RecordBatch, consumers: int) -> list[int]:
    return [number % consumers for number in batch.column("n").to_pylist()]


_ROUTES = [
    hr.rebalance(),
    hr.rescale(),
    hr.shuffle(),
    hr.shuffle(7),
    hr.key("k"),
    hr.key("n", "k"),
    hr.broadcast(),
    hr.custom(_choose),
]


def _batch(numbers: list[int]) -> pa.RecordBatch:
    texts = [None if number % 5 == 0 else str(number % 7) for number in numbers]
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array(texts, pa.string())], schema=_SCHEMA)


def _received(route: Route, batches: list[pa.RecordBatch], before: int, place: Place) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for batch in batches:
        for consumer, part in split(route, batch, before, place):
            found.setdefault(consumer, []).extend(part.to_pylist())
        before += batch.num_rows
    return found


@st.composite
def _places(draw: st.DrawFn) -> Place:
    producers, consumers = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    return Place(draw(st.integers(0, producers - 1)), producers, consumers)


@pytest.mark.parametrize("route", _ROUTES, ids=str)
@given(
    place=_places(),
    before=st.integers(0, 2**40),
    count=st.integers(0, 40),
    cuts=st.lists(st.integers(0, 40), max_size=6),
)
@settings(max_examples=60)
def test_cut_anywhere_the_same_records_go_to_the_same_consumers(
    route: Route, place: Place, before: int, count: int, cuts: list[int]
) -> None:
    batch = _batch(list(range(100, 100 + count)))
    bounds = [0, *sorted(min(cut, count) for cut in cuts), count]
    parts = [batch.slice(start, end - start) for start, end in pairwise(bounds)]
    whole = _received(route, [batch], before, place)
    assert _received(route, parts, before, place) == whole
    assert set(whole) <= set(route.reaches(place))
    if str(route) == "broadcast":
        assert whole == ({c: batch.to_pylist() for c in range(place.consumers)} if count else {})
    else:
        assert sorted(r["n"] for records in whole.values() for r in records) == batch.column("n").to_pylist()
        for records in whole.values():  # in their order
            assert [r["n"] for r in records] == sorted(r["n"] for r in records)


@given(producers=st.integers(1, 6), data=st.data())
def test_forward_goes_to_its_like(producers: int, data: st.DataObject) -> None:
    place = Place(data.draw(st.integers(0, producers - 1)), producers, producers)
    assert _received(hr.forward(), [_batch([1, 2, 3])], 9, place) == {place.producer: _batch([1, 2, 3]).to_pylist()}
    assert hr.forward().reaches(place) == [place.producer]


@pytest.mark.parametrize("route", [hr.rebalance(), hr.rescale()], ids=str)
@given(place=_places(), count=st.integers(0, 60))
@settings(max_examples=40)
def test_in_turn_is_fair(route: Route, place: Place, count: int) -> None:
    found = _received(route, [_batch(list(range(count)))], 0, place)
    shares = [len(found.get(consumer, [])) for consumer in route.reaches(place)]
    assert max(shares) - min(shares) <= 1


def test_producers_begin_their_turns_at_different_consumers() -> None:
    firsts = [split(hr.rebalance(), _batch([1]), 0, Place(producer, 3, 3))[0][0] for producer in range(3)]
    assert firsts == [0, 1, 2]


def test_shuffle_reaches_all_and_differs_by_producer_and_seed() -> None:
    batch = _batch(list(range(200)))
    runs = [
        tuple(hr.shuffle(seed).targets(batch, 0, Place(producer, 2, 3)).tolist())  # type: ignore[union-attr]
        for seed in (0, 1)
        for producer in (0, 1)
    ]
    assert len(set(runs)) == 4
    for run in runs:
        assert min(np.bincount(run, minlength=3)) > 40


def test_a_seed_may_be_negative() -> None:
    split(hr.shuffle(-5), _batch([1, 2]), 0, Place(0, 1, 2))


@pytest.mark.parametrize("given_", [[0], [0, 1, 2], [0, 2], [-1, 0], 5, [[0, 1]]], ids=str)
def test_a_routing_function_must_give_a_task_for_each_record(given_: Any) -> None:
    with pytest.raises(FlowError, match="must give one number from 0 to 1 for each of the 2 records"):
        split(hr.custom(lambda batch, consumers: given_), _batch([1, 2]), 0, Place(0, 1, 2))


def test_a_routing_function_must_give_whole_numbers() -> None:
    with pytest.raises(FlowError, match="must give one number"):
        split(hr.custom(lambda batch, consumers: [0.9, 1.9]), _batch([1, 2]), 0, Place(0, 1, 2))


# ------------------------------------------------------------------------ keys

_KEYS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint64(), st.integers(0, (1 << 64) - 1)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=6)),
    (pa.large_string(), st.text(max_size=6)),
    (pa.binary(), st.binary(max_size=6)),
    (
        pa.timestamp("us", "UTC"),
        st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),
    ),
    (pa.date32(), st.dates()),
    (pa.decimal128(10, 2), st.decimals(-(10**7), 10**7, places=2)),
    (pa.decimal128(38, 3), st.decimals(-(10**30), 10**30, places=3)),
    (pa.float64(), st.floats(allow_nan=False).filter(lambda x: x != 0.0)),
]


@pytest.mark.parametrize(("of", "values"), _KEYS, ids=[str(of) for of, _ in _KEYS])
@given(data=st.data())
@settings(max_examples=40)
def test_equal_keys_have_equal_hashes_wherever_they_stand(of: pa.DataType, values: Any, data: st.DataObject) -> None:
    pool = data.draw(st.lists(st.none() | values, min_size=1, max_size=5))
    rows = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=20))
    start = data.draw(st.integers(0, len(rows) - 1))
    batch = pa.record_batch([pa.array(rows, of)], names=["k"])
    hashes = hash_rows(batch, ["k"]).tolist()
    assert hash_rows(batch.slice(start), ["k"]).tolist() == hashes[start:]
    assert [hash_rows(pa.record_batch([pa.array([row], of)], names=["k"]), ["k"])[0] for row in rows] == hashes
    known: dict[Any, int] = {}
    for row, hashed in zip(rows, hashes, strict=True):
        assert known.setdefault(row, hashed) == hashed


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_whole_numbers_have_the_same_hashes_in_the_short_way(values: list[int]) -> None:
    column = pa.array(values, pa.int64())
    assert hash_longs(column.to_numpy()).tolist() == hash_rows(pa.record_batch([column], names=["k"]), ["k"]).tolist()


def test_both_zeros_are_one_key() -> None:
    plus, minus = hash_rows(pa.record_batch([pa.array([0.0, -0.0])], names=["k"]), ["k"])
    assert plus == minus


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 1, 999, 1000, 1999, -1, -999, -1000, -1001, None], pa.int64()).cast(pa.timestamp("ns")),
        pa.array([0, 1, -1, None], pa.int64()).cast(pa.timestamp("ms", "UTC")),
        pa.array([0, 86_400_000, -86_400_000, None], pa.int64()).view(pa.date64()),
        pa.array([0.0, -0.0, float("nan"), -float("nan"), None, 1.5], pa.float32()),
        pa.array([0, 2**63, 2**64 - 1, None], pa.uint64()),
    ],
    ids=lambda column: str(column.type),
)
def test_rows_of_one_group_of_metrics_have_equal_hashes(column: pa.Array) -> None:
    """Else the group would be cut in two, in two tasks."""
    batch = pa.record_batch([column], names=["k"])
    slots = Grouping(("k",)).slot_of(batch, BytesIndex())
    known: dict[int, int] = {}
    for slot, hashed in zip(slots.tolist(), hash_rows(batch, ["k"]).tolist(), strict=True):
        assert known.setdefault(slot, hashed) == hashed


def test_a_dictionary_column_hashes_as_its_values_do() -> None:
    def hashes(column: pa.Array) -> list[int]:
        return list(hash_rows(pa.record_batch([column], names=["k"]), ["k"]).tolist())

    assert hashes(pa.array(["p", "q"]).dictionary_encode()) == hashes(pa.array(["p", "q"]))
    assert hashes(pa.array(["q", "p"]).dictionary_encode()) == hashes(pa.array(["p", "q"]))[::-1]


def test_the_hash_is_state_and_never_changes() -> None:
    """Golden numbers: were they to change, flows that go on would look for their keys in other tasks."""
    golden: list[tuple[pa.Array, list[int]]] = [
        (pa.array([0, 1, -1, None, 2**63 - 1]), _INTS),
        (pa.array([1], pa.int8()), _INTS[1:2]),
        (pa.array(["", "a", None, "headrace"]), _TEXTS),
        (pa.array([b"", b"a"]), _TEXTS[:2]),
        (pa.array([1.5, None]), [1514939743891145531, 9248179162272254404]),
        (pa.array([0, 1], pa.timestamp("us", "UTC")), _INTS[:2]),
        (pa.array([1, None], pa.date32()), [14456362452361550524, 9248179162272254404]),
        (pa.array([True, False]), [14456362452361550524, 16597517641685692400]),
        (pa.array([Decimal(1), Decimal(2)], pa.decimal128(10, 2)), [2361725478333456956, 16928936909557967549]),
        (pa.array([Decimal(1), Decimal(-2)], pa.decimal128(30, 2)), [2361725478333456956, 1026135318200626106]),
    ]
    for column, expected in golden:
        assert hash_rows(pa.record_batch([column], names=["k"]), ["k"]).tolist() == expected, column.type
    two = pa.record_batch([pa.array([1, 2]), pa.array(["a", None])], names=["a", "b"])
    assert hash_rows(two, ["a", "b"]).tolist() == [7244860871404579419, 2989076572336199278]
    assert hash_rows(two, ["b", "a"]).tolist() != hash_rows(two, ["a", "b"]).tolist()
    targets = hr.shuffle(3).targets(_batch(list(range(12))), 5, Place(1, 2, 4))
    assert targets is not None
    assert targets.tolist() == _SHUFFLED


def test_keys_spread_over_tasks() -> None:
    batch = pa.record_batch([pa.array([f"card-{n}" for n in range(4000)])], names=["k"])
    targets = hr.key("k").targets(batch, 0, Place(0, 1, 8))
    assert targets is not None
    assert np.bincount(targets, minlength=8).min() > 400


def test_no_texts_at_all() -> None:
    for rows in ([], [None, None], ["", ""]):
        batch = pa.record_batch([pa.array(rows, pa.string())], names=["k"])
        assert len(hash_rows(batch, ["k"])) == len(rows)
        assert len(set(hash_rows(batch, ["k"]).tolist())) <= 1


_INTS = [16597517641685692400, 14456362452361550524, 15564922159468074029, 9248179162272254404, 8953666259386031321]
_TEXTS = [9802824641546359861, 2405865720447377357, 11400714819323198485, 10838375364737816925]
_SHUFFLED = [2, 0, 3, 2, 3, 0, 3, 0, 1, 2, 2, 0]
