"""A copy that keeps silent: what it keeps, what a commit lets go, and what it says once it speaks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.flow.effects import Append, Deliver, Report
from headrace.flow.silence import Silence
from headrace.model import frames

_OUTSIDE = 900


def _batch(count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(count), pa.int64())})


def _data(channel: int, first: int, count: int) -> bytes:
    return frames.encode(frames.data(channel, first, _batch(count)))


def _deliver(first: int, count: int, node: str = "out") -> Deliver:
    return Deliver("t.0~1", node, first, _batch(count))


def _committed(sent: dict[str, int] | None = None, delivered: dict[str, int] | None = None) -> dict[str, Any]:
    return {"sent": sent or {}, "delivered": delivered or {}}


def test_what_was_kept_is_said_once_in_its_order() -> None:
    silence = Silence({})
    first, second, third = Append("a", [_data(0, 0, 2)]), _deliver(0, 3), Append("b", [_data(1, 0, 1)])
    silence.keep([first, second])
    silence.keep([third])
    assert silence.break_it() == [first, second, third]
    assert silence.break_it() == []
    assert silence.size_bytes == 0


def test_a_commit_lets_go_what_it_covers_and_nothing_else() -> None:
    silence = Silence({})
    silence.keep([Append("a", [_data(0, 0, 2), _data(0, 2, 2), _data(1, 0, 2)]), _deliver(0, 3), _deliver(3, 1)])
    silence.forget(_committed({"0": 2}, {"out": 3}))
    assert silence.break_it() == [Append("a", [_data(0, 2, 2)]), Append("a", [_data(1, 0, 2)]), _deliver(3, 1)]


def test_a_frame_of_which_one_record_is_not_covered_stays_whole() -> None:
    """Who receives it slices off what it has had."""
    silence = Silence({})
    silence.keep([Append("a", [_data(0, 5, 4)]), _deliver(5, 4)])
    silence.forget(_committed({"0": 8}, {"out": 8}))
    assert len(silence.break_it()) == 2
    silence.keep([Append("a", [_data(0, 5, 4)]), _deliver(5, 4)])
    silence.forget(_committed({"0": 9}, {"out": 9}))
    assert silence.break_it() == []


def test_an_older_commit_that_is_seen_later_changes_nothing() -> None:
    silence = Silence({})
    silence.keep([Append("a", [_data(0, at, 1) for at in range(6)])])
    silence.forget(_committed({"0": 4}))
    silence.forget(_committed({"0": 2}))
    assert silence.break_it() == [Append("a", [_data(0, at, 1)]) for at in (4, 5)]


def test_the_sizes_of_what_is_kept_are_known_at_any_time() -> None:
    silence = Silence({})
    pieces = [_data(0, at * 10, 10) for at in range(5)]
    silence.keep([Append("a", pieces[:3]), _deliver(0, 100)])
    assert silence.size_bytes == sum(map(len, pieces[:3])) + 800
    silence.forget(_committed({"0": 20}))
    assert silence.size_bytes == len(pieces[2]) + 800
    silence.keep([Append("a", pieces[3:])])
    silence.forget(_committed({"0": 20}, {"out": 100}))
    assert silence.size_bytes == sum(map(len, pieces[2:]))


def test_ends_are_kept_and_signs_of_progress_are_not() -> None:
    silence = Silence({})
    end, beat = frames.encode(frames.end(0, 7)), frames.encode(frames.control(0, 6, {"beat": 1}))
    heard = [frames.encode(frames.heartbeat(0, 7, 99)), frames.encode(frames.report(_batch(1)))]
    silence.keep([Append("a", [beat, *heard, end]), Report({"worker": 1})])
    assert silence.break_it() == [Append("a", [beat]), Append("a", [end])]


def test_an_end_is_let_go_with_the_number_that_it_takes() -> None:
    silence = Silence({})
    end = frames.encode(frames.end(0, 7))
    silence.keep([Append("a", [end])])
    silence.forget(_committed({"0": 7}))
    assert silence.size_bytes == len(end)
    silence.forget(_committed({"0": 8}))
    assert silence.size_bytes == 0


def test_what_goes_to_a_queue_outside_is_numbered_by_its_sink() -> None:
    """No channel of the flow has its number, and a commit says how much the sink was given."""
    silence = Silence({_OUTSIDE: "out"})
    silence.keep([Append("outside", [_data(_OUTSIDE, 0, 4), _data(_OUTSIDE, 4, 4)])])
    silence.forget(_committed({str(_OUTSIDE): 8}))
    assert len(silence.break_it()) == 2, "that is another thing"
    silence.keep([Append("outside", [_data(_OUTSIDE, 0, 4), _data(_OUTSIDE, 4, 4)])])
    silence.forget(_committed(delivered={"out": 4}))
    assert silence.break_it() == [Append("outside", [_data(_OUTSIDE, 4, 4)])]


def test_sinks_of_one_task_are_numbered_apart() -> None:
    silence = Silence({})
    silence.keep([_deliver(0, 5, "one"), _deliver(0, 5, "two")])
    silence.forget(_committed(delivered={"one": 5, "two": 4}))
    assert silence.break_it() == [_deliver(0, 5, "two")]
