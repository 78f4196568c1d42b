"""The merge of `bench/order.py` by itself: by the clock of a flow, and against the heap of the standard library."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.harness import Bench
from bench.support.order_flows import LAST, Ints, column, made, path_of
from headrace.flow.worker_setup import BATCH_RECORDS
from headrace.order.by_sequence import BySequence
from headrace.order.columns import PART, SEQUENCE, Keys

WIDTH: Final = 15
PATHS: Final = WIDTH * LAST
ROUNDS: Final = 2
MADE: Final = 1
PROCESS: Final = 2
EMIT: Final = 3


def merger_waits(rows: Ints, warm_us: int) -> npt.NDArray[np.float64]:
    """Milliseconds that records are in the merge: what a flow gave it, given to it again, by the clock of the flow.

    A batch comes when the last map was through with it; from there on the clock goes on by what push and release take.
    There are no heartbeats in it: only records tell how far a path has come.
    """
    frames = frames_of(rows)
    merge, clock_us, waits = BySequence([str(path) for path in range(PATHS)], Keys(has_parts=True)), 0.0, []
    for path, frame in [*frames, *((path, None) for path in range(PATHS))]:
        if frame is not None:
            clock_us = max(clock_us, column(frame, "process_us")[0])
        began = time.perf_counter()
        if frame is None:
            merge.end(path)
        else:
            merge.push(path, frame)
        released = merge.release()
        clock_us += (time.perf_counter() - began) * 1e6
        if released is not None:
            is_warm = column(released, "made_us") > warm_us
            waits.append(clock_us - column(released, "process_us")[is_warm])
    return np.concatenate(waits) / 1000


def frames_of(given: Ints) -> list[tuple[int, pa.RecordBatch]]:
    """The path and the records of each frame that the last maps sent, in the order of their time stamps."""
    paths = path_of(given[:, 0], WIDTH)
    order = np.lexsort((given[:, 0], paths, given[:, PROCESS]))
    rows, paths = given[order], paths[order]
    values = {"n": rows[:, 0], "made_us": rows[:, MADE], "process_us": rows[:, PROCESS], SEQUENCE: rows[:, 0]}
    whole = pa.record_batch({name: pa.array(each) for name, each in {**values, PART: np.zeros(len(rows), int)}.items()})
    steps = (np.diff(paths) != 0) | (np.diff(rows[:, PROCESS]) != 0)
    starts = np.concatenate([[0], np.flatnonzero(steps) + 1, [len(rows)]])
    return [
        (int(paths[start]), whole.slice(start, stop - start))
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ]


def kernels(bench: Bench, records: int) -> None:
    """The merge alone: 30 inputs, in frames as long as those of the flow, beside the heap of the standard library."""
    numbers = column(made(0, records), "n")
    numbers = numbers[numbers % 7 != 0]
    # Of one time stamp is what came of one batch of the source.
    rows = np.stack([numbers, *[numbers // BATCH_RECORDS] * 3], axis=1)
    frames = frames_of(rows)
    paths = path_of(numbers, WIDTH)
    lists = [[tuple(row) for row in rows[paths == path].tolist()] for path in range(PATHS)]
    best = bench.race("merge of 30 inputs", ROUNDS, {
        "columnar": lambda: merge_all(frames),
        "heapq.merge": lambda: deque(heapq.merge(*lists), maxlen=0),
    })  # fmt: skip
    for name, system in (("columnar", "Headrace"), ("heapq.merge", "heapq.merge")):
        bench.figure(system, "merge alone", len(numbers) / best[name], "records/s")


def merge_all(frames: Sequence[tuple[int, pa.RecordBatch]]) -> None:
    """As a task does it: after each frame all leaves that can."""
    merge, left = BySequence([str(path) for path in range(PATHS)], Keys(has_parts=True)), 0
    for path, frame in frames:
        merge.push(path, frame)
        released = merge.release()
        left += 0 if released is None else released.num_rows
    for path in range(PATHS):
        merge.end(path)
    released = merge.release()
    left += 0 if released is None else released.num_rows
    if left != sum(frame.num_rows for _, frame in frames):
        raise RuntimeError(f"the merge lost records: {left:,} left it")
