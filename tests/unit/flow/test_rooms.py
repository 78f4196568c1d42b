"""Room in queues: fixed, but for the queues of a merge that is stuck."""

from __future__ import annotations

from headrace.flow.rooms import Rooms

MB = 1 << 20


def test_an_inbox_has_the_room_that_was_said() -> None:
    rooms = Rooms(16 * MB, {}, 1.0)
    assert not rooms.is_full("in", 16 * MB, 0.0)
    assert [rooms.is_full("in", 16 * MB + 1, at) for at in (0.0, 100.0)] == [True, True]


def test_the_queues_of_a_merge_share_it() -> None:
    rooms = Rooms(16 * MB, {"a": 4}, 1.0)
    assert not rooms.is_full("a", 4 * MB, 0.0)
    assert rooms.is_full("a", 5 * MB, 0.0)


def test_a_queue_that_nothing_leaves_gets_more_and_loses_it_when_it_is_empty() -> None:
    rooms = Rooms(16 * MB, {"a": 2}, 1.0)
    assert [rooms.is_full("a", 9 * MB, at) for at in (0.0, 0.9, 1.0)] == [True, True, False]
    assert rooms.is_full("a", 17 * MB, 1.1)
    assert not rooms.is_full("a", 17 * MB, 2.1)
    assert not rooms.is_full("a", 8 * MB, 2.2)
    assert rooms.is_full("a", 9 * MB, 2.3)


def test_a_queue_that_something_leaves_does_not() -> None:
    rooms = Rooms(16 * MB, {"a": 2}, 1.0)
    assert all(rooms.is_full("a", (30 - at) * MB, at * 0.9) for at in range(20))


def test_there_is_an_end_to_it() -> None:
    rooms = Rooms(1 * MB, {"a": 1}, 1.0)
    assert rooms.is_full("a", 300 * MB, 0.0)
    assert all(rooms.is_full("a", 300 * MB, float(at)) for at in range(100))
