"""Substreams that are times of the hour that a zone has twice: Python takes two of them for equal."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flow.builder import Flow, Stream
from headrace.flow.sequential import run_sequentially

from .tracked_flows import CALL

BEGINS = dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC)
TYPE = pa.timestamp("us", "Europe/Berlin")
SCHEMA = pa.schema([("n", pa.int64()), ("hour", TYPE), ("kind", pa.string())])


def hourly(first: int, count: int) -> pa.RecordBatch:
    """Four in each hour; the first two hours are 2:30 in Berlin, and 2:30 again."""
    n = range(first, first + count)
    hours = [BEGINS + dt.timedelta(hours=number // 4) for number in n]
    return pa.record_batch([pa.array(n), pa.array(hours, TYPE), pa.array(["ab"[x % 2] for x in n])], schema=SCHEMA)


def tracked(flow: Flow, bound: Any = "soft") -> Stream:
    return flow.source("s", hr.generate(hourly, 12)).tracked(by="hour", ends=hr.rising(), bound=bound)


def hours_of(rows: list[dict[str, Any]], column: str) -> list[int]:
    return [(row[column].astimezone(dt.UTC) - BEGINS) // dt.timedelta(hours=1) for row in rows]


def test_each_has_a_state_of_its_own() -> None:
    flow = Flow("f")

    def told(state: int, hour: dt.datetime) -> Any:
        return None, {"n": state, "hour": hour, "kind": "end"}

    given = flow.keyed("count", lambda state, _: ((state or 0) + 1, None), tracked(flow), by="hour", on_ended=told)
    flow.sink("out", given, CALL)
    rows = run_sequentially(flow.graph(), 3)["out"].to_pylist()
    assert hours_of(rows, "hour") == [0, 1, 2]
    assert [row["n"] for row in rows] == [4, 4, 4]


@pytest.mark.parametrize("records", [3, 12])
def test_each_is_joined_alone(records: int) -> None:
    given = {"a": "left.n", "b": "right.n", "hour": "window"}
    join = hr.window_join(by="hour", kind="kind", left="a", right="b", on="hour", given=given, schema=SCHEMA)
    flow = Flow("f")
    flow.sink("out", flow.stage("join", join, tracked(flow), schema=join.gives), CALL)
    rows = run_sequentially(flow.graph(), records)["out"].to_pylist()
    assert hours_of(rows, "hour") == [0] * 4 + [1] * 4 + [2] * 4
    assert all(row["a"] // 4 == row["b"] // 4 for row in rows)


class Sum(hr.Stage):
    def __init__(self) -> None:
        self.sum = 0

    def on_batch(self, batch: pa.RecordBatch) -> None:
        self.sum += sum(batch.column("n").to_pylist())

    def snapshot(self) -> int:
        return self.sum

    def restore(self, state: int) -> None:
        self.sum = state


def test_each_has_a_cut() -> None:
    stage = hr.snapshotted(Sum, "sum", by="hour", epoch=TYPE)
    flow = Flow("f")
    given = flow.stage("sum", stage, tracked(flow, "firm"), sides=stage.sides)
    flow.sink("out", given, CALL)
    flow.sink("saved", given.side("snapshots"), CALL)
    saved = run_sequentially(flow.graph(), 3)["saved"]
    epochs = hr.whole_epochs(saved, {"sum": 1})
    assert hours_of([{"hour": epoch} for epoch in epochs], "hour") == [0, 1, 2]
    assert [hr.state_at(saved, epoch) for epoch in epochs] == [sum(range(4)), sum(range(8)), sum(range(12))]
