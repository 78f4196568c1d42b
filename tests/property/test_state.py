"""A task that is committed, forgotten and loaded between any two frames goes on as if nothing had happened."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import MetricOverflow
from headrace.measure.chunk_files import StageFiles
from headrace.measure.definition import Definition
from headrace.measure.plan import Stage
from headrace.measure.run import arrival_order, measure_table, pieces
from headrace.measure.task import MeasureTask
from headrace.state.places import LocalPlace
from headrace.state.rocks_files import ShardDatabase
from headrace.state.store import ShardChange, StageStore
from headrace.state.tables import Delta, Fingerprints, decode, encode, plain
from headrace.testing.compare import assert_same_answers
from headrace.testing.strategies import EventCase, event_cases, frame_sizes


def interrupted(
    definition: Definition, stage: Stage, table: pa.Table, frames: list[int], closure: int, folder: Path, backend: str
) -> pa.Table:
    """The answers of a stage that starts anew from its last commit before every frame."""
    order, known = arrival_order(definition, stage, table)
    settings = replace(definition.settings(1), chunk_events=8)
    rows = table.select(list(dict.fromkeys([*settings.columns, *stage.columns]))).take(pa.array(order))
    store, version, answers = StageStore(LocalPlace(str(folder)), "q/stage"), None, []
    for number, batch in enumerate(pieces(rows, frames)):
        database = None
        if backend == "rocksdb":
            database = ShardDatabase(store, None if version is None else version.values["rocks"], 8 << 20)
        groups = None if database is None else database.groups
        task, prints = MeasureTask(stage, settings, StageFiles(store, number), groups), Fingerprints()
        assert task.reservoir.writer is not None
        task.reservoir.writer.closure = closure
        if version is not None:
            tables = store.load(version)
            prints.changes(tables)
            task.restore(plain(tables), version.values, version.files)
        answers.append(task.push(batch))
        task.flush()
        tables, values, files = task.dump()
        if database is not None:
            values["rocks"], more = database.publish(store, number)
            files = (*files, *more)
            database.groups.close()
        change = ShardChange(version, prints, tables, files, values)
        assert store.commit(number, 0, 1, {}, {3: change})[3] == store.versions(number, 0, 1)[3]
        version = store.versions(number, 0, 1)[3]
    back = np.empty(table.num_rows, np.int64)
    back[order] = np.arange(len(order))
    columns = [pa.chunked_array([a[i] for a in answers], m.type) for i, m in enumerate(stage.metrics)]
    return pa.table(columns, [m.name for m in stage.metrics]).take(pa.array(back, mask=~known))


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@given(event_cases(), st.data())
@settings(max_examples=120, suppress_health_check=SLOW)
def test_answers_do_not_depend_on_restarts(case: EventCase, data: st.DataObject) -> None:
    restarts_change_nothing("columnar", case, data)


@given(event_cases(), st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_answers_do_not_depend_on_restarts_with_state_in_rocksdb(case: EventCase, data: st.DataObject) -> None:
    restarts_change_nothing("rocksdb", case, data)


def restarts_change_nothing(backend: str, case: EventCase, data: st.DataObject) -> None:
    definition = Definition(case.text, time=case.time, id=case.id, arrival=case.arrival)
    frames = data.draw(frame_sizes(case.table.num_rows), label="frames")
    closure = data.draw(st.sampled_from([0, 5_000_000, 600_000_000]), label="closure")
    try:
        expected = measure_table(definition, case.table)
    except MetricOverflow:
        return
    for stage in definition.plan(case.table.schema).stages:
        with tempfile.TemporaryDirectory() as folder:
            actual = interrupted(definition, stage, case.table, frames, closure, Path(folder) / "shard", backend)
        assert_same_answers(actual, expected.select(actual.column_names))


tables = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), max_size=12).map(
    lambda rows: np.array(rows, np.int64).reshape(-1, 2)
)


@given(st.lists(tables, min_size=1, max_size=5))
def test_deltas_make_every_version(versions: list[np.ndarray]) -> None:
    prints, made = Fingerprints(), None
    for version in versions:
        found = decode(encode(prints.changes({"table": version})))
        if "table" in found:
            made = found["table"].apply(made)
        assert made is not None
        assert made.shape == version.shape
        assert (made == version).all()


@given(st.lists(st.integers(0, 200), unique=True).map(sorted))
def test_rows_are_written_as_runs(rows: list[int]) -> None:
    delta = Delta("<i8", (201,), np.array(rows, np.int64), np.arange(len(rows)))
    found = decode(encode({"t": delta}))["t"]
    assert found.rows is not None
    assert found.rows.tolist() == rows
