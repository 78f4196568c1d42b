"""A job whose launcher cannot go on: whoever waits for it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.effects import Exited
from headrace.flow.job import Job, Launcher
from headrace.flow.worker_setup import WorkerSetup
from headrace.queues.log import LogQueues

from .coordinator_script import ignored, make


class _Launcher(Launcher):
    """Its workers die at once."""

    def __init__(self, lost: str | None = None, fails_to_close: bool = False):
        super().__init__()
        self._lost, self._fails_to_close, self.started = lost, fails_to_close, 0

    def start(self, setup: WorkerSetup) -> None:
        self.started += 1
        self.exits.append(Exited(setup.worker, setup.epoch, "AttributeError: nothing there", None))

    def cancel(self, worker: int, epoch: int) -> None: ...

    def lost(self) -> str | None:
        return self._lost

    def close(self) -> None:
        if self._fails_to_close:
            raise AttributeError("'NoneType' object has no attribute 'sc'")


def _job(place: Path, launcher: Launcher) -> Job:
    flow = Flow("f")
    flow.sink("out", flow.source("numbers", hr.generate(make, 10)), hr.callback(ignored))
    return Job(flow.graph(), launcher, LogQueues(place / "queues"), str(place / "state"), 1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_launcher_that_cannot_be_closed_keeps_nobody_waiting(tmp_path: Path) -> None:
    job = _job(tmp_path, _Launcher(fails_to_close=True))
    job.ask_to_stop(drain=False)
    with pytest.raises(hr.FlowError):
        assert job.wait(60), "it is never over"
    assert job.status()["state"] == "failed"


def test_a_launcher_that_is_lost_is_said_and_no_worker_is_started_again(tmp_path: Path) -> None:
    launcher = _Launcher(lost="the Spark session was stopped")
    job = _job(tmp_path, launcher)
    with pytest.raises(hr.FlowError) as raised:
        assert job.wait(60)
    assert str(raised.value) == (
        "flow f: the Spark session was stopped while it ran; start the flow again: it goes on where it was"
    )
    assert launcher.started == 1
    assert job.status()["state"] == "failed"
