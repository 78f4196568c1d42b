"""How long a barrier waits in a tree on many nodes, in virtual time, at a steady rate."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.support.tree_costs import Costs
from bench.support.trees import check_same
from bench.support.virtual_tree import Cluster, Part
from headrace.demo.programs import EventWindows, event_windows
from headrace.synchronize.mailbox import LAST, Events
from headrace.synchronize.optimize import by_rate
from headrace.synchronize.plan import Plan, make_plan
from headrace.synchronize.tags import tag_space

VALUES_A_SECOND: Final = 10_000
"""Of each stream: 100 barriers a second at 100 values to a barrier, as in the paper."""
BATCH_MS: Final = 1.0
"""Values come to a node together every so often."""
_TICK_US: Final = 1_000_000 // VALUES_A_SECOND
_BARRIER, _VALUE = 0, 1


def latencies_ms(costs: Costs, nodes: int, values: int, barriers: int, beats: int) -> npt.NDArray[np.float64]:
    """Of each barrier, from when it comes until it was updated with. `beats`: heartbeats of its source to a barrier."""
    program = EventWindows()
    known = [("barrier", None, 1.0), ("value", None, float(values * nodes))]
    space = tag_space(program, known, nodes)
    plan = make_plan(space, by_rate(space, nodes), nodes)
    cluster = Cluster(plan, event_windows.EVENTS, costs, is_columnar=False)
    # Barriers come at any moment between two batches of values. The last of them is there for the one before it.
    jitter = np.random.default_rng(1).integers(0, int(BATCH_MS * 1000) // _TICK_US, barriers + 1)
    ends = ((np.arange(barriers + 1, dtype=np.int64) + 1) * values + jitter) * _TICK_US + _TICK_US - 1
    streams = {_task_of(plan, _VALUE + n): _values(n, values * (barriers + 2)) for n in range(nodes)}
    closing = _events("barrier", ends, np.zeros(barriers + 1, np.int64), "barriers", 1 << 20, _BARRIER)
    root = plan.members[0].task
    for task in range(nodes):
        if task == root:
            cluster.add(["values", "barriers"], _merged(_parts(streams[task]), _beaten(closing, values, beats)))
        else:
            cluster.add(["values"], _parts(streams[task]))
    cluster.run()
    everything = pa.Table.from_batches([events.batch for events in (*streams.values(), closing)])
    check_same("latency", pa.Table.from_batches(cluster.given), event_windows.expected(everything))
    done = {each.time: each.at_s for each in cluster.done}
    found: npt.NDArray[np.float64] = np.array([done[end] * 1e3 - end / 1e3 for end in ends[:-1].tolist()])
    return found


def _task_of(plan: Plan, tag: int) -> int:
    return plan.members[plan.owner[tag]].task


def _events(kind: str, times: Any, values: Any, stream: str, rank: int, tag: int) -> Events:
    count = len(times)
    columns = [pa.array(times), pa.repeat(kind, count), pa.array(values), pa.repeat(stream, count)]
    batch = pa.RecordBatch.from_arrays(columns, schema=event_windows.EVENTS)
    return Events(batch, times, np.full(count, rank), np.full(count, tag))


def _values(number: int, count: int) -> Events:
    times = np.arange(count, dtype=np.int64) * _TICK_US + number
    return _events("value", times, times % 1000, f"values-{number}", number, _VALUE + number)


def _parts(events: Events) -> Iterator[Part]:
    """What came in each millisecond, at its end."""
    size = int(BATCH_MS * 1000) // _TICK_US
    for start in range(0, len(events), size):
        part = events.slice(start, min(start + size, len(events)))
        yield Part((part.key(0)[0] // _TICK_US + size) * _TICK_US / 1e6, 0, part, part.key(len(part) - 1))
    yield Part(events.key(len(events) - 1)[0] / 1e6 + BATCH_MS / 1e3, 0, None, LAST)


def _beaten(barriers: Events, values: int, beats: int) -> Iterator[Part]:
    """Each barrier when it is due, and between them heartbeats: so many to a barrier, the barrier among them."""
    before = 0
    for row in range(len(barriers)):
        end = barriers.key(row)[0]
        for beat in range(1, beats):
            at = before + (end - before) * beat // beats
            yield Part(at / 1e6, 1, None, (at, 0))
        yield Part(end / 1e6, 1, barriers.slice(row, row + 1), barriers.key(row))
        before = end
    yield Part((before + values * _TICK_US) / 1e6, 1, None, LAST)


def _merged(*sources: Iterator[Part]) -> Iterator[Part]:
    return heapq.merge(*sources, key=lambda part: part.due_s)
