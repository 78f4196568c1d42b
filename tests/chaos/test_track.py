"""Tracking over many seeds, and with real processes that die.

`make chaos ARGS='-k track'`; SEED and RUNS choose the seeds (RUNS times 50).
"""

from __future__ import annotations

import os

import pytest

from headrace.testing.random_tracking import check_tracked_flow

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]
SEED = int(os.environ.get("SEED") or 1)
RUNS = int(os.environ.get("RUNS") or 200)
SEEDS_A_TEST = 250


@pytest.mark.parametrize("first", range(SEED, SEED + 50 * RUNS, SEEDS_A_TEST))
def test_simulated_flows_end_their_substreams(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        failure = check_tracked_flow(seed)
        assert failure is None, f"seed {seed}: {failure.story()}"
