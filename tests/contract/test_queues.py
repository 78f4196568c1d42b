"""Every kind of queue against the contract in `headrace.testing.queue_contract`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.queues.log import LogQueues
from headrace.queues.protocol import Queues
from headrace.testing.kafka import new_kafka_queues, running_broker
from headrace.testing.queue_contract import CHECKS


def _log(folder: Path) -> Queues:
    return LogQueues(folder / "queues")


def _log_of_small_segments(folder: Path) -> Queues:
    return LogQueues(folder / "queues", fsync="never", segment_bytes=3000)


def _kafka(folder: Path) -> Queues:
    return new_kafka_queues(running_broker())


KINDS: dict[str, Callable[[Path], Queues]] = {
    "log": _log,
    "log-small-segments": _log_of_small_segments,
    "kafka": _kafka,
}


def _marked(kind: str) -> object:
    return pytest.param(kind, marks=[pytest.mark.kafka] if kind == "kafka" else [])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("kind", [_marked(kind) for kind in KINDS])
def test_contract(kind: str, check: Callable[[Queues], None], tmp_path: Path) -> None:
    check(KINDS[kind](tmp_path))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_log_without_inotify(check: Callable[[Queues], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_NO_INOTIFY", "1")
    check(_log(tmp_path))
