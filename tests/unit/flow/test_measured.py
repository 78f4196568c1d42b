"""Metrics as stages of a flow: how they are drawn, and how they go on."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import BindError, DefinitionError, FlowError, StateMismatch
from headrace.flow.builder import Flow
from headrace.flow.files import FilesInMemory
from headrace.flow.measured import measured_stages
from headrace.flow.operators import Shape
from headrace.flow.plan import make_plan
from headrace.flow.sequential import run_sequentially
from headrace.flow.sinks import callback
from headrace.flow.sources import generate
from headrace.flow.task import Task
from headrace.model import frames
from headrace.queues.protocol import Entry
from headrace.spark.metrics import Metrics

SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("card", pa.string()), ("shop", pa.int32())])
BY_CARD = "SELECT count(*) AS n FROM p GROUP BY card OVER sliding 10 seconds"
BOTH = f"{BY_CARD}; SELECT count(*) AS busy FROM p GROUP BY shop OVER sliding 10 seconds"


def _events(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        [
            pa.array(numbers, pa.int64()),
            pa.array([n * 1_000_000 for n in numbers], SCHEMA.types[1]),
            [f"c{n % 3}" for n in numbers],
            pa.array([n % 2 for n in numbers], pa.int32()),
        ],
        schema=SCHEMA,
    )


def _flow(text: str = BY_CARD, parallelism: int | None = None, records: int = 40, **options: Any) -> Flow:
    flow = Flow("scoring")
    metrics = Metrics(text, time="ts", **options)
    events = flow.source("events", generate(_events, records))
    flow.sink("out", flow.measure("score", metrics, events, parallelism=parallelism), callback(print))
    return flow


def test_one_task_measures_where_the_records_come_from() -> None:
    plan = make_plan(_flow().graph())
    assert [vertex.nodes for vertex in plan.vertices] == [("events", "score", "out")]


def test_several_tasks_get_records_by_the_groups_of_the_metrics() -> None:
    said = _flow(BOTH, parallelism=4).explain()
    assert "measures n by card" in said
    assert "measures busy by shop" in said
    assert "score-1" in said


def test_metrics_of_the_whole_stream_have_one_task() -> None:
    plan = make_plan(_flow("SELECT count(*) AS n FROM p OVER sliding 10 seconds", parallelism=4).graph())
    assert {vertex.name: vertex.parallelism for vertex in plan.vertices}["events"] == 1


def test_a_record_leaves_with_all_answers_in_the_order_of_the_text() -> None:
    found = run_sequentially(
        _flow(f"SELECT count(*) AS busy FROM p GROUP BY shop OVER sliding 10 seconds; {BY_CARD}").graph()
    )
    assert found["out"].column_names == [*SCHEMA.names, "busy", "n"]
    assert found["out"]["busy"].to_pylist()[-1] == 5


def test_what_cannot_be_measured_is_told_when_it_is_drawn() -> None:
    with pytest.raises(BindError, match="cards"):
        _flow("SELECT count(*) AS n FROM p GROUP BY cards OVER sliding 10 seconds")
    with pytest.raises(BindError, match="the data has a column card"):
        _flow("SELECT count(*) AS card FROM p GROUP BY card OVER sliding 10 seconds")
    with pytest.raises(DefinitionError, match="there is a column shop already"):
        _flow(status="shop")
    with pytest.raises(DefinitionError, match="keep_columns: amount is not in the data"):
        _flow(keep_columns=["amount"])
    with pytest.raises(FlowError, match="keeps its state in memory"):
        _flow(backend="rocksdb")
    flow = Flow("scoring")
    with pytest.raises(FlowError, match=r"metrics are an hr\.Metrics, not a str"):
        flow.measure("score", BY_CARD, flow.source("events", generate(_events, 3)))  # type: ignore[arg-type]


# ------------------------------------------------------------------------ restart


def _task(flow: Flow, files: FilesInMemory) -> Task:
    plan = make_plan(flow.graph())
    return Task(plan, plan.tasks["score.0"], (), files)


def _entries(task: Task, first: int, count: int) -> list[Entry]:
    """From the source to one of two tasks: all of them, for a test."""
    frame = frames.data(task.plan.channels[0], first, _events(first, count))
    return [Entry(str(task.plan.inbox), frames.encode(frame), first + count)]


def _again(task: Task, files: FilesInMemory, contents: dict[str, bytes], flow: Flow) -> Task:
    snapshot = task.snapshot(1, 1)
    contents.update(snapshot.new_files)
    other = _task(flow, files)
    other.restore(json.loads(json.dumps(snapshot.values)), contents.__getitem__)
    return other


def _columns(effects: list[Any]) -> dict[str, list[Any]]:
    return {name: values for effect in effects for name, values in effect.batch.to_pydict().items()}


def _changed(change: Any) -> Flow:
    flow = Flow("scoring")
    metrics = change(Metrics(BY_CARD, time="ts", keep_columns=["shop"]))
    events = flow.source("events", generate(_events, 40))
    flow.sink("out", flow.measure("score", metrics, events, parallelism=2), callback(print))
    return flow


def test_a_metric_that_is_added_sees_what_is_remembered() -> None:
    files, contents = FilesInMemory(), dict[str, bytes]()
    task = _task(_changed(lambda metrics: metrics), files)
    task.take(_entries(task, 0, 20))
    more = _changed(
        lambda metrics: metrics.add("SELECT count(*) AS many FROM p GROUP BY card OVER sliding 100 seconds")
    )
    task = _again(task, files, contents, more)
    found = _columns(task.take(_entries(task, 20, 1)))
    assert found["n"] == [4]
    assert found["many"] == [7]


def test_a_metric_that_is_added_sees_events_that_others_did_not_count() -> None:
    """What was computed for events that pass a filter is not what a metric without it needs."""
    files, contents = FilesInMemory(), dict[str, bytes]()
    guarded = "SELECT sum(id + shop) AS few FROM p WHERE shop = 1 GROUP BY card OVER sliding 100 seconds"
    present = Metrics(guarded, time="ts", keep_columns=["shop", "id"])
    task = _task(_changed(lambda _: present), files)
    task.take(_entries(task, 0, 20))
    added = "SELECT sum(id + shop) AS many FROM p GROUP BY card OVER sliding 100 seconds"
    task = _again(task, files, contents, _changed(lambda _: present.add(added)))
    found = _columns(task.take(_entries(task, 20, 1)))
    same_card = [n for n in range(21) if n % 3 == 20 % 3]
    assert found["few"] == [sum(n + n % 2 for n in same_card if n % 2)]
    assert found["many"] == [sum(n + n % 2 for n in same_card)]


def test_a_metric_that_is_removed_is_gone() -> None:
    files, contents = FilesInMemory(), dict[str, bytes]()
    two = f"{BY_CARD}; SELECT max(id) AS top FROM p GROUP BY card OVER sliding 10 seconds"
    flow = _changed(lambda metrics: Metrics(two, time="ts"))
    task = _task(flow, files)
    task.take(_entries(task, 0, 20))
    task = _again(task, files, contents, _changed(lambda metrics: Metrics(two, time="ts").remove("top")))
    assert "top" not in _columns(task.take(_entries(task, 20, 1)))


def test_other_metrics_do_not_go_on_from_this_state() -> None:
    files, contents = FilesInMemory(), dict[str, bytes]()
    task = _task(_changed(lambda metrics: metrics), files)
    task.take(_entries(task, 0, 20))
    other = _changed(lambda metrics: Metrics(BY_CARD.replace("10 seconds", "1 hour"), time="ts"))
    with pytest.raises(StateMismatch, match="stage score has n = "):
        _again(task, files, contents, other)


def test_only_columns_that_metrics_read_enter_the_state() -> None:
    """An event of 103 fields takes as much as one of 4."""
    metrics = Metrics(BY_CARD, time="ts").definition
    wide = pa.schema([*SCHEMA, *((f"field_{n}", pa.string()) for n in range(99))])
    sizes = []
    for schema in (SCHEMA, wide):
        (stage,) = measured_stages("score", metrics, schema, 1 << 26, ())
        operator = stage.open(Shape("score", {"": stage.given}))
        more = [pa.array([f"some text of its own {n}" for n in range(500)])] * (len(schema) - len(SCHEMA))
        operator.apply(pa.RecordBatch.from_arrays([*_events(0, 500).columns, *more], schema=schema))
        sizes.append(len(operator.content()))
    assert sizes[0] == sizes[1]
