"""When a worker reports on substreams."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.effects import Append, Deliver, Fed, Ticked
from headrace.flow.io import Feed
from headrace.flow.plan import make_plan
from headrace.flow.record_stages import side
from headrace.flow.worker import Pace, Worker
from headrace.model import frames
from headrace.simulate import process
from headrace.simulate.world import Setup, World

from .tracked_flows import CALL, SCHEMA, Counts, made, numbers, same


def _reported_ms(records_of: Callable[[int], int], flush_s: float = 0.005) -> list[int]:
    """The milliseconds in which the worker of a source sent a report, of 400; it ticks every 5. `records_of` one."""
    flow = Flow("f")
    source = flow.source("s", numbers())
    flow.sink("ends", flow.ends("e", source.tracked(by="x", ends=hr.marker("last"), flush_s=flush_s)), CALL)
    plan = make_plan(flow.graph())
    worker, found, given = Worker(plan, 0, 1, ["s.0"], Pace()), list[int](), 0
    for ms in range(400):
        count = records_of(ms)
        effects = worker.on(Fed("s.0", Feed(made(given, count), given + count)))
        given += count
        if ms % 5 == 0:
            effects += worker.on(Ticked(ms / 1000))
        sent = [frame for effect in effects if isinstance(effect, Append) for frame in effect.frames]
        found += [ms for frame in sent if frames.decode(frame).kind == frames.Kind.REPORT]
    return found


def _pauses(found: list[int]) -> list[int]:
    return [later - earlier for earlier, later in itertools.pairwise(found)]


def test_a_worker_with_little_to_do_reports_every_other_flush() -> None:
    pauses = _pauses(_reported_ms(lambda _: 1))
    assert len(pauses) >= 24
    assert max(pauses) <= 15


def test_one_with_much_to_do_gathers_for_longer_but_not_for_ever() -> None:
    # How much it has to do is known after 16 flushes.
    found = [ms for ms in _reported_ms(lambda _: 20) if ms >= 80]
    pauses = _pauses(found)[1:]
    assert len(pauses) >= 5
    assert min(pauses) >= 40
    assert max(pauses) <= 50


def test_one_that_gets_much_now_and_then_does_not_wait() -> None:
    """As at the end of a window: 100 records in a millisecond of a hundred, and their report is waited for."""
    pauses = _pauses(_reported_ms(lambda ms: 100 if ms % 100 == 50 else 1))
    assert max(pauses) <= 15


def test_one_that_has_little_to_do_again_reports_as_before() -> None:
    found = _reported_ms(lambda ms: 20 if ms < 150 else 1)
    assert max(_pauses([ms for ms in found if 80 <= ms < 160])) >= 40
    assert max(_pauses([ms for ms in found if ms >= 240])) <= 15


def test_an_agent_that_is_behind_is_not_told_the_time_over_and_over() -> None:
    flow = Flow("f")
    stream = flow.source("s", numbers()).tracked(by="x", ends=hr.marker("last"), consistent=True, slack_s=0.001)
    flow.sink("ends", flow.ends("e", stream), CALL)
    plan = make_plan(flow.graph())
    worker = Worker(plan, 0, 1, ["s.0"], Pace())

    def beats(full: list[str], start_ms: int) -> int:
        worker.inboxes(full)
        effects = [effect for ms in range(start_ms, start_ms + 100) for effect in worker.on(Ticked(ms / 1000))]
        return sum(isinstance(effect, Append) for effect in effects)

    assert beats([], 0) > 50
    assert beats(plan.agents, 100) == 0
    assert beats([], 200) > 50


def test_without_a_flush_nobody_waits() -> None:
    assert max(_pauses(_reported_ms(lambda _: 20, flush_s=0.0))) <= 5


def test_a_firm_reader_does_not_wait_for_the_clock_to_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes next is held back until what its sink shows at a commit is safe: a commit for each substream."""
    monkeypatch.setattr(process, "PACE", Pace(commit_s=60.0, report_s=0.1))
    flow = Flow("f")
    stream = flow.source("s", numbers(40)).tracked(by="n", ends=hr.rising(), bound="firm")
    flow.sink("out", stream, hr.parquet("not written"), route=hr.rebalance())
    world = World(flow.graph(), Setup(1, workers=1))
    assert [row["n"] for row in world.run().of("out")] == list(range(40))
    assert world.now < 40 * 60.0 / 10


def test_a_task_that_ends_during_its_commit_tells_all_in_its_last_report() -> None:
    """What it was to tell once the commit is safe is older then, and would not count: what follows waited for ever."""
    flow = Flow("f")
    tracked = flow.source("s", numbers(40)).tracked(by="x", ends=hr.marker("last"))
    first = flow.stage("first", Counts, tracked, route=hr.key("x"), parallelism=2)
    flow.sink("kept", first, hr.parquet("not written"))
    flow.sink("ends", flow.ends("told", first.tracked(by="x", ends=hr.marker("last"))), CALL)
    for seed in range(20):
        ended = World(flow.graph(), Setup(seed, workers=2)).run().of("ends")
        assert sorted(row["substream"] for row in ended) == list(range(10))


def test_what_has_ended_is_shown_also_what_a_task_gives_last_of_all() -> None:
    """All ends of all are known at once, and what is given at them is the last that its task gives."""
    flow = Flow("f")
    first = flow.stage("first", Counts, flow.source("s", numbers(40)).tracked(by="x"), route=hr.key("x"), parallelism=2)
    flow.sink("kept", first, hr.parquet("not written"))
    flow.sink("ends", flow.ends("told", first.tracked(by="x")), CALL)
    for seed in range(10):
        _check_shown_when_told(flow, seed, "kept", lambda row: [row["x"]])


def test_what_has_ended_is_shown_where_its_readers_put_it_in_order_first() -> None:
    flow = Flow("f")
    passed = flow.stage("passed", same, flow.source("s", numbers(40)), route=hr.rebalance(), parallelism=3)
    tracked = passed.ordered().tracked(by="x", ends=hr.marker("last"))
    flow.sink("kept", tracked, hr.parquet("not written"))
    flow.sink("ends", flow.ends("told", tracked), CALL)
    for seed in range(10):
        _check_shown_when_told(flow, seed, "kept", lambda row: [row["x"]] if row["last"] else [])


def _check_shown_when_told(flow: Flow, seed: int, sink: str, closes: Callable[[Any], list[Any]]) -> None:
    """Whenever an end is told, what closes the substream was shown; and all ends are told."""
    world, told = World(flow.graph(), Setup(seed, workers=2)), set[Any]()

    def watch(given: Deliver, world: World) -> None:
        if given.node == "ends":
            found = [row for (node, _), rows in world.received.records.items() if node == sink for row in rows.values()]
            ended = set(given.batch.column("substream").to_pylist())
            assert ended <= {x for row in found for x in closes(row)}
            told.update(ended)

    world.watch = watch
    world.run()
    assert told == set(range(10))


def test_a_loop_ends_also_if_tasks_that_are_over_are_told_to_forget() -> None:
    """They have nothing to report of it, and nobody waits for that."""
    flow = Flow("f")
    source = flow.source("s", numbers(4 * 300))
    beside = flow.stage("beside", same, source, route=hr.rebalance(), parallelism=2)
    loop = flow.loop("again", source, route=hr.rebalance(), parallelism=2)
    step = flow.stage("step", once_more, loop, each="record", sides={"back": SCHEMA})
    loop.back(step.side("back"))
    read = [stream.tracked(by="x") for stream in (beside, step)]
    flow.sink("out", flow.stage("count", Counts, *read, route=hr.key("x"), parallelism=2), CALL)
    found = World(flow.graph(), Setup(1, workers=2)).run().of("out")
    assert sorted((row["x"], row["n"]) for row in found if row["n"]) == [(x, 8) for x in range(300)]


def once_more(record: dict[str, Any]) -> Any:
    return side("back", {**record, "n": record["n"] + 1}) if record["n"] % 2 else record
