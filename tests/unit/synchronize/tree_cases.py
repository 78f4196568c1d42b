"""Tags, plans and programs: shared by the tests of trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.demo.programs import EventWindows, KeyCounters
from headrace.synchronize.mailbox import Events
from headrace.synchronize.plan import Plan, Worker, make_plan
from headrace.synchronize.program import Program, fork, join
from headrace.synchronize.tags import TagSpace, tag_space

R1, I1, R2, I2A, I2B = range(5)


def paper() -> TagSpace:
    """The paper's Example 4.3: two keys; resets of key 2 at E0, key 1 at E1, increments of key 2 at E2 and E3."""
    rates = [
        (("reset", 1), "E1", 15.0),
        (("increment", 1), "E1", 100.0),
        (("reset", 2), "E0", 10.0),
        (("increment", 2), "E2", 200.0),
        (("increment", 2), "E3", 300.0),
    ]
    return tag_space(KeyCounters(), rates, 3, is_cut=False)


def windows(leaves: int = 2, tasks: int = 1) -> Plan:
    """Barriers at the root, values at leaves."""
    space = tag_space(EventWindows(), [("value", None, 90.0), ("barrier", None, 10.0)], leaves)
    parts = [Worker((number,)) for number in range(len(space.entries) - 1)]
    return make_plan(space, nested((len(space.entries) - 1,), parts), tasks)


def nested(tags: tuple[int, ...], below: Sequence[Worker]) -> Worker:
    """A worker over others, which are leaves of a tree that leans to the right."""
    first, *others = below
    return Worker(tags, (first, others[0] if len(others) == 1 else nested((), others)))


def window_events(rows: Sequence[tuple[int, str, int]], plan: Plan, first: int = 0) -> Events:
    """(time, kind, value), each with its number as rank."""
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    batch = pa.record_batch(
        {
            "time": pa.array(columns[0], pa.int64()),
            "kind": pa.array(columns[1], pa.string()),
            "value": pa.array(columns[2], pa.int64()),
            "stream": pa.array(["s"] * len(rows), pa.string()),
        }
    )
    numbers = np.arange(first, first + len(rows))
    tags = plan.space.numbers_of([batch.column("kind")], None, numbers)
    return Events(batch, np.array(columns[0], np.int64), numbers, tags)


# ----------------------------------------------------------- several state types


@dataclass(frozen=True)
class Shop:
    orders: int
    clicks: int


@dataclass(frozen=True)
class Orders:
    count: int


@dataclass(frozen=True)
class Clicks:
    count: int


class Typed(Program):
    """A shop forks into its orders and its clicks; clicks can be forked again."""

    tag = "kind"
    time = "time"
    tags: ClassVar[Sequence[Any] | None] = ("order", "click", "total")
    outputs = pa.schema([("orders", pa.int64()), ("clicks", pa.int64())])
    depends = MappingProxyType({"total": ("total", "order", "click"), "order": ("order",)})

    def init(self) -> Shop:
        return Shop(0, 0)

    def update(self, state: Any, event: Any) -> Any:
        if isinstance(state, Orders):
            return Orders(state.count + 1), []
        if isinstance(state, Clicks):
            return Clicks(state.count + 1), []
        if event.kind == "total":
            return Shop(0, 0), [(state.orders, state.clicks)]
        is_order = event.kind == "order"
        return Shop(state.orders + is_order, state.clicks + (not is_order)), []

    def handles(self, kind: type, tag: Any) -> bool:
        return kind is Shop or tag == ("order" if kind is Orders else "click")

    @fork(Shop, Orders, Clicks)
    def apart(self, state: Shop, left: Any, right: Any) -> tuple[Orders, Clicks]:
        return Orders(state.orders), Clicks(state.clicks)

    @join(Orders, Clicks, Shop)
    def together(self, left: Orders, right: Clicks) -> Shop:
        return Shop(left.count, right.count)

    @fork(Clicks, Clicks, Clicks)
    def halves(self, state: Clicks, left: Any, right: Any) -> tuple[Clicks, Clicks]:
        return state, Clicks(0)

    @join(Clicks, Clicks, Clicks)
    def whole(self, left: Clicks, right: Clicks) -> Clicks:
        return Clicks(left.count + right.count)


def typed_space() -> TagSpace:
    """order, click/0, click/1, total."""
    return tag_space(Typed(), [("order", None, 1.0), ("click", None, 2.0), ("total", None, 0.0)], 3)
