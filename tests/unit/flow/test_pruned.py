from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.demo.follow_graph import Followers, FollowGraph, Lru, LruTtl, Pruned, Searches, search
from headrace.errors import FlowError
from headrace.flow.batch_stages import ForBatch
from headrace.flow.builder import Flow
from headrace.flow.graph import Graph
from headrace.flow.operators import Shape
from headrace.flow.pruned import LoadedValues, PrunedStage
from headrace.flow.sequential import run_sequentially
from headrace.flow.sinks import callback
from headrace.flow.sources import generate
from headrace.simulate.check import Simulation

ROOT = Path(__file__).parents[3]
KEYS = st.lists(st.integers(0, 9), max_size=12)
STEPS = st.lists(st.tuples(st.sampled_from(["use", "refer", "prune"]), KEYS, st.integers(0, 3)), max_size=30)


class Store:
    """Gives for each key ten times the key, and notes what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def load(self, keys: Sequence[int]) -> list[int]:
        assert len(set(keys)) == len(keys) > 0
        self.calls.append(list(keys))
        return [key * 10 for key in keys]


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _check_like(oracle: Lru, steps: list[tuple[str, list[int], int]], **how: Any) -> None:
    """Values in batches, the oracle one key after the other."""
    store, clock = Store(), Clock()
    values = LoadedValues(store.load, clock=clock, **how)
    for what, keys, later in steps:
        clock.now_s += later
        if what == "use":
            assert values.use(keys) == [key * 10 for key in keys]
            for key in keys:
                oracle.use(key, clock.now_s)
        elif what == "refer":
            values.refer(keys)
            for key in keys:
                oracle.fetch(key, clock.now_s)
        else:
            values.prune(keys)
            if isinstance(oracle, Pruned):
                oracle.prune(keys)
        assert (values.hits, values.misses, values.most) == (oracle.hits, oracle.misses, oracle.peak)
        if keys and what != "prune":
            assert {key for key in range(10) if key in values} == {key for key in range(10) if key in oracle}
    assert values.loads == sum(map(len, store.calls))


@settings(max_examples=200)
@given(STEPS, st.integers(1, 6))
def test_what_is_pruned_goes_and_else_what_was_not_used_for_longest(steps: Any, capacity: int) -> None:
    _check_like(Pruned(capacity), steps, capacity=capacity)
    _check_like(Pruned(100), steps)


@settings(max_examples=200)
@given(STEPS, st.integers(1, 6), st.integers(1, 5))
def test_others_go_by_room_and_by_time_alone(steps: Any, capacity: int, ttl: int) -> None:
    _check_like(Lru(capacity), steps, capacity=capacity, policy="lru")
    _check_like(LruTtl(capacity, ttl), steps, capacity=capacity, policy="lru", ttl_s=ttl)


def test_what_goes_in_the_middle_of_a_call_is_given_all_the_same_and_loaded_once() -> None:
    store = Store()
    values = LoadedValues(store.load, capacity=1)
    assert values.use([1, 2, 1, 2]) == [10, 20, 10, 20]
    assert store.calls == [[1, 2]]
    assert values.report() == {"keys": 1, "most": 1, "hits": 0, "misses": 4, "loads": 2, "pruned": 0}
    assert values.use([2, 3, 2]) == [20, 30, 20]
    assert store.calls[1:] == [[3]]
    assert 2 in values


def test_of_a_load_that_fails_nothing_is_left() -> None:
    answers: list[Any] = [OSError("no store"), [], [10, 20], [30]]

    def load(keys: Sequence[int]) -> list[int]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return list(answer)

    values = LoadedValues(load)
    with pytest.raises(OSError, match="no store"):
        values.use([1, 2])
    with pytest.raises(FlowError, match=r"load gave 0 values for 2 keys; it must give one for each"):
        values.refer([1, 2])
    assert len(values) == 0
    assert values.use([1, 2]) == [10, 20]
    with pytest.raises(TypeError):
        values.use([3, []])  # type: ignore[list-item]
    assert values.use([3]) == [30]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"capacity": 0}, "give room for one key at least"),
        ({"policy": "fifo"}, 'use "tracked" or "lru"'),
        ({"policy": "lru", "ttl_s": 0}, "give seconds above 0"),
        ({"ttl_s": 1.0}, "what is tracked needs none"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(FlowError, match=problem):
        LoadedValues(Store().load, **given)


# ------------------------------------------------------------------------- flows

GRAPH = FollowGraph(users=60, follows=2.0, seed=4)
SEARCHES = Searches(users=60, depth=3, seed=1)
COUNT = 12


class Forgetting(Followers):
    """Nothing is kept in the end: all that was loaded was pruned."""

    graph = GRAPH

    def on_end(self) -> Any:
        assert len(self.kept) == 0, f"{len(self.kept)} users are kept, and nothing will come"


class Narrow(Forgetting):
    capacity = 2


class Remembering(Followers):
    graph = GRAPH
    policy = "lru"
    ttl_s = 0.001


def ignored(batch: pa.RecordBatch) -> None:
    """A sink that does nothing."""


def _drawn(followers: type[Followers], agents: int = 1) -> Graph:
    flow = Flow("searches")
    queries = flow.source("queries", generate(SEARCHES.make, COUNT))
    flow.sink("out", search(flow, queries, followers, tasks=3, agents=agents), callback(ignored))
    return flow.graph()


@pytest.mark.parametrize("followers", [Forgetting, Narrow, Remembering])
def test_searches_find_what_a_search_alone_finds(followers: type[Followers]) -> None:
    found = run_sequentially(_drawn(followers), most_records=3)["out"].to_pylist()
    wanted = [
        (search["query"], user)
        for search in SEARCHES.make(0, COUNT).to_pylist()
        for user in GRAPH.within(search["user"], SEARCHES.depth).tolist()
    ]
    assert sorted((record["query"], record["user"]) for record in found) == wanted


@pytest.mark.parametrize(("followers", "agents"), [(Forgetting, 1), (Narrow, 2), (Remembering, 1)])
def test_searches_find_the_same_under_crashes(followers: type[Followers], agents: int) -> None:
    simulation = Simulation(_drawn(followers, agents))
    for seed in range(8):
        failure = simulation.run(simulation.setup(seed))
        assert failure is None, failure.story()


def test_every_search_of_the_example_is_told_to_be_complete_under_crashes() -> None:
    """An answer is given at the end of a search, and is wrong if that is told too early."""
    example = runpy.run_path(str(ROOT / "examples" / "friends_of_friends.py"))
    graph = example["draw"]("unused", 6, rate=5.0).graph()
    answers = run_sequentially(graph)["answers"].to_pylist()
    assert sorted(answers, key=lambda answer: answer["search"]) == [example["one_by_one"](n) for n in range(6)]
    for drawn in (graph, example["draw_kept"]("unused", 6, rate=5.0).graph()):
        simulation = Simulation(drawn)
        for seed in range(3):
            failure = simulation.run(simulation.setup(seed))
            assert failure is None, failure.story()


class Doubled(PrunedStage):
    def load(self, keys: Sequence[int]) -> list[int]:
        return [key * 2 for key in keys]

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([self.kept.use(batch.column("x").to_pylist())], names=["x"])


def test_how_values_are_kept_is_in_the_status_of_the_task() -> None:
    schema = pa.schema([("x", pa.int64())])
    operator = ForBatch(Doubled, is_class=True).open(Shape("doubled", {"": schema}))
    [(_, given)] = operator.apply(pa.record_batch([[3, 4, 3]], schema=schema))
    operator.ended(4)
    assert given.column("x").to_pylist() == [6, 8, 6]
    assert operator.report() == {"keys": 1, "most": 2, "hits": 1, "misses": 2, "loads": 2, "pruned": 1}
    again = ForBatch(Lists, is_class=True).open(Shape("doubled", {"": schema}))
    again.restore([operator.content()])
    assert again.report() == {"keys": 0, "most": 0, "hits": 0, "misses": 0, "loads": 0, "pruned": 0}


class Lists(PrunedStage):
    """Its own `__init__` does not call that of its class."""

    def __init__(self) -> None:
        self.asked = 0

    def load(self, keys: Sequence[int]) -> Any:
        self.asked += 1
        return [key * 2 for key in keys] if self.asked == 1 else {key: key * 2 for key in keys}

    def on_batch(self, batch: Any) -> Any:
        return None


def test_a_load_that_gives_no_list_is_named() -> None:
    stage = Lists()
    assert stage.kept.use([1, 2]) == [2, 4]
    with pytest.raises(FlowError, match=r"Lists\.load gave a dict; it must give a list of values"):
        stage.kept.use([3])
