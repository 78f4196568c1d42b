"""One shard of a stream at work, without Spark around it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import pyarrow as pa

from headrace.measure.chunk_files import StageFiles
from headrace.measure.definition import Definition
from headrace.measure.task import MeasureTask
from headrace.model.ticks import SECOND
from headrace.state.places import LocalPlace
from headrace.state.rocks_files import ShardDatabase
from headrace.state.store import ShardChange, ShardVersion, StageStore
from headrace.state.tables import Fingerprints, plain

START: Final = 1_772_496_000 * SECOND
SCHEMA: Final = pa.schema([("ts", pa.timestamp("us", "UTC")), ("card", pa.int64()), ("amount", pa.float64())])
MEGABYTE: Final = 1e6


def payments(first: int, count: int, a_second: float, cards: int, seed: int = 7) -> pa.RecordBatch:
    """Payments number `first` and on: at a steady rate, of cards by Zipf's law, the same in every process."""
    dice = np.random.default_rng((seed, first))
    times = START + ((np.arange(first, first + count) / a_second) * SECOND).astype(np.int64)
    rank = np.minimum((dice.pareto(0.2, count) * 4).astype(np.int64), cards - 1)
    card = (rank * 7_919) % cards
    amount = np.round(dice.lognormal(3.0, 1.0, count), 2)
    return pa.record_batch([pa.array(times).cast(SCHEMA.field("ts").type), pa.array(card), pa.array(amount)], SCHEMA)


@dataclass
class Shard:
    """A task with its state in a folder: push, commit, and go on from the last commit in another process."""

    folder: Path
    text: str
    backend: str = "columnar"
    memory_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        self.definition = Definition(self.text, "ts")
        [stage] = self.definition.plan(SCHEMA).stages
        self.store = StageStore(LocalPlace(str(self.folder)), "query/by-card")
        batches = self.store.batches()
        self.batch = batches[-1] + 1 if batches else 0
        self.version: ShardVersion | None = self.store.versions(self.batch - 1, 0, 1)[0] if batches else None
        rocks = None if self.version is None else self.version.values.get("rocks")
        self.database = ShardDatabase(self.store, rocks, 64 << 20) if self.backend == "rocksdb" else None
        settings = self.definition.settings(self.memory_bytes, schema=SCHEMA, columns=stage.columns)
        groups = None if self.database is None else self.database.groups
        self.task = MeasureTask(stage, settings, StageFiles(self.store, self.batch), groups)
        self.prints = Fingerprints()
        if self.version is not None:
            tables = self.store.load(self.version)
            self.prints.changes(tables)
            self.task.restore(plain(tables), self.version.values, self.version.files)

    def commit(self) -> None:
        self.task.flush()
        tables, values, files = self.task.dump()
        if self.database is not None:
            values["rocks"], more = self.database.publish(self.store, self.batch)
            files = (*files, *more)
        change = ShardChange(self.version, self.prints, tables, files, values)
        self.version = self.store.commit(self.batch, 0, 1, {}, {0: change})[0]
        self.store.collect(self.batch)
        self.batch += 1
        self.task.go_on(StageFiles(self.store, self.batch))

    @property
    def state_bytes(self) -> int:
        """What the last version needs on disk, without events."""
        assert self.version is not None
        events = self.version.values["event_files"]
        return sum(part.size_bytes for part in (*self.version.parts, *self.version.files[events:]))


def frames(first: int, rows: int, a_frame: int, a_second: float, cards: int) -> Iterator[pa.RecordBatch]:
    for start in range(first, first + rows, a_frame):
        yield payments(start, min(a_frame, first + rows - start), a_second, cards)


def resident_megabytes() -> float:
    return float(psutil.Process().memory_info().rss / MEGABYTE)


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measured(module: str, function: str, **arguments: Any) -> dict[str, Any]:
    """What a function of a bench gives, called in a new process: its memory is its own."""
    with tempfile.NamedTemporaryFile("r", suffix=".json") as result:
        call = json.dumps([module, function, arguments, result.name])
        code = "import sys; from bench.support.shard import called; called(sys.argv[1])"
        root = str(Path(__file__).resolve().parents[2])
        done = subprocess.run(
            [sys.executable, "-c", code, call], env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        content = result.read()
        if not content:
            return {"failed": done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]}
        found: dict[str, Any] = json.loads(content)
        return found


def called(text: str) -> None:
    """The other side of `measured`."""
    module, function, arguments, result = json.loads(text)
    found = getattr(__import__(f"bench.{module}", fromlist=[function]), function)(**arguments)
    Path(result).write_text(json.dumps(found))
