"""A task that is committed, forgotten and loaded between any two frames goes on as if nothing had happened."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import MetricOverflow
from headrace.measure.definition import Definition
from headrace.measure.plan import Stage
from headrace.measure.run import arrival_order, measure_table, pieces
from headrace.measure.task import MeasureTask
from headrace.state.store import ShardStore, Version
from headrace.state.tables import Delta, difference
from headrace.testing.compare import assert_same_answers
from headrace.testing.strategies import EventCase, event_cases, frame_sizes


def interrupted(definition: Definition, stage: Stage, table: pa.Table, frames: list[int], folder: Path) -> pa.Table:
    """The answers of a stage that starts anew from its last commit before every frame."""
    order, known = arrival_order(definition, stage, table)
    rows = table.select(list(dict.fromkeys([definition.time, *stage.columns]))).take(pa.array(order))
    store, version, answers = ShardStore(folder), None, []
    folder.mkdir()
    for number, batch in enumerate(pieces(rows, frames)):
        task = restored(definition, stage, store, version)
        answers.append(task.push(batch))
        version = store.commit(number, version, *task.dump())
        assert store.identity(number) == version.identity
        version = store.load(number)
    back = np.empty(table.num_rows, np.int64)
    back[order] = np.arange(len(order))
    columns = [pa.chunked_array([a[i] for a in answers], m.type) for i, m in enumerate(stage.metrics)]
    return pa.table(columns, [m.name for m in stage.metrics]).take(pa.array(back, mask=~known))


def restored(definition: Definition, stage: Stage, store: ShardStore, version: Version | None) -> MeasureTask:
    late = definition.arrival is not None
    task = MeasureTask(stage, definition.time, may_be_late=late, memory_bytes=1, folder=store.folder)
    task.reservoir.chunk_events = 8
    if version is not None:
        task.restore({name: table.copy() for name, table in version.tables.items()}, version.values)
    return task


@given(event_cases(), st.data())
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_answers_do_not_depend_on_restarts(case: EventCase, data: st.DataObject) -> None:
    definition = Definition(case.text, time=case.time, id=case.id, arrival=case.arrival)
    frames = data.draw(frame_sizes(case.table.num_rows), label="frames")
    try:
        expected = measure_table(definition, case.table)
    except MetricOverflow:
        return
    for stage in definition.plan(case.table.schema).stages:
        with tempfile.TemporaryDirectory() as folder:
            actual = interrupted(definition, stage, case.table, frames, Path(folder) / "shard")
        assert_same_answers(actual, expected.select(actual.column_names))


tables = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), max_size=12).map(
    lambda rows: np.array(rows, np.int64).reshape(-1, 2)
)


@given(tables, tables)
def test_a_difference_turns_the_old_into_the_new(old: np.ndarray, new: np.ndarray) -> None:
    delta = difference(old, new)
    if delta is None:
        assert (old == new).all()
        assert old.shape == new.shape
        return
    assert isinstance(delta, Delta)
    made = delta.apply(old)
    assert made.shape == new.shape
    assert (made == new).all()
