"""What is refused of tracked flows, with the reason; and how far that goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import FlowError, StageFailed, SubstreamBroken
from headrace.flow.builder import Flow
from headrace.flow.sequential import run_sequentially
from headrace.simulate.check import Simulation
from headrace.simulate.world import Setup, World

from .tracked_flows import CALL, SCHEMA, Counts, drawn, made, numbers, same


def test_a_column_that_is_not_there() -> None:
    flow = Flow("f")
    stream = flow.source("s", numbers()).tracked(by="session")
    flow.sink("out", stream, CALL)
    with pytest.raises(FlowError, match=r"source s: it has no column session, by which .* it has n, x, last"):
        flow.graph()


def test_a_stage_that_drops_what_tells_substreams_apart() -> None:
    flow = Flow("f")
    bare = flow.stage(
        "bare", lambda b: b.select(["n"]), flow.source("s", numbers()), route=hr.rebalance(), parallelism=2
    )
    again = flow.stage(
        "again", lambda b: b.append_column("x", b.column("n")), bare, route=hr.rebalance(), parallelism=2
    )
    flow.sink("out", again.tracked(by="x"), CALL)
    with pytest.raises(FlowError, match="stage bare is before something that is tracked: it has no column x"):
        flow.graph()


def test_a_marker_that_is_not_there() -> None:
    flow = Flow("f")
    stream = flow.stage("a", same, flow.source("s", numbers()), route=hr.rebalance(), parallelism=2)
    flow.sink("out", stream.tracked(by="x", ends=hr.marker("closed")), CALL)
    with pytest.raises(FlowError, match="source s: it has no column closed, by which a record closes its substream"):
        flow.graph()


def test_firm_bounds_of_substreams_that_overlap() -> None:
    stream = Flow("f").source("s", numbers())
    with pytest.raises(FlowError, match=r"substreams that overlap would wait for each other; say ends=hr.rising\(\)"):
        stream.tracked(by="x", ends=hr.marker("last"), bound="firm")


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"by": 7}, "name a column, or give a function"),
        ({"by": "x", "ends": "last"}, "use hr.marker, hr.rising or hr.whenever"),
        ({"by": "x", "bound": "hard"}, 'use "soft" or "firm"'),
        ({"by": "x", "agents": 0}, "give a number from 1 to 1000"),
        ({"by": "x", "consistent": True, "agents": 2}, "one order needs one agent"),
        ({"by": "x", "flush_s": -1.0}, "flush_s is from 0 to 60 seconds"),
    ],
)
def test_arguments_that_cannot_be(how: dict[str, Any], problem: str) -> None:
    with pytest.raises(FlowError, match=problem):
        Flow("f").source("s", numbers()).tracked(**how)


def test_two_ways_to_track_one_flow() -> None:
    flow = Flow("f")
    stream = flow.source("s", numbers())
    flow.sink("a", stream.tracked(by="x"), CALL)
    flow.sink("b", stream.tracked(by="n"), CALL)
    with pytest.raises(FlowError, match=r"flow f is tracked in different ways: streams differ in by=n and x;"):
        flow.graph()


def test_two_ways_that_are_not_in_by() -> None:
    flow = Flow("f")
    stream = flow.source("s", numbers())
    flow.sink("a", stream.tracked(by="x", agents=2, ends=hr.marker("last")), CALL)
    flow.sink("b", stream.tracked(by="x"), CALL)
    with pytest.raises(FlowError, match=r"tracked in different ways: streams differ in ends=, agents=; one flow"):
        flow.graph()


def test_ends_are_not_tracked_themselves() -> None:
    flow = Flow("f")
    told = flow.ends("told", flow.source("s", numbers()).tracked(by="x"))
    flow.sink("again", flow.ends("twice", told.tracked(by="substream")), CALL)
    with pytest.raises(FlowError, match="stage told gives ends of substreams, which are not tracked themselves"):
        flow.graph()


def test_methods_that_nobody_would_call() -> None:
    class Starts(Counts):
        def on_started(self, substream: int) -> Any:
            return None

    flow = Flow("f")
    stream = flow.source("s", numbers())
    with pytest.raises(FlowError, match=r"stage count: Counts has on_ended, .* let it read stream.tracked\(by=...\)"):
        flow.stage("count", Counts, stream)
    with pytest.raises(FlowError, match=r"Starts has on_started, .* let it read stream.tracked\(by=..., starts=True\)"):
        flow.stage("count", Starts, stream.tracked(by="x"))
    flow.stage("count", Counts, stream, stream.tracked(by="x"))


def test_two_lambdas_of_one_flow_are_two() -> None:
    flow = Flow("f")
    stream = flow.source("s", numbers())
    flow.sink("a", stream.tracked(by=lambda b: b["x"]), CALL)
    flow.sink("b", stream.tracked(by=lambda b: b["x"]), CALL)
    with pytest.raises(FlowError, match="with the same function object where it is a function: two lambdas are two"):
        flow.graph()


def test_ends_of_a_stream_that_is_not_tracked() -> None:
    flow = Flow("f")
    with pytest.raises(FlowError, match=r"s is not tracked; say s.tracked"):
        flow.ends("told", flow.source("s", numbers()))


def test_members_of_non_members_are_refused() -> None:
    """A stage that turns a record of one substream into one of another."""
    flow = Flow("f")

    def moved(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, SCHEMA.field("x"), pc.add(batch.column("x"), 100))

    stream = flow.stage("moved", moved, flow.source("s", numbers()), parallelism=2, route=hr.rebalance())
    flow.sink("out", stream.tracked(by="x"), CALL, parallelism=1)
    with pytest.raises(
        SubstreamBroken, match=r"moved\.0: it gave a record of x 100, and was given none of it .* Let its"
    ):
        run_sequentially(flow.graph())


def test_a_stage_that_passes_records_on_must_leave_their_substreams_as_they_are() -> None:
    flow = Flow("f")

    def moved(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(1, SCHEMA.field("x"), pc.add(batch.column("x"), 100))

    stream = flow.stage(
        "moved", moved, flow.source("s", numbers()), parallelism=2, route=hr.rebalance(), one_to_one=True
    )
    flow.sink("out", stream.tracked(by="x"), CALL, parallelism=1)
    graph = flow.graph()
    with pytest.raises(SubstreamBroken, match=r"moved\.0: stage moved made a record of x 100 of one of 0"):
        run_sequentially(graph)


def test_without_promises_any_stage_may_begin_a_substream() -> None:
    """As where the records of a graph search name the next users: what is told of is told by name."""
    flow = Flow("f")

    def next_user(record: dict[str, Any]) -> Any:
        return {**record, "x": record["x"] + 100}

    stream = flow.stage("next", next_user, flow.source("s", numbers(6)), each="record", parallelism=2)
    tracked = stream.tracked(by="x", ends=hr.whenever())
    flow.sink("out", tracked, CALL)
    flow.sink("told", flow.ends("ends", tracked), CALL)
    found = run_sequentially(flow.graph(), 10)["told"].column("substream").to_pylist()
    assert set(found) >= {100, 101}
    assert None not in found


def test_a_reader_in_a_loop_does_not_wait_for_itself() -> None:
    class Round(Counts):
        def on_batch(self, batch: pa.RecordBatch) -> Any:
            super().on_batch(batch)
            again = pc.less(batch.column("n"), 100)
            later = batch.filter(again).set_column(0, "n", pc.add(batch.filter(again).column("n"), 100))
            return {"back": later, "": batch.filter(pc.invert(again))}

    flow = Flow("f")
    loop = flow.loop("again", flow.source("s", numbers()))
    tracked = loop.tracked(by="x", ends=hr.marker("last"))
    step = flow.stage("step", Round, tracked, sides={"back": SCHEMA}, parallelism=1, route=hr.rebalance())
    loop.back(step.side("back"), route=hr.rebalance())
    flow.sink("out", step, CALL)
    found = run_sequentially(flow.graph(), 5)["out"].to_pylist()
    assert sorted((record["x"], record["n"]) for record in found if record["n"] < 100) == [(0, 8), (1, 8), (2, 8)]


def test_what_runs_is_explained() -> None:
    flow = Flow("orders")
    stream = flow.source("lines", numbers())
    for step in range(3):
        stream = flow.stage(f"a{step}", same, stream, parallelism=2, route=hr.rebalance(), one_to_one=step < 2)
    drawn(stream.tracked(by="x", ends=hr.marker("last")), flow)
    said = flow.explain()
    assert "stage tracker: tells of substreams by x, ended by a record with last, keeps state" in said
    assert "hears lines, a2, count; counts what comes through a0, a1" in said
    assert "tells count" in said


def test_a_stage_that_keeps_records_back_must_say_so() -> None:
    class Late(hr.Stage):
        def __init__(self) -> None:
            self.kept: list[pa.RecordBatch] = []

        def on_batch(self, batch: pa.RecordBatch) -> Any:
            self.kept.append(batch)

        def on_end(self) -> Any:
            return pa.concat_batches(self.kept)

    flow = Flow("f")
    late = flow.stage("late", Late, flow.source("s", numbers()), parallelism=1, route=hr.rebalance())
    flow.sink("out", late.tracked(by="x", ends=hr.marker("last")), CALL)
    with pytest.raises(SubstreamBroken, match=r"late\.0: .* self\.hold\(0\) when it keeps the first one"):
        run_sequentially(flow.graph())


def test_a_source_that_goes_on_after_the_marker() -> None:
    def reopened(first: int, count: int) -> pa.RecordBatch:
        n = np.arange(first, first + count)
        return pa.record_batch([pa.array(n), pa.array(n % 2), pa.array(n == 4)], schema=SCHEMA)

    flow = Flow("f")
    stream = flow.source("s", hr.generate(reopened, 8)).tracked(by="x", ends=hr.marker("last"))
    flow.sink("out", stream, CALL)
    with pytest.raises(SubstreamBroken, match=r"s\.0: the source gave a record of x 0 after the one that closed it"):
        run_sequentially(flow.graph())


def test_labels_made_in_a_stage_that_runs_with_the_source() -> None:
    """What leaves it is told by consumer: the closing record may be told before others of its batch."""
    flow = Flow("f")
    bare = flow.source("s", hr.generate(lambda first, count: made(first, count).select(["n"]), 40))
    labelled = flow.stage("labelled", lambda b: made(b["n"][0].as_py() if b.num_rows else 0, b.num_rows), bare)
    stream = flow.stage("step", same, labelled, parallelism=4, route=hr.rebalance())
    tracked = stream.tracked(by="x", ends=hr.marker("last"))
    flow.sink("told", flow.ends("ends", tracked), CALL)
    flow.sink("out", tracked, CALL)
    failure = Simulation(flow.graph()).run(Setup(1, (), 2, 10))
    assert failure is None, failure.story()


def rising_from_a_stage(label: Any, tasks: int, outputs: int = 1) -> Flow:
    """Of bare numbers a stage that runs with the source makes `x`, and it leaves for `tasks` tasks, once or twice."""

    def labelled(batch: pa.RecordBatch) -> pa.RecordBatch:
        n = batch["n"].to_numpy()
        return pa.record_batch([batch["n"], pa.array(label(n)), pa.array(n < 0)], schema=SCHEMA)

    flow = Flow("f")
    bare = flow.source("s", hr.generate(lambda first, count: made(first, count).select(["n"]), 40))
    stream = flow.stage("labelled", labelled, bare)
    how: dict[str, Any] = {"parallelism": tasks, "route": hr.rebalance()}
    ways = [flow.stage(f"step{way}", same, stream, **how) for way in range(outputs)]
    joined = flow.stage("joined", same, *ways, parallelism=2, route=hr.key("x"))
    tracked = joined.tracked(by="x", ends=hr.rising())
    flow.sink("told", flow.ends("ends", tracked), CALL)
    flow.sink("out", tracked, CALL)
    return flow


@pytest.mark.parametrize(("tasks", "outputs"), [(2, 1), (3, 1), (2, 2)])
def test_rising_labels_made_in_a_stage_that_runs_with_the_source(tasks: int, outputs: int) -> None:
    """What leaves it is told by consumer: a lower label may be told after a higher one of its batch."""
    graph = rising_from_a_stage(lambda n: (n + 1) // 4, tasks, outputs).graph()
    failure = Simulation(graph).run(Setup(1, (), 2, 10))
    assert failure is None, failure.story()


def test_rising_labels_made_in_a_stage_that_fall_back() -> None:
    graph = rising_from_a_stage(lambda n: np.where(n == 30, 20, n), 2).graph()
    for most_records in (5, 40):
        with pytest.raises(SubstreamBroken, match=r"s\.0 \(s, labelled\): x 20 comes after higher .*\(slack=0\) says"):
            run_sequentially(graph, most_records)


def test_rising_labels_that_fall_back_within_a_batch_to_another_consumer() -> None:
    graph = rising_from_a_stage(lambda n: np.where(n == 0, 1, np.where(n == 1, 0, n)), 2).graph()
    with pytest.raises(SubstreamBroken, match=r"s\.0 \(s, labelled\): x 0 comes after higher ones"):
        World(graph, Setup(1, (), 1, 10)).run()


def test_labels_that_fall_back() -> None:
    def falling(first: int, count: int) -> pa.RecordBatch:
        n = np.arange(first, first + count)
        return pa.record_batch([pa.array(n), pa.array(10 - n), pa.array(n < 0)], schema=SCHEMA)

    flow = Flow("f")
    stream = flow.source("s", hr.generate(falling, 5)).tracked(by="x", ends=hr.rising(slack=1))
    flow.sink("out", stream, CALL)
    with pytest.raises(SubstreamBroken, match=r"x 8 comes after higher ones, and ends=hr.rising\(slack=1\) says"):
        run_sequentially(flow.graph())


def test_what_a_stage_raises_at_an_end_is_named() -> None:
    class Raises(Counts):
        def on_ended(self, substream: int) -> Any:
            raise ValueError("no")

    flow = Flow("f")
    with pytest.raises(StageFailed, match=r"stage count: ValueError: no\n.*\n.*record none: at the end of 0"):
        drawn(flow.source("s", numbers()).tracked(by="x", ends=hr.marker("last")), flow, Raises)


def test_tracker_is_a_name_of_its_own() -> None:
    flow = Flow("f")
    stream = flow.stage("tracker", same, flow.source("s", numbers()))
    flow.sink("out", stream.tracked(by="x"), CALL)
    with pytest.raises(FlowError, match="tracker is what its agent is called; rename that stage"):
        flow.graph()


def test_a_stage_that_is_called_as_the_one_that_merges_for_another() -> None:
    flow = Flow("f")
    first, second = (flow.stage(name, same, flow.source(f"s-{name}", numbers())) for name in ("a", "count-merged"))
    ordered = [each.ordered(by="n") for each in (first, second)]
    drawn_of = [each.tracked(by="x") for each in ordered]
    flow.sink("out", flow.stage("count", Counts, *drawn_of, parallelism=1), CALL)
    with pytest.raises(FlowError, match="stage count-merged: what count reads is merged by a stage of this name"):
        flow.graph()


@pytest.mark.parametrize("name", ["headrace-reports", "headrace-tracking"])
def test_names_that_are_not_for_stages(name: str) -> None:
    flow = Flow("f")
    stream = flow.source("s", numbers())
    with pytest.raises(FlowError, match=f"stage name '{name}': names that begin with headrace- are those of Headrace"):
        flow.stage(name, same, stream)
    with pytest.raises(FlowError, match=f"side output name '{name}'"):
        flow.stage("a", Counts, stream, sides={name: SCHEMA})


@pytest.mark.parametrize("name", ["gone", "reports", "start"])
def test_a_reader_may_be_called_as_what_a_tracker_says(name: str) -> None:
    flow = Flow("f")
    tracked = flow.source("s", numbers()).tracked(by="x", ends=hr.marker("last"))
    flow.sink("out", flow.stage(name, Counts, tracked, parallelism=1, route=hr.rebalance()), CALL)
    assert sorted(run_sequentially(flow.graph())["out"].column("n").to_pylist()) == [4, 4, 4]
