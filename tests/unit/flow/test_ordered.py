"""Ordered streams at work: what leaves in which order, after restarts too, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FlowError, OrderBroken, QueueDamaged
from headrace.flow.builder import Flow
from headrace.flow.effects import Append, Deliver, Effect
from headrace.flow.plan import make_plan
from headrace.flow.sequential import run_sequentially
from headrace.flow.task import Task
from headrace.model import frames
from headrace.order.columns import PART, PATH, SEQUENCE
from headrace.queues.protocol import Entry
from headrace.testing.flows import numbers, without_sevens

from .ordered_cases import Passes, drawn, ignored, same

# --------------------------------------------------------------------------- run


class World:
    """All tasks of a plan; frames go as they are asked to."""

    def __init__(self, flow: Flow):
        self.plan = make_plan(flow.graph())
        self.tasks = {name: Task(self.plan, task) for name, task in self.plan.tasks.items()}
        self.queues: dict[str, list[bytes]] = {queue: [] for queue in self.plan.queues}
        self.read = dict.fromkeys(self.queues, 0)
        self.out: list[Any] = []

    def act(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self.queues[effect.queue] += effect.frames
            elif isinstance(effect, Deliver) and effect.node != "aside":
                self.out += effect.batch.to_pylist()

    def feed(self, first: int, count: int, ended: bool = False) -> None:
        from headrace.flow.io import Feed

        self.act(self.tasks["s.0"].feed(Feed(numbers(first, count), first + count, ended)))

    def move(self, *tasks: str) -> None:
        for name in tasks or self.tasks:
            task = self.tasks[name]
            for queue in task.plan.inboxes:
                waiting = self.queues[queue][self.read[queue] :]
                entries = [Entry(queue, frame, self.read[queue] + i + 1) for i, frame in enumerate(waiting)]
                self.read[queue] += len(entries)
                if entries:
                    self.act(task.take_path(queue, entries) if task.plan.merges else task.take(entries))

    def restart(self, name: str) -> None:
        snapshot = self.tasks[name].snapshot(1, 1)
        task = Task(self.plan, self.plan.tasks[name])
        task.restore(snapshot.values, dict(snapshot.new_files).__getitem__)
        self.tasks[name] = task
        self.read.update(task.positions)


def test_records_leave_in_order_and_wait_for_the_slowest() -> None:
    flow, stream = drawn(("a", 3))
    flow.sink("out", stream.ordered(), hr.callback(ignored))
    world = World(flow)
    world.feed(0, 9)
    world.move("a.0", "a.2", "out.0")
    assert world.out == [], "nobody knows where a.1 is"
    world.move("a.1", "out.0")
    assert [row["n"] for row in world.out] == list(range(6)), "there may be more of the last ones"
    world.act(world.tasks["s.0"].beat())
    world.move()
    assert [row["n"] for row in world.out] == list(range(9))
    assert set(world.out[0]) == {"n", "k"}, "what records carry is not to be seen"


def test_a_merge_says_how_long_records_were_in_queues_and_in_it() -> None:
    flow, stream = drawn(("a", 3))
    flow.sink("out", stream.ordered(), hr.callback(ignored))
    world = World(flow)
    world.feed(0, 9)
    world.move("a.0", "a.1", "a.2")
    second_ago = time.monotonic_ns() - 1_000_000_000
    world.queues = {q: [frames.stamped(each, second_ago) for each in found] for q, found in world.queues.items()}
    world.move("out.0")
    assert sum(_order_of(world)["in_merge"]["counts"]) == 0, "no frame has left as a whole"
    world.act(world.tasks["s.0"].beat())
    world.move()
    found = _order_of(world)
    assert (sum(found["in_queue"]["counts"]), sum(found["in_merge"]["counts"])) == (9, 9)
    assert 9.0 <= found["in_queue"]["total"] < 18.0
    assert 0.0 < found["in_merge"]["total"] < 9.0


def test_a_promise_that_goes_back_is_named_and_holds() -> None:
    flow, stream = drawn(("a", 2))
    flow.sink("out", stream.ordered(), hr.callback(ignored))
    world = World(flow)
    world.feed(0, 8)
    world.act(world.tasks["s.0"].beat())
    world.move()
    assert [row["n"] for row in world.out] == list(range(8))
    assert _order_of(world)["went_back"] == {}
    [sender, _] = world.plan.tasks["out.0"].merges
    lower = frames.encode(frames.heartbeat(sender.channel, 4, 3))
    world.tasks["out.0"].take_path(sender.queue, [Entry(sender.queue, lower, world.read[sender.queue] + 1)])
    assert _order_of(world)["went_back"] == {str(sender): 1}
    assert _order_of(world)["frontier"] >= 7, "what was promised holds"


def _order_of(world: World) -> Any:
    return world.tasks["out.0"].reports()["order"]


def test_a_merge_that_starts_again_takes_nothing_twice_and_says_so_downstream() -> None:
    flow, stream = drawn(("a", 2))
    middle = flow.keyed("count", lambda s, r: ((s or 0) + 1, r), stream.ordered(), by="k", parallelism=2)
    flow.sink("out", middle.ordered(), hr.callback(ignored))
    world = World(flow)
    world.feed(0, 40)
    world.move("a.0", "count.0", "count.1")
    for name in ("count.0", "out.0", "a.1", "s.0"):
        world.restart(name)
    world.feed(40, 10, ended=True)
    for _ in range(3):
        world.move()
        world.restart("out.0")
    assert [row["n"] for row in world.out] == list(range(50))


def test_functions_that_keep_columns_in_another_place() -> None:
    def more(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("more", batch.column("n"))

    flow, stream = drawn(("a", 2), records=30)
    given = flow.stage("more", more, stream, parallelism=3, route=hr.rebalance())
    given = flow.stage("pass", Passes, given)
    flow.sink("out", given.ordered(), hr.callback(ignored))
    world = World(flow)
    world.feed(0, 30, ended=True)
    for _ in range(3):
        world.move()
    assert world.out == run_sequentially(flow.graph())["out"].to_pylist()
    assert set(world.out[0]) == {"n", "k", "more"}


def test_one_to_one_that_is_not() -> None:
    flow, stream = drawn()
    given = flow.stage("x", without_sevens, stream, one_to_one=True)
    flow.sink("out", given.ordered(), hr.callback(ignored))
    world = World(flow)
    with pytest.raises(FlowError, match="stage x gave 8 records for 10, and one_to_one says one for each"):
        world.feed(0, 10)


def test_a_stage_that_turns_records_round_is_found_out() -> None:
    def turned(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.take(pa.array(range(batch.num_rows - 1, -1, -1), pa.int64()))

    flow, stream = drawn(("a", 2))
    flow.sink("out", flow.stage("turned", turned, stream).ordered(), hr.callback(ignored))
    world = World(flow)
    world.feed(0, 10)
    with pytest.raises(
        OrderBroken, match=r"the path through a.0 \(queue f.in.out.0.1.0\): it is out of order: 6 comes after 8"
    ):
        world.move()


def test_a_source_that_goes_back_is_refused() -> None:
    def back(first: int, count: int) -> pa.RecordBatch:
        values = [n if n < 5 else n - 4 for n in range(first, first + count)]
        return pa.record_batch({"n": pa.array(values, pa.int64()), "k": pa.array(values, pa.int64())})

    flow = Flow("f")
    streams = [flow.source(name, hr.generate(back, 10)) for name in ("s", "t")]
    flow.sink("out", flow.stage("a", same, *streams).ordered(by="n"), hr.callback(ignored))
    with pytest.raises(OrderBroken, match=r"source s.0, column n: it is out of order: 1 comes after 4"):
        run_sequentially(flow.graph())


def test_several_sources_by_a_column() -> None:
    def every(step: int) -> Any:
        def made(first: int, count: int) -> pa.RecordBatch:
            values = [n * step for n in range(first, first + count)]
            return pa.record_batch({"n": pa.array(values, pa.int64()), "k": pa.array([step] * count, pa.int64())})

        return made

    flow = Flow("f")
    streams = [flow.source(f"by-{step}", hr.generate(every(step), 30 // step)) for step in (2, 3)]
    given = flow.stage("a", same, *streams, parallelism=2, route=hr.rebalance())
    flow.sink("out", given.ordered(by="n"), hr.callback(ignored))
    found = [(row["n"], row["k"]) for row in run_sequentially(flow.graph())["out"].to_pylist()]
    assert found == sorted([(n, 2) for n in range(0, 30, 2)] + [(n, 3) for n in range(0, 30, 3)])


def test_frames_that_no_plan_has_are_refused() -> None:
    flow, stream = drawn(("a", 2), ("b", 2))
    flow.sink("out", flow.stage("c", same, stream, parallelism=2, route=hr.rebalance()).ordered(), hr.callback(ignored))
    world = World(flow)
    (path, *_) = world.plan.tasks["out.0"].merges
    row = {"n": [1], "k": [1], SEQUENCE: [1], PART: [0]}
    stranger = frames.encode(frames.data(path.channel + 1, 0, pa.record_batch(row)))
    with pytest.raises(QueueDamaged, match="which is not its"):
        world.tasks["out.0"].take_path(path.queue, [Entry(path.queue, stranger, 1)])
    late = frames.encode(frames.data(path.channel, 3, pa.record_batch(row)))
    with pytest.raises(QueueDamaged, match="records 0 to 2 are missing"):
        world.tasks["out.0"].take_path(path.queue, [Entry(path.queue, late, 1)])
    task = world.tasks["c.0"]
    wrong = frames.encode(frames.data(task.plan.channels[0], 0, pa.record_batch({**row, PATH: [7]})))
    with pytest.raises(QueueDamaged, match=r"f.in.c.0: a record of path 7 came, and 2 lead"):
        task.take([Entry(str(task.plan.inbox), wrong, 1)])


def test_too_many_children() -> None:
    flow, stream = drawn(records=1)
    for number in range(20):
        stream = flow.stage(f"x{number}", lambda record: [record] * 9, stream, each="record")
    flow.sink("out", stream.ordered(), hr.callback(ignored))
    with pytest.raises(FlowError, match=r"stage x0 made 9 records of one; .* 8 are the most"):
        World(flow).feed(0, 1)


def test_json_in_and_out_is_one_to_one_and_several_may_read_what_is_ordered() -> None:
    flow, stream = drawn(("a", 3), records=20)
    written = flow.stage("write", hr.to_json(), stream, parallelism=2, route=hr.rebalance())
    read = flow.stage("read", hr.from_json(numbers(0, 0).schema), written, parallelism=3, route=hr.rebalance())
    flow.sink("out", read.ordered(), hr.callback(ignored))
    flow.sink("too", read.ordered(), hr.callback(ignored))
    world = World(flow)
    world.feed(0, 20, ended=True)
    for _ in range(4):
        world.move()
    assert sorted(row["n"] for row in world.out) == sorted([*range(20), *range(20)])


def test_children_of_one_record_that_go_different_ways_keep_their_order() -> None:
    def apart(record: dict[str, Any]) -> Any:
        first, second = ({"n": record["n"] * 10 + child, "k": 0} for child in range(2))
        return [first, hr.side("aside", record), second]

    flow, stream = drawn(records=12)
    sides = {"aside": numbers(0, 0).schema}
    given = flow.stage("apart", apart, stream, each="record", sides=sides, parallelism=2, route=hr.rebalance())
    again = flow.stage("again", same, given, parallelism=2, route=hr.rebalance())
    flow.sink("out", again.ordered(), hr.callback(ignored))
    flow.sink("aside", given.side("aside"), hr.parquet("unused"))
    world = World(flow)
    world.feed(0, 12, ended=True)
    for _ in range(4):
        world.move("apart.0", "apart.1", "again.0", "again.1", "out.0")
    assert [row["n"] for row in world.out] == [n * 10 + child for n in range(12) for child in range(2)]


def test_branches_that_meet_are_copies() -> None:
    flow, stream = drawn(records=10)
    branches = [flow.stage(name, same, stream, one_to_one=True, parallelism=2) for name in ("a", "b")]
    met = flow.stage("met", same, *(each.ordered() for each in branches), one_to_one=True, parallelism=2)
    flow.sink("out", met.ordered(), hr.callback(ignored))
    world = World(flow)
    world.feed(0, 10, ended=True)
    for _ in range(4):
        world.move()
    assert [row["n"] for row in world.out] == [n for n in range(10) for _ in range(2)]


def test_a_routing_function_sees_what_it_always_saw() -> None:
    seen: list[list[str]] = []

    def choose(batch: pa.RecordBatch, tasks: int) -> Any:
        seen.append(batch.schema.names)
        return batch.column("n").to_numpy() % tasks

    flow, stream = drawn()
    given = flow.stage("a", same, stream, parallelism=2, route=hr.custom(choose))
    flow.sink("out", given.ordered(), hr.callback(ignored))
    World(flow).feed(0, 4)
    assert seen == [["n", "k"]]


def test_nothing_in_the_end_where_records_keep_their_columns() -> None:
    class Late(Passes):
        def on_end(self) -> Any:
            return numbers(0, 1)

    flow, stream = drawn()
    flow.sink("out", flow.stage("late", Late, stream).ordered(), hr.callback(ignored))
    with pytest.raises(FlowError, match='stage late: it says order = "columns", and gives records in on_end'):
        World(flow).feed(0, 3, ended=True)


def test_what_cannot_be_read_goes_aside_and_the_rest_stays_in_order() -> None:
    def texts(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = [f'{{"n": {n}}}' if n % 5 else "{" for n in batch.column("n").to_pylist()]
        return pa.record_batch({"value": pa.array(values, pa.string())})

    flow, stream = drawn(("a", 2), records=30)
    written = flow.stage("write", texts, stream, one_to_one=True)
    read = flow.stage("read", hr.from_json(pa.schema([("n", pa.int64())])), written, on_error="side", parallelism=3)
    flow.sink("out", read.ordered(), hr.callback(ignored))
    flow.sink("aside", read.side("errors"), hr.parquet("unused"))
    world = World(flow)
    world.feed(0, 30, ended=True)
    for _ in range(4):
        world.move()
    assert [row["n"] for row in world.out] == [n for n in range(30) if n % 5]
