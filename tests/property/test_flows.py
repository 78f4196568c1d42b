"""Flows drawn at random, run in simulated worlds: crashes, pauses and lost machines are not visible in their output."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flow.builder import Flow, Stream
from headrace.flow.graph import Graph
from headrace.flow.routing import Route
from headrace.simulate.check import PLANTS, Simulation, planted
from headrace.simulate.faults import KINDS, Fault, draw_faults, parse_fault
from headrace.simulate.world import Setup, World

_SCHEMA = pa.schema([("n", pa.int64()), ("k", pa.int64())])


def _make(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        [pa.array(numbers, pa.int64()), pa.array([n * 7 % 5 for n in numbers], pa.int64())], schema=_SCHEMA
    )


def _ignored(batch: pa.RecordBatch) -> None:
    return None


def _even(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([r for r in batch.to_pylist() if r["n"] % 2 == 0], _SCHEMA)


def _twice(record: dict[str, Any]) -> Any:
    return [record, {"n": record["n"] + 1000, "k": record["k"]}]


def _aside(record: dict[str, Any]) -> Any:
    return hr.side("aside", record) if record["n"] % 3 == 0 else record


def _raises(record: dict[str, Any]) -> Any:
    return {"n": record["n"], "k": 6 // record["k"]}


def _count(state: int | None, record: dict[str, Any]) -> Any:
    """How many of a key so far; now and then it is forgotten. The numbers do not tell in which order they came."""
    seen = (state or 0) + 1
    return (None if seen == 4 else seen), {"n": seen, "k": record["k"]}


def _less(record: dict[str, Any]) -> Any:
    return {"n": record["n"] // 2, "k": record["k"]} if record["n"] > 0 else hr.side("done", record)


_ROUTES: tuple[Route | None, ...] = (None, hr.rebalance(), hr.rescale(), hr.shuffle(3), hr.key("k"), hr.key("n", "k"))


def _drawn(seed: int) -> Graph:
    """One to four stages, each of some kind, route and parallelism; every stream that is loose gets a sink."""
    rng = random.Random(f"flow {seed}")
    flow = Flow(f"random-{seed}")
    streams = [flow.source("s", hr.generate(_make, rng.randint(0, 40)), parallelism=rng.randint(1, 3))]
    if rng.random() < 0.3:
        streams.append(flow.source("t", hr.generate(_make, rng.randint(0, 20)), parallelism=rng.randint(1, 2)))
    loops = 0
    for number in range(rng.randint(1, 4)):
        kind = rng.choice(("even", "twice", "aside", "raises", "count", "loop", "join"))
        if kind == "loop" and loops:
            kind = "even"  # two loops, one behind the other, are a test of their own
        loops += kind == "loop"
        streams = _with_stage(flow, rng, kind, f"{kind}-{number}", streams)
    for number, stream in enumerate(streams):
        flow.sink(
            f"out-{number}",
            stream,
            hr.callback(_ignored),
            parallelism=rng.choice((None, 1, 2)),
            route=rng.choice(_ROUTES),
        )
    return flow.graph()


def _with_stage(flow: Flow, rng: random.Random, kind: str, name: str, streams: list[Stream]) -> list[Stream]:
    """The streams that are loose after it."""
    stream, *others = rng.sample(streams, len(streams))
    how: dict[str, Any] = {"parallelism": rng.choice((None, 1, 2, 3)), "route": rng.choice(_ROUTES)}
    if kind == "even":
        return [flow.stage(name, _even, stream, **how), *others]
    if kind == "twice":
        return [flow.stage(name, _twice, stream, each="record", **how), *others]
    if kind == "aside":
        made = flow.stage(name, _aside, stream, each="record", sides={"aside": _SCHEMA}, **how)
        return [made, made.side("aside"), *others]
    if kind == "raises":
        made = flow.stage(name, _raises, stream, each="record", on_error="side", **how)
        flow.sink(f"{name}-errors", made.side("errors"), hr.callback(_ignored), parallelism=1)
        return [made, *others]
    if kind == "count":
        return [flow.keyed(name, _count, stream, by="k", parallelism=how["parallelism"]), *others]
    if kind == "join":
        return [flow.stage(name, _even, stream, *others, **how)]
    again = flow.loop(name, stream, **how)
    less = flow.stage(
        f"{name}-less", _less, again, each="record", sides={"done": _SCHEMA}, parallelism=rng.choice((None, 2))
    )
    again.back(less, rng.choice(_ROUTES[1:]))
    return [less.side("done"), *others]


@pytest.mark.parametrize("seed", range(24))
def test_a_flow_gives_what_its_sequential_run_gives(seed: int) -> None:
    simulation = Simulation(_drawn(seed))
    for at in range(4):
        failure = simulation.run(simulation.setup(seed * 4 + at))
        assert failure is None, simulation.shrink(failure, 30).story()


def _keeping(graph: Graph) -> Graph:
    """With sinks that keep what they are given until a commit."""
    nodes = [replace(node, sink=hr.parquet("nowhere")) if node.sink else node for node in graph.nodes]
    return replace(graph, nodes=tuple(nodes))


@pytest.mark.parametrize("seed", range(24))
def test_sinks_without_room_change_nothing(seed: int) -> None:
    simulation = Simulation(_keeping(_drawn(seed)))
    for at in range(2):
        failure = simulation.run(replace(simulation.setup(seed * 2 + at), room_bytes=48))
        assert failure is None, simulation.shrink(failure, 30).story()


def test_sinks_without_room_save_more_often() -> None:
    saves = []
    for room_bytes in (1 << 20, 48):
        world = World(_keeping(_rebalanced(200)), Setup(0, (), 1, room_bytes=room_bytes))
        world.run()
        saves.append(sum(what.startswith("saved count") for _, _, what in world.trace))
    assert saves[1] > 2 * saves[0]


def test_random_flows_are_of_all_kinds() -> None:
    """The test above would prove little if it drew little."""
    names = [node.name for seed in range(24) for node in _drawn(seed).nodes]
    for kind in ("even", "twice", "aside", "raises", "count", "loop", "join"):
        assert sum(name.startswith(kind) for name in names) >= 2, kind


# ------------------------------------------------------------------ known flows


def _rebalanced(records: int = 40) -> Graph:
    """A rebalance and keyed state."""
    flow = Flow("rebalanced")
    numbers = flow.source("s", hr.generate(_make, records), parallelism=2)
    spread = flow.stage("spread", _twice, numbers, each="record", parallelism=3, route=hr.rebalance())
    flow.sink("out", flow.keyed("count", _count, spread, by="k", parallelism=2), hr.callback(_ignored))
    return flow.graph()


@cache
def _simulation() -> Simulation:
    return Simulation(_rebalanced(24))


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_mistake_is_found_and_made_small(plant: str) -> None:
    simulation = _simulation()
    with planted(plant):
        failures = (simulation.run(simulation.setup(seed)) for seed in range(60))
        failure = next((found for found in failures if found is not None), None)
        assert failure is not None, f"{plant} was not found"
        small = simulation.shrink(failure)
        assert 1 <= len(small.setup.faults) <= 2
        again = simulation.run(small.setup)
        assert again is not None
        assert (again.problem, again.trace) == (small.problem, small.trace), "the same run every time"
    assert simulation.run(small.setup) is None, "and without the mistake nothing is wrong"
    assert f"seed {small.setup.seed}, {small.setup.workers} workers, faults: {small.setup.faults[0]}" in small.story()


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault_alone_is_not_visible(kind: str) -> None:
    simulation = _simulation()
    for seed in range(6):
        failure = simulation.run(simulation.setup(seed, [kind]))
        assert failure is None, simulation.shrink(failure, 30).story()


def test_a_wrong_output_is_found_without_any_fault() -> None:
    """The comparison itself: a check that always fails, and a flow that is not what it says."""

    def fails(found: dict[str, list[Any]]) -> None:
        raise AssertionError(f"{len(found['out'])} records")

    failure = Simulation(_rebalanced(3), [fails]).run(Setup(0))
    assert failure is not None
    assert failure.problem == "AssertionError: 6 records"


def test_a_flow_that_ends_in_a_queue() -> None:
    flow = Flow("to-queue")
    flow.sink("out", flow.source("s", hr.generate(_make, 5)), hr.queue("clean"))
    failure = Simulation(flow.graph()).run(Setup(0))
    assert failure is None, failure.problem


# ------------------------------------------------------------------------ loops


def _looping(loops: int) -> Graph:
    flow = Flow("looping")
    stream = flow.source("s", hr.generate(_make, 6))
    for number in range(loops):
        again = flow.loop(f"again-{number}", stream)
        less = flow.stage(f"less-{number}", _less, again, each="record", sides={"done": _SCHEMA}, route=hr.rebalance())
        again.back(less)
        stream = less.side("done")
    flow.sink("out", stream, hr.callback(_ignored))
    return flow.graph()


def test_a_loop_ends() -> None:
    simulation = Simulation(_looping(1))
    for seed in range(8):
        failure = simulation.run(simulation.setup(seed))
        assert failure is None, simulation.shrink(failure, 30).story()


def test_two_loops_one_behind_the_other_end() -> None:
    failure = Simulation(_looping(2)).run(Setup(0))
    assert failure is None, failure.problem


def test_a_crash_while_loops_end() -> None:
    simulation = Simulation(_looping(1))
    world_steps = _steps_of(simulation)
    for at in range(world_steps - 40, world_steps):
        failure = simulation.run(Setup(0, (Fault("crash", max(0, at)),), 1))
        assert failure is None, failure.problem


def _steps_of(simulation: Simulation) -> int:
    """How many things workers do in a run without faults."""
    world = World(simulation.graph, Setup(0, (), 1))
    world.run()
    return world.done


@pytest.mark.parametrize(
    "kind",
    [
        "crash",
        "lost",
        "power",
        "pause",
    ],
)
def test_a_fault_at_each_of_the_last_steps_of_a_flow(kind: str) -> None:
    simulation = Simulation(_rebalanced(4))
    steps = _steps_of(simulation)
    for at in range(steps - 25, steps, 2):
        length = 40.0 if kind in ("lost", "pause") else 0.0
        failure = simulation.run(Setup(0, (Fault(kind, at, length),), 1))
        assert failure is None, failure.story()


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _merging() -> Graph:
    """Four sources meet in one inbox; what comes of their order goes on in turn."""
    flow = Flow("merging")
    sources = [flow.source(f"s{number}", hr.generate(_make, 20)) for number in range(4)]
    merged = flow.stage("merge", _same, *sources)
    flow.sink("out", merged, hr.callback(_ignored), parallelism=2, route=hr.rebalance())
    return flow.graph()


def test_the_order_of_an_inbox_outlives_a_power_cut() -> None:
    """The task before takes what is not synced, the task after commits what came of it: then the order is lost."""
    simulation = Simulation(_merging())
    for seed in range(1, 500):
        failure = simulation.run(Setup(seed, (Fault("power", 15 + seed * 7 % 60),), 1 + seed % 4, 10))
        assert failure is None, failure.story()


# ----------------------------------------------------------------------- faults


@pytest.mark.parametrize("seed", range(30))
def test_faults_can_be_written_and_read(seed: int) -> None:
    faults = draw_faults(seed)
    assert [parse_fault(str(fault)) for fault in faults] == list(faults)
    assert draw_faults(seed) == faults


@pytest.mark.parametrize("text", ["crash", "crash@", "crash@x", "boom@3", "@3", ""])
def test_a_fault_that_is_not_one_is_told_of(text: str) -> None:
    with pytest.raises(hr.FlowError, match="write it as crash@120 or pause@40"):
        parse_fault(text)


def test_a_length_that_is_not_one_is_told_of() -> None:
    with pytest.raises(hr.FlowError, match="write it as"):
        parse_fault("pause@40+abc")


def test_an_unknown_kind_of_fault_is_told_of() -> None:
    with pytest.raises(hr.FlowError, match="there is no fault 'boom'; there are crash, pause"):
        draw_faults(0, ["boom"])
