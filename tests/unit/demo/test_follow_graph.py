from __future__ import annotations

import heapq
import pickle
from collections import Counter, deque

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.demo.follow_graph import FollowGraph, Lru, LruTtl, Pruned, Searches

GRAPH = FollowGraph()
SMALL = FollowGraph(users=60, follows=2.0, seed=4)


def test_the_same_parameters_give_the_same_graph_and_another_seed_another() -> None:
    again, other = FollowGraph(users=300), FollowGraph(users=300, seed=1)
    graph = FollowGraph(users=300)
    for user in range(300):
        assert np.array_equal(graph.followers(user), again.followers(user))
    assert not np.array_equal(graph.counts(), other.counts())
    assert np.array_equal(pickle.loads(pickle.dumps(graph)).counts(), graph.counts())


def test_nobody_follows_themselves_or_anyone_twice() -> None:
    for user in range(SMALL.users):
        followers = SMALL.followers(user)
        assert user not in followers
        assert np.all(np.diff(followers) > 0)
        assert len(followers) == SMALL.counts()[user]
    assert SMALL.counts().sum() == SMALL.edges


def test_a_few_have_very_many_followers() -> None:
    """A power law: on logarithmic axes, counts by rank are a line, of about the slope that was asked for."""
    counts = np.sort(GRAPH.counts())[::-1]
    assert 6 < GRAPH.edges / GRAPH.users < 12
    assert counts[0] > 50 * np.median(counts)
    ranks = np.arange(30, 3000)
    slope = np.polyfit(np.log(ranks), np.log(counts[ranks]), 1)[0]
    assert -GRAPH.fame - 0.1 < slope < -GRAPH.fame + 0.15


def _searched(graph: FollowGraph, user: int, depth: int) -> set[int]:
    """Breadth first, a user at a time."""
    steps, waiting = {user: 0}, deque([user])
    while waiting:
        each = waiting.popleft()
        for follower in graph.followers(each).tolist() if steps[each] < depth else ():
            if follower not in steps:
                steps[follower] = steps[each] + 1
                waiting.append(follower)
    return set(steps)


@given(user=st.integers(0, 59), depth=st.integers(0, 6))
def test_a_search_finds_what_one_step_after_the_other_finds(user: int, depth: int) -> None:
    found = SMALL.within(user, depth).tolist()
    assert found == sorted(_searched(SMALL, user, depth))
    assert user in found


def test_searches_in_the_large_graph_are_right_and_of_a_size_that_can_be_served() -> None:
    searches = Searches(depth=2).make(0, 20).to_pylist()
    sizes = []
    for search in searches:
        found = set(GRAPH.within(search["user"], 2).tolist())
        assert found == _searched(GRAPH, search["user"], 2)
        sizes.append(len(found))
    assert 20 < np.mean(sizes) < 2000


@given(st.lists(st.integers(0, 59), max_size=20))
def test_followers_of_many_are_those_of_each(users: list[int]) -> None:
    found, places = SMALL.followers_of(np.array(users, np.int64))
    wanted = [(place, follower) for place, user in enumerate(users) for follower in SMALL.followers(user).tolist()]
    assert list(zip(places.tolist(), found.tolist(), strict=True)) == wanted


def test_a_search_is_the_same_wherever_it_is_cut() -> None:
    searches = Searches(users=100, depth=3, seed=9)
    parts = [searches.make(0, 7), searches.make(7, 0), searches.make(7, 93)]
    whole = searches.make(0, 100)
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([whole]).combine_chunks())
    assert len(set(whole["user"].to_pylist())) > 50
    assert not whole.equals(Searches(users=100, depth=3, seed=8).make(0, 100))


# ------------------------------------------------------------------------ caches

USES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=60)


class _ByHand:
    """A list of (key, when it was used), the longest ago first."""

    def __init__(self, capacity: int, ttl_s: float = float("inf")):
        self.capacity, self.ttl_s = capacity, ttl_s
        self.kept: list[tuple[int, float]] = []

    def use(self, key: int, now_s: float) -> bool:
        self.kept = [(each, at) for each, at in self.kept if now_s - at < self.ttl_s]
        was_there = key in [each for each, _ in self.kept]
        self.kept = [(each, at) for each, at in self.kept if each != key]
        self.kept = [*self.kept, (key, now_s)][-self.capacity :]
        return was_there


@given(USES, st.integers(1, 6))
def test_lru_is_a_list_that_is_moved_about(uses: list[tuple[int, int]], capacity: int) -> None:
    cache, by_hand = Lru(capacity), _ByHand(capacity)
    hits = [by_hand.use(key, 0.0) for key, _ in uses]
    assert [cache.use(key) for key, _ in uses] == hits
    assert (cache.hits, cache.misses) == (sum(hits), len(hits) - sum(hits))
    assert cache.peak <= capacity
    assert cache.mean <= cache.peak
    assert {key for key in range(10) if key in cache} == {key for key, _ in by_hand.kept}


@given(USES, st.integers(1, 6), st.integers(1, 5))
def test_what_is_not_used_for_long_goes(uses: list[tuple[int, int]], capacity: int, ttl: int) -> None:
    cache, by_hand, now = LruTtl(capacity, ttl), _ByHand(capacity, ttl), 0.0
    for key, later in uses:
        now += later
        assert cache.use(key, now) == by_hand.use(key, now)
        assert len(cache) == len(by_hand.kept)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=80), st.integers(1, 6))
def test_what_is_pruned_is_gone_at_once_and_the_rest_is_lru(steps: list[tuple[bool, int]], capacity: int) -> None:
    cache, by_hand = Pruned(capacity), _ByHand(capacity)
    for is_pruned, key in steps:
        if is_pruned:
            cache.prune([key])
            by_hand.kept = [pair for pair in by_hand.kept if pair[0] != key]
            assert key not in cache
        else:
            assert cache.use(key) == by_hand.use(key, 0.0)
    assert len(cache) == len(by_hand.kept)


def test_what_is_fetched_is_neither_a_hit_nor_a_miss_until_it_is_used() -> None:
    cache = Lru(2)
    assert [cache.fetch(key) for key in (1, 2, 1)] == [False, False, True]
    assert (cache.hits, cache.misses, len(cache)) == (0, 0, 2)
    assert cache.use(1)
    assert not cache.fetch(3)  # in the place of 2
    assert [cache.use(key) for key in (1, 3, 2)] == [True, True, False]
    assert (cache.hits, cache.misses, cache.peak) == (3, 1, 2)


def _under_way(searches: int, every_s: float, hop_s: float) -> list[tuple[float, str, int]]:
    """What a cache sees of searches that run at once: keys of messages that are sent, of those that come, and those
    that nothing under way names any more."""
    rng, count = np.random.default_rng(0), 0
    agenda: list[tuple[float, int, int, int, int]] = []
    named: Counter[int] = Counter()
    seen: dict[int, set[int]] = {}
    steps: list[tuple[float, str, int]] = []

    def send(at_s: float, user: int, depth: int, query: int) -> None:
        nonlocal count
        count += 1
        named[user] += 1
        steps.append((at_s, "sent", user))
        heapq.heappush(agenda, (at_s + rng.exponential(hop_s), count, user, depth, query))

    waiting = deque(Searches(depth=2).make(0, searches).to_pylist())
    while agenda or waiting:
        if waiting and (not agenda or waiting[0]["query"] * every_s <= agenda[0][0]):
            search = waiting.popleft()
            send(search["query"] * every_s, search["user"], search["depth"], search["query"])
            continue
        at_s, _, user, depth, query = heapq.heappop(agenda)
        steps.append((at_s, "came", user))
        for follower in GRAPH.followers(user).tolist() if depth else ():
            if follower not in seen.setdefault(query, set()):
                seen[query].add(follower)
                send(at_s, follower, depth - 1, query)
        named[user] -= 1
        if not named[user]:
            steps.append((at_s, "over", user))
    return steps


def test_pruning_misses_nothing_where_all_that_is_under_way_has_room_and_others_do() -> None:
    """All fetch alike. What is under way is all that has to be kept, and no other cache knows what that is."""
    steps = _under_way(searches=250, every_s=0.05, hop_s=0.05)

    def served(cache: Lru) -> Lru:
        for at_s, what, user in steps:
            if what == "sent":
                cache.fetch(user, at_s)
            elif what == "came":
                cache.use(user, at_s)
            elif isinstance(cache, Pruned):
                cache.prune([user])
        assert cache.hits + cache.misses == sum(what == "came" for _, what, _ in steps)
        return cache

    room = served(Pruned(GRAPH.users)).peak
    pruned, lru, ttl = served(Pruned(room)), served(Lru(room)), served(LruTtl(room, ttl_s=0.2))
    assert pruned.misses == 0
    assert min(lru.misses, ttl.misses) > 100
    assert pruned.mean < ttl.mean / 2 < lru.mean / 2
    assert len(pruned) == 0
    half = served(Pruned(room // 2))
    assert 0 < half.misses < served(Lru(room // 2)).misses / 2


def test_a_larger_lru_never_misses_more() -> None:
    rng = np.random.default_rng(1)
    keys = rng.zipf(1.3, 3000) % 200
    misses = []
    for capacity in (1, 5, 20, 80, 200):
        cache = Lru(capacity)
        for key in keys.tolist():
            cache.use(key)
        misses.append(cache.misses)
    assert misses == sorted(misses, reverse=True)
    assert misses[-1] == len(set(keys.tolist()))
    assert Lru(1).miss_ratio == 0.0


@pytest.mark.parametrize("make", [lambda: Lru(0), lambda: LruTtl(0, 1.0), lambda: LruTtl(3, 0.0), lambda: Pruned(-1)])
def test_caches_without_room_or_time_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=r"give (it room|seconds)"):
        make()
