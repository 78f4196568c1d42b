"""Metrics as stages of a flow: the answers of the batch kernel, however the stream is cut and whatever crashes."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.flow.builder import Flow
from headrace.flow.sequential import run_sequentially
from headrace.flow.sinks import callback
from headrace.flow.sources import generate
from headrace.measure import definition as definitions
from headrace.measure.run import measure_table
from headrace.simulate.check import Simulation
from headrace.spark.metrics import Metrics
from headrace.testing.compare import assert_same_answers
from headrace.testing.strategies import EventCase, event_cases


@given(event_cases(), st.integers(1, 50), st.sampled_from((2, 5, 1 << 14)), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_flow_answers_as_the_batch_kernel(
    case: EventCase, at_once: int, chunk_events: int, with_status: bool
) -> None:
    table = _placed(case)
    metrics = _metrics(case, status="fate" if with_status else None)
    with patch.object(definitions, "STREAM_CHUNK_EVENTS", chunk_events):
        found = run_sequentially(_flow(metrics, table, 1).graph(), at_once)["out"]
    # Late events and repeated ones are told apart where there is a policy: the batch kernel has the stream's then.
    expected = measure_table(metrics.definition, table)
    assert_same_answers(found.select(["place", *metrics.names]), expected.select(["place", *metrics.names]))
    if with_status:
        assert found["fate"].to_pylist() == expected["fate"].to_pylist()


@given(event_cases(max_rows=60), st.integers(0, 10_000), st.sampled_from((2, 5, 1 << 14)))
@settings(max_examples=40, deadline=None)
def test_crashes_do_not_change_an_answer(case: EventCase, seed: int, chunk_events: int) -> None:
    """Workers, drivers and machines die, pause and come back: the same machines as live, in a simulated world."""
    metrics = _metrics(case)
    stages = len(metrics.definition.plan(_placed(case).schema).stages)
    with patch.object(definitions, "STREAM_CHUNK_EVENTS", chunk_events):
        # Stages after the first one have an order of arrival of their own, if the first one has several tasks.
        simulation = Simulation(_flow(metrics, _placed(case), 1 if stages > 1 else 3).graph())
        failure = simulation.run(simulation.setup(seed))
    assert failure is None, failure.story()


def _metrics(case: EventCase, **more: Any) -> Metrics:
    return Metrics(case.text, time=case.time, id=case.id, arrival="place", **more)


def _placed(case: EventCase) -> pa.Table:
    """In the order of arrival."""
    return case.table.append_column("place", pa.array(range(len(case.table)), pa.int64()))


def _flow(metrics: Metrics, table: pa.Table, parallelism: int) -> Flow:
    rows = table.combine_chunks()
    flow = Flow("measuring")

    def events(first: int, count: int) -> pa.RecordBatch:
        found = rows.slice(first, count).to_batches()
        return found[0] if found else pa.RecordBatch.from_pylist([], rows.schema)

    came = flow.source("events", generate(events, len(rows)))
    flow.sink("out", flow.measure("score", metrics, came, parallelism=parallelism), callback(print))
    return flow
