"""A task, what comes into its inbox, and what came out of it: shared by the tests of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.effects import Append, Deliver, Effect
from headrace.flow.plan import Plan, make_plan
from headrace.flow.task import Task
from headrace.model import frames
from headrace.model.frames import Frame
from headrace.queues.protocol import Entry

NUMBERS = pa.schema([("n", pa.int64())])


def make(first: int, count: int) -> pa.RecordBatch:
    return batch_of(*range(first, first + count))


def batch_of(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=NUMBERS)


def ignored(batch: pa.RecordBatch) -> None:
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
        return batch_of(*found)

    def on_end(self) -> pa.RecordBatch:
        return batch_of(self.sum, -1)

    def snapshot(self) -> Any:
        return [self.sum]

    def restore(self, state: Any) -> None:
        self.sum = state[0]


def _plan() -> Plan:
    """Two sources; a keyed stage with a class fused behind it, routed in turn, by key and to a sink."""
    flow = Flow("f")
    sources = [flow.source(name, hr.generate(make, 10), parallelism=1) for name in ("s", "t")]
    counted = flow.keyed("count", _count, *sources, by="n", parallelism=1)
    summed = flow.stage("sum", _Sum, counted)
    flow.sink("here", counted, hr.callback(ignored))
    flow.sink("turn", summed, hr.callback(ignored), parallelism=3)
    flow.sink("keys", summed, hr.callback(ignored), parallelism=2, route=hr.key("n"))
    flow.sink("all", counted, hr.queue("all"), route=hr.broadcast(), parallelism=2)
    return make_plan(flow.graph())


PLAN = _plan()
CHANNELS = PLAN.tasks["count.0"].channels


def task_of(plan: Plan = PLAN, name: str = "count.0") -> Task:
    return Task(plan, plan.tasks[name])


def entries_of(found: Sequence[Frame], start: int = 0) -> list[Entry]:
    return [Entry("inbox", frames.encode(frame), start + at + 1) for at, frame in enumerate(found)]


class Seen:
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
def inboxes(draw: st.DrawFn) -> list[Frame]:
    """Frames of two channels, cut anyhow, some of them again and cut otherwise, and both ends, perhaps twice."""
    found: list[Frame] = []
    sent = {channel: draw(st.integers(0, 12)) for channel in CHANNELS}
    reached = dict.fromkeys(CHANNELS, 0)
    for channel in draw(st.lists(st.sampled_from(CHANNELS), max_size=14)):
        again = draw(st.integers(0, reached[channel]))
        until = draw(st.integers(reached[channel], sent[channel]))
        found.append(numbered(channel, again, until))
        reached[channel] = until
    for channel in draw(st.permutations(CHANNELS)):
        found.append(numbered(channel, draw(st.integers(0, reached[channel])), sent[channel]))
        found += [frames.end(channel, sent[channel])] * draw(st.integers(1, 2))
    return found


def numbered(channel: int, first: int, until: int) -> Frame:
    return frames.data(channel, first, batch_of(*(channel * 100 + number for number in range(first, until))))


def without_doubles(found: list[Frame]) -> list[Frame]:
    """Each record alone, once, in the order in which it first came."""
    reached: dict[int, int] = {}
    single: list[Frame] = []
    for frame in found:
        numbers = range(max(frame.first, reached.get(frame.channel, 0)), frame.end)
        single += [numbered(frame.channel, n, n + 1) if frame.batch is not None else frame for n in numbers]
        reached[frame.channel] = max(reached.get(frame.channel, 0), frame.end)
    return single


def run_alone(found: Sequence[Frame]) -> dict[Any, dict[int, Any]]:
    seen, task = Seen(), task_of()
    for entry in entries_of(found):
        seen.take(task.take([entry]))
    assert task.finished
    return seen.records
