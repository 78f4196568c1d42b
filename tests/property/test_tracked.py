"""Tracked flows in simulated worlds: never too early, always in the end, exactly once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from headrace.flow.agents import AgentOperator
from headrace.flow.state_files import StateFiles
from headrace.flow.tracked import TaskTracking
from headrace.testing.random_copies import check_other_flow
from headrace.testing.random_tracking import check_one_order, check_tracked_flow
from headrace.track import agent, agent_state
from headrace.track.agent import Agent
from headrace.track.terms import Notice


@pytest.mark.parametrize("first", range(0, 90, 30))
def test_random_flows_end_their_substreams(first: int) -> None:
    for seed in range(first, first + 30):
        failure = check_tracked_flow(seed)
        assert failure is None, f"seed {seed}: {failure.story()}"


def test_a_merge_that_loses_patience_and_its_power() -> None:
    """It gave records in another order after that, under the same numbers."""
    failure = check_tracked_flow(2095, lowers=False)
    assert failure is None, failure.story()


@pytest.mark.parametrize("seed", [18, 104, 138, 306])
def test_who_merges_does_again_what_it_did_whenever_it_is_told_to_forget(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """That comes beside its paths: after a restart, what it said as of a step was as of another one."""
    monkeypatch.setattr(agent, "drop_every", lambda tasks: 2)
    failure = check_other_flow(seed, lowers=False)
    assert failure is None, failure.story()


def test_ends_come_in_the_order_of_the_source_to_all() -> None:
    for seed in range(15):
        failure = check_one_order(seed)
        assert failure is None, f"seed {seed}: {failure.story()}"


def _untold(self: TaskTracking, edge: Any, channel: int, first: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A task that forgets to tell what it sent."""
    return batch


def _not_counted(self: TaskTracking, *given: Any) -> None:
    """A source that forgets to tell what it gave, where it is counted."""


def _without_holds(self: TaskTracking, labels: Any) -> None:
    """A task that forgets what it holds."""


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("sent", _untold),
        ("leaves", _not_counted),
        ("hold", _without_holds),
        ("finish", lambda self: None),
    ],
)
def test_a_planted_mistake_is_found(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any) -> None:
    monkeypatch.setattr(TaskTracking, name, wrong)
    assert any(_goes_wrong(seed) for seed in range(25))


def _goes_wrong(seed: int) -> bool:
    try:
        return check_tracked_flow(seed) is not None
    except Exception:
        return True  # even the sequential run has no end


def heard(monkeypatch: pytest.MonkeyPatch, flows: int) -> list[tuple[AgentOperator, list[pa.RecordBatch]]]:
    """What the agents of random flows hear in their first lives. Who was restored is left out: it began with others."""
    taken: dict[AgentOperator, list[pa.RecordBatch]] = {}
    restored: set[AgentOperator] = set()

    def take(self: AgentOperator, reports: Sequence[pa.RecordBatch]) -> Any:
        taken.setdefault(self, []).extend(reports)
        return taking(self, reports)

    def restore(self: AgentOperator, parts: Sequence[bytes]) -> None:
        restored.add(self)
        restoring(self, parts)

    taking, restoring = AgentOperator.take, AgentOperator.restore
    with monkeypatch.context() as patched:
        patched.setattr(AgentOperator, "take", take)
        patched.setattr(AgentOperator, "restore", restore)
        for seed in range(flows):
            check_tracked_flow(seed)
    return [(operator, reports) for operator, reports in taken.items() if operator not in restored]


def test_an_agent_does_the_same_however_many_reports_come_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, compared = random.Random(1), 0
    for operator, reports in heard(monkeypatch, 25):
        one_by_one, together = (Agent(operator.agent.tracking) for _ in range(2))
        told = [notice for report in reports for notice in one_by_one.take(report)]
        found, at = list[Notice](), 0
        while at < len(reports):
            stop = at + rng.randint(1, 12)
            found += together.take(*reports[at:stop])
            at = stop
        for point in range(-1, len(operator.agent.tracking.points)):
            assert _flat(found, point) == _flat(told, point)
        assert agent_state.dump(together) == agent_state.dump(one_by_one)
        compared += len(reports) > 10
    assert compared > 10


def test_an_agent_that_is_restored_says_what_it_would_have_said(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, wholes, changes = random.Random(2), 0, 0
    for operator, reports in heard(monkeypatch, 25):
        files, kept, at = StateFiles(), dict[str, bytes](), 0
        first, again = (AgentOperator(operator._region, operator._shape) for _ in range(2))
        while at < len(reports):
            for _ in range(rng.randint(0, 3)):
                stop = at + rng.randint(1, 6)
                assert again.take(reports[at:stop]) == first.take(reports[at:stop])
                at = stop
            kept |= files.written({"agent": first}, str(at))
            again = AgentOperator(operator._region, operator._shape)
            StateFiles().restore(files.parts, {"agent": again}, kept.__getitem__)
            assert (again.agent.size, again.heard()) == (first.agent.size, first.heard())
        wholes += sum(content[:1] == b"=" for content in kept.values())
        changes += sum(content[:1] == b"+" for content in kept.values())
    assert wholes > 100
    assert changes > 30


def _flat(notices: list[Notice], point: int) -> list[Any]:
    found = [each for each in notices if each.point == point]
    return [(n.told, word, name, n.tick) for n in found for word, name in zip(n.ids, n.names, strict=True)]
