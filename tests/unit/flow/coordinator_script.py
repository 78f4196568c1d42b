"""A coordinator with scripted workers: shared by the tests of the coordinator."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.coordinator import Coordinator
from headrace.flow.effects import CoordinatorEffect, Reported, StartWorker, Tell
from headrace.flow.plan import Plan, make_plan

NUMBERS = pa.schema([("n", pa.int64())])


def make(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, first + count), pa.int64())], schema=NUMBERS)


def ignored(batch: pa.RecordBatch) -> None:
    return None


def plan_of(loop: bool = False) -> Plan:
    flow = Flow("f")
    numbers = flow.source("s", hr.generate(make, 10))
    if loop:
        numbers = again = flow.loop("again", numbers)
        again.back(again)
    flow.sink("out", numbers, hr.callback(ignored), route=hr.rebalance())
    return make_plan(flow.graph())


def task_says(**values: Any) -> dict[str, Any]:
    usual = {
        "next": {},
        "sent": {},
        "source_ended": False,
        "finished": False,
        "safe": True,
        "keep_from": {},
        "position": 0,
        "records_in": 0,
        "silent": False,
    }
    return {**usual, **values}


DONE = task_says(finished=True, source_ended=True)


class Script:
    """A coordinator, and workers that say what they are told to say."""

    def __init__(self, plan: Plan, workers: int = 2):
        self.machine = Coordinator(plan, workers, 100)
        self.epochs: dict[int, int] = {}
        self.tasks: dict[int, tuple[str, ...]] = {}
        self.probe: int | None = None
        self.took(self.machine.start(0.0))

    def took(self, effects: list[CoordinatorEffect]) -> list[CoordinatorEffect]:
        for effect in effects:
            if isinstance(effect, StartWorker):
                self.epochs[effect.worker], self.tasks[effect.worker] = effect.epoch, effect.tasks
            elif isinstance(effect, Tell) and "probe" in effect.message:
                self.probe = effect.message["probe"]
        return effects

    def on(self, stimulus: Any) -> list[CoordinatorEffect]:
        return self.took(self.machine.on(stimulus))

    def report(self, worker: int, tasks: dict[str, Any] | None = None, **values: Any) -> list[CoordinatorEffect]:
        known = {name: (tasks or {}).get(name, task_says()) for name in self.tasks[worker]}
        message = {
            "worker": worker,
            "epoch": self.epochs[worker],
            "probe": None,
            "paused": False,
            "tasks": known,
            **values,
        }
        return self.on(Reported(message))

    def answers(self, tasks: dict[str, Any] | None = None, **values: Any) -> list[CoordinatorEffect]:
        """Of all workers, to the last question."""
        return [effect for worker in self.epochs for effect in self.report(worker, tasks, probe=self.probe, **values)]
