"""A task: frames in, frames out. Whatever was cut or sent twice, wherever it started again: the same records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import QueueDamaged
from headrace.flow.builder import Flow
from headrace.flow.effects import Append, Deliver, Effect, Snapshot
from headrace.flow.io import Feed
from headrace.flow.plan import Plan, make_plan
from headrace.flow.task import Task
from headrace.model import frames
from headrace.model.frames import Frame, Kind
from headrace.queues.protocol import Entry

_NUMBERS = pa.schema([("n", pa.int64())])


def _make(first: int, count: int) -> pa.RecordBatch:
    return _batch(*range(first, first + count))


def _batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=_NUMBERS)


def _ignored(batch: pa.RecordBatch) -> None:
    return None


def _count(state: int | None, record: dict[str, Any]) -> Any:
    """The numbers of a key so far; a number of 7s forgets it; fives go aside."""
    seen = (state or 0) + 1
    if record["n"] % 7 == 6:
        return None, {"n": -seen}
    return seen, [{"n": record["n"]}] * (seen % 3)


class _Sum(hr.Stage):
    def __init__(self) -> None:
        self.sum = 0

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = []
        for number in batch.column("n").to_pylist():
            self.sum += number
            found.append(self.sum)
        return _batch(*found)

    def on_end(self) -> pa.RecordBatch:
        return _batch(self.sum, -1)

    def snapshot(self) -> Any:
        return [self.sum]

    def restore(self, state: Any) -> None:
        self.sum = state[0]


def _plan() -> Plan:
    """Two sources; a keyed stage with a class fused behind it, routed in turn, by key and to a sink."""
    flow = Flow("f")
    sources = [flow.source(name, hr.generate(_make, 10), parallelism=1) for name in ("s", "t")]
    counted = flow.keyed("count", _count, *sources, by="n", parallelism=1)
    summed = flow.stage("sum", _Sum, counted)
    flow.sink("here", counted, hr.callback(_ignored))
    flow.sink("turn", summed, hr.callback(_ignored), parallelism=3)
    flow.sink("keys", summed, hr.callback(_ignored), parallelism=2, route=hr.key("n"))
    flow.sink("all", counted, hr.queue("all"), route=hr.broadcast(), parallelism=2)
    return make_plan(flow.graph())


_PLAN = _plan()
_CHANNELS = _PLAN.tasks["count.0"].channels


def _task(plan: Plan = _PLAN, name: str = "count.0") -> Task:
    return Task(plan, plan.tasks[name])


def _entries(found: Sequence[Frame], start: int = 0) -> list[Entry]:
    return [Entry("inbox", frames.encode(frame), start + at + 1) for at, frame in enumerate(found)]


class _Seen:
    """What came out, by channel: each number has one record, whoever sends it again."""

    def __init__(self) -> None:
        self.records: dict[Any, dict[int, Any]] = {}

    def take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                for content in effect.frames:
                    self._frame(effect.queue, frames.decode(content))
            elif isinstance(effect, Deliver):
                self._put(effect.node, effect.first, effect.batch.to_pylist())

    def _frame(self, queue: str, frame: Frame) -> None:
        records = frame.batch.to_pylist() if frame.batch is not None else [frame.kind.name]
        self._put((queue, frame.channel), frame.first, records)

    def _put(self, channel: Any, first: int, records: list[Any]) -> None:
        known = self.records.setdefault(channel, {})
        assert first <= len(known), f"{channel}: a gap before {first}"
        for at, record in enumerate(records, first):
            assert known.setdefault(at, record) == record, f"{channel}: {at} was {known[at]} and is {record}"


@st.composite
def _inboxes(draw: st.DrawFn) -> list[Frame]:
    """Frames of two channels, cut anyhow, some of them again and cut otherwise, and both ends, perhaps twice."""
    found: list[Frame] = []
    sent = {channel: draw(st.integers(0, 12)) for channel in _CHANNELS}
    reached = dict.fromkeys(_CHANNELS, 0)
    for channel in draw(st.lists(st.sampled_from(_CHANNELS), max_size=14)):
        again = draw(st.integers(0, reached[channel]))
        until = draw(st.integers(reached[channel], sent[channel]))
        found.append(_numbered(channel, again, until))
        reached[channel] = until
    for channel in draw(st.permutations(_CHANNELS)):
        found.append(_numbered(channel, draw(st.integers(0, reached[channel])), sent[channel]))
        found += [frames.end(channel, sent[channel])] * draw(st.integers(1, 2))
    return found


def _numbered(channel: int, first: int, until: int) -> Frame:
    return frames.data(channel, first, _batch(*(channel * 100 + number for number in range(first, until))))


def _without_doubles(found: list[Frame]) -> list[Frame]:
    """Each record alone, once, in the order in which it first came."""
    reached: dict[int, int] = {}
    single: list[Frame] = []
    for frame in found:
        numbers = range(max(frame.first, reached.get(frame.channel, 0)), frame.end)
        single += [_numbered(frame.channel, n, n + 1) if frame.batch is not None else frame for n in numbers]
        reached[frame.channel] = max(reached.get(frame.channel, 0), frame.end)
    return single


def _run(found: Sequence[Frame]) -> dict[Any, dict[int, Any]]:
    seen, task = _Seen(), _task()
    for entry in _entries(found):
        seen.take(task.take([entry]))
    assert task.finished
    return seen.records


# ---------------------------------------------------------------------- inputs


@given(_inboxes(), st.lists(st.integers(1, 5), max_size=10))
@settings(max_examples=80)
def test_what_comes_twice_is_taken_once_wherever_it_is_cut(found: list[Frame], sizes: list[int]) -> None:
    task, seen, entries = _task(), _Seen(), _entries(found)
    while entries:
        size = sizes.pop() if sizes else 3
        seen.take(task.take(entries[:size]))
        entries = entries[size:]
    assert task.position == len(found)
    assert seen.records == _run(_without_doubles(found))


def test_something_missing_is_damage() -> None:
    task = _task()
    task.take(_entries([_numbered(_CHANNELS[0], 0, 3)]))
    with pytest.raises(
        QueueDamaged, match=f"records 3 to 4 of channel {_CHANNELS[0]} are missing; restore the queues from a copy"
    ):
        task.take(_entries([_numbered(_CHANNELS[0], 5, 6)]))


def test_a_missing_record_before_the_end_is_damage() -> None:
    with pytest.raises(QueueDamaged, match="records 0 to 0 of channel"):
        _task().take(_entries([frames.end(_CHANNELS[1], 1)]))


def test_a_channel_that_is_not_its_own_is_damage() -> None:
    with pytest.raises(QueueDamaged, match=r"queue f\.in\.count\.0: it has a frame of channel 999, which is not its"):
        _task().take(_entries([_numbered(999, 0, 1)]))


def test_heartbeats_and_control_frames_change_nothing() -> None:
    task, plain = _task(), _task()
    channel = _CHANNELS[0]
    mixed = [
        frames.heartbeat(channel, 0, 5),
        _numbered(channel, 0, 2),
        frames.control(channel, 2, {"a": 1}),
        _numbered(channel, 3, 5),
    ]
    seen, expected = _Seen(), _Seen()
    seen.take(task.take(_entries(mixed)))
    expected.take(plain.take(_entries([frames.data(channel, 0, _batch(*(channel * 100 + n for n in (0, 1, 3, 4))))])))
    assert seen.records == expected.records
    assert task.next[channel] == 5


def test_it_ends_once_all_channels_have() -> None:
    task = _task()
    assert not any(isinstance(e, Append) for e in task.take(_entries([frames.end(_CHANNELS[0], 0)])))
    assert task.ended == {_CHANNELS[0]}
    seen = _Seen()
    seen.take(task.take(_entries([frames.end(_CHANNELS[1], 0)])))
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
    assert task.take(_entries([frames.end(_CHANNELS[1], 0)], 9)) == []


def test_a_source_is_fed_and_ends() -> None:
    task = _task(name="s.0")
    seen = _Seen()
    seen.take(task.feed(Feed(_batch(1, 2), 2)))
    assert (task.fed, task.source_ended, task.dirty) == (2, False, True)
    seen.take(task.feed(Feed(None, 2, ended=True)))
    assert task.finished
    assert seen.records == {("f.in.count.0", _CHANNELS[0]): {0: {"n": 1}, 1: {"n": 2}, 2: "END"}}


def test_a_feed_may_end_with_its_last_records() -> None:
    task, seen = _task(name="s.0"), _Seen()
    seen.take(task.feed(Feed(_batch(1), 1, ended=True)))
    assert seen.records == {("f.in.count.0", _CHANNELS[0]): {0: {"n": 1}, 1: "END"}}


def test_a_long_batch_is_cut_into_frames() -> None:
    task = _task(name="s.0")
    (append,) = task.feed(Feed(_make(0, 200_000), 200_000))
    assert isinstance(append, Append)
    decoded = [frames.decode(content) for content in append.frames]
    assert max(frame.count for frame in decoded) <= 65_536
    assert [frame.first for frame in decoded] == [0, *(frame.end for frame in decoded[:-1])]
    assert decoded[-1].end == 200_000


# -------------------------------------------------------------------- restarts


def _restored(snapshot: Snapshot, files: dict[str, bytes], plan: Plan = _PLAN) -> Task:
    again = _task(plan, snapshot.task)
    again.restore(json.loads(json.dumps(snapshot.values)), files.__getitem__)
    return again


@given(_inboxes(), st.data())
@settings(max_examples=80)
def test_from_any_commit_it_does_again_what_it_did(found: list[Frame], data: st.DataObject) -> None:
    """Some batches, perhaps a commit, perhaps a crash: back to the last commit, cut otherwise this time."""
    entries = _entries(found)
    files: dict[str, bytes] = {}
    task, seen = _task(), _Seen()
    last: Snapshot | None = None
    version, crashes = 0, 0
    while not task.finished or task.position < len(entries):
        size = data.draw(st.integers(1, 4))
        seen.take(task.take(entries[task.position : task.position + size]))
        then = data.draw(st.sampled_from(["on", "commit", "crash"]))
        if then == "commit":
            version += 1
            last = task.snapshot(1 + crashes, version)
            assert not set(last.new_files) & set(files)
            files.update(last.new_files)
            assert set(last.files) <= set(files)
            assert not task.dirty
        elif then == "crash" and crashes < 4:
            crashes += 1
            task = _task() if last is None else _restored(last, files)
            version = 0 if last is None else last.version
    assert seen.records == _run(_without_doubles(found))


def test_a_snapshot_does_not_change_when_the_task_goes_on() -> None:
    task = _task()
    task.take(_entries([_numbered(_CHANNELS[0], 0, 3)]))
    snapshot = task.snapshot(1, 1)
    before = json.dumps(snapshot.values)
    task.take(_entries([_numbered(_CHANNELS[0], 3, 9)], 1))
    task.snapshot(1, 2)
    assert json.dumps(snapshot.values) == before


def test_files_of_state_are_few_and_small() -> None:
    task = _task()
    files: dict[str, bytes] = {}
    counts = []
    for version in range(1, 120):
        task.take([Entry("inbox", frames.encode(_numbered(_CHANNELS[0], version - 1, version)), version)])
        snapshot = task.snapshot(1, version)
        files.update(snapshot.new_files)
        counts.append(len(snapshot.files))
        if version % 10 == 0:
            again = _restored(snapshot, files)
            assert (
                json.loads(json.dumps(again.snapshot(9, 9).values))["next"]
                == json.loads(json.dumps(snapshot.values))["next"]
            )
    assert max(counts) <= 2 * 20


def test_a_task_with_no_state_has_no_files() -> None:
    task = _task(name="turn.0")
    task.take(_entries([_numbered(task.plan.channels[0], 0, 3)]))
    snapshot = task.snapshot(1, 1)
    assert (snapshot.files, dict(snapshot.new_files)) == ((), {})


# ----------------------------------------------------------------------- loops


def _less(record: dict[str, Any]) -> Any:
    return {"n": record["n"] - 1} if record["n"] > 0 else hr.side("done", record)


def _loop_plan() -> Plan:
    flow = Flow("f")
    again = flow.loop("again", flow.source("s", hr.generate(_make, 10)))
    less = flow.stage("less", _less, again, each="record", sides={"done": _NUMBERS})
    again.back(less)
    flow.sink("out", less.side("done"), hr.callback(_ignored))
    return make_plan(flow.graph())


def _go_round(task: Task, seen: _Seen, entries: list[Entry], start: int) -> int:
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
    task, seen = _task(plan, "again.0"), _Seen()
    entry = next(c for c in task.plan.channels if c not in task.plan.back_channels)
    position = _go_round(task, seen, _entries([frames.data(entry, 0, _batch(3, 0, 5))]), 0)
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
    assert task.end_loops() == []


def test_a_task_without_a_loop_has_none_to_end() -> None:
    task = _task()
    task.take(_entries([frames.end(_CHANNELS[0], 0)]))
    assert task.end_loops() == []
    assert not task.finished


# -------------------------------------------------------------- queues outside


def test_a_queue_from_outside_may_have_lost_its_beginning_but_nothing_after() -> None:
    flow = Flow("f")
    flow.sink("out", flow.source("s", hr.queue("orders", _NUMBERS, producers=2)), hr.callback(_ignored))
    task, seen = _task(make_plan(flow.graph()), "s.0"), _Seen()
    seen.take(task.take(_entries([_numbered(0, 7, 9), _numbered(0, 8, 10), frames.end(0, 10), frames.end(0, 10)])))
    assert [r["n"] for r in seen.records["out"].values()] == [7, 8, 9]
    assert not task.finished, "one of two producers"
    with pytest.raises(QueueDamaged, match="records 11 to 11 of channel 0 are missing"):
        task.take(_entries([_numbered(0, 12, 13)]))
    task.take(_entries([frames.end(1, 4)]))
    assert task.finished


def test_a_queue_without_a_number_of_producers_never_ends() -> None:
    flow = Flow("f")
    flow.sink("out", flow.source("s", hr.queue("orders", _NUMBERS)), hr.callback(_ignored))
    task = _task(make_plan(flow.graph()), "s.0")
    task.take(_entries([frames.end(0, 0), frames.end(1, 0)]))
    assert not task.finished


def test_two_sinks_may_write_to_one_queue() -> None:
    flow = Flow("f")
    numbers = flow.source("s", hr.generate(_make, 4))
    flow.sink("a", numbers, hr.queue("q"))
    flow.sink(
        "b", flow.stage("more", lambda b: _batch(*(n + 100 for n in b.column("n").to_pylist())), numbers), hr.queue("q")
    )
    effects = _task(make_plan(flow.graph()), "s.0").feed(Feed(_batch(1, 2), 2, ended=True))
    reading = Flow("g")
    reading.sink("out", reading.source("s", hr.queue("q", _NUMBERS)), hr.callback(_ignored))
    reader, seen = _task(make_plan(reading.graph()), "s.0"), _Seen()
    seen.take(
        reader.take([Entry("q", c, at + 1) for e in effects if isinstance(e, Append) for at, c in enumerate(e.frames)])
    )
    assert sorted(r["n"] for r in seen.records["out"].values()) == [1, 2, 101, 102]
