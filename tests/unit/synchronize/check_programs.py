"""Programs to try `check` on: good ones, and ones with a planted mistake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.synchronize.program import Program, fork, join

KEYED = [
    {"kind": kind, "key": key, "value": value}
    for kind, key, value in [
        ("i", 1, 1),
        ("i", 2, 1),
        ("r", 1, 1),
        ("i", 2, 1),
        ("r", 1, 1),
        ("r", 2, 1),
        ("i", 3, 1),
        ("r", 3, 1),
    ]
]
WINDOWED = [
    {"time": time, "kind": "barrier" if value is None else "value", "value": value}
    for time, value in [(1, 1), (2, None), (3, 5), (4, 3), (5, None), (6, 6), (7, 7), (9, None)]
]


class KeyCounters(Program):
    """Increments i(key), and r(key) that reads and resets."""

    outputs = pa.schema([("key", pa.int64()), ("count", pa.int64())])
    tag = ("kind", "key")

    def depends(self, a: Any, b: Any) -> bool:
        return bool(a[1] == b[1] and "r" in (a[0], b[0]))

    def init(self) -> Any:
        return {}

    def update(self, state: Any, event: Any) -> Any:
        count = state.get(event.key, 0)
        if event.kind == "i":
            return {**state, event.key: count + 1}, []
        return {**state, event.key: 0}, [(event.key, count)]

    def fork(self, state: Any, left: Any, right: Any) -> Any:
        mine = {key: count for key, count in state.items() if left(("r", key))}
        return mine, {key: count for key, count in state.items() if key not in mine}

    def join(self, left: Any, right: Any) -> Any:
        return {key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}}


class EventWindows(Program):
    """The sum of the values between two barriers."""

    outputs = pa.schema([("time", pa.int64()), ("total", pa.int64())])
    tags = ("value", "barrier")
    tag = "kind"
    depends: Mapping[str, tuple[str, ...]] = {"barrier": ("barrier", "value")}

    def init(self) -> Any:
        return 0

    def update(self, state: Any, event: Any) -> Any:
        if event.kind == "value":
            return state + event.value, []
        return 0, [(event.time, state)]

    def fork(self, state: Any, left: Any, right: Any) -> Any:
        return state, 0

    def join(self, left: Any, right: Any) -> Any:
        return left + right


@dataclass(frozen=True)
class Both:
    """Of orders and of clicks, which have nothing to do with each other; `rate` is of orders."""

    orders: Orders
    clicks: Clicks


@dataclass(frozen=True)
class Orders:
    total: int = 0
    rate: int = 1


@dataclass(frozen=True)
class Clicks:
    count: int = 0


class OrdersAndClicks(Program):
    """A state of two parts, of types of their own; clicks are forked further."""

    outputs = pa.schema([("kind", pa.string()), ("result", pa.int64())])
    tag = "kind"
    depends: Mapping[str, tuple[str, ...]] = {"order": ("order", "rate"), "rate": ("rate",), "show": ("show", "click")}
    states = (Orders, Clicks)

    def init(self) -> Any:
        return Both(Orders(), Clicks())

    def handles(self, kind: type, tag: Any) -> bool:
        return kind is Both or (tag in ("order", "rate")) == (kind is Orders)

    def update(self, state: Any, event: Any) -> Any:
        if isinstance(state, Both):
            part = "orders" if event.kind in ("order", "rate") else "clicks"
            changed, given = self.update(getattr(state, part), event)
            return replace(state, **{part: changed}), given
        if event.kind == "order":
            total = state.total + event.value * state.rate
            return replace(state, total=total), [{"kind": "order", "result": total}]
        if event.kind == "rate":
            return replace(state, rate=event.value), []
        if event.kind == "click":
            return Clicks(state.count + 1), []
        return Clicks(), [("show", state.count)]

    @fork(Both, Orders, Clicks)
    def apart(self, state: Any, left: Any, right: Any) -> Any:
        return state.orders, state.clicks

    @join(Orders, Clicks, Both)
    def together(self, left: Any, right: Any) -> Any:
        return Both(left, right)

    @fork(Clicks, Clicks, Clicks)
    def shared(self, state: Any, left: Any, right: Any) -> Any:
        return state, Clicks()

    @join(Clicks, Clicks, Clicks)
    def added(self, left: Any, right: Any) -> Any:
        return Clicks(left.count + right.count)

    def examples(self) -> list[dict[str, Any]]:
        values = [("order", 3), ("click", 0), ("rate", 2), ("order", 5), ("show", 0), ("click", 0)]
        return [{"kind": kind, "value": value} for kind, value in values]


class BatchedWindows(EventWindows):
    """With update_batch."""

    def update_batch(self, state: Any, events: pa.RecordBatch) -> Any:
        rows = []
        for event in events.to_pylist():
            if event["kind"] == "value":
                state += event["value"]
            else:
                rows.append({"time": event["time"], "total": state})
                state = 0
        return state, pa.RecordBatch.from_pylist(rows, self.outputs) if rows else None


# ------------------------------------------------------------- planted mistakes


class LosesAKey(KeyCounters):
    def fork(self, state: Any, left: Any, right: Any) -> Any:
        return tuple({key: count for key, count in state.items() if side(("r", key))} for side in (left, right))


class JoinIsNotNeutral(EventWindows):
    def fork(self, state: Any, left: Any, right: Any) -> Any:
        return state, 1


class JoinTakesTheLarger(EventWindows):
    def join(self, left: Any, right: Any) -> Any:
        return max(left, right)


class AsymmetricDepends(KeyCounters):
    def depends(self, a: Any, b: Any) -> bool:
        return bool(a[1] == b[1] and a[0] == "r")


class DependsIsNoBool(KeyCounters):
    def depends(self, a: Any, b: Any) -> Any:
        return "r" if a[1] == b[1] and "r" in (a[0], b[0]) else ""


class CalledIndependent(EventWindows):
    depends: Mapping[str, tuple[str, ...]] = {"barrier": ("barrier",)}


class RemembersInSelf(EventWindows):
    def __init__(self) -> None:
        self.seen = 0

    def update(self, state: Any, event: Any) -> Any:
        self.seen += 1
        return (state, [(event.time, self.seen)]) if event.kind == "barrier" else (state + event.value, [])


_LAST: list[Any] = [0]


class RemembersInAGlobal(EventWindows):
    def update(self, state: Any, event: Any) -> Any:
        _LAST[0] += 1
        return (0, [(event.time, _LAST[0])]) if event.kind == "barrier" else (state + event.value, [])


class _Remembering(EventWindows):
    """Of each value of `kind` the first event that came is remembered; what becomes of it is said by `_first`."""

    def update(self, state: Any, event: Any) -> Any:
        first = self._first(event)
        return (0, [(event.time, state + first)]) if event.kind == "barrier" else (state + event.value, [])

    def _first(self, event: Any) -> int:
        raise NotImplementedError


class RemembersInItsClass(_Remembering):
    seen: dict[str, int] = {}  # noqa: RUF012

    def _first(self, event: Any) -> int:
        return self.seen.setdefault(event.kind, event.time)


_FIRST: dict[str, list[int]] = {}


def _first_of(kind: str, time: int) -> int:
    return _FIRST.setdefault(kind, [time])[0]


class RemembersBehindAFunction(_Remembering):
    def _first(self, event: Any) -> int:
        return _first_of(event.kind, event.time)


_ONLY: int | None = None


class RemembersInAName(_Remembering):
    def _first(self, event: Any) -> int:
        global _ONLY
        _ONLY = event.time if _ONLY is None else _ONLY
        return _ONLY


class RemembersInADefault(_Remembering):
    def _first(self, event: Any, seen: list[int] = []) -> int:  # noqa: B006
        seen.append(event.time)
        return seen[0]


class Caches(_Remembering):
    """Right: what it remembers is the same whenever it is made."""

    squares: dict[int, int] = {}  # noqa: RUF012
    calls = 0

    def _first(self, event: Any) -> int:
        Caches.calls += 1
        if event.time not in self.squares:
            self.squares[event.time] = event.time**2
        return self.squares[event.time]


class ChangesInUpdate(KeyCounters):
    def update(self, state: Any, event: Any) -> Any:
        count = state.get(event.key, 0)
        state[event.key] = count + 1 if event.kind == "i" else 0
        return state, [] if event.kind == "i" else [(event.key, count)]


class ChangesInJoin(KeyCounters):
    def join(self, left: Any, right: Any) -> Any:
        for key, count in right.items():
            left[key] = left.get(key, 0) + count
        return left


class FloatDrift(EventWindows):
    outputs = pa.schema([("time", pa.int64()), ("total", pa.float64())])

    def update(self, state: Any, event: Any) -> Any:
        return (state + event.value / 10, []) if event.kind == "value" else (0.0, [(event.time, state)])


class IgnoresPredicates(KeyCounters):
    def fork(self, state: Any, left: Any, right: Any) -> Any:
        return state, {}


class BatchDiffers(BatchedWindows):
    """The state is reset after the last event of a batch only."""

    def update_batch(self, state: Any, events: pa.RecordBatch) -> Any:
        rows = []
        for event in events.to_pylist():
            state += event["value"] or 0
            if event["kind"] == "barrier":
                rows.append({"time": event["time"], "total": state})
        if events.num_rows and events.column("kind")[-1].as_py() == "barrier":
            state = 0
        return state, pa.RecordBatch.from_pylist(rows, self.outputs)


class LongBatchDiffers(BatchedWindows):
    """What is behind the tenth event of a batch is lost."""

    def update_batch(self, state: Any, events: pa.RecordBatch) -> Any:
        return super().update_batch(state, events.slice(0, 10))


class NotPlain(EventWindows):
    def update(self, state: Any, event: Any) -> Any:
        return (state + complex(event.value, 0), []) if event.kind == "value" else (0, [])


@dataclass(frozen=True)
class Twice:
    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * self.n)


class KeepsMoreThanFields(EventWindows):
    def init(self) -> Any:
        return Twice(0)

    def update(self, state: Any, event: Any) -> Any:
        if event.kind == "value":
            return Twice(state.n + event.value), []
        return Twice(0), [(event.time, state.twice)]

    def fork(self, state: Any, left: Any, right: Any) -> Any:
        return (state, Twice(0)) if left("barrier") else (Twice(0), state)

    def join(self, left: Any, right: Any) -> Any:
        return Twice(left.n + right.n)


class NaNIsAKey(EventWindows):
    def init(self) -> Any:
        return {}

    def update(self, state: Any, event: Any) -> Any:
        if event.kind == "value":
            return {**state, float("nan"): event.value}, []
        return {}, [(event.time, sum(state.values()))]

    def fork(self, state: Any, left: Any, right: Any) -> Any:
        return (state, {}) if left("barrier") else ({}, state)

    def join(self, left: Any, right: Any) -> Any:
        return left | right


class WrongType(OrdersAndClicks):
    @join(Orders, Clicks, Both)
    def together(self, left: Any, right: Any) -> Any:
        return left


class DoesNotHandle(OrdersAndClicks):
    def handles(self, kind: type, tag: Any) -> bool:
        return bool(tag != "show")


class Raises(EventWindows):
    def update(self, state: Any, event: Any) -> Any:
        if state > 5:
            raise ValueError("too much")
        return super().update(state, event)
