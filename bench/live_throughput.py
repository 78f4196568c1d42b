"""Records a second through a flow of three stages on the embedded log, with nothing to do in the stages.

Frames of 1000 rows. Three in a row (1 task each), and the wider one: 1 task, 4 by key, 2 by key, which cuts every frame
into parts twice. The baseline is the same data through the same stages in one thread, with no queue between them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
import pyarrow as pa

import headrace as hr
from bench.harness import MEGABYTES, Bench, Target
from headrace.flow.sequential import run_sequentially
from headrace.spark.session import local_session

FRAME: Final = 1000
RECORDS_A_SECOND: Final = "records/s"
_MADE: Final = pa.record_batch(
    {
        "n": pa.array(np.arange(FRAME)),
        "k": pa.array(np.arange(FRAME) * 7919 % 997),
        "amount": pa.array(np.arange(FRAME) * 0.5),
    }
)


def ready_made(first: int, count: int) -> pa.RecordBatch:
    """Always the same thousand records: what is measured is how they move."""
    return _MADE.slice(0, count)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def drop(batch: pa.RecordBatch) -> None:
    """A sink that does nothing."""


def in_a_row(records: int) -> hr.Flow:
    flow = hr.Flow("row")
    made = flow.source("made", hr.generate(ready_made, records))
    one = flow.stage("one", same, made, route=hr.rebalance())
    two = flow.stage("two", same, one, route=hr.rebalance())
    flow.sink("out", two, hr.callback(drop), route=hr.rebalance())
    return flow


def wide(records: int) -> hr.Flow:
    flow = hr.Flow("wide")
    made = flow.source("made", hr.generate(ready_made, records))
    four = flow.stage("four", same, made, parallelism=4, route=hr.key("k"))
    two = flow.stage("two", same, four, parallelism=2, route=hr.key("k"))
    flow.sink("out", two, hr.callback(drop))
    return flow


def run(spark: Any, flow: hr.Flow, records: int) -> dict[str, float]:
    """From the first record to the last one at the sink, by what the tasks report."""
    with tempfile.TemporaryDirectory() as folder:
        job = flow.start(spark, folder, batch_records=FRAME)
        began = peak = 0.0
        while not job.wait(0.02):
            status = job.status()
            if not began and any(task["records_in"] for task in status["tasks"].values()):
                began = time.perf_counter()
            peak = max(peak, _memory(status))
        seconds = time.perf_counter() - began
        last = [task for name, task in job.status()["tasks"].items() if name.startswith(("out", "two"))]
        assert sum(task["records_in"] for task in last if task) >= records
        # The first look comes after the first report: what came before it is not in the time, and is left out.
        return {"seconds": seconds, "memory": peak}


def _memory(status: dict[str, Any]) -> float:
    pids = [worker["pid"] for worker in status["workers"].values() if worker["pid"]]
    found = 0.0
    for pid in pids:
        try:
            found = max(found, psutil.Process(pid).memory_info().rss / 1e6)
        except psutil.NoSuchProcess:
            continue
    return found


def main() -> None:
    bench = Bench(
        "live_throughput",
        "A flow of three stages, frames of 1000 rows, no work in the stages",
        targets=[Target("million_records_a_second", at_least=1.0)],
    )
    records = 2_000_000 if bench.quick else 20_000_000
    bench.set(records=records, frame=FRAME, cores=os.cpu_count())
    with bench.running(steps=4):
        spark = local_session(cores=2)
        with bench.step("warm up"):
            in_a_row(100_000).start(spark, tempfile.mkdtemp(), batch_records=FRAME).wait()
        for name, flow in (
            ("in a row, 1 → 1 → 1 → sink", in_a_row(records)),
            ("wide, 1 → 4 → 2 by key", wide(records)),
        ):
            with bench.step(name):
                found = run(spark, flow, records)
            bench.timed(name, found["seconds"])
            bench.figure("Headrace on log", name, records / found["seconds"], RECORDS_A_SECOND)
            bench.figure("Headrace on log", f"{name}, largest worker", found["memory"], MEGABYTES)
            if "row" in name:
                bench.ratio("million_records_a_second", records / found["seconds"] / 1e6)
            else:
                bench.ratio("million_records_a_second_wide", records / found["seconds"] / 1e6)
        few = records // 10
        seconds = bench.time("one thread, no queues", lambda: run_sequentially(in_a_row(few).graph(), FRAME))
        bench.figure("one thread, no durable queue", "in a row", few / seconds, RECORDS_A_SECOND)
        spark.stop()
    bench.finish()


if __name__ == "__main__":
    main()
