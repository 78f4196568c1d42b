"""Metrics that are added or removed while a flow runs: at a position in the inbox of each task, decided once.

First every task makes the new metrics ready beside those that answer, from the events that it remembers; when all are,
each of them switches at a control frame of its inbox: whoever reads that inbox again switches at the same record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.errors import FlowError
from headrace.flow.measured import Measured, definition_of, plain_definition
from headrace.flow.plan import Plan, TaskPlan
from headrace.measure.definition import Definition
from headrace.model import frames
from headrace.queues.protocol import Queues

_LOOK_S: Final = 0.05

Reports = Callable[[], Mapping[str, Mapping[str, Any]]]
"""The newest report of each task."""


class MetricChanges:
    """Of one stage of metrics, by the name it was drawn with."""

    def __init__(self, plan: Plan, name: str, queues: Queues, reports: Reports):
        self._plan, self._name, self._queues, self._reports = plan, name, queues, reports
        nodes = {node.name: node.behaviour for node in plan.graph.nodes}
        self._stages = {
            node: behaviour
            for node, behaviour in nodes.items()
            if isinstance(behaviour, Measured) and behaviour.name == name
        }
        if not self._stages:
            known = sorted({each.name for each in nodes.values() if isinstance(each, Measured)})
            there = f"it has {', '.join(known)}" if known else "it has none: draw one with flow.measure"
            raise FlowError(f"flow {plan.graph.name} has no metrics called {name}; {there}")

    def definition(self) -> Definition:
        """As it is now, with what was changed."""
        node, behaviour = next((node, each) for node, each in self._stages.items() if each.is_last)
        for task in self._tasks(node):
            found = self._reports().get(task.name, {}).get("stages", {}).get(node)
            if found is not None:
                return definition_of(behaviour.definition, found["metrics"])
        return behaviour.definition

    def change(self, change: Callable[[Definition], Definition], timeout_s: float) -> dict[str, int]:
        """Gives, for each task, the position of its inbox from which on the new metrics answer."""
        before = self.definition()
        wanted = change(before)
        for behaviour in self._stages.values():
            behaviour.changed(wanted)  # raises what is wrong with it
        deadline = time.monotonic() + timeout_s
        number = self._next_number()
        # Stages may share an inbox: each frame has a number of its own.
        prepared = {node: number + at for at, node in enumerate(self._stages)}
        for node, own in prepared.items():
            self._send(node, own, {"say": "prepare", "metrics": plain_definition(wanted)})
        number += len(prepared)
        try:
            self._wait(lambda: self._are_ready(prepared), deadline, "make the metrics ready")
        except FlowError:
            for at, node in enumerate(self._stages):
                self._send(node, number + at, {"say": "forget"})
            raise
        # A stage is asked for what those before it give: they begin first, and end last.
        grows = set(before.names) <= set(wanted.names)
        for node in self._stages if grows else reversed(list(self._stages)):
            self._send(node, number, {"say": "switch"})
            self._wait(lambda node=node, n=number: self._has_switched(node, n), deadline, f"switch {node}")  # type: ignore[misc]
            number += 1
        last = next(node for node, each in self._stages.items() if each.is_last)
        return {task.name: int(self._reports()[task.name]["changed_at"]) for task in self._tasks(last)}

    def _tasks(self, node: str) -> Sequence[TaskPlan]:
        return [task for task in self._plan.tasks.values() if node in task.vertex.nodes]

    def _next_number(self) -> int:
        mine = [task.name for node in self._stages for task in self._tasks(node)]
        reports = self._reports()
        unheard = [name for name in mine if name not in reports]
        if unheard:
            raise FlowError(f"flow {self._plan.graph.name}: task {unheard[0]} is not up yet; try again in a moment")
        return 1 + max(int(reports[name]["last_change"]) for name in mine)

    def _send(self, node: str, number: int, more: Mapping[str, Any]) -> None:
        tasks = self._tasks(node)
        agreed = [task.name for task in tasks if task.agreed]
        if agreed:
            raise FlowError(
                f"copies of {agreed[0]} read a queue for each sender, so there is no one position to change metrics "
                f'at; start the flow with order="queue"'
            )
        merging = [task.name for task in tasks if task.merges]
        if merging:
            raise FlowError(f"{merging[0]} reads ordered streams: its metrics cannot be changed while it runs")
        alone = [task.name for task in tasks if task.inbox is None]
        if alone:
            raise FlowError(
                f"task {alone[0]} reads its source itself, without a queue, so there is no position to change metrics "
                f"at; draw them with flow.measure({self._name!r}, ..., changeable=True)"
            )
        frame = frames.encode(frames.control(0, 0, {"change": number, "stage": node, **more}))
        inboxes = [str(task.inbox) for task in tasks]
        with self._queues.writer() as writer:
            for inbox in inboxes:
                writer.append(inbox, [frame])
            writer.sync(inboxes)

    def _are_ready(self, numbers: Mapping[str, int]) -> bool:
        reports = self._reports()
        for node, number in numbers.items():
            for task in self._tasks(node):
                said = reports[task.name]["stages"].get(node, {})
                if said.get("problem"):
                    raise FlowError(f"{self._name}: the metrics cannot be made ready: {said['problem']}")
                if said.get("ready") != number:
                    return False
        return True

    def _has_switched(self, node: str, number: int) -> bool:
        reports = self._reports()
        return all(reports[task.name]["changed"] >= number for task in self._tasks(node))

    def _wait(self, holds: Callable[[], bool], deadline: float, doing: str) -> None:
        while not holds():
            if time.monotonic() > deadline:
                raise FlowError(f"{self._name}: it took too long to {doing}; what answered before still does")
            time.sleep(_LOOK_S)
