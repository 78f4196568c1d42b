"""State that is kept while records refer to it: values of a slow store, at hand for as long as they are needed.

A cache can only guess how long that is, from when a key was last used. A stage that reads a stream tracked by key, with
`ends=hr.whenever()`, is told: when nothing on the way to it refers to a key any more, the key goes at once, and only
what is needed takes memory. This holds in loops, too, and for keys that are first named inside a loop.

    class Followers(PrunedStage):
        capacity = 10_000

        def load(self, keys):
            return [store.followers_of(key) for key in keys]

        def on_batch(self, batch):
            lists = self.kept.use(batch.column("user").to_pylist())
            ...

    messages = loop.tracked(by="user", ends=hr.whenever())
    flow.stage("followers", Followers, messages, route=hr.key("user"), parallelism=4)

What is kept is no state of the flow: after a restart it is empty, and fills again. What a stage gives must not depend
on it, so `load` has to give the same for the same key.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

from headrace.errors import FlowError
from headrace.flow.operators import Stage

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Policy = Literal["tracked", "lru"]

_AWAITED: Final[Any] = object()
"""In the place of a value that is being loaded."""


class LoadedValues(Generic[Key, Value]):
    """Values by key, loaded when they are not at hand.

    `load`      gives the values of keys, in the order of the keys; no key comes twice in a call
    `capacity`  at most so many are kept, and the one that was not used for longest goes first; None for no limit
    `policy`    "tracked": a key that is pruned goes; "lru": it stays
    `ttl_s`     with "lru": what was neither used nor referred to for so long goes, too, by the `clock`

    `use` finds a key (a *hit*) or does not (a *miss*). To `refer` to a key is to load it before it is used: neither.
    """

    def __init__(
        self,
        load: Callable[[Sequence[Key]], Sequence[Value]],
        capacity: int | None = None,
        policy: Policy = "tracked",
        ttl_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if capacity is not None and capacity < 1:
            raise FlowError(f"capacity={capacity}: give room for one key at least, or None for no limit")
        if policy not in ("tracked", "lru"):
            raise FlowError(f'policy={policy!r}: use "tracked" or "lru"')
        if ttl_s is not None and (policy == "tracked" or not ttl_s > 0):
            raise FlowError(f'ttl_s={ttl_s!r}: give seconds above 0, with policy="lru"; what is tracked needs none')
        self.capacity, self.policy, self.ttl_s = capacity, policy, ttl_s
        self.hits = 0
        self.misses = 0
        self.loads = 0
        """How many keys were loaded, for a use or ahead of it."""
        self.pruned = 0
        """How many keys went because nothing referred to them any more."""
        self.most = 0
        """How many keys there were at most."""
        self._load, self._clock = load, clock
        self._values: OrderedDict[Key, Value] = OrderedDict()
        """That of the key that was not used for longest comes first."""
        self._used_s: dict[Key, float] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def use(self, keys: Iterable[Key]) -> list[Value]:
        """The value of each key. Those that are not at hand are loaded in one call; counts are as if one by one."""
        wanted = list(keys)
        found = self._taken(wanted, is_use=True)
        return [found[key] for key in wanted]

    def refer(self, keys: Iterable[Key]) -> None:
        """These are going to be used: those that are not at hand are loaded now, in one call."""
        self._taken(keys, is_use=False)

    def prune(self, keys: Iterable[Key]) -> None:
        """Nothing refers to these now. One that is used after all is loaded again."""
        for key in keys if self.policy == "tracked" else ():
            if self._values.pop(key, _AWAITED) is not _AWAITED:
                self.pruned += 1

    def report(self) -> dict[str, int]:
        return {
            "keys": len(self), "most": self.most, "hits": self.hits, "misses": self.misses, "loads": self.loads,
            "pruned": self.pruned,
        }  # fmt: skip

    # ----------------------------------------------------------------- helpers

    def _taken(self, keys: Iterable[Key], is_use: bool) -> dict[Key, Value]:
        now_s = self._clock() if self.ttl_s is not None else 0.0
        self._expire(now_s)
        found: dict[Key, Value] = {}
        missing: dict[Key, None] = {}
        try:
            for key in keys:
                is_there = key in self._values
                self.hits += is_use and is_there
                self.misses += is_use and not is_there
                if not is_there:
                    self._make_room()
                    missing[key] = None
                elif self._values[key] is not _AWAITED:
                    found[key] = self._values[key]
                self._touch(key, now_s)
            # What had to go for others of the same call is in `found`: it need not be loaded.
            found |= self._loaded([key for key in missing if key not in found])
        finally:
            for key in missing:
                if key not in found:
                    self._values.pop(key, None)
                elif key in self._values:
                    self._values[key] = found[key]
        return found

    def _make_room(self) -> None:
        if self.capacity is not None and len(self._values) >= self.capacity:
            self._used_s.pop(self._values.popitem(last=False)[0], None)

    def _touch(self, key: Key, now_s: float) -> None:
        """It is the last to go now."""
        self._values.setdefault(key, _AWAITED)
        self._values.move_to_end(key)
        self.most = max(self.most, len(self._values))
        if self.ttl_s is not None:
            self._used_s[key] = now_s

    def _expire(self, now_s: float) -> None:
        while self.ttl_s is not None and self._values:
            key = next(iter(self._values))
            if self._used_s[key] > now_s - self.ttl_s:
                return
            del self._values[key], self._used_s[key]

    def _loaded(self, keys: list[Key]) -> dict[Key, Value]:
        if not keys:
            return {}
        values = self._load(keys)
        name = getattr(self._load, "__qualname__", "load")
        if isinstance(values, Mapping | Set | str) or not hasattr(values, "__len__"):
            raise FlowError(
                f"{name} gave a {type(values).__name__}; it must give a list of values, one for each key, in order"
            )
        if len(values) != len(keys):
            raise FlowError(
                f"{name} gave {len(values)} values for {len(keys)} keys; it must give one for each, in order"
            )
        self.loads += len(keys)
        return dict(zip(keys, values, strict=True))


class PrunedStage(Stage):
    """A stage that looks up values of a slow store, and keeps those that records on the way refer to.

    It reads a stream that is tracked by the very keys it looks up, with `ends=hr.whenever()`, and routed by them. Write
    `load` and `on_batch`; `self.kept.use(keys)` gives the values. Attributes of the class:

    `capacity`  how many values are kept at most; None, the default, for no limit
    `policy`    "tracked", the default: a value goes when nothing refers to its key any more; "lru": it stays, until
                others need the room
    `ttl_s`     with "lru": a value that was not used for this long goes, too
    """

    capacity: ClassVar[int | None] = None
    policy: ClassVar[Policy] = "tracked"
    ttl_s: ClassVar[float | None] = None

    @cached_property
    def kept(self) -> LoadedValues[Any, Any]:
        # A class with an __init__ of its own need not think of this one.
        return LoadedValues(self.load, self.capacity, self.policy, self.ttl_s, self.clock)

    @abstractmethod
    def load(self, keys: Sequence[Any]) -> Sequence[Any]:
        """The values of keys, in the order of the keys: the same ones whenever it is asked."""

    def clock(self) -> float:
        """Seconds, for `ttl_s`."""
        return time.monotonic()

    def on_ended(self, substream: Any) -> Any:
        self.kept.prune([substream])
        return None

    def report(self) -> dict[str, int]:
        """How the values are kept, as plain numbers."""
        return self.kept.report()
