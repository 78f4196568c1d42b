"""The programs of `headrace.demo.programs` at large: random trees, and flows in simulated worlds.

`make chaos ARGS='-k synchronize'`; SEED and RUNS choose the seeds (RUNS times 50 flows, and as many trees).
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from headrace.demo.programs import PROGRAMS
from headrace.testing.program_flows import TINY, check_program_flow
from headrace.testing.trees import check_tree

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

SEED = int(os.environ.get("SEED") or 1)
RUNS = int(os.environ.get("RUNS") or 200)
SEEDS_A_TEST = 250


@pytest.mark.parametrize("first", range(SEED, SEED + 50 * RUNS, SEEDS_A_TEST))
def test_simulated_flows_give_what_the_sequential_program_gives(first: int) -> None:
    """All programs in turn, with 1, 2, 4 and 8 leaves, several sources, and ties."""
    for seed in range(first, first + SEEDS_A_TEST):
        failure = check_program_flow(seed)
        assert failure is None, f"seed {seed}: {failure.story()}"


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_random_trees_give_what_the_sequential_program_gives(name: str) -> None:
    program: Any = PROGRAMS[name].program()
    tag = [program.tag] if isinstance(program.tag, str) else list(program.tag)
    for seed in range(SEED, SEED + 50 * RUNS // len(PROGRAMS)):
        events = PROGRAMS[name].generate(**TINY[name], seed=seed, ties=seed % 4 != 0)
        check_tree(program, events, time="time", tag=tag, stream="stream", seed=seed)
