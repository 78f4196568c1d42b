"""Copies of tasks: each does all that its task does, in a worker of its own.

The first copy has the name of the task, the others that name and a number: `score.0`, `score.0~1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from headrace.errors import FlowError
from headrace.flow.graph import Graph
from headrace.flow.plan import Plan

_MARK: Final = "~"
MODES: Final = ("active", "standby", "none")
AGREEMENTS: Final = ("queue", "round-robin", "leader", "arrival")
"""How copies agree on the order of inputs; by arrival they do not, which is for comparison."""


def copy_name(task: str, copy: int) -> str:
    return f"{task}{_MARK}{copy}" if copy else task


def task_of(name: str) -> str:
    """The task that this is a copy of."""
    return name.partition(_MARK)[0]


def copy_of(name: str) -> int:
    return int(name.partition(_MARK)[2] or 0)


def by_task(names: Iterable[str]) -> dict[str, list[str]]:
    """The copies of each task."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(task_of(name), []).append(name)
    return found


@dataclass(frozen=True)
class Replication:
    """How many copies there are of the tasks of each stage, and what they do.

    `active`   all copies send what they have; a receiver takes the first copy of each record
    `standby`  one copy speaks, the others do the same work in silence, and one of them takes over
    """

    mode: str = "none"
    replicas: int = 1
    of_stages: Mapping[str, int] = field(default_factory=dict)
    """Of these another number."""

    @property
    def most(self) -> int:
        return max([self.replicas, *self.of_stages.values()])

    def copies(self, plan: Plan) -> dict[str, int]:
        """For each task."""
        return {
            name: max([self.of_stages[each] for each in task.vertex.nodes if each in self.of_stages] or [self.replicas])
            for name, task in plan.tasks.items()
        }

    def names(self, plan: Plan) -> list[str]:
        """All copies; the first of each task before any second one."""
        copies = self.copies(plan)
        return [
            copy_name(task, copy)
            for copy in range(max(copies.values(), default=1))
            for task, count in copies.items()
            if copy < count
        ]

    def one_speaks(self, plan: Plan, task: str) -> bool:
        """Do all copies but one keep silent?"""
        if self.copies(plan)[task] == 1:
            return False
        sinks = [plan.graph.node(name).sink for name in plan.tasks[task].vertex.nodes]
        return self.mode == "standby" or any(sink is not None and not sink.keeps_first for sink in sinks)


def replication(mode: str, replicas: int | Mapping[str, int], plan: Plan) -> Replication:
    """As the user has said it. Raises FlowError where it makes no sense."""
    if mode not in MODES:
        raise FlowError(f"mode={mode!r}: there are {', '.join(MODES)}")
    counts = replicas if isinstance(replicas, Mapping) else {"": replicas}
    known = {node.name for node in plan.graph.nodes}
    for name, count in counts.items():
        where = f"replicas of {name}" if name else "replicas"
        if name and name not in known:
            raise FlowError(f"{where}: there is no such stage; there are {', '.join(sorted(known))}")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise FlowError(f"{where}: {count!r}; give a number of copies, 1 for no replication")
    if mode == "none" or all(count == 1 for count in counts.values()):
        return Replication()
    found = Replication(mode, 1, dict(replicas)) if isinstance(replicas, Mapping) else Replication(mode, replicas)
    _check_tracked(found, plan)
    return found


def agreed(order: str, graph: Graph) -> Graph:
    """With the order that its copies agree on. Raises FlowError where that cannot be."""
    if order not in AGREEMENTS:
        raise FlowError(f"order={order!r}: there are {', '.join(AGREEMENTS[:3])}")
    if order == "queue":
        return graph
    for node in graph.nodes:
        for arrow in node.inputs:
            has = "in a loop" if arrow.back else "ordered" if arrow.ordering else "tracked" if arrow.notices else None
            if has is not None:
                raise FlowError(
                    f'{node.kind} {node.name} is {has}: with order="{order}" copies do not agree on that; use '
                    f'order="queue", where one queue decides for all copies'
                )
    return replace(graph, agreement=order)


def _check_tracked(found: Replication, plan: Plan) -> None:
    """What a copy reports that keeps silent has not been shown."""
    tracked = {} if plan.region is None else plan.region.group_of
    for name, task in plan.tasks.items():
        if task.vertex.name in tracked and found.one_speaks(plan, name):
            why = "mode standby" if found.mode == "standby" else "its sink does not keep the first copy of a record"
            raise FlowError(
                f"stage {task.vertex.name} is tracked, and of its copies one speaks alone ({why}); "
                f'use mode="active" with sinks to queues or Parquet files, or replicas={{"{task.vertex.name}": 1}}'
            )
