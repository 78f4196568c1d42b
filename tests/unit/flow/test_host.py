"""A worker in a real process, where a stage is slow, hangs or raises."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flow import host
from headrace.flow.builder import Flow
from headrace.flow.busy import BusyVoice
from headrace.flow.host import fitting, run_worker
from headrace.flow.plan import make_plan
from headrace.flow.talk import control_queue, report_queue
from headrace.flow.worker import Pace
from headrace.flow.worker_setup import WorkerSetup
from headrace.model import frames
from headrace.queues.log import LogQueues

from .coordinator_script import NUMBERS, ignored, make


def _setup(flow: Flow, place: Path) -> WorkerSetup:
    graph = flow.graph()
    queues, plan = LogQueues(str(place / "queues")), make_plan(graph)
    queues.create([*plan.queues, control_queue("f"), report_queue("f")])
    return WorkerSetup(graph, queues, str(place), 0, 1, tuple(plan.tasks), 0, 0, Pace(commit_s=0.0))


class _Driver:
    """What hears the worker, and talks to it."""

    def __init__(self, setup: WorkerSetup):
        self._setup = setup
        self._reader = setup.queues.reader("driver", {report_queue("f"): 0})

    def hears(self, what: str) -> Any:
        """The next message that says this."""
        while True:
            entries = self._reader.poll([report_queue("f")], 60.0)
            assert entries, f"nothing of {what}"
            for message in [frames.decode(entry.frame).message or {} for entry in entries]:
                if what in message:
                    return message[what]

    def tells(self, say: str) -> None:
        with self._setup.queues.writer() as writer:
            writer.append(control_queue("f"), [frames.encode(frames.control(0, 0, {"say": say}))])


def test_a_worker_whose_stage_takes_long_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "BusyVoice", partial(BusyVoice, after_s=0.02))
    is_at_it, may_go_on = threading.Event(), threading.Event()

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        is_at_it.set()
        may_go_on.wait(60)
        return batch

    flow = Flow("f")
    numbers = flow.source("s", hr.generate(make, 3))
    slowly = flow.stage("slow", slow, numbers, route=hr.rebalance(), schema=NUMBERS)
    flow.sink("out", slowly, hr.callback(ignored))
    setup = _setup(flow, tmp_path)
    worker = threading.Thread(target=run_worker, args=(setup,))
    worker.start()
    try:
        driver = _Driver(setup)
        assert is_at_it.wait(60)
        first = driver.hears("busy")
        while first["what"] != "slow.0":  # on a machine that is slow itself
            first = driver.hears("busy")
        second = driver.hears("busy")
        assert second["what"] == "slow.0"
        assert 0.0 <= first["still_s"] <= first["for_s"] <= second["for_s"]
    finally:
        may_go_on.set()
        driver.tells("leave")
        worker.join(60)
    assert not worker.is_alive()


class _Forgets(hr.Stage):
    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def snapshot(self) -> Any:
        raise KeyError("seen")


def test_what_a_worker_dies_of_is_told(tmp_path: Path) -> None:
    flow = Flow("f")
    kept = flow.stage("kept", _Forgets, flow.source("s", hr.generate(make, 3)), schema=NUMBERS)
    flow.sink("out", kept, hr.callback(ignored))
    setup = _setup(flow, tmp_path)
    with pytest.raises(Exception, match="seen"):
        run_worker(setup)
    told = _Driver(setup).hears("raised")
    assert told.startswith("KeyError: 'seen' (")
    assert "test_host.py, line" in told


def test_what_takes_long_is_taken_in_smaller_pieces() -> None:
    most = 1
    for _ in range(30):
        most = fitting(most, most, 0.01, 0.5, 4 << 20)
    assert most == 4 << 20, "as much as there is room for, where nothing is slow"
    assert fitting(most, 1000, 5.0, 0.5, 4 << 20) == 100
    assert fitting(100, 1000, 0.0, 0.5, 4 << 20) == 200, "it may be slow yet"
    assert fitting(4096, 1, 300.0, 0.5, 4 << 20) == 1, "a frame comes in any case"
