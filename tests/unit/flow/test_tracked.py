"""Tracking as users draw it: notices to stages, as records, to keyed state; and what is refused, with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.plan import make_plan
from headrace.flow.sequential import run_sequentially

from .tracked_flows import CALL, SCHEMA, drawn, made, numbers, same


def test_a_stage_is_told_when_all_of_a_substream_has_come() -> None:
    flow = Flow("f")
    stream = flow.stage("a", same, flow.source("s", numbers()), parallelism=3, route=hr.rebalance())
    found = drawn(stream.tracked(by="x", ends=hr.marker("last")), flow)["out"]
    assert [(record["x"], record["n"]) for record in found] == [(0, 4), (1, 4), (2, 4)]


def test_ends_and_starts_are_records() -> None:
    flow = Flow("f")
    stream = flow.source("s", numbers(6)).tracked(by="x", ends=hr.marker("last"), starts=True)
    flow.sink("told", flow.ends("ends", stream), CALL)
    flow.sink("out", stream, CALL)
    found = run_sequentially(flow.graph(), 3)["told"].to_pylist()
    assert [(record["substream"], record["event"]) for record in found] == [
        (0, "start"),
        (1, "start"),
        (0, "end"),
        (1, "end"),
    ], "the last one has no marker, and ends with the source"


def test_a_predicate_is_one_substream() -> None:
    flow = Flow("f")

    def is_large(batch: pa.RecordBatch) -> Any:
        return pc.greater(batch.column("n"), 7)

    stream = flow.source("s", numbers()).tracked(by=is_large)
    flow.sink("told", flow.ends("ends", stream), CALL)
    flow.sink("out", stream, CALL)
    found = run_sequentially(flow.graph(), 3)["told"].to_pylist()
    assert found == [{"substream": True, "event": "end"}]


def test_windows_of_a_time_end_when_times_pass_them() -> None:
    schema = pa.schema([("ts", pa.timestamp("us"))])

    def times(first: int, count: int) -> pa.RecordBatch:
        return pa.record_batch(
            [pa.array(np.arange(first, first + count) * 400_000).cast(schema.types[0])], schema=schema
        )

    flow = Flow("f")
    stream = flow.source("s", hr.generate(times, 6)).tracked(by=hr.windows("ts", 1), ends=hr.rising())
    flow.sink("told", flow.ends("ends", stream), CALL)
    flow.sink("out", stream, CALL)
    found = run_sequentially(flow.graph(), 2)["told"].column("substream").to_pylist()
    assert found == [0, 1_000_000, 2_000_000]


def test_keyed_state_is_told_of_the_end_of_its_key() -> None:
    def count(state: int | None, record: dict[str, Any]) -> Any:
        return (state or 0) + 1, None

    def ended(state: int, substream: int) -> Any:
        return None, {"n": state, "x": substream, "last": True}

    flow = Flow("f")
    stream = flow.source("s", numbers()).tracked(by="x", ends=hr.marker("last"))
    counted = flow.keyed("count", count, stream, by="x", parallelism=2, on_ended=ended)
    flow.sink("out", counted, CALL)
    found = run_sequentially(flow.graph(), 5)["out"].to_pylist()
    assert [(record["x"], record["n"]) for record in found] == [(0, 4), (1, 4), (2, 4)]


def test_what_is_tracked_and_ordered_is_both() -> None:
    flow = Flow("f")
    stream = flow.stage("a", same, flow.source("s", numbers()), parallelism=3, route=hr.rebalance())
    found = drawn(stream.ordered().tracked(by="x", ends=hr.marker("last")), flow)["out"]
    assert [(record["x"], record["n"]) for record in found] == [(0, 4), (1, 4), (2, 4)]
    assert "count-merged" in [node.name for node in flow.graph().nodes]


def test_stages_that_give_one_for_each_tell_nothing() -> None:
    flow = Flow("f")
    stream = flow.source("s", numbers())
    for step in range(3):
        stream = flow.stage(f"a{step}", same, stream, parallelism=2, route=hr.rebalance(), one_to_one=step != 1)
    flow.sink("out", stream.tracked(by="x"), CALL)
    region = make_plan(flow.graph()).region
    assert region is not None
    assert region.passing == {"a0", "a2"}
    assert region.counted.keys() == {"a0"}  # to a2 records come from a stage, and need tokens


@pytest.mark.parametrize(
    ("ends", "splits", "bound", "counted"),
    [
        (hr.marker("last"), 1, "soft", {"a0", "a1"}),
        (hr.marker("last"), 2, "soft", set()),  # one promises for all, and what the other gave may not be told yet
        (hr.marker("last", each_source=True), 2, "soft", {"a0", "a1"}),
        (hr.rising(), 2, "soft", {"a0", "a1"}),
        (hr.rising(), 1, "firm", set()),
        (hr.whenever(), 1, "soft", set()),
    ],
)
def test_what_passes_from_sources_to_a_reader_is_counted(ends: Any, splits: int, bound: Any, counted: set[str]) -> None:
    flow = Flow("f")
    stream = flow.source("s", numbers(), parallelism=splits)
    for step in range(2):
        stream = flow.stage(f"a{step}", same, stream, parallelism=2, route=hr.rebalance(), one_to_one=True)
    flow.sink("out", stream.tracked(by="x", ends=ends, bound=bound), CALL)
    region = make_plan(flow.graph()).region
    assert region is not None
    assert region.counted.keys() == counted
    assert region.tracking.counted == set(region.counted.values())


class LateFirst(hr.Stage):
    """Keeps the first record until two others have come of a later substream."""

    def __init__(self) -> None:
        self.kept: pa.RecordBatch | None = None

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        if self.kept is None:
            self.kept = batch.slice(0, 1)
            self.hold(0)
            return batch.slice(1)
        if max(batch.column("x").to_pylist()) < 2 or not self.kept.num_rows:
            return batch
        kept, self.kept = self.kept, self.kept.slice(0, 0)
        self.release(0)
        return pa.concat_batches([batch, kept])


@pytest.mark.parametrize("consistent", [False, True])
def test_what_a_stage_beside_a_source_holds_may_come_behind_higher_labels(consistent: bool) -> None:
    flow = Flow("f")
    bare = flow.source("s", hr.generate(lambda first, count: made(first, count).rename_columns(["n", "y", "last"]), 16))
    labelled = flow.stage("labelled", lambda batch: batch.rename_columns(["n", "x", "last"]), bare, schema=SCHEMA)
    late = flow.stage("late", LateFirst, labelled, schema=SCHEMA)
    told = late.tracked(by="x", ends=hr.rising(), consistent=consistent)
    found = drawn(told, flow)["out"]
    assert [(record["x"], record["n"]) for record in found] == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_a_substream_that_begins_with_a_record_that_is_kept_has_its_name() -> None:
    flow = Flow("f")
    bare = flow.source("s", hr.generate(lambda first, count: made(first, count).rename_columns(["n", "y", "last"]), 1))
    labelled = flow.stage("labelled", lambda batch: batch.rename_columns(["n", "x", "last"]), bare, schema=SCHEMA)
    late = flow.stage("late", LateFirst, labelled, schema=SCHEMA)
    flow.sink("told", flow.ends("ends", late.tracked(by="x")), CALL)
    flow.sink("out", late, CALL)
    assert run_sequentially(flow.graph(), 3)["told"].to_pylist() == [{"substream": 0, "event": "end"}]
