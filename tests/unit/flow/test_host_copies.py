"""A copy that begins to speak in a real host: its sinks go on behind the newest commit, whichever it has looked at."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.effects import Told
from headrace.flow.graph import Graph
from headrace.flow.host import Host
from headrace.flow.plan import make_plan
from headrace.flow.talk import control_queue, report_queue
from headrace.flow.worker import Pace
from headrace.flow.worker_setup import WorkerSetup
from headrace.queues.log import LogQueues
from headrace.testing.flows import until

from .coordinator_script import make

_VOICE, _SILENT = "s.0", "s.0~1"


def _host(graph: Graph, place: Path, worker: int, name: str, batch_records: int) -> Host:
    queues = LogQueues(str(place / "queues"))
    queues.create([*make_plan(graph).queues, control_queue("f"), report_queue("f")])
    silent = (name,) if name == _SILENT else ()
    pace = Pace(commit_s=0.0 if name == _VOICE else 1e9)  # one that keeps silent never looks
    return Host(
        WorkerSetup(graph, queues, str(place), worker, 1, (name,), 0, 0, pace, 1 << 20, batch_records, (), silent, True)
    )


def _feed(host: Host, times: int) -> None:
    for _ in range(times):
        host._ticked_at = 0.0
        host._tick()
        host._feed([], time.monotonic())


def _is_saved(host: Host) -> bool:
    host._look_at_saves()
    return not host._saves


@pytest.mark.parametrize("batches", [1, 2, 3, 4])
def test_what_the_newest_commit_has_is_not_given_to_sinks_again(tmp_path: Path, batches: int) -> None:
    """Batches of the voice have 25 records, those of the other one 40, so that one of these straddles the commit."""
    found: list[int] = []

    def take(batch: pa.RecordBatch) -> None:
        found.extend(batch.column("n").to_pylist())

    flow = Flow("f")
    flow.sink("out", flow.source("s", hr.generate(make, 100)), hr.callback(take))
    graph = flow.graph()
    voice, other = _host(graph, tmp_path, 0, _VOICE, 25), _host(graph, tmp_path, 1, _SILENT, 40)
    _feed(other, 3)
    for _ in range(batches):
        _feed(voice, 1)
        voice._ticked_at = 0.0
        voice._tick()
        until(lambda: _is_saved(voice))
    voice.close()
    assert found == list(range(25 * batches))
    other._give(Told({"say": "speak", "copies": [_SILENT]}))
    other.close()
    assert found == list(range(100))
