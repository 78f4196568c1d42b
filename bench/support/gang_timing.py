"""`hr.synchronize` on Spark with a stop-watch in its tasks: from the first event to the last output, in the gang.

Each task first reads all of its events into memory. Then the gang meets and runs, as often as was said: what is timed
is the tree of workers and its talk over TCP, without Spark's start, shuffle and sort.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import BarrierTaskContext

from headrace.spark.gang import Gang
from headrace.spark.meeting import Roll, roll_call
from headrace.spark.synchronized import Synchronized
from headrace.spark.synchronized_stream import ITAG, RANK
from headrace.synchronize.codec import Codec
from headrace.synchronize.gang_task import GangTask
from headrace.synchronize.inputs import Inputs
from headrace.synchronize.mailbox import Events, merged
from headrace.synchronize.optimize import sequential
from headrace.synchronize.plan import Plan, make_plan


@dataclass
class Watch:
    """What one task saw in one round."""

    start: float = 0.0
    end: float = 0.0
    cpu: float = 0.0
    apart: float = 0.0
    """Seconds that its events take one worker, which hears of no other."""
    said: int = 0
    """Bytes."""
    ups: dict[int, list[float]] = field(default_factory=dict)
    """When each leaf gave up its state."""
    downs: dict[int, list[float]] = field(default_factory=dict)
    """When it had one again."""


def timed(
    made: Synchronized, folder: str, rounds: int, is_stretch: bool = False, is_paired: bool = False
) -> Synchronized:
    """The same, with a stop-watch: what it saw is in the folder then.

    `is_stretch`: as for a micro-batch. `is_paired`: before each round, two tasks run their events on their own.
    """

    def run(df: Any, names: list[str], plan: Plan) -> Any:
        inputs, secret = made.inputs, secrets.token_bytes(32)

        def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _work(plan, inputs, list(names), secret, batches, folder, rounds, is_stretch, is_paired)

        return own._gang(df, work, plan.tasks)

    own: Any = made
    own._run = run
    return made


def _work(
    plan: Plan, inputs: Inputs, names: list[str], secret: bytes, batches: Iterator[pa.RecordBatch], folder: str,
    rounds: int, is_stretch: bool, is_paired: bool,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    roll = roll_call(BarrierTaskContext.get(), plan.tasks, secret)
    parts = [_events(batch, inputs, names) for batch in batches]
    if is_stretch:
        parts = [merged(parts, is_ordered=False)]
    schema = pa.schema([(name, pa.null()) for name in names])
    given: list[pa.RecordBatch] = []
    for number in range(rounds):
        gang = _Counting(replace(roll, start=f"{roll.start} {number}"))
        task, watch = GangTask(plan, gang, Codec(plan.space.program), schema), Watch()
        if is_stretch:
            _look_at_leaves(task, watch)
        if gang.size == 2:
            _start_at_once(gang)
            watch.apart = _apart(plan, schema, parts) if is_paired else 0.0
            _start_at_once(gang)
        watch.start, cpu = time.perf_counter(), time.process_time()
        program = plan.space.program
        given = list(task.run_stretch(program.init(), parts[0]) if is_stretch else task.run(iter(parts)))
        watch.end, watch.cpu, watch.said = time.perf_counter(), time.process_time() - cpu, gang.said
        Path(folder, f"{number}-{gang.task}.json").write_text(json.dumps(watch.__dict__))
    yield from given


def _start_at_once(gang: Gang) -> None:
    """One of the two may have met the other a few milliseconds before."""
    gang.say(1 - gang.task, b"ready")
    gang.hear(60.0)


def _apart(plan: Plan, schema: pa.Schema, parts: list[Events]) -> float:
    single = make_plan(plan.space, sequential(plan.space))
    task, start = (
        GangTask(single, Gang(Roll(0, 1, b"", [], list)), Codec(plan.space.program), schema),
        time.perf_counter(),
    )
    for _ in task.run(iter(parts)):
        pass
    return time.perf_counter() - start


def _events(batch: pa.RecordBatch, inputs: Inputs, names: list[str]) -> Events:
    rows = pa.RecordBatch.from_arrays(batch.columns[: len(names)], names=names)
    columns = (rows.column(inputs.time), batch.column(RANK), batch.column(ITAG))
    times, ranks, tags = (column.to_numpy().astype(np.int64) for column in columns)
    return Events(rows, times, ranks, tags)


class _Counting(Gang):
    said = 0

    def say(self, to: int, *contents: bytes) -> None:
        self.said += sum(4 + len(content) for content in contents)
        super().say(to, *contents)


def _look_at_leaves(task: GangTask, watch: Watch) -> None:
    for number, node in task._tree.nodes.items():
        if node.member.children is None:
            watch.ups[number], watch.downs[number] = [], []
            _look_at(node, watch.ups[number], watch.downs[number])


def _look_at(node: Any, ups: list[float], downs: list[float]) -> None:
    send_up, give = node._send_up, node._give

    def seen_up(state: Any) -> None:
        ups.append(time.perf_counter())
        send_up(state)

    def seen_give(state: Any) -> None:
        give(state)
        downs.append(time.perf_counter())

    node._send_up, node._give = seen_up, seen_give


# ---------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Round:
    """What all tasks saw in one round. The clock is the machine's, the same for all."""

    watches: list[Watch]

    @property
    def seconds(self) -> float:
        return max(watch.end for watch in self.watches) - min(watch.start for watch in self.watches)

    @property
    def cpu(self) -> float:
        return sum(watch.cpu for watch in self.watches)

    @property
    def kept(self) -> float:
        """The rate of the gang over that of its tasks when each ran on its own, just before, at the same time."""
        return float(1.0 / (self.seconds * np.mean([1.0 / watch.apart for watch in self.watches])))

    def waits_ms(self) -> npt.NDArray[np.float64]:
        """For each event of the root: from when the last leaf gave up its state until all leaves have one again."""
        ups = [times for watch in self.watches for times in watch.ups.values()]
        # The first state is that of the start.
        downs = [times[1:] for watch in self.watches for times in watch.downs.values()]
        count = min(map(len, [*ups, *downs]))
        last = np.max([times[:count] for times in ups], axis=0)
        found: npt.NDArray[np.float64] = (np.max([times[:count] for times in downs], axis=0) - last) * 1000
        return found


def rounds_of(folder: str) -> list[Round]:
    """What was seen, and the folder is empty then."""
    found: dict[int, list[Watch]] = {}
    for path in sorted(Path(folder).glob("*.json")):
        found.setdefault(int(path.stem.split("-")[0]), []).append(Watch(**json.loads(path.read_text())))
        path.unlink()
    return [Round(found[number]) for number in sorted(found)]
