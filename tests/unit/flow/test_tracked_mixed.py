"""What is tracked beside what else a flow can do: order, queues from outside, stages that hold beside a source."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FlowError
from headrace.flow.builder import Flow
from headrace.flow.sequential import InOneThread, run_sequentially
from headrace.flow.substreams import Tracked, ids_of
from headrace.model import frames
from headrace.track.local import LocalTable, Note

from .tracked_flows import CALL, SCHEMA, Counts, made, numbers, same

HOW: dict[str, Any] = {"by": "x", "ends": hr.marker("last")}


def counts_of(flow: Flow, sink: str = "out") -> list[tuple[int, int]]:
    run = InOneThread(flow.graph())
    for task in [task for task in run.tasks.values() if task.is_source]:
        run.read(task, 3)
    run.end()
    return [(record["x"], record["n"]) for record in run.table(flow.graph().node(sink)).to_pylist()]


@pytest.mark.parametrize("wait_s", [None, 0.1])
def test_copies_of_a_record_that_meet_in_one_order_are_two(wait_s: float | None) -> None:
    flow = Flow("f")
    source = flow.source("s", numbers(8))
    branches = [flow.stage(name, same, source, parallelism=2, route=hr.rebalance()) for name in ("a", "b")]
    met = flow.stage("met", same, *branches, parallelism=2, route=hr.key("n"))
    flow.sink("out", flow.stage("count", Counts, met.ordered(wait_s=wait_s).tracked(**HOW), parallelism=1), CALL)
    assert counts_of(flow) == [(0, 8), (1, 8)]


def test_two_ordered_streams_are_read_as_one_each_record_once() -> None:
    flow = Flow("f")
    source = flow.source("s", numbers(8))
    branches = [flow.stage(name, same, source, parallelism=2, route=hr.rebalance()) for name in ("a", "b")]
    first, second = [branch.ordered().tracked(**HOW) for branch in branches]
    flow.sink("out", flow.stage("count", Counts, first, second, parallelism=1), CALL)
    assert counts_of(flow) == [(0, 8), (1, 8)]


def test_of_two_streams_both_are_ordered_or_none() -> None:
    flow = Flow("f")
    source = flow.source("s", numbers(8))
    first, second = [flow.stage(name, same, source, parallelism=2, route=hr.rebalance()) for name in ("a", "b")]
    counted = flow.stage("count", Counts, first.ordered().tracked(**HOW), second.tracked(**HOW), parallelism=1)
    flow.sink("out", counted, CALL)
    with pytest.raises(FlowError, match=r"stage count: some of its inputs are ordered and b is not"):
        InOneThread(flow.graph())


@pytest.mark.parametrize("ends", [None, hr.marker("last"), hr.rising()], ids=str)
@pytest.mark.parametrize("consistent", [False, True])
def test_records_of_a_queue_from_outside_are_tracked(ends: Any, consistent: bool) -> None:
    flow = Flow("f")
    how: dict[str, Any] = {"by": "x", "ends": ends, "consistent": consistent}
    tracked = flow.source("s", hr.queue("in", SCHEMA, producers=1)).tracked(**how)
    flow.sink("out", tracked, CALL, route=hr.rebalance(), parallelism=2)
    flow.sink("told", flow.ends("ends", tracked), CALL)
    run = InOneThread(flow.graph())
    parts = [made(0, 3), made(3, 5)]
    run._inboxes["q.in"] += [frames.encode(frames.data(7, at, part)) for at, part in zip((0, 3), parts, strict=True)]
    run._inboxes["q.in"].append(frames.encode(frames.end(7, 8)))
    run.end()
    assert run.table(flow.graph().node("told")).column("substream").to_pylist() == [0, 1]
    assert run.table(flow.graph().node("out")).num_rows == 8


class Forgets(hr.Stage):
    """Told of ends, and gives nothing then."""

    order = "each"
    told: list[int] = []  # noqa: RUF012

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        return batch

    def on_ended(self, substream: int) -> Any:
        self.told.append(substream)


class Gives(Forgets):
    def on_ended(self, substream: int) -> Any:
        return made(0, 1)


class GivesColumns(Gives):
    order = "columns"


class GivesAside(Forgets):
    def on_ended(self, substream: int) -> Any:
        return {"aside": made(4 * substream, 1)}


def told_and_ordered(stage: type[hr.Stage], **more: Any) -> tuple[Flow, Any]:
    flow = Flow("f")
    source = flow.source("s", numbers())
    told = flow.stage("told", stage, source.tracked(**HOW), parallelism=2, route=hr.key("x"), **more)
    flow.sink("out", told.ordered(), CALL)
    return flow, told


def test_a_stage_is_told_of_ends_also_where_what_it_gives_is_ordered() -> None:
    Forgets.told.clear()
    flow, _ = told_and_ordered(Forgets)
    assert [n for _, n in counts_of(flow)] == list(range(12))
    assert sorted(set(Forgets.told)) == [0, 1, 2]


def test_keyed_state_is_told_of_ends_also_where_what_it_gives_is_ordered() -> None:
    told, flow = list[int](), Flow("f")

    def at_the_end(state: int, x: int) -> Any:
        told.append(x)
        return None, None

    source = flow.source("s", numbers()).tracked(**HOW)
    kept = flow.keyed("k", lambda state, record: (1, record), source, by="x", parallelism=2, on_ended=at_the_end)
    flow.sink("out", kept.ordered(), CALL)
    assert [n for _, n in counts_of(flow)] == list(range(12))
    assert sorted(told) == [0, 1, 2]


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (Gives, r"stage told gave 1 records at the start or end of a substream.*no place.*a side output that is not"),
        (GivesColumns, r'stage told: it says order = "columns", and gives records in on_ended.*say order = "each"'),
    ],
)
def test_what_a_stage_gives_at_an_end_has_no_place_in_an_order(stage: type[hr.Stage], said: str) -> None:
    flow, _ = told_and_ordered(stage)
    with pytest.raises(FlowError, match=said):
        counts_of(flow)


def test_what_a_stage_gives_at_an_end_may_go_aside() -> None:
    flow, told = told_and_ordered(GivesAside, sides={"aside": SCHEMA})
    flow.sink("aside", told.side("aside"), CALL)
    assert {x for x, _ in counts_of(flow, "aside")} == {0, 1, 2}


class Total(hr.Stage):
    """Labels the records of a source, and gives one of a substream of its own in the end."""

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        return batch.rename_columns(SCHEMA.names)

    def on_end(self) -> Any:
        return pa.record_batch([[12], [999], [True]], schema=SCHEMA)


@pytest.mark.parametrize("ends", [None, hr.marker("last")], ids=str)
@pytest.mark.parametrize("consistent", [False, True])
def test_a_substream_that_begins_with_the_end_of_a_source_is_told(ends: Any, consistent: bool) -> None:
    flow = Flow("f")
    bare = flow.source("s", hr.generate(lambda first, count: made(first, count).rename_columns(["n", "of", "last"]), 8))
    tracked = flow.stage("total", Total, bare, schema=SCHEMA).tracked(by="x", ends=ends, consistent=consistent)
    flow.sink("told", flow.ends("ends", tracked), CALL)
    flow.sink("out", tracked, CALL, route=hr.rebalance())
    found = run_sequentially(flow.graph(), 4)["told"].column("substream").to_pylist()
    assert found == [0, 1, 999]


def test_what_is_held_beside_a_source_is_not_forgotten_though_it_is_promised() -> None:
    table = LocalTable(Tracked("x", hr.marker("last")).meaning(), 1, 0, 1, forgets=True)

    def began(x: int) -> int:
        table.steps += 1
        record = pa.record_batch([[x], [x], [True]], schema=SCHEMA)
        table.note(Note.OPENED, record, 0, 0, 0, table.steps - 1)
        return table.steps - 1

    table.hold(ids_of(pa.array([0])), began(0), pa.array([0]))
    for x in range(1, 4200):
        began(x)
        if x % 100 == 0:
            table.fold()
            table.said()
    assert len(table) < 4200
    table.steps += 1
    table.release(ids_of(pa.array([0])), table.steps - 1, pa.array([0]))
    said = table.said()
    assert said.words[said.ids == ids_of(pa.array([0]))[0], 5:].tolist() == [[0]]


def test_labels_that_are_not_numbers_are_the_same_label() -> None:
    schema, nan = pa.schema([("x", pa.float64())]), float("nan")
    flow = Flow("f")
    source = flow.source("s", hr.generate(lambda _, n: pa.record_batch([pa.array([nan] * n)], schema=schema), 4))

    def made_anew(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([pa.array(batch.column("x").to_pylist())], schema=schema)

    passed = flow.stage("a", made_anew, source, route=hr.rebalance(), parallelism=2, one_to_one=True)
    flow.sink("out", passed.tracked(by="x"), CALL, parallelism=1)
    assert run_sequentially(flow.graph())["out"].num_rows == 4
