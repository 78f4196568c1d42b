from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import OrderBroken
from headrace.synchronize.mailbox import FIRST, LAST, ByDependence, Events, Key, after, merged

Lanes = list[list[Key]]


def _events(keys: list[Key], lane: int = 0) -> Events:
    times, ranks = (np.array([key[at] for key in keys], np.int64) for at in (0, 1))
    batch = pa.record_batch({"lane": pa.array([lane] * len(keys), pa.int64()), "time": pa.array(times)})
    return Events(batch, times, ranks, np.full(len(keys), lane, np.int64))


def _keys(parts: list[Events]) -> list[Key]:
    return [events.key(row) for events in parts for row in range(len(events))]


def _of_lanes(parts: list[Events]) -> list[tuple[int, Key]]:
    return [pair for events in parts for pair in zip(events.tags.tolist(), _keys([events]), strict=True)]


def _independent(lanes: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.zeros((lanes, lanes), np.bool_)


def _dependent(lanes: int, *pairs: tuple[int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    found = _independent(lanes)
    for a, b in pairs:
        found[a, b] = found[b, a] = True
    return found


# ----------------------------------------------------------------------- events


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), max_size=12), st.integers(-4, 4), st.integers(-4, 4))
def test_how_many_are_below_a_key(keys: list[Key], time: int, rank: int) -> None:
    assert _events(sorted(keys)).below((time, rank)) == sum(key < (time, rank) for key in keys)


def test_all_are_below_the_last_key_and_none_below_the_first() -> None:
    events = _events([(-(1 << 63), 0), (5, 1), ((1 << 63) - 1, 3)])
    assert (events.below(FIRST), events.below(LAST)) == (0, 3)
    assert events.below(after(5)) == 2


@given(st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=6), min_size=1, max_size=4))
def test_several_in_one_are_in_the_order_of_keys(parts: Lanes) -> None:
    """And ties as the parts are: a sort that is not stable would not be the same for everybody."""
    ordered = [_events(sorted(part), lane) for lane, part in enumerate(parts)]
    expected = sorted((key, lane) for lane, part in enumerate(parts) for key in part)
    assert [(key, lane) for lane, key in _of_lanes([merged(ordered)])] == expected


# ------------------------------------------------------------------------- rule


def _may_leave(lanes: Lanes, frontiers: list[Key], near: list[list[int]], outer: list[Key]) -> list[int]:
    """How many of each lane, by the rule itself: try more and more until it would break it.

    An event may leave when it is below what others say, all before it on its lane leave, and of each lane that it
    depends on all events before it have come, and leave. So must those of its own key: which of them is first would
    otherwise depend on which came first.
    """
    counts = [sum(key < limit for key in lane) for lane, limit in zip(lanes, outer, strict=True)]
    is_new = True
    while is_new:
        is_new = False
        for lane, held in enumerate(lanes):
            for at in range(counts[lane]):
                if not all(_is_past(held[at], lanes[o], frontiers[o], counts[o]) for o in near[lane] if o != lane):
                    counts[lane], is_new = at, True
                    break
    return counts


def _is_past(key: Key, other: list[Key], frontier: Key, count: int) -> bool:
    return key < frontier and all(held > key for held in other[count:])


_KEY = st.tuples(st.integers(0, 6), st.integers(0, 2))


@st.composite
def _mailboxes(draw: st.DrawFn) -> tuple[Lanes, list[Key], list[tuple[int, int]], list[Key]]:
    count = draw(st.integers(1, 4))
    lanes = [sorted(draw(st.lists(_KEY, max_size=6))) for _ in range(count)]
    beats = [draw(st.one_of(st.just(FIRST), _KEY, st.just(LAST))) for _ in lanes]
    frontiers = [max([beat, *lane[-1:]]) for lane, beat in zip(lanes, beats, strict=True)]
    pairs = [(a, b) for a in range(count) for b in range(a, count) if draw(st.booleans())]
    outer = [draw(st.one_of(st.just(LAST), _KEY)) for _ in lanes]
    return lanes, frontiers, pairs, outer


@settings(max_examples=200)
@given(_mailboxes())
def test_what_leaves_is_all_that_may_leave(drawn: tuple[Lanes, list[Key], list[tuple[int, int]], list[Key]]) -> None:
    lanes, frontiers, pairs, outer = drawn
    box = ByDependence([f"lane {n}" for n in range(len(lanes))], _dependent(len(lanes), *pairs))
    for lane, (keys, frontier) in enumerate(zip(lanes, frontiers, strict=True)):
        box.push(lane, _events(keys, lane))
        box.complete(lane, frontier)
    near = [[b for b in range(len(lanes)) if (a, b) in pairs or (b, a) in pairs] for a in range(len(lanes))]
    expected = _may_leave(lanes, frontiers, near, outer)
    left = _of_lanes(box.release(box.limits(outer)))
    for lane, count in enumerate(expected):
        assert [key for own, key in left if own == lane] == lanes[lane][:count]
        assert box.head(lane) == next(iter(lanes[lane][count:]), None)
    for at, (lane, key) in enumerate(left):
        assert all(key <= later for other, later in left[at:] if other in near[lane]), "in order, where it matters"
    assert box.rows == sum(map(len, lanes)) - len(left)
    assert not box.release(box.limits(outer)), "as far as possible, at once"


@settings(max_examples=50)
@given(_mailboxes(), st.randoms(use_true_random=False))
def test_the_order_is_the_same_however_events_come(
    drawn: tuple[Lanes, list[Key], list[tuple[int, int]], list[Key]], rng: object
) -> None:
    """All lanes depend on each other: whatever comes first, and in whatever pieces, one order leaves."""
    lanes = [[(time, lane) for time, _ in keys] for lane, keys in enumerate(drawn[0])]
    count = len(lanes)
    box = ByDependence(["lane"] * count, np.ones((count, count), np.bool_))
    waiting = {lane: list(keys) for lane, keys in enumerate(lanes)}
    left: list[Key] = []
    while waiting:
        lane = rng.choice(list(waiting))  # type: ignore[attr-defined]
        piece, waiting[lane] = waiting[lane][:2], waiting[lane][2:]
        box.push(lane, _events(piece, lane))
        if not waiting[lane]:
            del waiting[lane]
            box.complete(lane, LAST)
        left += _keys(box.release(box.limits([LAST] * count)))
    assert left == sorted(key for keys in lanes for key in keys)


# ------------------------------------------------------------------------ lanes


def test_ties_wait_for_each_other_and_leave_together() -> None:
    box = ByDependence(["a", "b"], _dependent(2, (0, 1)))
    box.push(0, _events([(5, 0)]))
    box.push(1, _events([(5, 0)], 1))
    assert not box.release(box.limits([LAST, LAST])), "either could get one more of that key"
    box.complete(0, (5, 1))
    assert not box.release(box.limits([LAST, LAST]))
    box.complete(1, (5, 1))
    assert len(_keys(box.release(box.limits([LAST, LAST])))) == 2


def test_an_independent_lane_waits_for_nothing() -> None:
    box = ByDependence(["a", "b"], _independent(2))
    box.push(0, _events([(9, 0)]))
    assert _keys(box.release(box.limits([LAST, LAST]))) == [(9, 0)]


def test_a_heartbeat_lets_others_go() -> None:
    box = ByDependence(["a", "b"], _dependent(2, (0, 1)))
    box.push(0, _events([(3, 0), (7, 0)]))
    box.complete(1, after(3))
    assert _keys(box.release(box.limits([LAST, LAST]))) == [(3, 0)]
    box.complete(1, (2, 0))
    assert box.frontiers[1] == after(3), "a frontier does not go back"
    assert box.next_of(0) == (7, 0)
    assert box.next_of(1) == after(3)
    assert box.first() == (7, 0)
    assert box.frontier == after(3)


def test_no_lanes_have_all_come() -> None:
    box = ByDependence([], _independent(0))
    assert (box.frontier, box.first(), box.limits([])) == (LAST, None, [])


@pytest.mark.parametrize("keys", [[(4, 0), (3, 0)], [(4, 1), (4, 0)]], ids=["time", "rank"])
def test_what_goes_back_within_a_piece_is_told_of(keys: list[Key]) -> None:
    box = ByDependence(["source orders.0"], _independent(1))
    with pytest.raises(OrderBroken, match=rf"source orders.0: .*an event of time {keys[1][0]} comes after .* time 4"):
        box.push(0, _events(keys))


def test_what_goes_back_behind_a_piece_or_a_heartbeat_is_told_of() -> None:
    box = ByDependence(["a"], _independent(1))
    box.push(0, _events([(4, 0)]))
    box.push(0, _events([(4, 0)]))  # a tie is no step back
    with pytest.raises(OrderBroken, match="an event of time 3 comes after one of time 4"):
        box.push(0, _events([(3, 9)]))
    box.complete(0, after(6))
    with pytest.raises(OrderBroken, match="an event of time 6 comes after one of time 6"):
        box.push(0, _events([(6, 0)]))


def test_what_has_not_left_can_be_put_back() -> None:
    box = ByDependence(["a", "b"], _dependent(2, (0, 1)))
    box.push(0, _events([(1, 0), (3, 0)]))
    box.push(0, _events([(5, 0)]))
    box.push(1, _events([(2, 0)], 1))
    box.release(box.limits([LAST, LAST]))
    again = ByDependence(["a", "b"], _dependent(2, (0, 1)))
    again.frontiers = list(box.frontiers)
    for lane, events in enumerate(box.content()):
        if events is not None:
            again.put_back(lane, events)
    assert again.rows == box.rows == 2
    for each in (box, again):
        each.complete(0, LAST)
        each.complete(1, LAST)
    assert _of_lanes(again.release([LAST, LAST])) == _of_lanes(box.release([LAST, LAST]))
