"""What a reader has acknowledged comes to Kafka in the end, and never goes back, whatever becomes of single commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from headrace.queues import kafka_commits
from headrace.queues.kafka_commits import Commits
from headrace.testing.queue_contract import eventually


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_EVERY_S", "_SELDOM_S", "_AGAIN_S"):
        monkeypatch.setattr(kafka_commits, name, 0.001)


@contextmanager
def _commits(commit: Callable[[Mapping[str, int]], None]) -> Iterator[Commits]:
    commits = Commits(commit, {"a": 0})
    yield commits
    commits.stop()


def test_a_commit_that_nobody_hears_of_is_sent_again() -> None:
    """A client tells what became of a commit when it is polled, and some readers are not for long."""
    sent: list[int] = []
    with _commits(lambda positions: sent.append(positions["a"])) as commits:
        commits.add("a", 5)
        assert eventually(lambda: sent.count(5) >= 3)


def test_a_commit_that_cannot_be_sent_is_sent_again() -> None:
    sent: list[int] = []

    def commit(positions: Mapping[str, int]) -> None:
        sent.append(positions["a"])
        if len(sent) < 3:
            raise RuntimeError("not now")

    with _commits(commit):
        assert eventually(lambda: len(sent) >= 3)


def test_an_old_commit_that_failed_does_not_undo_a_newer_one() -> None:
    sent: list[int] = []
    with _commits(lambda positions: sent.append(positions["a"])) as commits:
        assert eventually(lambda: sent[-1:] == [0])
        commits.add("a", 5)
        assert eventually(lambda: sent[-1:] == [5])
        commits.answered({"a": 0}, is_done=False)
        before = len(sent)
        assert eventually(lambda: len(sent) > before)
    assert set(sent[sent.index(5) :]) == {5}


def test_what_is_committed_is_not_sent_again() -> None:
    sent: list[dict[str, int]] = []
    with _commits(lambda positions: sent.append(dict(positions))) as commits:
        assert eventually(lambda: len(sent) > 0)
        commits.add("a", 5)
        commits.answered({"a": 0}, is_done=True)  # an older one: the newer one may still fail
        assert eventually(lambda: sent.count({"a": 5}) >= 3)
        commits.answered({"a": 5}, is_done=True)
        commits.add("b", 1)
        assert eventually(lambda: sent.count({"b": 1}) >= 3)
