"""Is a failure to be seen in what leaves a flow? Latencies of a simulated flow, with and without one."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.flow.builder import Flow
from headrace.flow.copies import Replication, agreed
from headrace.flow.queue_ends import QueueEnd, outside
from headrace.flow.routing import rebalance
from headrace.flow.sources import rate
from headrace.model import frames
from headrace.simulate.faults import Fault
from headrace.simulate.process import PACE
from headrace.simulate.world import Setup, World
from headrace.testing.flows import as_it_is

PER_SECOND: Final = 100
RECORDS: Final = 400
_AT_WORK: Final = 150
"""Records before it are of the start."""
_LENGTHS_S: Final = {"crash": 0.0, "pause": 5.0, "lost": 5.0, "broker": 0.5}
"""The failures, and how long they are."""


@dataclass(frozen=True)
class Masked:
    """Of one seed: the p99.9 without a failure, and the longest that a record took with one, in seconds."""

    fault: Fault
    usual_s: float
    worst_s: float

    @property
    def limit_s(self) -> float:
        # Nothing can come while queues stand still.
        return self.usual_s + 2 * PACE.beat_s + (self.fault.length_s if self.fault.kind == "broker" else 0.0)


def masked(seed: int, order: str, mode: str = "active") -> Masked:
    """One worker dies, stands still, or is taken for dead, or the queues stand still, at any moment.

    Raises AssertionError if a record is lost.
    """
    setup = Setup(seed, (), 3, 1000, Replication(mode, 2) if mode != "none" else Replication(), step_s=0.0005)
    usual, done = _latencies(order, setup)
    rng = random.Random(f"masked {seed}")
    kind = rng.choice(list(_LENGTHS_S))
    fault = Fault(kind, int(done * rng.uniform(0.5, 0.95)), _LENGTHS_S[kind])
    with_fault, _ = _latencies(order, Setup(seed, (fault,), 3, 1000, setup.replication, step_s=setup.step_s))
    return Masked(fault, float(np.percentile(usual, 99.9)), float(with_fault.max()))


def _latencies(order: str, setup: Setup) -> tuple[np.ndarray, int]:
    """From when a record was due to when the first copy of it was there, and how much workers did."""
    flow = Flow("masked")
    stream = flow.source("s", rate(PER_SECOND, RECORDS))
    for number in range(2):
        stream = flow.stage(f"m{number}", as_it_is, stream, parallelism=2, route=rebalance())
    flow.sink("out", stream, QueueEnd("out"))
    world = World(agreed(order, flow.graph()), setup)
    world.run()
    had: dict[int, int] = {}
    found: dict[int, float] = {}
    for content in world.disk.queue(outside("out")).frames:
        frame = frames.decode(content)
        if frame.batch is not None and frame.end > had.get(frame.channel, 0):
            new = frame.since(had.get(frame.channel, 0)).batch
            had[frame.channel] = frame.end
            assert new is not None
            found.update({n: frame.stamp / 1e9 - n / PER_SECOND for n in new.column("n").to_pylist()})
    assert sorted(found) == list(range(RECORDS)), f"{RECORDS - len(found)} records are lost"
    return np.array([found[n] for n in range(_AT_WORK, RECORDS)]), world.done
