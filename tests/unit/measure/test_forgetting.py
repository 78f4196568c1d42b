"""Groups and events that no window can reach any more leave nothing behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.measure.chunk_files import StageFiles
from headrace.measure.definition import Definition
from headrace.measure.policy import STATUSES, Policy
from headrace.measure.run import measure_table
from headrace.measure.task import MeasureTask
from headrace.model.ticks import HOUR, MINUTE, SECOND, Ticks
from headrace.state.places import LocalPlace
from headrace.state.store import StageStore
from headrace.state.tables import plain

ROWS, FRAME = 60_000, 3_000
TEXT = """
    SELECT sum(x) AS total, count(*) AS n, max(x) AS top, last(x) AS newest, median(x) AS mid, countDistinct(x) AS kinds
      FROM t GROUP BY card OVER sliding 20 s;
    SELECT count(*) AS visits FROM t GROUP BY card, shop OVER sliding 10 s delayed by 5 s
"""


def churning(seed: int, type: pa.DataType) -> pa.Table:
    """Ten events a second; cards come, are used for a minute or so, and never come again."""
    dice = np.random.default_rng(seed)
    seconds = np.arange(ROWS) // 10
    late = np.where(dice.random(ROWS) < 0.05, dice.integers(0, 20, ROWS), 0)
    card = pa.array(seconds * 3 + dice.integers(0, 120, ROWS)).cast(type)
    return pa.table(
        {
            "offset": np.arange(ROWS),
            "ts": pa.array((seconds - late) * SECOND, pa.timestamp("us", "UTC")),
            "card": card,
            "shop": dice.integers(0, 3, ROWS),
            "x": dice.integers(0, 50, ROWS),
        }
    )


@pytest.mark.parametrize("type", [pa.int64(), pa.string()])
@pytest.mark.parametrize("restart", [False, True])
def test_groups_leave_nothing_behind(tmp_path: Path, type: pa.DataType, restart: bool) -> None:
    table = churning(3, type)
    policy = Policy(keep=Ticks(MINUTE), dedup=Ticks(MINUTE))
    definition = Definition(TEXT, "ts", id="offset", arrival="offset", policy=policy)
    [stage] = definition.plan(table.schema).stages
    settings = definition.settings(1 << 20, schema=table.schema, columns=stage.columns)
    settings = replace(settings, chunk_events=512)
    store = StageStore(LocalPlace(str(tmp_path)), "q/by-card")
    task = MeasureTask(stage, settings, StageFiles(store, 0))
    answers, groups = [], []
    for frame in table.combine_chunks().to_batches(max_chunksize=FRAME):
        answers.append(task.push(frame))
        task.flush()
        tables, values, files = task.dump()
        groups.append(task.groups)
        if restart:
            task = MeasureTask(stage, settings, StageFiles(store, 0))
            task.restore(plain(tables), values, files)
    assert len(np.unique(table["card"])) > 15_000
    assert max(groups[10:]) < 4_000
    assert len(task.reservoir) < 5_000
    strings = sum(len(array.table) for name, array in tables.items() if name.startswith("texts/arena"))
    assert strings < 30_000
    expected = measure_table(definition, table)
    for i, metric in enumerate(stage.metrics):
        found = pa.chunked_array([each[i] for each in answers])
        assert found.equals(expected[metric.name]), metric.name


@pytest.mark.parametrize("frame", [1000, 301, 50, 1])
def test_an_id_is_forgotten_at_a_time_and_not_where_frames_are_cut(frame: int) -> None:
    """One card is silent while another one has many events: its id comes again within `dedup`, and long after it."""
    hours = [0, 0, *range(1, 600), 600]
    cards = ["a", "a", *["b"] * 599, "a"]
    table = pa.table(
        {
            "offset": np.arange(len(hours)),
            "ts": pa.array([hour * HOUR for hour in hours], pa.timestamp("us", "UTC")),
            "card": cards,
            "txn": [7, 7, *range(1000, 1599), 7],
        }
    )
    policy = Policy(dedup=Ticks(10 * MINUTE))
    text = "SELECT count(*) AS n FROM t GROUP BY card OVER sliding 7 days"
    definition = Definition(text, "ts", id="txn", arrival="offset", policy=policy, status="status")
    [stage] = definition.plan(table.schema).stages
    task, found = MeasureTask(stage, definition.settings(schema=table.schema)), list[str]()
    for rows in table.combine_chunks().to_batches(max_chunksize=frame):
        task.push(rows)
        found += [STATUSES[code] for code in task.codes]
    assert found == ["ok", "duplicate", *["ok"] * 600]
    assert found == measure_table(definition, table)["status"].to_pylist()
