"""What a tracker of queries reads and keeps, without a broker: checkpoints, and its journal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import FlowError, StateDamaged, StateError, StateMismatch
from headrace.spark import tracked_journal
from headrace.spark.tracked_journal import Journal
from headrace.spark.tracked_topics import Checkpoint, Link, positions
from headrace.testing.checkpoints import checkpoint
from headrace.track.links import Committed, LinkAgent, LinkName, Looked, Read, Seen, Stimulus, Told


def test_positions_of_a_checkpoint() -> None:
    assert positions('v1\n{}\n{"a":{"0":4,"1":7}}', "a") == {0: 4, 1: 7}
    assert positions('v1\n{}\n-\n{"logOffset":3}\n17\n{"b":{"0":1},"a":{"0":2}}', "a") == {0: 2}
    assert positions('v2\n{}\nfirst:{"a":{"0":4}}\nsecond:5', "a") == {0: 4}
    assert positions('v1\n{}\n{"b":{"0":4}}\n-', "a") is None
    twice = 'v1\n{}\n{"a":{"0":4,"1":9}}\n{"a":{"0":6,"1":2,"2":1}}'
    assert positions(twice, "a") == {0: 4, 1: 2, 2: 0}, "as far as the slower of the two"


def a_link(topic: str, folder: Path | str, **more: Any) -> Link:
    return Link(topic, None, str(folder), **more)  # type: ignore[arg-type]


def test_only_what_is_committed_counts(tmp_path: Path) -> None:
    found = Checkpoint(0, a_link("a", tmp_path))
    assert found.news() is None, "not started yet"
    checkpoint(tmp_path, 8, {"a": 5})
    checkpoint(tmp_path, 9, {"a": 10}, committed=False)
    assert found.news() == Committed("q", {0: 5})
    assert found.news() is None
    checkpoint(tmp_path, 9, {"a": 10})
    assert found.news() == Committed("q", {0: 10})


def test_a_checkpoint_of_another_query_at_the_same_batch(tmp_path: Path) -> None:
    found = Checkpoint(0, a_link("a", tmp_path / "c"))
    checkpoint(tmp_path / "c", 0, {"a": 5})
    assert found.news() == Committed("q", {0: 5})
    shutil.rmtree(tmp_path / "c")
    checkpoint(tmp_path / "c", 0, {"a": 5}, query="r")
    assert found.news() == Committed("r", {0: 5})
    assert found.news() is None


def test_a_checkpoint_that_is_deleted(tmp_path: Path) -> None:
    found = Checkpoint(0, a_link("a", tmp_path / "c"))
    checkpoint(tmp_path / "c", 0, {"a": 5})
    found.news()
    shutil.rmtree(tmp_path / "c")
    with pytest.raises(FlowError, match=r"query 1 \(checkpoint .*\) has no commits any more: its checkpoint was"):
        found.news()


def test_checkpoints_that_are_refused(tmp_path: Path) -> None:
    checkpoint(tmp_path, 0, {"b": 5, "c": 1})
    with pytest.raises(
        FlowError, match=r"query 2 \(checkpoint .*\) does not read topic a, but b, c; give each link the"
    ):
        Checkpoint(1, a_link("a", tmp_path)).news()
    (tmp_path / "state").mkdir()
    with pytest.raises(FlowError, match=r"query 1 .* keeps state, and may hold records back.*stateful_ok=True"):
        Checkpoint(0, a_link("b", f"file:{tmp_path}")).news()
    assert Checkpoint(0, a_link("b", tmp_path, stateful_ok=True)).news() == Committed("q", {0: 5})


LINKS = [LinkName("a", "/a")]


def close(journal: Journal, agent: LinkAgent, first: int, count: int) -> None:
    """One substream after the other is done."""
    for n in range(first, first + count):
        stimuli: list[Stimulus] = [
            Read({0: {0: n + 1}}, [Seen(0, 0, f"x{n}", n, n)]),
            Looked({0: Committed("q", {0: n + 1})}),
        ]
        for stimulus in stimuli:
            agent.on(stimulus)
            journal.keep(stimulus, agent)


def test_a_journal_is_read_again_and_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracked_journal, "_NEWS_FILES", 20)
    for start in range(4):
        journal = Journal(str(tmp_path))
        agent = journal.begin(LINKS, [{0: 0}], 100)
        assert agent.done_count == start * 35
        close(journal, agent, start * 35, 35)
        agent.on(Told(5))
        journal.keep(Told(5), agent)
    assert len(list(tmp_path.iterdir())) == 2, "this start, and the one before"
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) < 2 * 22
    restored = Journal(str(tmp_path)).begin(LINKS, [{0: 0}], 100)
    assert (restored.done, restored.untold, restored.read) == (agent.done, agent.untold, agent.read)


def test_a_journal_that_is_damaged_or_of_others_is_named(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    agent = journal.begin(LINKS, [{0: 0}], 100)
    close(journal, agent, 0, 3)
    with pytest.raises(StateMismatch, match="is of the topics a, and the links are of b"):
        Journal(str(tmp_path)).begin([LinkName("b", "/b")], [{0: 0}], 100)
    lost = next(tmp_path.glob("*/000000/000002"))
    content = lost.read_bytes()
    lost.unlink()
    with pytest.raises(StateDamaged, match=r"000000/000002: it is missing"):
        Journal(str(tmp_path)).begin(LINKS, [{0: 0}], 100)
    lost.write_bytes(content[:-1])
    with pytest.raises(StateDamaged, match=r"000000/000002: its checksum"):
        Journal(str(tmp_path)).begin(LINKS, [{0: 0}], 100)
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="is a file; name a folder"):
        Journal(str(tmp_path / "file"))


def test_a_tracker_that_was_replaced_does_no_harm(tmp_path: Path) -> None:
    first = Journal(str(tmp_path))
    old = first.begin(LINKS, [{0: 0}], 100)
    close(first, old, 0, 2)
    first.check_alone()
    second = Journal(str(tmp_path))
    new = second.begin(LINKS, [{0: 0}], 100)
    close(first, old, 2, 5)
    with pytest.raises(FlowError, match=r"another tracker was started at .*, and this one has stopped"):
        first.check_alone()
    close(second, new, 2, 1)
    assert Journal(str(tmp_path)).begin(LINKS, [{0: 0}], 100).done_count == 3
