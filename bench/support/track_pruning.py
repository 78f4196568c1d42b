"""Searches in a graph of followers on a few machines in virtual time, and caches for what they look up.

What a cache does changes nothing for the searches: a look-up takes as long whether it is found or not. So the flow runs
once, with followers that are kept by tracking, and what its tasks saw (users that were referred to, that were used, and
that nothing refers to any more) is played again to caches of every kind and size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import pyarrow as pa

import headrace as hr
from bench.support.virtual_cluster import VirtualCluster
from bench.support.virtual_costs import Costs
from headrace.demo.follow_graph import Followers, FollowGraph, Ints, Searches, search
from headrace.flow.pruned import LoadedValues
from headrace.flow.worker import Pace

NODES: Final = 4
QUERIES_A_SECOND: Final = 20.0
DEPTH: Final = 3
REFERRED, USED, ENDED = range(3)

Trace: TypeAlias = list[list[tuple[float, int, int]]]
"""Of each task: when, what, and the user."""


# ------------------------------------------------------------------------- run


@dataclass(frozen=True)
class WithLookUps(Costs):
    """What stages say that they took, too."""

    stages: list[float] = field(default_factory=list)

    def of(self, *given: Any) -> float:
        taken = sum(self.stages)
        self.stages.clear()
        return super().of(*given) + taken


class Traced(Followers):
    """Notes what it sees, as it gives it to what it keeps."""

    cluster: ClassVar[VirtualCluster]
    tasks: ClassVar[list[Traced]]
    costs: ClassVar[WithLookUps]
    look_up_s: ClassVar[float]

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, int, int]] = []
        self.tasks.append(self)

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        users, is_ahead = batch.column("user").to_numpy(), np.asarray(batch.column("ahead"))
        for what, some in ((REFERRED, users[is_ahead]), (USED, users[~is_ahead])):
            self.seen += [(self.cluster.now, what, user) for user in some.tolist()]
        self.costs.stages.append(self.look_up_s * int((~is_ahead).sum()))
        return super().on_batch(batch)

    def on_ended(self, substream: Any) -> Any:
        if substream in self.kept:
            self.seen.append((self.cluster.now, ENDED, substream))
        return super().on_ended(substream)


@dataclass(frozen=True)
class Run:
    """What came of the searches, which were all answered rightly."""

    trace: Trace
    seconds: float
    live: dict[str, int]
    """What the tasks themselves report of what they kept, added up."""
    busy: float
    took_ms: Ints
    """How long each search took."""


def ignored(batch: pa.RecordBatch) -> None:
    """A sink that does nothing."""


def searched(costs: Costs, seconds: float, look_up_s: float) -> Run:
    """Searches for so many seconds of virtual time. Raises AssertionError where one is not answered rightly."""
    graph, searches, count = FollowGraph(), Searches(depth=DEPTH), int(seconds * QUERIES_A_SECOND)
    everything = searches.make(0, count)

    def begun(batch: pa.RecordBatch) -> pa.RecordBatch:
        return everything.take(batch.column("n"))

    with_stages = WithLookUps(**asdict(costs))
    followers = type("Traced", (Traced,), {"graph": graph, "tasks": [], "costs": with_stages, "look_up_s": look_up_s})
    flow = hr.Flow("searches")
    queries = flow.stage("begun", begun, flow.source("numbers", hr.rate(QUERIES_A_SECOND, count)))
    flow.sink("out", search(flow, queries, followers, tasks=NODES), hr.callback(ignored))
    cluster = VirtualCluster(flow.graph(), NODES, with_stages, tick_s=0.005, pace=Pace(commit_s=5.0))
    followers.cluster = cluster  # type: ignore[attr-defined]
    until_s = cluster.run()
    tasks: list[Traced] = followers.tasks  # type: ignore[attr-defined]
    live = {name: sum(task.kept.report()[name] for task in tasks) for name in tasks[0].kept.report()}
    took = _checked(cluster, graph, everything)
    return Run([task.seen for task in tasks], until_s, live, float(np.mean(cluster.busy)), took)


def _checked(cluster: VirtualCluster, graph: FollowGraph, everything: pa.RecordBatch) -> Ints:
    """How long each search took, in whole milliseconds."""
    found = pa.Table.from_batches([given.batch for given in cluster.delivered])
    at_s = np.repeat([given.at_s for given in cluster.delivered], [given.batch.num_rows for given in cluster.delivered])
    queries, users = found.column("query").to_numpy(), found.column("user").to_numpy()
    order = np.lexsort((users, queries))
    bounds = np.searchsorted(queries[order], np.arange(everything.num_rows + 1))
    took = []
    for number, user in enumerate(everything.column("user").to_pylist()):
        own = order[bounds[number] : bounds[number + 1]]
        assert np.array_equal(users[own], graph.within(user, DEPTH)), f"search {number} found others"
        took.append(at_s[own].max() - (number + 1) / QUERIES_A_SECOND)
    return np.array([round(each * 1000) for each in took], np.int64)


# ---------------------------------------------------------------------- caches


@dataclass(frozen=True)
class Outcome:
    """Of a cache of each task, all together."""

    misses: int
    loads: int
    most: int
    """The keys that each task had at most, added up."""
    keys: float
    """How many there were on average, over the time: the memory it took."""


def played(
    run: Run, capacity: int | None, *, is_tracked: bool = False, ttl_s: float = float("inf"), is_ahead: bool = True
) -> Outcome:
    """`capacity` is that of each task. `is_ahead`: a user is loaded when it is referred to, and not only when used."""
    parts = [_played_task(events, capacity, is_tracked, ttl_s, is_ahead, run.seconds) for events in run.trace]
    misses, loads, most, key_seconds = (sum(each) for each in zip(*parts, strict=True))
    return Outcome(misses, loads, most, key_seconds / run.seconds)


def _played_task(
    events: Iterable[tuple[float, int, int]],
    capacity: int | None,
    is_tracked: bool,
    ttl_s: float,
    is_ahead: bool,
    until_s: float,
) -> tuple[int, int, int, float]:
    last: OrderedDict[int, float] = OrderedDict()
    since: dict[int, float] = {}
    misses = loads = most = 0
    key_seconds, room = 0.0, capacity or 1 << 62
    for at_s, what, user in events:
        while last and (oldest := next(iter(last.values())) + ttl_s) <= at_s:
            key_seconds += oldest - since.pop(last.popitem(last=False)[0])
        if what == ENDED:
            if is_tracked and last.pop(user, None) is not None:
                key_seconds += at_s - since.pop(user)
            continue
        if what == REFERRED and not is_ahead:
            continue
        if user in last:
            last.move_to_end(user)
        else:
            loads += 1
            misses += what == USED
            if len(last) >= room:
                key_seconds += at_s - since.pop(last.popitem(last=False)[0])
            since[user] = at_s
        last[user] = at_s
        most = max(most, len(last))
    key_seconds += sum(min(until_s, touched + ttl_s) - since[user] for user, touched in last.items())
    return misses, loads, most, key_seconds


def check_like_the_library(run: Run, capacity: int, ttl_s: float) -> None:
    """What is played here is what the stage does, and what `LoadedValues` does. Raises AssertionError."""
    alone = played(run, None, is_tracked=True)
    assert (run.live["misses"], run.live["loads"], run.live["most"]) == (alone.misses, alone.loads, alone.most)
    for ttl in (None, ttl_s):
        outcome, misses, loads = played(run, capacity, ttl_s=ttl or float("inf")), 0, 0
        for events in run.trace:
            now = [0.0]
            values = LoadedValues[int, int](_same, capacity, "lru", ttl, lambda now=now: now[0])  # type: ignore[misc]
            for now[0], what, user in events:
                if what != ENDED:
                    (values.use if what == USED else values.refer)([user])
            misses, loads = misses + values.misses, loads + values.loads
        assert (outcome.misses, outcome.loads) == (misses, loads)


def _same(keys: Sequence[int]) -> Sequence[int]:
    return keys


def uses(run: Run) -> int:
    return sum(what == USED for events in run.trace for _, what, _ in events)
