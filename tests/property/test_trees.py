"""Trees of workers: any plan, any interleaving gives what the sequential program gives. And in flows that crash."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.demo.programs import PROGRAMS
from headrace.flow import synchronized
from headrace.testing.program_flows import check_program_flow
from headrace.testing.trees import check_tree

_SMALL: dict[str, dict[str, int]] = {
    "key_counters": {"increments": 300, "increments_per_reset": 20, "keys": 4},
    "event_windows": {"windows": 8, "values_per_window": 12},
    "page_views": {"views": 300, "views_per_update": 15},
    "fraud": {"windows": 6, "transactions_per_window": 30},
    "outliers": {"windows": 4, "connections_per_window": 40},
    "smart_home": {"slices": 8, "loads_per_slice": 2, "houses": 3},
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_tree_gives_what_the_sequential_program_gives(name: str) -> None:
    program: Any = PROGRAMS[name].program()
    tag = [program.tag] if isinstance(program.tag, str) else list(program.tag)
    for seed in range(8):
        events = PROGRAMS[name].generate(**_SMALL[name], seed=seed, ties=seed % 4 != 0)
        check_tree(program, events, time="time", tag=tag, stream="stream", seed=seed)


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_a_flow_that_crashes_gives_what_the_sequential_program_gives(first: int) -> None:
    for seed in range(first, first + 6):
        failure = check_program_flow(seed)
        assert failure is None, f"seed {seed}: {failure.story()}"


def test_a_worker_that_depends_on_where_its_input_is_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would prove little if it did not see that."""

    def all_at_once(self: Any, contents: list[bytes]) -> list[Any]:
        for content in contents:
            self._tree.receive(self._codec.decode(content))
        return []

    monkeypatch.setattr(synchronized._TreeOperator, "_receive", all_at_once)
    assert check_program_flow(55) is not None
