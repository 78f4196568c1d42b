"""Programs with many tags, to try `check` on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.synchronize.program import Program

from .check_programs import Clicks, OrdersAndClicks

MANY_SHOPS = [
    {
        "kind": "eod" if n % 100 == 99 else "close" if n % 7 == 3 else "sale",
        "shop": None if n % 100 == 99 else f"s{n % 40}",
        "id": "all" if n % 100 == 99 else f"i{n % 30}",
        "cents": n,
    }
    for n in range(1000)
]


class EndOfDay(Program):
    """Takings of shops until they are closed; at the end of a day all are."""

    outputs = pa.schema([("shop", pa.string()), ("cents", pa.int64())])

    def depends(self, a: Any, b: Any) -> bool:
        return "eod" in (a[0], b[0]) or bool(a[1] == b[1] and "close" in (a[0], b[0]))

    def init(self) -> Any:
        return {}

    def update(self, state: Any, event: Any) -> Any:
        if event.kind == "eod":
            return {}, sorted(state.items())
        if event.kind == "sale":
            return {**state, event.shop: state.get(event.shop, 0) + event.cents}, []
        others = {shop: cents for shop, cents in state.items() if shop != event.shop}
        return others, [(event.shop, state.get(event.shop, 0))]

    def fork(self, state: Any, left: Any, right: Any) -> Any:
        ours = {shop: cents for shop, cents in state.items() if left(("close", shop))}
        return ours, {shop: cents for shop, cents in state.items() if shop not in ours}

    def join(self, left: Any, right: Any) -> Any:
        return {shop: left.get(shop, 0) + right.get(shop, 0) for shop in {**left, **right}}


class EndOfDayForgotten(EndOfDay):
    def depends(self, a: Any, b: Any) -> bool:
        return bool(a[1] == b[1] and "close" in (a[0], b[0]))


class AllForgotten(Program):
    """Sums of what came between events of "all", which events of other ids are not said to depend on."""

    outputs = pa.schema([("cents", pa.int64())])

    def depends(self, a: Any, b: Any) -> bool:
        return bool(a == b)

    def init(self) -> Any:
        return 0

    def update(self, state: Any, event: Any) -> Any:
        return (0, [(state,)]) if event.id == "all" else (state + event.cents, [])

    def fork(self, state: Any, left: Any, right: Any) -> Any:
        return state, 0

    def join(self, left: Any, right: Any) -> Any:
        return left + right


class KeyedTypes(OrdersAndClicks):
    """As OrdersAndClicks, with a key that does not count."""

    tag = ("kind", "shop")  # type: ignore[assignment]

    def handles(self, kind: type, tag: Any) -> bool:
        return super().handles(kind, tag[0])

    def examples(self) -> list[dict[str, Any]]:
        return [{**event, "shop": "north"} for event in super().examples()]


class HandlesAKey(KeyedTypes):
    def handles(self, kind: type, tag: Any) -> bool:
        return super().handles(kind, tag) and (kind is not Clicks or tag[1] != "south")


class HandlesNoKey(KeyedTypes):
    def handles(self, kind: type, tag: Any) -> bool:
        return super().handles(kind, tag) and (kind is not Clicks or len(tag) == 2)
