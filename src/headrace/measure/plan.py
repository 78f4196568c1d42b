"""From bound metrics to what has to be done: passes over frozen values.

A plan has one stage for each partitioner; an event visits the stages one after the other. A stage has leaves: all
metrics of a leaf share window, filter and grouping, and so the steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from headrace.language import BoundMetric, columns_of
from headrace.language.nodes import Expr, Window

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True)
class Leaf:
    """Metrics that share window, filter and grouping."""

    window: Window
    where: Expr | None
    group_by: tuple[str, ...]
    metrics: tuple[BoundMetric, ...]


@dataclass(frozen=True)
class Stage:
    """What one task does: all leaves whose groups are whole within a partition by `partitioner`."""

    partitioner: tuple[str, ...]
    leaves: tuple[Leaf, ...]

    @property
    def metrics(self) -> tuple[BoundMetric, ...]:
        return tuple(metric for leaf in self.leaves for metric in leaf.metrics)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns the stage reads, without time and arrival."""
        names: set[str] = set()
        for leaf in self.leaves:
            names.update(leaf.group_by)
            names.update(columns_of(leaf.where) if leaf.where is not None else ())
            for metric in leaf.metrics:
                names.update(columns_of(metric.argument) if metric.argument is not None else ())
        return tuple(sorted(names))


@dataclass(frozen=True)
class Plan:
    """`later` are names of metrics that came when others had state already: those stay where they are."""

    metrics: tuple[BoundMetric, ...]
    stages: tuple[Stage, ...] = ()
    later: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(metric.name for metric in self.metrics)


def choose_partitioners(plan: Plan) -> Plan:
    """One stage for each partitioner; a metric by (card, merchant) uses that of `card` where there is one.

    Small groupings first: they can serve the larger ones, never the other way round.
    """
    partitioners: list[tuple[str, ...]] = []
    members: dict[tuple[str, ...], list[BoundMetric]] = {}
    for metric in sorted(plan.metrics, key=lambda m: (m.name in plan.later, len(m.group_by))):
        fitting = (p for p in partitioners if _serves(p, metric.group_by))
        partitioner = next(fitting, None)
        if partitioner is None:
            partitioner = metric.group_by
            partitioners.append(partitioner)
        members.setdefault(partitioner, []).append(metric)
    stages = tuple(Stage(p, tuple(_one_leaf(m) for m in members[p])) for p in partitioners)
    return replace(plan, stages=stages)


def _serves(partitioner: tuple[str, ...], group_by: tuple[str, ...]) -> bool:
    """An empty partitioner is one task for everything: it serves nobody but those who have no choice."""
    return set(partitioner) <= set(group_by) if partitioner else not group_by


def _one_leaf(metric: BoundMetric) -> Leaf:
    return Leaf(metric.window, metric.where, metric.group_by, (metric,))


def share_prefixes(plan: Plan) -> Plan:
    """Join leaves that differ in their metrics only, and put equal windows, then equal filters, side by side."""
    return replace(plan, stages=tuple(Stage(s.partitioner, _shared(s.leaves)) for s in plan.stages))


def _shared(leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
    windows = unique(leaf.window for leaf in leaves)
    filters = unique(leaf.where for leaf in leaves)
    groups: dict[tuple[int, int, tuple[str, ...]], list[BoundMetric]] = {}
    for leaf in leaves:
        key = (windows.index(leaf.window), filters.index(leaf.where), leaf.group_by)
        groups.setdefault(key, []).extend(leaf.metrics)
    ordered = sorted(groups, key=lambda key: key[:2])
    return tuple(Leaf(windows[w], filters[f], g, tuple(groups[w, f, g])) for w, f, g in ordered)


PASSES = (choose_partitioners, share_prefixes)


def make_plan(metrics: tuple[BoundMetric, ...], later: frozenset[str] = frozenset()) -> Plan:
    plan = Plan(metrics, later=later)
    for improve in PASSES:
        plan = improve(plan)
    return plan


def unique(items: Iterable[T]) -> list[T]:
    """Each item once, in the order of first appearance."""
    return list(dict.fromkeys(items))
