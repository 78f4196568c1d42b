"""A task: frames in, frames out. Whatever was cut or sent twice: the same records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import QueueDamaged
from headrace.flow.builder import Flow
from headrace.flow.effects import Append
from headrace.flow.io import Feed
from headrace.flow.plan import Plan, make_plan
from headrace.flow.task import Task
from headrace.model import frames
from headrace.model.frames import Frame, Kind
from headrace.queues.protocol import Entry

from .task_cases import (
    CHANNELS,
    NUMBERS,
    Seen,
    batch_of,
    entries_of,
    ignored,
    inboxes,
    make,
    numbered,
    run_alone,
    task_of,
    without_doubles,
)

# ---------------------------------------------------------------------- inputs


@given(inboxes(), st.lists(st.integers(1, 5), max_size=10))
@settings(max_examples=80)
def test_what_comes_twice_is_taken_once_wherever_it_is_cut(found: list[Frame], sizes: list[int]) -> None:
    task, seen, entries = task_of(), Seen(), entries_of(found)
    while entries:
        size = sizes.pop() if sizes else 3
        seen.take(task.take(entries[:size]))
        entries = entries[size:]
    assert task.position == len(found)
    assert seen.records == run_alone(without_doubles(found))


def test_something_missing_is_damage() -> None:
    task = task_of()
    task.take(entries_of([numbered(CHANNELS[0], 0, 3)]))
    with pytest.raises(
        QueueDamaged, match=f"records 3 to 4 of channel {CHANNELS[0]} are missing; restore the queues from a copy"
    ):
        task.take(entries_of([numbered(CHANNELS[0], 5, 6)]))


def test_a_missing_record_before_the_end_is_damage() -> None:
    with pytest.raises(QueueDamaged, match="records 0 to 0 of channel"):
        task_of().take(entries_of([frames.end(CHANNELS[1], 1)]))


def test_a_channel_that_is_not_its_own_is_damage() -> None:
    with pytest.raises(QueueDamaged, match=r"queue f\.in\.count\.0: it has a frame of channel 999, which is not its"):
        task_of().take(entries_of([numbered(999, 0, 1)]))


def test_heartbeats_and_control_frames_change_nothing() -> None:
    task, plain = task_of(), task_of()
    channel = CHANNELS[0]
    mixed = [
        frames.heartbeat(channel, 0, 5),
        numbered(channel, 0, 2),
        frames.control(channel, 2, {"a": 1}),
        numbered(channel, 3, 5),
    ]
    seen, expected = Seen(), Seen()
    seen.take(task.take(entries_of(mixed)))
    expected.take(
        plain.take(entries_of([frames.data(channel, 0, batch_of(*(channel * 100 + n for n in (0, 1, 3, 4))))]))
    )
    assert seen.records == expected.records
    assert task.next[channel] == 5


def test_it_ends_once_all_channels_have() -> None:
    task = task_of()
    assert not any(isinstance(e, Append) for e in task.take(entries_of([frames.end(CHANNELS[0], 0)])))
    assert task.ended == {CHANNELS[0]}
    seen = Seen()
    seen.take(task.take(entries_of([frames.end(CHANNELS[1], 0)])))
    assert task.finished
    ends = {key: list(records.values()) for key, records in seen.records.items() if isinstance(key, tuple)}
    assert all(records[-1] == "END" for records in ends.values())
    assert sorted(queue for queue, _ in ends) == [
        "f.in.all.0",
        "f.in.all.1",
        *(f"f.in.keys.{n}" for n in range(2)),
        *(f"f.in.turn.{n}" for n in range(3)),
    ]
    said = sorted(r["n"] for (queue, _), records in ends.items() if "turn" in queue for r in records if r != "END")
    assert said == [-1, 0]
    assert task.take(entries_of([frames.end(CHANNELS[1], 0)], 9)) == []


def test_a_source_is_fed_and_ends() -> None:
    task = task_of(name="s.0")
    seen = Seen()
    seen.take(task.feed(Feed(batch_of(1, 2), 2)))
    assert (task.fed, task.source_ended, task.dirty) == (2, False, True)
    seen.take(task.feed(Feed(None, 2, ended=True)))
    assert task.finished
    assert seen.records == {("f.in.count.0", CHANNELS[0]): {0: {"n": 1}, 1: {"n": 2}, 2: "END"}}


def test_a_feed_may_end_with_its_last_records() -> None:
    task, seen = task_of(name="s.0"), Seen()
    seen.take(task.feed(Feed(batch_of(1), 1, ended=True)))
    assert seen.records == {("f.in.count.0", CHANNELS[0]): {0: {"n": 1}, 1: "END"}}


def test_a_long_batch_is_cut_into_frames() -> None:
    task = task_of(name="s.0")
    (append,) = task.feed(Feed(make(0, 200_000), 200_000))
    assert isinstance(append, Append)
    decoded = [frames.decode(content) for content in append.frames]
    assert max(frame.count for frame in decoded) <= 65_536
    assert [frame.first for frame in decoded] == [0, *(frame.end for frame in decoded[:-1])]
    assert decoded[-1].end == 200_000


# ----------------------------------------------------------------------- loops


def _less(record: dict[str, Any]) -> Any:
    return {"n": record["n"] - 1} if record["n"] > 0 else hr.side("done", record)


def _loop_plan() -> Plan:
    flow = Flow("f")
    again = flow.loop("again", flow.source("s", hr.generate(make, 10)))
    less = flow.stage("less", _less, again, each="record", sides={"done": NUMBERS})
    again.back(less)
    flow.sink("out", less.side("done"), hr.callback(ignored))
    return make_plan(flow.graph())


def _go_round(task: Task, seen: Seen, entries: list[Entry], start: int) -> int:
    """Until nothing comes back any more; gives the position."""
    while entries:
        effects = task.take(entries)
        seen.take(effects)
        start += len(entries)
        back = [
            content for e in effects if isinstance(e, Append) and e.queue == task.plan.inbox for content in e.frames
        ]
        entries = [Entry("inbox", content, start + at + 1) for at, content in enumerate(back)]
    return start


def test_records_go_round_until_the_loop_is_told_to_end() -> None:
    plan = _loop_plan()
    task, seen = task_of(plan, "again.0"), Seen()
    entry = next(c for c in task.plan.channels if c not in task.plan.back_channels)
    position = _go_round(task, seen, entries_of([frames.data(entry, 0, batch_of(3, 0, 5))]), 0)
    assert task.end_loops() == [], "its entry has not ended"
    position = _go_round(task, seen, [Entry("inbox", frames.encode(frames.end(entry, 3)), position + 1)], position)
    effects = task.end_loops()
    assert task.finished
    seen.take(effects)
    assert [r["n"] for r in seen.records["out"].values()] == [0, 0, 0]
    ((back, records),) = [(k, r) for k, r in seen.records.items() if isinstance(k, tuple)]
    assert back[1] in task.plan.back_channels
    assert records[len(records) - 1] == "END"
    # Its own end comes round too, and changes nothing.
    end = next(content for e in effects if isinstance(e, Append) for content in e.frames)
    assert frames.decode(end).kind == Kind.END
    assert task.take([Entry("inbox", end, position + 1)]) == []
    task.snapshot(1, 1)
    assert task.end_loops() == []
    assert not task.dirty, "told again and again, it would never be done committing"


def test_a_task_without_a_loop_has_none_to_end() -> None:
    task = task_of()
    task.take(entries_of([frames.end(CHANNELS[0], 0)]))
    assert task.end_loops() == []
    assert not task.finished


# -------------------------------------------------------------- queues outside


def test_a_queue_from_outside_may_have_lost_its_beginning_but_nothing_after() -> None:
    flow = Flow("f")
    flow.sink("out", flow.source("s", hr.queue("orders", NUMBERS, producers=2)), hr.callback(ignored))
    task, seen = task_of(make_plan(flow.graph()), "s.0"), Seen()
    seen.take(task.take(entries_of([numbered(0, 7, 9), numbered(0, 8, 10), frames.end(0, 10), frames.end(0, 10)])))
    assert [r["n"] for r in seen.records["out"].values()] == [7, 8, 9]
    assert not task.finished, "one of two producers"
    with pytest.raises(QueueDamaged, match="records 11 to 11 of channel 0 are missing"):
        task.take(entries_of([numbered(0, 12, 13)]))
    task.take(entries_of([frames.end(1, 4)]))
    assert task.finished


def test_a_queue_without_a_number_of_producers_never_ends() -> None:
    flow = Flow("f")
    flow.sink("out", flow.source("s", hr.queue("orders", NUMBERS)), hr.callback(ignored))
    task = task_of(make_plan(flow.graph()), "s.0")
    task.take(entries_of([frames.end(0, 0), frames.end(1, 0)]))
    assert not task.finished


def test_two_sinks_may_write_to_one_queue() -> None:
    flow = Flow("f")
    numbers = flow.source("s", hr.generate(make, 4))
    flow.sink("a", numbers, hr.queue("q"))
    flow.sink(
        "b",
        flow.stage("more", lambda b: batch_of(*(n + 100 for n in b.column("n").to_pylist())), numbers),
        hr.queue("q"),
    )
    effects = task_of(make_plan(flow.graph()), "s.0").feed(Feed(batch_of(1, 2), 2, ended=True))
    reading = Flow("g")
    reading.sink("out", reading.source("s", hr.queue("q", NUMBERS)), hr.callback(ignored))
    reader, seen = task_of(make_plan(reading.graph()), "s.0"), Seen()
    seen.take(
        reader.take([Entry("q", c, at + 1) for e in effects if isinstance(e, Append) for at, c in enumerate(e.frames)])
    )
    assert sorted(r["n"] for r in seen.records["out"].values()) == [1, 2, 101, 102]
