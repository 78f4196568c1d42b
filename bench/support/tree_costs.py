"""What the steps of a worker cost on this machine, in seconds: measured, for the simulation of many machines."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from bench.support.trees import Workload, row_by_row, shared_out
from headrace.spark.gang import Gang
from headrace.spark.meeting import Roll
from headrace.synchronize.codec import Codec
from headrace.synchronize.mailbox import Events
from headrace.synchronize.node import DOWN, FRONTIER, Message
from headrace.synchronize.running import Running
from headrace.synchronize.tree import TreeTask

_TRIES: Final = 15
_SMALL, _LARGE = 100, 10_000
_SAID: Final = 2_000


@dataclass(frozen=True)
class Line:
    """So much for each time, and so much for each row."""

    each: float
    row: float

    def of(self, rows: int) -> float:
        return self.each + self.row * rows


@dataclass(frozen=True)
class Costs:
    """Of one program."""

    update: Line
    """A run of events through `update`, one by one."""
    columnar: Line
    """The same through `update_batch`."""
    take: Line
    """To decode a batch of events, put it into its lanes and look what may leave, for each batch and worker."""
    handle: float
    """A message at a worker, with the look what may be done then."""
    encode: float
    decode: float
    say: float
    hear: float
    fork: float
    join: float


def measured(workload: Workload) -> Costs:
    program = workload.program()
    events = workload.generate(1, 2, _LARGE)
    batch = events.combine_chunks().to_batches()[0]
    codec, state = Codec(program), _state_after(workload, batch)
    message = Message(1, DOWN, (1_000_000, 7), 3, 0, state)
    content = codec.encode(message)
    running = Running(program, batch.schema)
    say, hear = _talk(content)

    def either(_: Any) -> bool:
        return True

    left, right = running.fork("fork", state, either, either)
    return Costs(
        _line(lambda rows: lambda: _run(Running(row_by_row(program), batch.schema), state, batch.slice(0, rows))),
        _line(lambda rows: lambda: _run(running, state, batch.slice(0, rows))),
        _take_line(workload),
        _handle(workload),
        _best(lambda: codec.encode(message)),
        _best(lambda: codec.decode(content)),
        say,
        hear,
        _best(lambda: running.fork("fork", state, either, either)),
        _best(lambda: running.join("join", left, right)),
    )


def _state_after(workload: Workload, batch: pa.RecordBatch) -> Any:
    running = Running(workload.program(), batch.schema)
    return running.run(workload.program().init(), batch)


def _run(running: Running, state: Any, batch: pa.RecordBatch) -> None:
    running.run(state, batch)
    running.fetch()


def _best(action: Callable[[], object], tries: int = _TRIES) -> float:
    """Of the processor, and the fastest: others shared its caches with somebody. Many calls where one is short."""
    action()
    count = 1
    best = float("inf")
    for _ in range(tries):
        start = time.thread_time()
        for _ in range(count):
            action()
        took = (time.thread_time() - start) / count
        best = min(best, took)
        count = max(1, min(200, int(5e-4 / max(took, 1e-7))))
    return best


def _line(action_of: Callable[[int], Callable[[], object]]) -> Line:
    small, large = _best(action_of(_SMALL)), _best(action_of(_LARGE))
    row = max(0.0, (large - small) / (_LARGE - _SMALL))
    return Line(max(0.0, small - row * _SMALL), row)


# ------------------------------------------------------------------------ steps


def _still(workload: Workload, leaves: int) -> tuple[TreeTask, list[Events]]:
    """Workers in one task whose program does nothing, and what comes to it."""
    shared = shared_out(workload.program(), workload.generate(leaves, 2, _LARGE), workload.tag, leaves, 1)
    tree = TreeTask(shared.plan, 0, shared.schema, ["input"])
    hands: Any = tree._running
    hands.run = lambda state, _: state
    tree.start(workload.program().init())
    tree.work()
    return tree, shared.tasks


def _take_line(workload: Workload) -> Line:
    """A leaf without a parent takes all that comes."""
    _, (events, *_) = _still(workload, 1)

    def action_of(rows: int) -> Callable[[], object]:
        part = events.slice(0, rows)
        content = part.batch.serialize()

        def action() -> None:
            tree, _ = fresh[0]
            batch = pa.ipc.read_record_batch(content, part.batch.schema)
            tree.push(0, Events(batch, part.times, part.ranks, part.tags))
            tree.complete(0, part.key(rows - 1))
            tree.work()
            for node in tree.nodes.values():
                node.lanes.frontiers = [(-1, -1)] * len(node.lanes.frontiers)
            tree.frontiers = [(-1, -1)]

        return action

    fresh = [_still(workload, 1)]
    return _line(action_of)


def _handle(workload: Workload) -> float:
    """A mark for a leaf that has nothing to do."""
    tree, _ = _still(workload, 2)
    node = next(node for node in tree.nodes.values() if node.member.children is None)
    at = [0]

    def action() -> None:
        at[0] += 1
        node.on(Message(node.member.number, FRONTIER, (at[0], 0)))
        node.work()

    return _best(action)


def _talk(content: bytes) -> tuple[float, float]:
    """What one end of a line of a gang has to do to say something, and the other to hear it: time of processors."""
    ends: queue.SimpleQueue[tuple[int, Gang]] = queue.SimpleQueue()

    def join(task: int) -> None:
        ends.put((task, Gang(Roll(task, 2, b"s" * 32, ["127.0.0.1"] * 2, list))))

    threads = [threading.Thread(target=join, args=(task,)) for task in range(2)]
    for thread in threads:
        thread.start()
    gangs = dict(ends.get() for _ in range(2))
    says, both = [], []

    def answer() -> None:
        for _ in range(_SAID):
            gangs[1].hear(5.0)
            gangs[1].say(0, content)

    for _ in range(5):
        # To and fro, so that each wakes the other for every message, as it is between two that wait.
        other, start, own = threading.Thread(target=answer), time.process_time(), 0.0
        other.start()
        for _ in range(_SAID):
            before = time.thread_time()
            gangs[0].say(1, content)
            own += time.thread_time() - before
            gangs[0].hear(5.0)
        other.join()
        says.append(own / _SAID)
        both.append((time.process_time() - start) / _SAID / 2)
    for gang in gangs.values():
        gang.close()
    return min(says), max(0.0, min(both) - min(says))
