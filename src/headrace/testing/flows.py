"""Flows to test with, and what must hold of what they write."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.flow.job import Job
from headrace.flow.routing import key, rebalance
from headrace.flow.sequential import run_sequentially
from headrace.flow.sinks import parquet
from headrace.flow.sources import Generate, generate
from headrace.spark.live import Flow
from headrace.testing.order import assert_in_source_order

KEYS = 101


def numbers(first: int, count: int) -> pa.RecordBatch:
    """Records `n`, with `k`, one of 101 keys."""
    n = np.arange(first, first + count, dtype=np.int64)
    return pa.record_batch({"n": pa.array(n), "k": pa.array(n * 7919 % KEYS)})


def without_sevens(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What is left without the multiples of 7."""
    return batch.filter(pa.array(batch.column("n").to_numpy() % 7 != 0))


def plus_one(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("m", pc.add(batch.column("n"), 1))


def three_stages(
    out: str | Path, records: int = 1_000_000, name: str = "three", source: Generate | None = None
) -> Flow:
    """1 task, then 4 by key, then 2 by key, into Parquet files."""
    flow = Flow(name)
    made = flow.source("numbers", source if source is not None else generate(numbers, records))
    kept = flow.stage("filter", without_sevens, made, parallelism=4, route=key("k"))
    added = flow.stage("add", plus_one, kept, parallelism=2, route=key("k"))
    flow.sink("out", added, parquet(str(out)))
    return flow


def counting(out: str | Path, records: int | None = 20_000, name: str = "counting") -> Flow:
    """With state: how many of its key have come so far. `records` None: it does not end."""
    flow = Flow(name)
    made = flow.source("numbers", generate(numbers, records))
    kept = flow.stage("filter", without_sevens, made, parallelism=3, route=key("k"))
    schema = numbers(0, 0).schema.append(pa.field("count", pa.int64()))
    counted = flow.keyed("count", count_of_key, kept, by="k", parallelism=2, schema=schema)
    flow.sink("out", counted, parquet(str(out)))
    return flow


def conflux(out: str | Path, records: int, first: int = 15, last: int = 2, name: str = "conflux") -> Flow:
    """The pipeline of the paper: a filter and a map, `first` tasks each, a map, `last` tasks; and all in order."""
    flow = Flow(name)
    made = flow.source("numbers", generate(numbers, records))
    kept = flow.stage("filter", without_sevens, made, parallelism=first, route=rebalance())
    mapped = flow.stage("map", plus_one, kept, parallelism=first)
    again = flow.stage("again", as_it_is, mapped, parallelism=last, route=rebalance())
    flow.sink("out", again.ordered(), parquet(str(out)))
    return flow


def as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def assert_conflux(out: str | Path, records: int) -> None:
    """Raise AssertionError unless the files, one after the other, have all that is no multiple of 7, in order."""
    files = sorted(Path(out).glob("*.parquet"))
    found = np.concatenate([pq.read_table(file, columns=["n"]).column("n").to_numpy() for file in files])
    wanted = np.arange(records)
    assert_in_source_order(found, wanted[wanted % 7 != 0])


def count_of_key(state: int | None, record: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    count = (state or 0) + 1
    return count, {**record, "count": count}


def written(out: str | Path) -> pa.Table:
    """What a Parquet sink has; in the order of each task's numbers."""
    files = sorted(Path(out).glob("*.parquet"))
    assert files, f"nothing in {out}"
    return pa.concat_tables(pq.read_table(file) for file in files)


def assert_as_sequential(flow: Flow, out: str | Path) -> None:
    """Raise AssertionError unless the sink has what the sequential run gives, each key in the order of the source."""
    expected = run_sequentially(flow.graph(), 65_536)["out"].sort_by("n")
    found = written(out)
    assert found.num_rows == expected.num_rows, f"{found.num_rows} records, not {expected.num_rows}"
    assert found.sort_by("n").equals(expected), "other records than those of the sequential run"
    assert_in_order(out)


def assert_in_order(out: str | Path) -> None:
    """Channels are FIFO, and all records of a key take one path: so their numbers rise."""
    seen: dict[str, pa.Table] = {}
    for file in sorted(Path(out).glob("*.parquet")):
        task = file.name.rpartition("-")[0]
        seen[task] = pa.concat_tables([seen[task], pq.read_table(file)]) if task in seen else pq.read_table(file)
    for task, table in seen.items():
        k, n = table.column("k").to_numpy(), table.column("n").to_numpy()
        order = np.argsort(k, kind="stable")
        falls = (np.diff(n[order]) <= 0) & (np.diff(k[order]) == 0)
        assert not falls.any(), f"{task}: key {k[order][np.flatnonzero(falls)[0]]} is out of order"


def kill_workers(job: Job, kills: int, seed: int, pause_s: tuple[float, float] = (0.3, 1.5)) -> int:
    """`kill -9` workers of a job at random moments, while it runs; gives how many were killed."""
    rng = random.Random(seed)
    done = 0
    for _ in range(kills):
        if job.wait(rng.uniform(*pause_s)):
            break
        pids = [worker["pid"] for worker in job.status()["workers"].values() if worker["pid"] and worker["up"]]
        if pids:
            try:
                os.kill(rng.choice(pids), signal.SIGKILL)
                done += 1
            except ProcessLookupError:
                pass
    return done


def until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Raise AssertionError if it does not come true."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)
