"""What driver and workers tell each other does not fill a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import FlowError
from headrace.flow.builder import Flow
from headrace.flow.talk import OldTalk, control_queue, report_queue
from headrace.flow.worker_setup import WorkerSetup
from headrace.model import frames
from headrace.queues.log import LogQueues

from .coordinator_script import ignored, make

_QUEUES = control_queue("f"), report_queue("f")


def _say(queues: LogQueues, queue: str) -> None:
    with queues.writer() as writer:
        writer.append(queue, [frames.encode(frames.control(0, 0, {"say": "alive" * 50}))])


def test_what_is_old_goes_and_what_is_new_stays(tmp_path: Path) -> None:
    queues = LogQueues(tmp_path, segment_bytes=1000)
    queues.create(_QUEUES)
    control, reports = _QUEUES
    talk = OldTalk("f", queues, 0)
    for minute in range(60):
        for queue in _QUEUES:
            _say(queues, queue)
        talk.read = queues.bounds(reports)[1]
        talk.look(60.0 * minute)
    start, end = queues.bounds(reports)
    assert end - start < 3000, "what the driver has read"
    start, end = queues.bounds(control)
    a_minute = end / 60
    assert 20 * a_minute <= end - start < 30 * a_minute, "what a worker may still have to hear"


def test_what_was_not_read_stays(tmp_path: Path) -> None:
    queues = LogQueues(tmp_path, segment_bytes=1000)
    queues.create(_QUEUES)
    talk = OldTalk("f", queues, 0)
    for minute in range(10):
        _say(queues, report_queue("f"))
        talk.look(60.0 * minute)
    assert queues.bounds(report_queue("f"))[0] == 0


def test_queues_in_files_are_for_one_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = LogQueues(tmp_path)
    flow = Flow("f")
    flow.sink("out", flow.source("numbers", hr.generate(make, 10)), hr.callback(ignored))
    setup = WorkerSetup(flow.graph(), queues, "", 3, 1, (), 0, 0, incarnation=queues.incarnation())
    setup.check_machine()
    monkeypatch.setattr("headrace.queues.log.boot_id", lambda: 12345)
    with pytest.raises(FlowError, match=r"worker 3 of flow f is on .*, another machine .*hr\.kafka_queues"):
        setup.check_machine()
