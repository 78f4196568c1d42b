"""Copies of a task part where they share a host, one worker at a time, and no copy is ever in two workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flow.copies import Replication, task_of
from headrace.flow.placing import Placing, shared_out
from headrace.flow.plan import Plan, make_plan
from headrace.simulate.check import Simulation
from headrace.testing.random_copies import copied_flow


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _plan(tasks: int) -> Plan:
    flow = hr.Flow("f")
    stage = flow.stage("m", _same, flow.source("s", hr.rate(10)), parallelism=tasks, route=hr.rebalance())
    flow.sink("out", stage, hr.queue("out"), route=hr.rebalance())
    return make_plan(flow.graph())


def _hosts_of(placing: Placing, hosts: dict[int, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for worker, names in placing.of.items():
        for name in names:
            found.setdefault(task_of(name), []).append(hosts[worker])
    return found


@pytest.mark.parametrize("hosts", ["aab", "aabb", "abab", "abcabc", "aaab"])
def test_copies_end_on_different_hosts(hosts: str) -> None:
    placing = Placing(_plan(5), len(hosts), Replication("active", 2))
    where = dict(enumerate(hosts))
    for _ in range(20):
        if placing.next_move(where) is None:
            break
        assert max(Counter(name for names in placing.of.values() for name in names).values()) == 1
    assert all(len(set(found)) == 2 for found in _hosts_of(placing, where).values())
    assert sum(len(names) for names in placing.of.values()) == 22
    assert placing.next_move(where) is None, "and stay"


def test_nothing_moves_where_there_is_one_host_or_no_copy() -> None:
    one_host = Placing(_plan(5), 3, Replication("active", 2))
    assert one_host.next_move(dict.fromkeys(range(3), "a")) is None
    assert any("host" in note for note in one_host.notes), "but it is said"
    assert Placing(_plan(5), 3, Replication()).next_move({0: "a", 1: "a", 2: "b"}) is None


def test_a_table_says_who_has_what() -> None:
    text = Placing(_plan(2), 2, Replication("active", 2)).explain({0: "ash", 1: "elm"}, {})
    assert "ash" in text
    assert "m.1~1" in text


def test_flows_on_several_hosts_give_the_same() -> None:
    for seed in range(10):
        simulation = Simulation(copied_flow(seed), but=("trace",))
        setup = simulation.setup(seed, workers=4, replication=Replication(("active", "standby")[seed % 2], 2))
        failure = simulation.run(replace(setup, hosts=2))
        assert failure is None, failure.story()


def test_where_workers_have_few_tasks_each_stage_is_shared_evenly() -> None:
    """One task may be most of the work: two of one stage in a worker would hold up all."""
    names = ["numbers.0", "tracker.0", *(f"{stage}.{task}" for stage in ("visit", "slow", "out") for task in range(4))]
    found = shared_out(names, 4, {"numbers": 1 / 2, "tracker": 1 / 6})
    assert all(sum(name.startswith("slow.") for name in own) == 1 for own in found.values())
