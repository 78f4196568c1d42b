"""What will run, as people read it: golden texts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flow.builder import Flow

_NUMBERS = pa.schema([("n", pa.int64())])


def _make(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, first + count), pa.int64())], schema=_NUMBERS)


def _half(record: dict[str, Any]) -> Any:
    return {"n": record["n"] // 2}


def _count(state: Any, record: dict[str, Any]) -> Any:
    return (state or 0) + 1, record


def _ignored(batch: pa.RecordBatch) -> None:
    return None


@pytest.fixture
def flow() -> Flow:
    flow = Flow("halves")
    numbers = flow.source("numbers", hr.generate(_make, 10), parallelism=2)
    clean = flow.stage("clean", _half, numbers, each="record", on_error="side")
    again = flow.loop("again", clean, parallelism=3)
    half = flow.stage("half", _half, again, each="record")
    again.back(half, hr.rescale())
    counted = flow.keyed("count", _count, half, by="n", parallelism=2)
    flow.sink("out", counted, hr.callback(_ignored))
    flow.sink("end", clean.side("errors"), hr.queue("bad-ones"), parallelism=1)
    return flow


def test_as_a_tree(flow: Flow) -> None:
    assert flow.explain() == _TREE


def test_as_mermaid(flow: Flow) -> None:
    assert flow.explain("mermaid") == _MERMAID


def test_a_flow_of_one_task() -> None:
    flow = Flow("small")
    flow.sink("out", flow.source("numbers", hr.generate(_make, 10)), hr.callback(_ignored))
    assert flow.explain() == "\n".join(
        [
            "flow small: 1 task, 0 queues",
            "└─ numbers + out: one task, run as one",
            "   ├─ source numbers: Generate",
            "   └─ sink out: Callback",
        ]
    )
    assert flow.explain("mermaid") == 'flowchart LR\n  n_numbers["numbers + out"]'


def test_a_function_without_a_name_has_its_line() -> None:
    flow = Flow("small")
    numbers = flow.source("numbers", hr.generate(_make, 10))
    same = lambda batch: batch  # noqa: E731
    flow.sink("out", flow.stage("x", same, numbers), hr.callback(_ignored))
    assert f"stage x: the lambda of line {same.__code__.co_firstlineno}" in flow.explain()


_TREE = """\
flow halves: 8 tasks, 7 queues
├─ numbers + clean: 2 tasks, run as one
│  ├─ source numbers: Generate
│  ├─ stage clean: _half, record by record
│  ├─ to again by rebalance: 6 channels
│  └─ to end (side output errors) by rebalance: 2 channels
├─ again + half: 3 tasks, run as one
│  ├─ stage again: as it is
│  ├─ stage half: _half, record by record
│  ├─ to again by rescale: 3 channels, back to the start of the loop
│  └─ to count by key n: 6 channels
├─ count + out: 2 tasks, run as one
│  ├─ stage count: _count, state by n, keeps state
│  └─ sink out: Callback
└─ end: one task
   └─ sink end: QueueEnd"""

_MERMAID = """\
flowchart LR
  n_numbers["numbers + clean, 2 tasks"]
  n_again["again + half, 3 tasks"]
  n_count["count + out, 2 tasks"]
  n_end["end"]
  n_numbers -->|"rebalance"| n_again
  n_again -.->|"rescale"| n_again
  n_again -->|"key n"| n_count
  n_numbers -->|"errors: rebalance"| n_end"""
