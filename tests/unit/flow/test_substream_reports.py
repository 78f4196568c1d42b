"""When a worker reports on substreams."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.effects import Append, Fed, Ticked
from headrace.flow.io import Feed
from headrace.flow.plan import make_plan
from headrace.flow.worker import Pace, Worker
from headrace.model import frames

from .tracked_flows import CALL, made, numbers


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


def test_without_a_flush_nobody_waits() -> None:
    assert max(_pauses(_reported_ms(lambda _: 20, flush_s=0.0))) <= 5
