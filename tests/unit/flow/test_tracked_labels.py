"""Substreams of sources that do not tell them apart themselves: a stage beside the source does, as where it parses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.errors import FlowError, SubstreamBroken
from headrace.flow.builder import Flow, Stream
from headrace.flow.sequential import run_sequentially

from .tracked_flows import CALL, SCHEMA, Counts, made, same

_RAW = pa.schema([("n", pa.int64())])
_ENDS = [None, hr.marker("last"), hr.rising()]


def _raw(flow: Flow, records: int) -> Stream:
    return flow.source("raw", hr.generate(lambda first, count: made(first, count).select(["n"]), records))


def _parse(batch: pa.RecordBatch) -> pa.RecordBatch:
    n = batch.column("n").to_numpy()
    return pa.record_batch([pa.array(n), pa.array(n // 4), pa.array(n % 4 == 3)], schema=SCHEMA)


def _told(flow: Flow, name: str = "told", batch: int = 5) -> list[Any]:
    return [record["substream"] for record in run_sequentially(flow.graph(), batch)[name].to_pylist()]


@pytest.mark.parametrize("ends", _ENDS)
@pytest.mark.parametrize("batch", [3, 100])
def test_ends_are_told_where_no_stage_reads_the_stream(ends: hr.flow.substreams.Ends | None, batch: int) -> None:
    flow = Flow("f")
    parsed = flow.stage("parse", _parse, _raw(flow, 20))
    flow.sink("out", parsed, CALL)
    flow.sink("told", flow.ends("ends", parsed.tracked(by="x", ends=ends)), CALL)
    assert _told(flow, batch=batch) == [0, 1, 2, 3, 4]


def test_a_marker_counts_where_a_stage_behind_drops_its_record() -> None:
    flow = Flow("f")
    kept = flow.stage(
        "keep", lambda batch: batch.filter(pc.invert(batch["last"])), flow.stage("p", _parse, _raw(flow, 22))
    )
    told = kept.tracked(by="x", ends=hr.marker("last"))
    flow.sink("out", flow.stage("count", Counts, told, parallelism=2, route=hr.key("x")), CALL)
    flow.sink("told", flow.ends("ends", told), CALL)
    found = run_sequentially(flow.graph(), 3)
    assert found["told"]["substream"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert [(record["x"], record["n"]) for record in found["out"].to_pylist()] == [
        (0, 3),
        (1, 3),
        (2, 3),
        (3, 3),
        (4, 3),
        (5, 2),
    ]


def test_all_outputs_of_the_stage_count() -> None:
    def split(batch: pa.RecordBatch) -> Any:
        parsed = _parse(batch)
        is_odd = pc.equal(pc.bit_wise_and(parsed["x"], 1), 1)
        return {"": parsed.filter(pc.invert(is_odd)), "odd": parsed.filter(is_odd)}

    flow = Flow("f")
    parsed = flow.stage("split", split, _raw(flow, 20), schema=SCHEMA, sides={"odd": SCHEMA})
    how: dict[str, Any] = {"by": "x", "ends": hr.marker("last")}
    flow.sink("out", flow.stage("count", Counts, parsed.tracked(**how), route=hr.rebalance()), CALL)
    flow.sink("even", flow.ends("even-ends", parsed.tracked(**how)), CALL)
    flow.sink("odd", flow.ends("odd-ends", parsed.side("odd").tracked(**how)), CALL)
    found = run_sequentially(flow.graph(), 3)
    assert {0, 2, 4} <= set(found["even"]["substream"].to_pylist())
    assert {1, 3} <= set(found["odd"]["substream"].to_pylist())


def test_labels_that_a_second_stage_makes_anew_are_refused() -> None:
    flow = Flow("f")
    other = flow.stage(
        "other", lambda batch: batch.set_column(1, "x", pc.add(batch["x"], 1)), flow.stage("p", _parse, _raw(flow, 9))
    )
    flow.sink("told", flow.ends("ends", flow.stage("a", same, other, route=hr.rebalance()).tracked(by="x")), CALL)
    with pytest.raises(SubstreamBroken, match="what belongs to a substream comes of what belongs to it"):
        run_sequentially(flow.graph(), 2)


class _Holds(hr.Stage):
    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.hold(99)
        return batch

    def on_end(self) -> None:
        self.release(99)


def test_a_stage_cannot_hold_what_it_was_not_given() -> None:
    flow = Flow("f")
    parsed = flow.stage("p", _parse, _raw(flow, 9))
    held = flow.stage("holds", _Holds, parsed, route=hr.rebalance(), schema=SCHEMA)
    flow.sink("told", flow.ends("ends", flow.stage("a", same, held, route=hr.rebalance()).tracked(by="x")), CALL)
    with pytest.raises(SubstreamBroken, match="it holds x 99, of which it was given nothing"):
        run_sequentially(flow.graph(), 2)


class _KeepsFirst(hr.Stage):
    """All of substream 0, to the end."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        is_first = pc.equal(batch["x"], 0)
        mine = batch.filter(is_first)
        self.kept.append(mine)
        self.hold(*[0] * mine.num_rows)
        return batch.filter(pc.invert(is_first))

    def on_end(self) -> pa.RecordBatch:
        return pa.concat_batches(self.kept)


def test_a_record_long_after_the_marker_is_named_where_its_substream_is_open() -> None:
    """The source has forgotten that it closed it."""

    def late(first: int, count: int) -> pa.RecordBatch:
        n = np.arange(first, first + count)
        return pa.record_batch([pa.array(n), pa.array(np.where(n == 6000, 0, n)), pa.array(n != 6000)], schema=SCHEMA)

    flow = Flow("f")
    kept = flow.stage("k", _KeepsFirst, flow.source("s", hr.generate(late, 9000)), route=hr.rebalance(), schema=SCHEMA)
    flow.sink("told", flow.ends("ends", kept.tracked(by="x", ends=hr.marker("last"))), CALL)
    with pytest.raises(SubstreamBroken, match=r"s\.0: a record of substream .* came after the one that closed it"):
        run_sequentially(flow.graph(), 200)


def test_a_time_that_python_does_not_have_is_named() -> None:
    def far(first: int, count: int) -> pa.RecordBatch:
        times = pa.array([253402300800 + n for n in range(first, first + count)], pa.int64())
        return pa.record_batch({"t": times.view(pa.timestamp("s")), "last": pa.array([True] * count, pa.bool_())})

    flow = Flow("f")
    tracked = flow.source("s", hr.generate(far, 2)).tracked(by="t", ends=hr.marker("last"))
    flow.sink("ends", flow.ends("e", tracked), CALL)
    with pytest.raises(FlowError, match=r"s\.0: t has a value .*timestamp\[s\].*leave such records out"):
        run_sequentially(flow.graph())
