"""What an engine lets go, without Spark."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import pyarrow as pa

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.coordinator import Coordinator
from headrace.flow.copies import Replication
from headrace.flow.effects import Reported
from headrace.flow.plan import make_plan
from headrace.queues.protocol import Queues
from headrace.service.engine import Engine


class _Queues:
    def __init__(self) -> None:
        self.truncated: list[tuple[str, int]] = []

    def truncate(self, queue: str, position: int) -> None:
        self.truncated.append((queue, position))


def _says(machine: Coordinator, worker: int, name: str, keep_from: int, records_in: int) -> None:
    usual = {"next": {}, "sent": {}, "source_ended": False, "finished": False, "safe": True, "silent": False}
    task = {**usual, "keep_from": {"q.payments.events": keep_from}, "position": 0, "records_in": records_in}
    report = {"worker": worker, "epoch": 101 + worker, "probe": None, "paused": False, "tasks": {name: task}}
    machine.on(Reported(report))


def test_events_are_kept_for_the_copy_that_is_behind() -> None:
    flow = Flow("stream-payments")
    events = flow.source("events", hr.queue("payments.events", pa.schema([("n", pa.int64())])))
    flow.sink("answers", events, hr.queue("payments.answers"))
    machine, queues = Coordinator(make_plan(flow.graph()), 2, 100, Replication("active", 2)), _Queues()
    machine.start(0.0)
    engine = Engine.__new__(Engine)
    engine._events, engine._answers = "payments.events", "payments.answers"
    engine.job, engine._queues = cast(Any, machine), cast(Queues, queues)
    _says(machine, 0, "events.0", keep_from=50, records_in=90)
    _says(machine, 1, "events.0~1", keep_from=20, records_in=60)
    engine._tidy(deque())
    assert queues.truncated == [("q.payments.events", 20)]
