"""Batches in pieces that fit into frames."""

from __future__ import annotations

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FlowError
from headrace.flow.builder import Flow
from headrace.flow.io import Feed
from headrace.flow.pieces import cut
from headrace.flow.plan import make_plan
from headrace.flow.queue_ends import QueueEnd
from headrace.flow.task import Task

_TEXTS = pa.schema([("text", pa.large_string())])


def _texts(*sizes: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(["x" * size for size in sizes], pa.large_string())], schema=_TEXTS)


def test_pieces_are_the_batch() -> None:
    batch = _texts(*[3 << 20] * 7)
    parts = cut(batch, "stage s")
    assert len(parts) > 1
    assert pa.Table.from_batches(parts).combine_chunks().to_batches() == [batch]


@pytest.mark.parametrize("to_queue", [False, True], ids=["stage", "queue"])
def test_a_record_that_is_too_large_names_who_gave_it_and_what_to_do(to_queue: bool) -> None:
    flow = Flow("f")
    texts = flow.source("texts", hr.generate(lambda first, count: _texts(*[1] * count), 5))
    if to_queue:
        flow.sink("out", texts, QueueEnd("far"))
    else:
        flow.sink("out", texts, hr.callback(lambda batch: None), route=hr.rebalance())
    plan = make_plan(flow.graph())
    giver = "sink out" if to_queue else "source texts"
    with pytest.raises(FlowError, match=f"a record of {giver} has 70,000,0.* in several records, or keep what"):
        Task(plan, plan.tasks["texts.0"]).feed(Feed(_texts(5, 70_000_000), 2))
