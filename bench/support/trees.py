"""What the benches of `synchronize` run: three programs of the paper, their events, plans, and a check of results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.demo.programs import event_windows, fraud, page_views
from headrace.synchronize.mailbox import Events
from headrace.synchronize.optimize import by_rate
from headrace.synchronize.plan import Plan, make_plan
from headrace.synchronize.program import Program
from headrace.synchronize.tags import codes_of, tag_space

PER_BARRIER: Final = 10_000
"""Values of each stream between two barriers; views between two updates, transactions between two rules."""


@dataclass(frozen=True)
class Workload:
    """A program with its events: `generate(streams, windows, values of a stream and window)`."""

    name: str
    program: Callable[[], Program]
    generate: Callable[[int, int, int], pa.Table]
    expected: Callable[[pa.Table], pa.Table]

    @property
    def tag(self) -> list[str]:
        found: Any = self.program().tag  # type: ignore[attr-defined]
        return [found] if isinstance(found, str) else list(found)


def _windows(streams: int, windows: int, values: int) -> pa.Table:
    return event_windows.generate(streams, windows, values)


def _views(streams: int, windows: int, values: int) -> pa.Table:
    """Ten pages, two of them hot."""
    return page_views.generate(streams * windows * values, streams, views_per_update=streams * values)


def _fraud(streams: int, windows: int, values: int) -> pa.Table:
    return fraud.generate(streams, windows, values)


WORKLOADS: Final = {
    "windows": Workload("windows", event_windows.EventWindows, _windows, event_windows.expected),
    "views": Workload("views", page_views.PageViews, _views, page_views.expected),
    "fraud": Workload("fraud", fraud.Fraud, _fraud, fraud.expected),
}


def row_by_row(program: Program) -> Program:
    """The same program without its columnar form: for each event a call of `update`."""
    kind = type(program)
    return type(kind.__name__, (kind,), {"update_batch": None, "__module__": kind.__module__})()  # type: ignore[no-any-return]


def check_same(what: str, given: pa.Table, wanted: pa.Table) -> None:
    """Raises AssertionError unless these are the same rows, in any order."""
    names = [(name, "ascending") for name in wanted.schema.names]
    given = given.select(wanted.schema.names).cast(wanted.schema)
    if given.num_rows != wanted.num_rows:
        raise AssertionError(f"{what}: {given.num_rows} rows, and there must be {wanted.num_rows}")
    if not given.sort_by(names).combine_chunks().equals(wanted.sort_by(names).combine_chunks()):
        raise AssertionError(f"{what}: other rows than the sequential program gives")


@dataclass(frozen=True)
class Shared:
    """Events of all tasks of a plan, each with its own in their order."""

    plan: Plan
    schema: pa.Schema
    tasks: list[Events]

    def parts(self, task: int, rows: int) -> list[Events]:
        events = self.tasks[task]
        return [events.slice(start, min(start + rows, len(events))) for start in range(0, len(events), rows)]


def shared_out(program: Program, events: pa.Table, tag: list[str], leaves: int, tasks: int) -> Shared:
    """As Spark does it: tags are counted, a plan is made, and every event goes to the task of its worker."""
    batch = events.combine_chunks().to_batches()[0]
    columns = [batch.column(name) for name in tag]
    codes, tags = codes_of(columns)
    counts = np.bincount(codes, minlength=len(tags))
    named = [(row[0] if len(tag) == 1 else row, None, float(n)) for row, n in zip(tags, counts.tolist(), strict=True)]
    space = tag_space(program, sorted(named, key=lambda each: str(each[0])), leaves)
    plan = make_plan(space, by_rate(space, leaves), tasks)
    numbers = space.numbers_of(columns, None, np.arange(len(codes)))
    places = np.array([plan.members[owner].task for owner in plan.owner])[numbers]
    times = batch.column("time").to_numpy()
    whole = Events(batch, times, np.arange(len(times)), numbers)
    return Shared(plan, batch.schema, [whole.take(np.flatnonzero(places == task)) for task in range(plan.tasks)])
