"""Streams are deleted whole, wherever the front end is killed. Without Spark: engines that only leave traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.errors import RequestRefused
from headrace.queues.log import LogQueues
from headrace.service import registry as registry_module
from headrace.service.registry import Registry
from headrace.service.streams import StreamSpec, read_streams
from headrace.state.places import LocalPlace

TEXT = """
CREATE STREAM payments (txn STRING ID, ts TIMESTAMP TIME, card STRING);
SELECT count(*) AS n FROM payments GROUP BY card OVER sliding 5 minutes
"""
_QUEUES = ["q.payments.events", "q.payments.answers", "stream-payments.in.score.0"]
_COMMIT = "state/stream-payments/tasks/events.0/1.manifest"


class _Killed(BaseException):
    """By a signal that nothing can catch."""


class _Engine:
    """Knows whether it found anything of a stream that was before it, and leaves something itself."""

    def __init__(self, spark: Any, spec: StreamSpec, at: str, queues: LogQueues, *more: Any, **options: Any):
        self.spec, self.job, self.queues, self.is_over = spec, self, _QUEUES, False
        left = [name for name in _QUEUES if (queues.folder / name).exists()]
        self.found = [*left, *LocalPlace(at).files(_COMMIT.rpartition("/")[0])]
        queues.create(_QUEUES)
        LocalPlace(at).write(_COMMIT, b"counts")

    def close(self) -> None:
        self.is_over = True


def _registry(folder: Path, wanted: list[StreamSpec]) -> Registry:
    made = Registry(cast(Any, None), str(folder), LogQueues(folder / "queues"))
    made.start(wanted)
    return made


def _found(registry: Registry) -> list[str]:
    return cast(_Engine, registry.engine("payments")).found


@pytest.fixture(autouse=True)
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "Engine", _Engine)
    monkeypatch.setattr(registry_module, "slot_count", lambda spark: 8)


def _kill(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, when: str, which: Callable[[Any], bool]) -> None:
    usual = getattr(owner, method)

    def killed(self: Any, what: Any, *more: Any) -> Any:
        if when == "before" and which(what):
            raise _Killed
        done = usual(self, what, *more)
        if when == "after" and which(what):
            raise _Killed
        return done

    monkeypatch.setattr(owner, method, killed)


_POINTS: dict[str, tuple[type, str, Callable[[Any], bool]]] = {
    "a queue": (LogQueues, "_delete", lambda name: name == _QUEUES[1]),
    "all queues": (LogQueues, "delete", lambda names: True),
    "the commits": (LocalPlace, "delete_folder", lambda folder: True),
    "what is remembered": (LocalPlace, "delete", lambda name: True),
}


@pytest.mark.parametrize("begins", ["with it", "without it"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", list(_POINTS))
def test_a_stream_is_deleted_wherever_the_front_end_is_killed(
    point: str, when: str, begins: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = read_streams(TEXT)
    before = _registry(tmp_path, wanted)
    assert _found(before) == []
    with monkeypatch.context() as dying:
        _kill(dying, *_POINTS[point][:2], when, _POINTS[point][2])
        with pytest.raises(_Killed):
            before.delete("payments")
    after = _registry(tmp_path, wanted if begins == "with it" else [])
    if begins == "without it":
        assert after.specs() == []
        after.create(wanted[0])
    assert _found(after) == []
    assert [spec.name for spec in _registry(tmp_path, []).specs()] == ["payments"], "the new one is remembered"


def test_a_stream_that_could_not_be_deleted_is_deleted_before_another_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [spec] = read_streams(TEXT)
    registry = _registry(tmp_path, [spec])
    with monkeypatch.context() as failing:
        _kill(failing, LocalPlace, "delete_folder", "before", lambda folder: True)
        with pytest.raises(_Killed):
            registry.delete("payments")
    with pytest.raises(RequestRefused, match="there is no stream payments"):
        registry.delete("payments")
    registry.create(spec)
    assert _found(registry) == []


def test_streams_go_on_and_what_a_dead_writer_left_is_none(tmp_path: Path) -> None:
    _registry(tmp_path, read_streams(TEXT))
    (tmp_path / "streams" / ".part-0123").write_bytes(b"half a str")
    after = _registry(tmp_path, [])
    assert [spec.name for spec in after.specs()] == ["payments"]
    assert _found(after) == [*_QUEUES, "1.manifest"]
