"""The bytes that the bench of assignments counts, by hand."""

from __future__ import annotations

from collections.abc import Sequence

from bench.support.assignment_moves import ByPosition, Event, History, Holders, Sticky, random_history, replayed

from headrace.replicate.assignment import WorkerSeen

OLD = {"a": {"a-0": 10, "a-1": 5}}
NEW = {"a": {"a-0": 10, "a-2": 7}}


class Scripted:
    """Who has the task, event by event; and what the workers were said to keep."""

    def __init__(self, *holders: set[int]):
        self._holders = [*holders]
        self.kept: list[dict[int | str, frozenset[str]]] = []

    def __call__(self, workers: Sequence[WorkerSeen]) -> Holders:
        self.kept.append({worker.name: worker.keeps for worker in workers})
        return {"a": frozenset(self._holders.pop(0))}


def test_a_worker_that_comes_back_needs_what_has_changed() -> None:
    history = History((Event((0, 1)), Event((1, 2)), Event((0, 1, 2))), (OLD, NEW, NEW))
    strategy = Scripted({0, 1}, {1, 2}, {0, 1})
    found = replayed(history, strategy)
    assert strategy.kept[2] == {0: {"a"}, 1: {"a"}, 2: {"a"}}
    assert (found.copies, found.state_bytes, found.lost_bytes) == (2, 34, 17)
    assert found.by_event == [17, 17 + 7], "all of it to worker 2, then one file to worker 0"


def test_a_lost_disk_has_nothing() -> None:
    history = History((Event((0, 1)), Event((1, 2), wiped=0), Event((0, 1, 2))), (OLD, NEW, NEW))
    strategy = Scripted({0, 1}, {1, 2}, {0, 1})
    assert replayed(history, strategy).by_event == [17, 34]
    assert strategy.kept[2] == {0: frozenset(), 1: {"a"}, 2: {"a"}}


def test_both_strategies_have_all_copies_on_different_workers() -> None:
    history = random_history(5, tasks=20, workers=4, events=12)
    names = [*history.states[0]]
    for strategy in (Sticky(names), ByPosition(names)):
        for event in history.events:
            found = strategy([WorkerSeen(at, f"host-{at}") for at in event.up])
            assert found.keys() == set(names)
            assert all(len(workers) == 2 and workers <= set(event.up) for workers in found.values())


def test_a_history_is_the_same_for_the_same_seed() -> None:
    assert random_history(3, 5, 4, 6) == random_history(3, 5, 4, 6)
    assert random_history(3, 5, 4, 6) != random_history(4, 5, 4, 6)
