"""Who follows whom: a graph of users with a few of great fame, searches in it, and caches for what searches look up.

A search asks for all users within so many steps of one, from a user to those who follow them. In a flow it goes round
in a loop: a message names a user, whose followers are looked up and become messages. Each look-up needs the followers
of a user at hand: the caches here say how often they are not. `search` is the flow, and keeps them by tracking users.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.flow import routing
from headrace.flow.builder import Flow, Stream
from headrace.flow.hashing import hash_numbers
from headrace.flow.pruned import PrunedStage
from headrace.flow.substreams import whenever

Ints = npt.NDArray[np.int64]


# ------------------------------------------------------------------------- graph


@dataclass(frozen=True)
class FollowGraph:
    """Drawn from a seed: the same again for the same parameters.

    `follows` is how many others a user follows, on average: a few follow very many. Whom they follow is drawn by rank
    of fame: rank r has a weight of (r + shift) ** -fame, so follower counts have a tail that is a power law.
    """

    users: int = 20_000
    follows: float = 8.0
    fame: float = 0.8
    shift: float = 10.0
    seed: int = 0

    @cached_property
    def _lists(self) -> tuple[Ints, Ints]:
        """Where the followers of each user begin, and all followers, in the order of users and then of followers."""
        rng = np.random.default_rng(self.seed)
        # A Pareto tail of power 2, with the mean that was asked for.
        counts = np.minimum(rng.pareto(2.0, self.users) * self.follows, self.users / 20).astype(np.int64) + 1
        weights = np.cumsum((np.arange(self.users) + self.shift) ** -self.fame)
        ranks = np.searchsorted(weights, rng.uniform(0, weights[-1], int(counts.sum())))
        followed = rng.permutation(self.users)[np.minimum(ranks, self.users - 1)]
        pairs = np.unique(followed * self.users + np.repeat(np.arange(self.users), counts))
        who, by = pairs // self.users, pairs % self.users
        who, by = who[who != by], by[who != by]
        return np.searchsorted(who, np.arange(self.users + 1)).astype(np.int64), by

    @property
    def edges(self) -> int:
        return len(self._lists[1])

    def counts(self) -> Ints:
        """How many follow each user."""
        return np.diff(self._lists[0])

    def followers(self, user: int) -> Ints:
        """In rising order."""
        starts, by = self._lists
        return by[starts[user] : starts[user + 1]]

    def followers_of(self, users: Ints) -> tuple[Ints, Ints]:
        """The followers of all of these, one after the other, and for each the place of whom it follows in `users`."""
        starts, by = self._lists
        counts = starts[users + 1] - starts[users]
        places = np.repeat(np.arange(len(users)), counts)
        within = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        return by[starts[users][places] + within], places

    def within(self, user: int, depth: int) -> Ints:
        """The answer of a search: all users at most `depth` steps away, the user among them, in rising order."""
        seen = np.zeros(self.users, np.bool_)
        seen[user] = True
        edge: Ints = np.array([user], np.int64)
        for _ in range(depth):
            found = np.unique(self.followers_of(edge)[0])
            edge = found[~seen[found]]
            seen[edge] = True
        return np.flatnonzero(seen)


@dataclass(frozen=True)
class Searches:
    """Search n is the same always: `query` n asks for what is within `depth` of `user`, any of them alike."""

    users: int = 20_000
    depth: int = 2
    seed: int = 0

    def make(self, first: int, count: int) -> pa.RecordBatch:
        """Searches `first`, `first + 1`, …: for `hr.generate`."""
        users = (hash_numbers(first, count, self.seed + 1) % np.uint64(self.users)).astype(np.int64)
        numbers = np.arange(first, first + count, dtype=np.int64)
        depths = np.full(count, self.depth, np.int32)
        return pa.record_batch({"query": pa.array(numbers), "user": pa.array(users), "depth": pa.array(depths)})


# ------------------------------------------------------------------------ search

MESSAGES = pa.schema([("query", pa.int64()), ("user", pa.int64()), ("depth", pa.int32()), ("ahead", pa.bool_())])
"""A search has come to a user, and may go `depth` steps further. `ahead`: it only says that it is about to."""
VISITS = MESSAGES.append(pa.field("first", pa.bool_()))
FOUND = pa.schema([("query", pa.int64()), ("user", pa.int64())])


def named_user(batch: pa.RecordBatch) -> pa.Array:
    """The user whose followers a message will ask for: none where the search goes no further."""
    return pc.if_else(pc.greater(batch.column("depth"), 0), batch.column("user"), pa.scalar(None, pa.int64()))


def asked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Searches as messages."""
    columns = [batch.column(name) for name in ("query", "user", "depth")]
    return pa.RecordBatch.from_arrays([*columns, pa.repeat(False, batch.num_rows)], schema=MESSAGES)


def announced(batch: pa.RecordBatch) -> pa.RecordBatch:
    going_on = batch.filter(pc.greater(batch.column("depth"), 0))
    return going_on.set_column(3, MESSAGES.field(3), pa.repeat(True, going_on.num_rows))


def visited(best: int | None, message: dict[str, Any]) -> Any:
    """A search goes on from a user once, and again where it may go further than before."""
    if best is not None and message["depth"] <= best:
        return best, None
    return message["depth"], {**message, "first": best is None}


def going_on(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.greater(batch.column("depth"), 0)).select(MESSAGES.names)


def new_users(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(batch.column("first")).select(FOUND.names)


class Followers(PrunedStage):
    """Sends searches on to the followers of a user. Those that are announced are loaded ahead."""

    graph: ClassVar[FollowGraph]

    def load(self, keys: Sequence[int]) -> list[Ints]:
        return [self.graph.followers(user) for user in keys]

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.kept.refer(batch.filter(batch.column("ahead")).column("user").to_pylist())
        come = batch.filter(pc.invert(batch.column("ahead")))
        followers = self.kept.use(come.column("user").to_pylist())
        rows = pa.array(np.repeat(np.arange(come.num_rows), [len(each) for each in followers]))
        users = pa.array(np.concatenate([*followers, np.empty(0, np.int64)]))
        depths = pc.subtract(come.column("depth").take(rows), pa.scalar(1, pa.int32()))
        columns = [come.column("query").take(rows), users, depths, pa.repeat(False, len(users))]
        return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def search(flow: Flow, queries: Stream, followers: type[Followers], tasks: int = 1, agents: int = 1) -> Stream:
    """The users that each search finds, `query` and `user`, each once. `queries` are as `Searches` makes them.

    Messages go round: each is announced to the task that has the followers of its user, and goes there itself if the
    search has not been at this user before. That task keeps followers for as long as any message names their user.
    """
    visit = flow.loop("visit", flow.stage("asked", asked, queries), parallelism=tasks, route=routing.key("query"))
    ahead = flow.stage("ahead", announced, visit)
    visits = flow.keyed("visited", visited, visit, by=("query", "user"), parallelism=tasks, schema=VISITS)
    come = flow.stage("going-on", going_on, visits)
    named = [stream.tracked(by=named_user, ends=whenever(), agents=agents, flush_s=0.005) for stream in (ahead, come)]
    sent = flow.stage("followers", followers, *named, parallelism=tasks, route=routing.key("user"))
    visit.back(sent)
    return flow.stage("found", new_users, visits)


# ------------------------------------------------------------------------ caches


class Lru:
    """At most `capacity` keys, of which the one that was not used for longest goes first.

    To use a key that is not there is a miss, and it is there then. What is fetched when a message that names it is
    sent is at hand when the message comes, unless it had to go in between: so fetching is neither a hit nor a miss.
    `peak` is how many keys there were at most, `mean` how many there were after a use, on average: the memory it took.
    """

    def __init__(self, capacity: int):
        if capacity < 1:
            raise ValueError(f"a cache of {capacity} keys; give it room for one at least")
        self.capacity = capacity
        self.hits = 0
        self.misses = 0
        self.peak = 0
        self._total = 0
        self._used: OrderedDict[int, float] = OrderedDict()
        """When each key was used last, the longest ago first."""

    def __len__(self) -> int:
        return len(self._used)

    def __contains__(self, key: int) -> bool:
        return key in self._used

    def use(self, key: int, now_s: float = 0.0) -> bool:
        """Was it there?"""
        is_hit = self.fetch(key, now_s)
        self.hits += is_hit
        self.misses += not is_hit
        self._total += len(self._used)
        return is_hit

    def fetch(self, key: int, now_s: float = 0.0) -> bool:
        """It is going to be used. Was it there?"""
        self._expire(now_s)
        was_there = key in self._used
        if was_there:
            self._used.move_to_end(key)
        elif len(self._used) >= self.capacity:
            self._used.popitem(last=False)
        self._used[key] = now_s
        self.peak = max(self.peak, len(self._used))
        return was_there

    def _expire(self, now_s: float) -> None:
        """Before a key is looked for."""

    @property
    def miss_ratio(self) -> float:
        return self.misses / max(1, self.hits + self.misses)

    @property
    def mean(self) -> float:
        return self._total / max(1, self.hits + self.misses)


class LruTtl(Lru):
    """A key that was neither used nor fetched for `ttl_s` goes, too. Times must not fall."""

    def __init__(self, capacity: int, ttl_s: float):
        super().__init__(capacity)
        if not ttl_s > 0:
            raise ValueError(f"ttl_s={ttl_s}: give seconds above 0")
        self.ttl_s = ttl_s

    def _expire(self, now_s: float) -> None:
        while self._used and next(iter(self._used.values())) <= now_s - self.ttl_s:
            self._used.popitem(last=False)


class Pruned(Lru):
    """Keys go as soon as `prune` says that nothing under way refers to them: the tracker knows.

    Where there is no room even so, the one that was not used for longest goes first, as in `Lru`.
    """

    def prune(self, keys: Iterable[int]) -> None:
        """Those that are not there any more are gone already."""
        for key in keys:
            self._used.pop(key, None)
