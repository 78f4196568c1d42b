"""What workers and queues take on this machine: measured for a cluster in virtual time."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.flow import effects as fx
from headrace.flow.plan import Plan, make_plan
from headrace.flow.worker import Pace, Worker
from headrace.model import frames
from headrace.queues.log import LogQueues
from headrace.queues.protocol import Entry


@dataclass(frozen=True)
class Costs:
    """Seconds of the processor."""

    look: float
    """To see whether anything has come."""
    stimulus: float
    read: float
    """A frame from a queue."""
    frame_in: float
    """To decode one, check it and put it before its task."""
    frame_out: float
    record: float
    append: float
    """To a queue, of any number of frames."""
    tick: float
    """For each task."""
    save: float

    def of(self, stimulus: fx.Stimulus, effects: list[fx.Effect], tasks: int) -> float:
        """What a worker spends, without its queues."""
        spent = self.frame_out * sum(len(effect.frames) for effect in effects if isinstance(effect, fx.Append))
        if isinstance(stimulus, fx.Ticked):
            return spent + self.tick * tasks + self.save * sum(isinstance(effect, fx.Save) for effect in effects)
        if isinstance(stimulus, fx.Arrived):
            rows = sum(whole(entry.frame).count for entry in stimulus.entries)
            return spent + self.stimulus + self.frame_in * len(stimulus.entries) + self.record * rows
        if isinstance(stimulus, fx.Fed) and stimulus.feed.batch is not None:
            return spent + self.stimulus + self.record * int(stimulus.feed.batch.num_rows)
        return spent + self.stimulus


def calibrated() -> Costs:
    """Measured here and now, in a second or two, with records of four columns."""
    one = _taking(1, 1, 1)
    record = max(0.0, (_taking(1, 1, 4096) - one) / 4095)
    frame_in = max(0.0, (_taking(1, 17, 1) - one) / 16 - record)
    frame_out = max(0.0, (_taking(16, 1, 16) - _taking(16, 1, 1)) / 15 - record)
    look, read, append = _queueing()
    tick, save = _ticking()
    stimulus = max(0.0, one - frame_in - frame_out - record)
    return Costs(look, stimulus, read, frame_in, frame_out, record, append, tick, save)


def _numbered(first: int, count: int) -> pa.RecordBatch:
    numbers = pa.array(np.arange(first, first + count, dtype=np.int64))
    return pa.record_batch([numbers, numbers, numbers.cast(pa.int8(), safe=False), numbers], names=list("abcd"))


def _plan(steps: int, width: int) -> Plan:
    flow = hr.Flow("calibrate")
    last = flow.source("numbers", hr.generate(_numbered, 100))
    for step in range(steps):
        last = flow.stage(f"step-{step}", lambda batch: batch, last, parallelism=width, route=hr.rebalance())
    flow.sink("out", last, hr.callback(print))
    return make_plan(flow.graph())


def _best(made_ready: Callable[[], Callable[[], object]], tries: int = 7) -> float:
    """The fastest: others shared the processor's caches with somebody."""
    best = float("inf")
    for _ in range(tries):
        timed = made_ready()
        start = time.thread_time()
        timed()
        best = min(best, time.thread_time() - start)
    return best


def _taking(width: int, count: int, rows: int, times: int = 60) -> float:
    """A worker is given so many frames of so many rows, for one task that sends to so many."""
    plan = _plan(2, width)
    task = plan.tasks["step-0.0"]
    entries = [
        Entry(str(task.inbox), frames.encode(frames.data(task.channels[0], at * rows, _numbered(at * rows, rows))), at)
        for at in range(times * count)
    ]
    stimuli = [fx.Arrived(str(task.inbox), entries[at : at + count]) for at in range(0, len(entries), count)]

    def made_ready() -> Callable[[], object]:
        worker = Worker(plan, 0, 1, [task.name], Pace())
        return lambda: [worker.on(stimulus) for stimulus in stimuli]

    return _best(made_ready) / times


def _queueing(times: int = 200) -> tuple[float, float, float]:
    """To look at queues that have nothing, to read a frame, and to append one."""
    content, names = frames.encode(frames.data(1, 0, _numbered(0, 1))), [f"q{n}" for n in range(16)]
    with tempfile.TemporaryDirectory() as folder:
        queues = LogQueues(folder, fsync="never")
        queues.create(names)
        with queues.writer() as writer, queues.reader("r", dict.fromkeys(names, 0)) as reader:

            def append_all() -> Callable[[], object]:
                for number in range(times):
                    writer.append(names[number % 16], [content])
                return lambda: reader.poll(names, 0.0)

            append = _best(lambda: append_all) / times
            reader.poll(names, 0.0, 1 << 30)
            look = _best(lambda: lambda: [reader.poll(names, 0.0) for _ in range(times)]) / times
            return look, max(0.0, _best(append_all) - look) / times, append


def _ticking(times: int = 50) -> tuple[float, float]:
    """A task of a worker that ticks, and a task that is saved."""
    plan = _plan(30, 1)

    def ticks(*moments: float) -> Callable[[], object]:
        worker = Worker(plan, 0, 1, tuple(plan.tasks), Pace())
        for task in worker.tasks.values():
            task.dirty = True
        return lambda: [worker.on(fx.Ticked(moment)) for moment in moments]

    idle = _best(lambda: ticks(*np.linspace(0.0, 0.4, times))) / times
    return idle / len(plan.tasks), _best(lambda: ticks(2.0)) / len(plan.tasks)


def whole(content: Any) -> frames.Frame:
    return content if isinstance(content, frames.Frame) else frames.decode(content)
