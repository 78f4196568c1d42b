"""Trees of workers in one thread: any plan, any interleaving of events and messages, any cut into pieces."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.synchronize.codec import Codec
from headrace.synchronize.inputs import ticks_of
from headrace.synchronize.mailbox import LAST, Events, Key
from headrace.synchronize.optimize import balanced, by_rate, sequential
from headrace.synchronize.plan import Plan, Worker, make_plan
from headrace.synchronize.program import Program
from headrace.synchronize.sequential import run_sequentially
from headrace.synchronize.tags import TagSpace, codes_of, tag_space
from headrace.synchronize.tree import TreeTask

_RANK_BITS = 40


def rows_of(batches: Sequence[pa.RecordBatch] | pa.Table) -> Counter[tuple[Any, ...]]:
    """What was given, in any order."""
    parts = batches.to_batches() if isinstance(batches, pa.Table) else batches
    return Counter(tuple(row.values()) for part in parts for row in part.to_pylist())


def random_plan(program: Program, events: pa.Table, tag: Sequence[str], rng: random.Random, leaves: int) -> Plan:
    """With rates as they are in the events, or any others."""
    codes, tags = codes_of([events.column(name).combine_chunks() for name in tag])
    counts = np.bincount(codes, minlength=len(tags)) if rng.random() < 0.7 else [rng.random() for _ in tags]
    rates = [(row[0] if len(tag) == 1 else row, None, float(n) + 0.01) for row, n in zip(tags, counts, strict=True)]
    space = tag_space(program, rates, leaves)
    optimizer = rng.choice([by_rate, by_rate, balanced, sequential])
    return make_plan(space, optimizer(space, leaves), rng.choice([1, 2, leaves]))


class Sources:
    """The events of each stream with their keys, by stream, as pieces of random size."""

    def __init__(self, events: pa.Table, time: str, tag: Sequence[str], stream: str, plan: Plan, rng: random.Random):
        streams = events.column(stream).to_pylist()
        self.names = sorted(set(streams))
        self.pieces: dict[int, deque[tuple[Events, Key]]] = {}
        order: list[tuple[int, int, int]] = []
        for number, name in enumerate(self.names):
            rows = np.array([row for row, each in enumerate(streams) if each == name], np.int64)
            part = events.take(pa.array(rows)).combine_chunks().to_batches()[0]
            times = ticks_of(part.column(time), "test", time)
            ranks = (number << _RANK_BITS) + np.arange(len(rows))
            tags = plan.space.numbers_of([part.column(each) for each in tag], None, np.arange(len(rows)))
            order += zip(times.tolist(), ranks.tolist(), rows.tolist(), strict=True)
            whole, at, cuts = Events(part, times, ranks, tags), 0, deque[tuple[Events, Key]]()
            while at < len(rows):
                stop = min(len(rows), at + rng.randint(1, 12))
                cuts.append((whole.slice(at, stop), whole.key(stop - 1)))
                at = stop
            self.pieces[number] = cuts
        self.ordered = events.take(pa.array([row for _, _, row in sorted(order)], pa.int64()))
        """All events in the order of their keys: what the sequential program is given."""


def run_tree(
    plan: Plan, sources: Sources, schema: pa.Schema, rng: random.Random, is_total: bool
) -> list[pa.RecordBatch]:
    """What a tree gives, whose tasks and lines are as slow as chance has it. Raises AssertionError if it gets stuck."""
    program = plan.space.program
    codec, given = Codec(program), list[pa.RecordBatch]()
    tasks = [TreeTask(plan, task, schema, [str(n) for n in sources.names], is_total) for task in range(plan.tasks)]
    lines: dict[tuple[int, int], deque[bytes]] = defaultdict(deque)
    inputs = {(n, task): deque(pieces) for n, pieces in sources.pieces.items() for task in range(plan.tasks)}
    owner = np.array([plan.members[member].task for member in plan.owner])

    def work(task: int) -> None:
        given.extend(tasks[task].work())
        for to, message in tasks[task].outbox:
            lines[task, to].append(codec.encode(message))
        tasks[task].outbox.clear()

    for task in range(plan.tasks):
        if is_total:
            tasks[task].start_alone()
        else:
            tasks[task].start(program.init())
        work(task)
    while inputs or any(lines.values()):
        choices: list[Any] = [*inputs, *(line for line, sent in lines.items() if sent for _ in range(2))]
        at = rng.randrange(len(choices))
        if at < len(inputs):
            number, task = choices[at]
            if inputs[number, task]:
                events, key = inputs[number, task].popleft()
                tasks[task].push(number, events.take(np.flatnonzero(owner[events.tags] == task)))
            else:
                key = LAST
                del inputs[number, task]
            tasks[task].complete(number, key)
        else:
            task = choices[at][1]
            tasks[task].receive(codec.decode(lines[choices[at]].popleft()))
        work(task)
    stuck = [node.member.name for task in tasks for node in task.nodes.values() if not node.is_done]
    assert not stuck, f"{', '.join(stuck)} did not come to an end"
    return given


def check_tree(program: Program, events: pa.Table, *, time: str, tag: Sequence[str], stream: str, seed: int) -> None:
    """A random tree in a random world gives what the sequential program gives."""
    rng = random.Random(seed)
    plan = random_plan(program, events, tag, rng, rng.choice([1, 2, 4, 8]))
    sources = Sources(events, time, tag, stream, plan, rng)
    found = rows_of(run_tree(plan, sources, events.schema, rng, is_total=rng.random() < 0.5))
    expected = rows_of(run_sequentially(program, sources.ordered)[1])
    assert found == expected, f"seed {seed}: {found - expected} are too many, {expected - found} are missing"


def describe(worker: Worker, space: TagSpace) -> Any:
    """As plain values: tags, and what is below."""
    own = [str(space.entries[tag]) for tag in worker.tags]
    return own if worker.children is None else [own, *(describe(child, space) for child in worker.children)]


def in_order(events: pa.Table, time: str, ties: list[str]) -> pa.Table:
    """Events by time; those of one time by columns, and as they are where these are equal."""
    columns = [events.column(name).to_numpy(zero_copy_only=False) for name in (time, *ties)]
    codes = [column if column.dtype.kind in "iufM" else np.unique(column, return_inverse=True)[1] for column in columns]
    return events.take(pa.array(np.lexsort(codes[::-1])))
