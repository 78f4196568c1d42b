"""Metrics as stages of a flow: the answers of the batch kernel, however the stream is cut and whatever crashes."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace.flow.builder import Flow
from headrace.flow.files import FilesInMemory
from headrace.flow.measured import Measured, plain_definition
from headrace.flow.plan import make_plan
from headrace.flow.sequential import run_sequentially
from headrace.flow.sinks import callback
from headrace.flow.sources import generate
from headrace.flow.task import Task
from headrace.measure import definition as definitions
from headrace.measure.run import measure_table
from headrace.model import frames
from headrace.queues.protocol import Entry
from headrace.simulate.check import Simulation
from headrace.spark.metrics import Metrics
from headrace.testing.compare import assert_same_answers
from headrace.testing.strategies import EventCase, event_cases
from headrace.testing.texts import metric_texts


@given(event_cases(), st.integers(1, 50), st.sampled_from((2, 5, 1 << 14)), st.booleans())
@settings(max_examples=30, deadline=None)
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
@settings(max_examples=20, deadline=None)
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


def _flow(metrics: Metrics, table: pa.Table, parallelism: int, changeable: bool = False) -> Flow:
    rows = table.combine_chunks()
    flow = Flow("measuring")

    def events(first: int, count: int) -> pa.RecordBatch:
        found = rows.slice(first, count).to_batches()
        return found[0] if found else pa.RecordBatch.from_pylist([], rows.schema)

    came = flow.source("events", generate(events, len(rows)))
    flow.sink(
        "out", flow.measure("score", metrics, came, parallelism=parallelism, changeable=changeable), callback(print)
    )
    return flow


@given(event_cases(max_rows=30), st.data())
@settings(max_examples=60, deadline=None)
def test_metrics_that_come_while_the_flow_runs_answer_as_if_they_had_always_been_there(
    case: EventCase, data: st.DataObject
) -> None:
    """Made ready at one record, answering from another one on, with commits and crashes anywhere between."""
    table = _placed(case)
    present = _metrics(case, keep_columns=_values(table))
    added = data.draw(metric_texts(case.table.schema)).replace(" AS m", " AS later")
    try:
        later = present.definition.adding(added)
        plan = make_plan(_flow(present, table, 1, changeable=True).graph())
        behaviour = plan.graph.node("score").behaviour
        assert isinstance(behaviour, Measured)
        behaviour.changed(later)
    except HeadraceError:
        return  # they need a stage of their own
    if "score.0" not in plan.tasks:
        return  # several stages: one is enough here
    prepare, switch = sorted(data.draw(st.lists(st.integers(0, len(table)), min_size=2, max_size=2)))
    told = {
        prepare: {"change": 1, "stage": "score", "say": "prepare", "metrics": plain_definition(later)},
        switch: {"change": 2, "stage": "score", "say": "switch"},
    }
    if prepare == switch:
        return
    found, contents, files = list[pa.RecordBatch](), dict[str, bytes](), FilesInMemory()
    task, version = Task(plan, plan.tasks["score.0"], (), files), 0
    for at in range(len(table) + 1):
        if at in told:
            message = frames.encode(frames.control(0, 0, told[at]))
            task.take([Entry("inbox", message, 2 * at)])
        if at < len(table):
            rows = table.slice(at, 1).combine_chunks().to_batches()[0]
            frame = frames.encode(frames.data(task.plan.channels[0], at, rows))
            found += [effect.batch for effect in task.take([Entry("inbox", frame, 2 * at + 1)])]  # type: ignore[union-attr]
        if data.draw(st.integers(0, 4)) == 0:
            version += 1
            snapshot = task.snapshot(1, version)
            contents.update(snapshot.new_files)
            if data.draw(st.booleans()):
                task = Task(plan, plan.tasks["score.0"], (), files)
                task.restore(json.loads(json.dumps(snapshot.values)), contents.__getitem__)
    both = Metrics(later.text, time=case.time, id=case.id, arrival="place")
    expected = measure_table(both.definition, table)
    for part, names in ((slice(0, switch), present.names), (slice(switch, None), both.names)):
        answers = found[part]
        assert all(batch.schema.names[len(table.column_names) :] == list(names) for batch in answers)
        if answers:
            first = 0 if part.start == 0 else switch
            wanted = expected.slice(first, len(answers)).select(["place", *names])
            assert_same_answers(pa.Table.from_batches(answers).select(["place", *names]), wanted)


def _values(table: pa.Table) -> list[str]:
    """All columns that a later metric may want."""
    return [name for name in table.column_names if name != "place"]
