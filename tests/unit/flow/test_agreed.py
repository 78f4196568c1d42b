"""The inputs of a copy that agrees with others: what leaves, what is in a snapshot, and what is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import CopiesDiffer, QueueDamaged
from headrace.flow.agreed import Agreed
from headrace.flow.builder import Flow
from headrace.flow.copies import agreed
from headrace.flow.losses import Loss
from headrace.flow.plan import Plan, make_plan
from headrace.flow.second_copies import SecondCopies
from headrace.model import frames
from headrace.model.frames import Frame
from headrace.queues.protocol import Entry

from .coordinator_script import ignored, make

_ORDERS = ("round-robin", "leader")


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _plan(order: str) -> Plan:
    """Two tasks that send to one."""
    flow = Flow("f")
    numbers = flow.stage("two", _same, flow.source("s", hr.generate(make, 10)), parallelism=2, route=hr.rebalance())
    flow.sink("out", numbers, hr.callback(ignored), route=hr.rebalance())
    return make_plan(agreed(order, flow.graph()))


class _Queues:
    """What both have sent: records that say who sent them, beats where there are any, and ends."""

    def __init__(self, order: str):
        self.plan = _plan(order).tasks["out.0"]
        self.order = order
        self.held: dict[str, list[bytes]] = {each.queue: [] for each in self.plan.agreed}
        self.names = list(self.held)
        self._channels = [each.channel for each in self.plan.agreed]
        self._sent = [0, 0]

    def frame(self, at: int, first: int, count: int) -> Frame:
        return frames.data(self._channels[at], first, make(1000 * at + first, count))

    def records(self, at: int, count: int) -> None:
        self.put(at, self.frame(at, self._sent[at], count))

    def beat(self, number: int) -> None:
        for at in (0, 1):
            self.put(at, frames.control(self._channels[at], self._sent[at], {"beat": number}))

    def ends(self) -> None:
        for at in (0, 1):
            self.put(at, frames.end(self._channels[at], self._sent[at]))

    def put(self, at: int, frame: Frame) -> None:
        self.held[self.names[at]].append(frames.encode(frame))
        self._sent[at] = max(self._sent[at], frame.end)

    def log(self, message: dict[str, Any]) -> None:
        self.held.setdefault(str(self.plan.order_log), []).append(frames.encode(frames.control(0, 0, message)))

    def opened(self, **values: Any) -> Agreed:
        return Agreed(self.plan, self.order, 0, values.get("losses", ()), values.get("second"))


def _filled(order: str) -> _Queues:
    """Some of all: partial batches, and second copies that are cut otherwise."""
    queues = _Queues(order)
    for beat in (1, 2, 3):
        queues.records(0, 3)
        queues.records(1, beat)
        queues.put(0, queues.frame(0, 0, 2))
        if order == "round-robin":
            queues.beat(beat)
    queues.ends()
    if order == "leader":
        queues.log({"claim": 1, "by": 1, "life": "a"})
        for version, runs in enumerate([[[1, 2], [0, 4]], [[0, 1], [1, 3]], [[0, 5], [1, 2]]], 1):
            queues.log({"epoch": 1, "version": version, "runs": runs})
            queues.log({"epoch": 1, "alive": version})
    return queues


def _given(machine: Agreed) -> list[Any]:
    found: list[Any] = []
    for run in machine.release():
        found += [f"beat {run.beat}"] if run.records is None else run.records.column("n").to_pylist()
    return found


def _take(machine: Agreed, queues: _Queues, queue: str, since: int, until: int) -> list[Any]:
    part = queues.held[queue][since:until]
    machine.take(queue, [Entry(queue, frame, since + at + 1) for at, frame in enumerate(part)])
    return _given(machine)


def _all(queues: _Queues, machine: Agreed) -> list[Any]:
    found: list[Any] = []
    for queue, held in queues.held.items():
        found += _take(machine, queues, queue, machine.positions[queue], len(held))
    return found


# ----------------------------------------------------------------------- order


@pytest.mark.parametrize("order", _ORDERS)
def test_all_leaves_once_in_an_order_that_does_not_depend_on_arrival(order: str) -> None:
    queues = _filled(order)
    expected = _all(queues, machine := queues.opened())
    assert machine.is_over
    decoded = [frames.decode(frame).batch for queue in queues.names for frame in queues.held[queue]]
    sent = {number for batch in decoded if batch is not None for number in batch.column("n").to_pylist()}
    records = [each for each in expected if isinstance(each, int)]
    assert len(records) == 15
    assert set(records) == sent
    for seed in range(10):
        rng, other = random.Random(seed), queues.opened()
        at, found = dict.fromkeys(queues.held, 0), list[Any]()
        while any(at[queue] < len(held) for queue, held in queues.held.items()):
            queue = rng.choice([queue for queue, held in queues.held.items() if at[queue] < len(held)])
            until = at[queue] + rng.randint(1, 3)
            found += _take(other, queues, queue, at[queue], until)
            at[queue] = min(until, len(queues.held[queue]))
        assert found == expected


@pytest.mark.parametrize("order", _ORDERS)
def test_it_goes_on_from_a_snapshot_at_any_cut(order: str) -> None:
    """Read again from its positions, as the queues have it: nothing is there twice, and nothing is missing."""
    queues = _filled(order)
    expected = _all(queues, queues.opened())
    for seed in range(40):
        rng, before = random.Random(seed), queues.opened()
        found: list[Any] = []
        for queue, held in queues.held.items():
            found += _take(before, queues, queue, 0, rng.randint(0, len(held)))
        after = queues.opened()
        after.restore(json.loads(json.dumps(before.snapshot())))
        assert after.positions == before.positions
        assert after.numbers == before.numbers
        assert found + _all(queues, after) == expected
        assert after.is_over


def test_a_position_is_that_of_the_last_frame_that_has_left_whole() -> None:
    queues = _Queues("round-robin")
    queues.records(0, 3)
    queues.records(1, 1)
    machine = queues.opened()
    assert _all(queues, machine) == [0, 1000, 1], "and now it waits for more of the second"
    first, second = queues.names
    assert machine.positions == {first: 0, second: 1}
    assert list(machine.numbers.values()) == [2, 1], "a part of the frame has left"
    queues.records(1, 2)
    assert _take(machine, queues, second, 1, 2) == [1001, 2, 1002]
    assert machine.positions[first] == 1


def test_second_copies_move_the_position_on() -> None:
    queues = _Queues("round-robin")
    queues.records(0, 2)
    queues.records(1, 2)
    queues.put(0, queues.frame(0, 0, 1))
    queues.put(0, queues.frame(0, 0, 2))
    machine = queues.opened()
    assert _all(queues, machine) == [0, 1000, 1, 1001]
    assert machine.positions == {queues.names[0]: 3, queues.names[1]: 1}


# ------------------------------------------------------------ second, and losses


def test_second_copies_are_held_against_the_first() -> None:
    queues = _Queues("round-robin")
    queues.records(0, 2)
    queues.put(0, frames.data(queues.plan.agreed[0].channel, 0, make(7, 2)))
    second = SecondCopies(lambda channel: f"sender {channel}", "out.0")
    with pytest.raises(CopiesDiffer, match=r"record 0 .*out.0"):
        _all(queues, queues.opened(second=second))
    queues.held[queues.names[0]].pop()
    queues.put(0, queues.frame(0, 1, 3))
    _all(queues, queues.opened(second=SecondCopies(str, "out.0")))


def test_what_was_lost_does_not_count_and_comes_again() -> None:
    """Frames that a power cut has left, and that came of something that is gone."""
    queues = _Queues("round-robin")
    first, second = queues.names
    queues.held[first] = [frames.stamped(frames.encode(queues.frame(0, 0, 2)), 50)]
    queues.held[first] += [frames.stamped(frames.encode(queues.frame(0, 2, 2)), 150)]
    queues.held[first] += [frames.stamped(frames.encode(queues.frame(0, 2, 1)), 300)]
    queues.records(1, 3)
    loss = Loss({}, {first: 2, second: 0}, {first: 100})
    machine = queues.opened(losses=[loss])
    assert _all(queues, machine) == [0, 1000, 1, 1001, 2, 1002]
    assert machine.positions[first] == 3, "what does not count was read, too"


# --------------------------------------------------------------------- refused


def _refused(queues: _Queues, at: int, frame: Frame) -> str:
    queues.held[queues.names[at]].append(frames.encode(frame))
    with pytest.raises(QueueDamaged) as found:
        _all(queues, queues.opened())
    return str(found.value)


def test_records_that_are_missing_are_named() -> None:
    queues = _Queues("round-robin")
    queues.records(0, 2)
    told = _refused(queues, 0, queues.frame(0, 5, 1))
    assert queues.names[0] in told
    assert "records 2 to 4 are missing; restore the queues from a copy, or start the flow anew" in told


def test_a_frame_of_another_sender_is_refused() -> None:
    queues = _Queues("round-robin")
    assert "it has a frame of channel 77, which is not its" in _refused(queues, 1, frames.end(77, 0))


def test_what_nobody_sends_is_refused() -> None:
    queues = _Queues("round-robin")
    channel = queues.plan.agreed[0].channel
    assert "kind CONTROL, which nobody sends here" in _refused(queues, 0, frames.control(channel, 0, {"change": 1}))
    by_leader = _Queues("leader")
    channel = by_leader.plan.agreed[0].channel
    assert "kind CONTROL" in _refused(by_leader, 0, frames.control(channel, 0, {"beat": 1})), "it has no beats"


# ------------------------------------------------------------------- what it reads


def test_the_log_is_read_with_the_queues_and_alone_is_not_worth_a_commit() -> None:
    queues = _filled("leader")
    log, machine = str(queues.plan.order_log), queues.opened()
    assert machine.wanted() == [log, *queues.names]
    alive = [frames.encode(frames.control(0, 0, {"epoch": 0, "alive": n})) for n in range(1001)]
    few = [Entry(log, frame, at + 1) for at, frame in enumerate(alive[:900])]
    assert not machine.take(log, few)
    assert machine.take(log, [Entry(log, frame, 901 + at) for at, frame in enumerate(alive[900:])]), "but many are"
    assert machine.positions[log] == 1001
    machine.snapshot()
    assert not machine.take(log, [Entry(log, alive[0], 1002)]), "they are counted anew"


def test_one_that_is_silent_does_not_want_to_lead() -> None:
    machine = _Queues("leader").opened()
    assert [machine.tick(at, True) for at in (0.0, 5.0)] == [[], []]
    machine = _Queues("leader").opened()
    assert machine.tick(0.0, False) == []
    ((queue, frame),) = machine.tick(5.0, False)
    message = frames.decode(frame).message
    assert queue == "f.order.out.0"
    assert message is not None
    assert (message["claim"], message["by"]) == (1, 0)
