"""Events that depend on each other and have one key, as where `arrival=` does not tell them apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import ProgramError
from headrace.synchronize.mailbox import LAST, Events
from headrace.synchronize.plan import Plan, Worker, make_plan
from headrace.synchronize.program import Program
from headrace.synchronize.tags import tag_space
from headrace.synchronize.tree import TreeTask

Row = tuple[int, int, str]


class Levels(Program):
    """Days end for all, hours for their own, and events are counted."""

    outputs = pa.schema([("time", pa.int64()), ("count", pa.int64())])
    tags = ("event", "note", "hour", "day")
    depends: Mapping[str, tuple[str, ...]] = {"day": ("day", "hour", "event", "note"), "hour": ("hour", "event")}

    def init(self) -> int:
        return 0

    def update(self, state: int, event: Any) -> Any:
        if event.kind == "note":
            return state, []
        return (state + 1, []) if event.kind == "event" else (0, [(event.time, state)])

    def fork(self, state: int, left: Any, right: Any) -> Any:
        return state, 0

    def join(self, left: int, right: int) -> int:
        return left + right


def _plan() -> Plan:
    """Days at the root, over notes and hours; below these events, at two leaves."""
    space = tag_space(Levels(), [("event", None, 9.0), ("note", None, 1.0), ("hour", None, 2.0), ("day", None, 1.0)], 2)
    of = {name: tuple(at for at, each in enumerate(space.entries) if each.tag == name) for name in Levels.tags}
    one, two = of["event"]
    hours = Worker(of["hour"], (Worker((one,)), Worker((two,))))
    return make_plan(space, Worker(of["day"], (hours, Worker(of["note"]))), 1)


def _run(rows: Sequence[Row], is_one_by_one: bool = True) -> list[tuple[Any, ...]]:
    """(time, arrival, kind), in that order."""
    plan = _plan()
    names = ("time", "arrival", "kind")
    batch = pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in rows])
    times, ranks = (np.array([row[at] for row in rows], np.int64) for at in (0, 1))
    tags = plan.space.numbers_of([batch.column("kind")], None, np.arange(len(rows)))
    events = Events(batch, times, ranks, tags)
    tree = TreeTask(plan, 0, batch.schema, ["input"])
    tree.start(0)
    given = []
    for at in range(len(rows)) if is_one_by_one else ():
        tree.push(0, events.slice(at, at + 1))
        tree.complete(0, events.key(at))
        given += tree.work()
    if not is_one_by_one:
        tree.push(0, events)
    tree.complete(0, LAST)
    given += tree.work()
    assert tree.is_done
    return [tuple(row.values()) for part in given for row in part.to_pylist()]


@pytest.mark.parametrize("is_one_by_one", [True, False])
@pytest.mark.parametrize(
    "kinds", [("event", "hour"), ("hour", "event"), ("event", "day"), ("hour", "day"), ("day", "hour")]
)
def test_dependent_events_of_one_key_are_refused(kinds: tuple[str, str], is_one_by_one: bool) -> None:
    rows = [(1, 6, "event"), *((1, 7, kind) for kind in kinds), (1, 8, "event"), (2, 9, "day")]
    with pytest.raises(ProgramError) as raised:
        _run(rows, is_one_by_one)
    said = str(raised.value)
    assert re.search(
        r"depend on each other, and have the same time and the same arrival as \{.*: 1, .*: 7, .*\}; give them", said
    )
    assert all(kind in said for kind in kinds)


@pytest.mark.parametrize("is_one_by_one", [True, False])
def test_others_may_have_one_key(is_one_by_one: bool) -> None:
    """Events that do not depend on each other, and those of one worker, which has them sorted."""
    rows = [
        (1, 7, "event"),
        (1, 7, "event"),
        (1, 8, "hour"),
        (1, 8, "hour"),
        (2, 8, "event"),
        (2, 9, "day"),
        (2, 9, "day"),
    ]
    assert sorted(_run(rows, is_one_by_one)) == [(1, 0), (1, 2), (2, 0), (2, 1)]
