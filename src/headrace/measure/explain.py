"""The plan as a tree that shows what is shared."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar

from headrace.language import BoundMetric, format_expr, format_window
from headrace.language.nodes import Infinite, LastEvents, Sliding, Tumbling, Window
from headrace.language.type_names import spark_name
from headrace.measure.plan import Leaf, Plan, Stage
from headrace.measure.policy import Policy
from headrace.model.ticks import format_ticks

K = TypeVar("K", bound=Hashable)


@dataclass
class Node:
    title: str
    children: list[Node] = field(default_factory=list)

    def lines(self) -> list[str]:
        lines = [self.title]
        for i, child in enumerate(self.children):
            last = i == len(self.children) - 1
            first, *rest = child.lines()
            lines.append(("└─ " if last else "├─ ") + first)
            lines.extend(("   " if last else "│  ") + line for line in rest)
        return lines


def explain_plan(plan: Plan, time: str, id: str | None, arrival: str | None, policy: Policy, *, typed: bool) -> str:
    count, stages = len(plan.metrics), len(plan.stages)
    title = f"{count} metric{'s' * (count != 1)} in {stages} stage{'s' * (stages != 1)}; {_order(time, id, arrival)}"
    title += "".join(f"; {rule}" for rule in _rules(policy, id))
    root = Node(title, [_stage_node(i, stage, time, arrival, typed) for i, stage in enumerate(plan.stages, 1)])
    return "\n".join(root.lines())


def _order(time: str, id: str | None, arrival: str | None) -> str:
    ties = f", ties by {id}" if id else ""
    if arrival:
        return f"time is {time}, events arrive in the order of {arrival}{ties}"
    return f"events arrive in the order of {time}{ties}"


def _rules(policy: Policy, id: str | None) -> list[str]:
    """What becomes of late and repeated events, where they are not simply counted."""
    rules = []
    if policy.late != "accept":
        fate = "moved up to that" if policy.late == "rewrite" else "discarded"
        rules.append(f"events more than {format_ticks(policy.closure)} late are {fate}")
    if policy.dedup is not None and id is not None:
        rules.append(f"an event counts once by its {id} within {format_ticks(policy.dedup)}")
    return rules


def _stage_node(number: int, stage: Stage, time: str, arrival: str | None, typed: bool) -> Node:
    where = f"partition by {', '.join(stage.partitioner)}"
    if not stage.partitioner:
        where = "one partition: a metric without GROUP BY sees the whole stream, so one task does it all"
    reads = [time, *([arrival] if arrival else []), *stage.columns]
    node = Node(f"stage {number}: {where}")
    node.children.append(Node(f"reads {', '.join(dict.fromkeys(reads))}"))
    node.children.append(Node(_iterators(stage)))
    for window, leaves in _grouped(stage.leaves, lambda leaf: leaf.window):
        node.children.append(_window_node(window, leaves, typed))
    return node


def _iterators(stage: Stage) -> str:
    """Equal edges share one iterator: that is what windows of different lengths have in common."""
    windows = dict.fromkeys(leaf.window for leaf in stage.leaves)
    timed = [window for window in windows if not isinstance(window, LastEvents)]
    heads = dict.fromkeys(window.delay for window in timed)
    tails = dict.fromkeys(tail for tail in map(_tail, timed) if tail)
    names = [f"head {'now' if not delay else f'{format_ticks(delay)} ago'}" for delay in heads]
    names += [f"tail {tail}" for tail in tails]
    names += [f"own queue of {window.count} events" for window in windows if isinstance(window, LastEvents)]
    return f"iterators: {', '.join(names)}"


def _tail(window: Window) -> str | None:
    match window:
        case Sliding():
            return f"{format_ticks(type(window.width)(window.width + window.delay))} ago"
        case Tumbling():
            return f"start of {format_window(window)}"
        case Infinite() | LastEvents():
            return None


def _window_node(window: Window, leaves: list[Leaf], typed: bool) -> Node:
    node = Node(f"window {format_window(window)}{_shared(leaves)}")
    for where, filtered in _grouped(leaves, lambda leaf: leaf.where):
        filter_node = Node(
            f"where {format_expr(where)}{_shared(filtered)}" if where else f"every event{_shared(filtered)}"
        )
        node.children.append(filter_node)
        for leaf in filtered:
            by = f"group by {', '.join(leaf.group_by)}" if leaf.group_by else "one group"
            group = Node(f"{by}{_shared([leaf])}")
            group.children = [Node(_metric_line(metric, leaf.metrics, typed)) for metric in leaf.metrics]
            filter_node.children.append(group)
    return node


def _shared(leaves: Iterable[Leaf]) -> str:
    count = sum(len(leaf.metrics) for leaf in leaves)
    return f"  (shared by {count} metrics)" if count > 1 else ""


def _grouped(leaves: Iterable[Leaf], key: Callable[[Leaf], K]) -> list[tuple[K, list[Leaf]]]:
    """Neighbours with equal keys; `share_prefixes` has put them side by side."""
    return [(value, list(group)) for value, group in groupby(leaves, key)]


def _metric_line(metric: BoundMetric, beside: Iterable[BoundMetric], typed: bool) -> str:
    width = max(len(other.name) for other in beside)
    line = f"{metric.name:<{width}} = {format_call(metric)}"
    return f"{line}: {spark_name(metric.type)}" if typed else line


def format_call(metric: BoundMetric) -> str:
    """The aggregation as it would be written: percentile(amount, 0.9)."""
    inside = ["*" if metric.argument is None else format_expr(metric.argument), *map(str, metric.parameters)]
    return f"{metric.function.name}({', '.join(inside)})"


def describe(metric: BoundMetric) -> str:
    """Everything that decides the state of a metric, as a text."""
    where = "" if metric.where is None else f" where {format_expr(metric.where)}"
    by = f" by {', '.join(metric.group_by)}" if metric.group_by else ""
    argument = "" if metric.argument_type is None else f" of {spark_name(metric.argument_type)}"
    return f"{format_call(metric)}{argument}{where}{by} over {format_window(metric.window)}"
