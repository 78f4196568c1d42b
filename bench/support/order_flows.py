"""The flows of `bench/order.py`: one pipeline, put in order by the merge of data paths or by sorting windows.

The pipeline is the one of the Conflux paper: 1 source, a filter of the multiples of 7 and a map (15 tasks, run as one),
a map (2 tasks), and one task that puts in order: 30 data paths. Each of the three stages takes the
sine of its numbers 30 times over, which is about 1000 cycles a record, in place of the paper's loop of 1000 cycles.

The sorter needs a watermark, and heartbeats are not for stages. So every 10 ms a stage that runs in the task of the
source adds a *mark* for each of the 30 paths: `n` is the number of the last record so far, `made_us` is -1 - path. A
mark is sent along its path by its number, and a path is FIFO, so whoever gets it has all records of that path up to
`n`. The least mark of all 30 paths is what Flink's watermark is: the minimum over all channels, stage by stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr

Ints = npt.NDArray[np.int64]
PASSES: Final = 30
WINDOW: Final = 1000
"""How many sequence numbers a window of the sorter has."""
MARK_S: Final = 0.01
LAST: Final = 2
"""Tasks of the last stage."""
_OWN: Final = ("n", "made_us", "process_us")


def column(batch: pa.RecordBatch, name: str) -> Ints:
    found: Ints = batch.column(name).to_numpy(zero_copy_only=False)
    return found


def now_us() -> int:
    return time.time_ns() // 1000


# ----------------------------------------------------------------------- stages


def made(first: int, count: int) -> pa.RecordBatch:
    """Numbers, and the moment at which they were made: as fast as they are asked for."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    return pa.record_batch({"n": pa.array(numbers), "made_us": pa.array(np.full(count, now_us()))})


def due(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Of a steady rate: a record counts as made when it was due, however late the source was."""
    return batch.append_column("made_us", batch.column("ts").cast(pa.int64())).drop_columns(["ts"])


def busy(batch: pa.RecordBatch) -> None:
    """The work of a stage."""
    values = column(batch, "n").astype(np.float64)
    for _ in range(PASSES):
        np.sin(values, out=values)


def without_sevens(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Marks pass."""
    busy(batch)
    return batch.filter(pa.array((column(batch, "n") % 7 != 0) | (column(batch, "made_us") < 0)))


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    busy(batch)
    return batch


def last_map(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Stamps when it is through with a batch."""
    busy(batch)
    return batch.append_column("process_us", pa.array(np.full(batch.num_rows, now_us())))


def write_down(file: str, batch: pa.RecordBatch) -> None:
    """The sink: all that came with its time stamps, and when. One clock for all processes: they run on one machine."""
    block = np.stack([*(column(batch, name) for name in _OWN), np.full(batch.num_rows, now_us())], axis=1)
    with open(file, "ab") as out:
        out.write(block.tobytes())


# ------------------------------------------------------------------ window sort


class Marks(hr.Stage):
    """Every 10 ms, how far the source has come: a mark for each path."""

    paths: ClassVar[int] = 30
    every_s: ClassVar[float] = MARK_S

    def __init__(self) -> None:
        self._marked_s = 0.0

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        now_s = self.now_s()
        if now_s - self._marked_s < self.every_s or not batch.num_rows:
            return batch
        self._marked_s = now_s
        newest = np.full(self.paths, column(batch, "n")[-1])
        marks = pa.record_batch([pa.array(newest), pa.array(-1 - np.arange(self.paths))], schema=batch.schema)
        return pa.concat_batches([batch, marks])

    def now_s(self) -> float:
        return time.monotonic()


class WindowSort(hr.Stage):
    """Tumbling windows of 1000 numbers: those that the watermark has passed leave, sorted.

    Columnar, and all windows that are complete leave in one sort: faster than a sort for each, and the same records.
    """

    paths: ClassVar[int] = 30
    window: ClassVar[int] = WINDOW

    def __init__(self) -> None:
        self._marks: Ints = np.full(self.paths, -1, np.int64)
        self._until = 0
        """All windows below have left."""
        self._held: list[pa.RecordBatch] = []

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        stamps = column(batch, "made_us")
        is_mark = stamps < 0
        if not is_mark.any():
            self._held.append(batch)
            return None
        self._held.append(batch.filter(pa.array(~is_mark)))
        np.maximum.at(self._marks, -1 - stamps[is_mark], column(batch, "n")[is_mark])
        until = (int(self._marks.min()) + 1) // self.window * self.window
        return self._leave(until) if until > self._until else None

    def on_end(self) -> pa.RecordBatch | None:
        return self._leave(1 << 62)

    def _leave(self, until: int) -> pa.RecordBatch | None:
        self._until = until
        ready, kept = [], []
        for batch in self._held:
            numbers = column(batch, "n")
            is_ready = numbers < until
            if is_ready.all():
                ready.append(batch)
            elif not is_ready.any():
                kept.append(batch)
            else:
                ready.append(batch.filter(pa.array(is_ready)))
                kept.append(batch.filter(pa.array(~is_ready)))
        self._held = kept
        if not ready:
            return None
        joined = pa.concat_batches(ready)
        return joined.take(pa.array(np.argsort(column(joined, "n"), kind="stable")))

    def snapshot(self) -> Any:
        """Like the merge, it goes on after a crash with nothing lost: what it holds is its state."""
        sink = pa.BufferOutputStream()
        if self._held:
            with pa.ipc.new_stream(sink, self._held[0].schema) as writer:
                for batch in self._held:
                    writer.write_batch(batch)
        return {"marks": self._marks.tolist(), "until": self._until, "held": sink.getvalue().to_pybytes()}

    def restore(self, state: Any) -> None:
        self._marks, self._until = np.array(state["marks"], np.int64), state["until"]
        self._held = list(pa.ipc.open_stream(state["held"])) if state["held"] else []


def to_first(batch: pa.RecordBatch, tasks: int, last: int = LAST) -> Ints:
    """Records in turn, marks along their paths."""
    stamps = column(batch, "made_us")
    chosen: Ints = np.where(stamps < 0, (-1 - stamps) // last, column(batch, "n") % tasks)
    return chosen


def to_last(batch: pa.RecordBatch, tasks: int, width: int) -> Ints:
    stamps = column(batch, "made_us")
    chosen: Ints = np.where(stamps < 0, (-1 - stamps) % tasks, column(batch, "n") // width % tasks)
    return chosen


# ------------------------------------------------------------------------ flows

Draw = Callable[[Path, int, float | None, int], hr.Flow]
"""Into a file, so many records, at so many a second (None: as fast as it goes), with so many tasks of the filter."""


def merged(file: Path, records: int, rate: float | None = None, width: int = 15) -> hr.Flow:
    """Put in order by the merge of its data paths."""
    flow = hr.Flow("merged")
    begun = _source(flow, records, rate)
    kept = flow.stage("filter", without_sevens, begun, parallelism=width, route=hr.rebalance())
    mapped = flow.stage("map", same, kept, parallelism=width)
    last = flow.stage("last", last_map, mapped, parallelism=LAST, route=hr.rebalance())
    flow.sink("out", last.ordered(), hr.callback(partial(write_down, str(file))))
    return flow


def window_sorted(file: Path, records: int, rate: float | None = None, width: int = 15) -> hr.Flow:
    """Put in order by the window sort of one task."""
    sized = {"paths": width * LAST}
    flow = hr.Flow("sorted")
    begun = flow.stage("mark", type("Marks", (Marks,), sized), _source(flow, records, rate))
    kept = flow.stage("filter", without_sevens, begun, parallelism=width, route=hr.custom(to_first))
    mapped = flow.stage("map", same, kept, parallelism=width)
    route = hr.custom(partial(to_last, width=width))
    last = flow.stage("last", last_map, mapped, parallelism=LAST, route=route)
    whole = flow.stage("sort", type("WindowSort", (WindowSort,), sized), last, parallelism=1, route=hr.rebalance())
    flow.sink("out", whole, hr.callback(partial(write_down, str(file))))
    return flow


def _source(flow: hr.Flow, records: int, rate: float | None) -> Any:
    if rate is None:
        return flow.source("numbers", hr.generate(made, records))
    return flow.stage("due", due, flow.source("numbers", hr.rate(rate, records)))


# ------------------------------------------------------------------------- paths


def path_of(numbers: Ints, width: int = 15) -> Ints:
    """The data path of each record of `merged`, numbered as the marks are: rebalance is a function of what went by."""
    first, found = numbers % width, np.zeros(len(numbers), np.int64)
    for task in range(width):
        mine = np.flatnonzero(first == task)
        found[mine] = task * LAST + (np.arange(len(mine)) + task) % LAST
    return found
