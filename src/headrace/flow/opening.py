"""The operators of a task, as its place in the flow wants them."""

from __future__ import annotations

from headrace.flow.agents import AgentOperator
from headrace.flow.carrying import Carrying, numbering
from headrace.flow.files import Files
from headrace.flow.operators import MAIN, Behaviour, Operator, Shape
from headrace.flow.plan import Plan, TaskPlan
from headrace.flow.regions import AgentStage
from headrace.flow.tracked import Passing, TaskTracking


def opened(
    plan: Plan, task: TaskPlan, kept: Files, order: Carrying | None, tracking: TaskTracking | None
) -> dict[str, Operator]:
    """By the names of their stages."""
    found: dict[str, Operator] = {}
    for name in task.vertex.nodes:
        node = plan.graph.node(name)
        if node.behaviour is not None:
            outputs = {MAIN: node.schema, **node.sides}
            shape = Shape(name, outputs, kept, task.index, task.vertex.parallelism)
            found[name] = _opened(plan, node.behaviour, shape, order, tracking)
    return found


def _opened(
    plan: Plan, behaviour: Behaviour, shape: Shape, order: Carrying | None, tracking: TaskTracking | None
) -> Operator:
    if isinstance(behaviour, AgentStage):
        assert plan.region is not None
        return AgentOperator(plan.region, shape)
    if tracking is not None and tracking.is_passing:
        return Passing(behaviour.open(shape), shape.stage, tracking)
    if order is None or shape.stage not in plan.carried.nodes:
        return behaviour.open(shape)
    return numbering(plan, shape.stage, behaviour.open_ordered(shape, order.keys, order.with_path))
