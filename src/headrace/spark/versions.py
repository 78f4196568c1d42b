"""State of a streaming query between micro-batches: what a task does before and after its rows.

Layout of a state location:

    QUERY/stage-0/layout.json             shards and metrics, fixed when the query first runs
    QUERY/stage-0/batches/7/0-of-2.json   by task 0 of 2 at the end of batch 7: the versions of its shards
    QUERY/stage-0/shard-3/                versions of a shard (state.store)

Batch b starts from what the records of batch b - 1 name, and nothing else: a rerun of b finds the same, whatever an
earlier attempt left behind, and a missing record or version is an error, never an empty state.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.errors import StateDamaged, StateMismatch
from headrace.language import BoundMetric, format_expr, format_window
from headrace.measure.explain import format_call
from headrace.measure.plan import Stage
from headrace.measure.task import MeasureTask
from headrace.state.store import FORMAT, ShardStore, Version
from headrace.state.tables import write_whole

_NEVER_TOUCHED: Final = -1
_MOST_CACHED: Final = 64
KEPT_BATCHES: Final = 10
"""How many batches back a query can be started from."""


@dataclass(frozen=True)
class TaskPlace:
    """Which task of which batch this is."""

    folder: Path
    batch: int
    partition: int
    partitions: int

    @property
    def record(self) -> Path:
        return self.folder / "batches" / str(self.batch) / f"{self.partition}-of-{self.partitions}.json"


def shard_versions(place: TaskPlace) -> dict[int, int]:
    """The version of every shard that has one, as of the batch before."""
    if place.batch == 0:
        return {}
    folder = place.folder / "batches" / str(place.batch - 1)
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*-of-*.json")):
        found.setdefault(path.stem.partition("-of-")[2], []).append(path)
    # Another attempt may have run with another number of tasks: any complete set tells the same.
    whole = next((paths for partitions, paths in found.items() if len(paths) == int(partitions)), None)
    if whole is None:
        raise StateDamaged(str(folder), f"the records of batch {place.batch - 1} are missing")
    versions: dict[int, int] = {}
    for path in whole:
        versions.update({int(shard): version for shard, version in json.loads(path.read_text()).items()})
    return versions


def check_layout(folder: Path, stage: Stage, shards: int) -> None:
    """The first task writes down what the state is of; all others must be of the same."""
    path = folder / "layout.json"
    layout = {"format": FORMAT, "shards": shards, "metrics": [describe(metric) for metric in stage.metrics]}
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(layout, indent=1).encode())
        return
    found = json.loads(path.read_text())
    for what in layout:
        if found.get(what) != layout[what]:
            raise StateMismatch(
                f"the state at {folder} has {what} {found.get(what)}, the query has {layout[what]}; "
                f"start the query anew with a checkpoint and a state location of its own"
            )


def describe(metric: BoundMetric) -> str:
    """Everything that decides the state of a metric, as a text."""
    where = "" if metric.where is None else f" where {format_expr(metric.where)}"
    by = f" by {', '.join(metric.group_by)}" if metric.group_by else ""
    over = format_window(metric.window)
    return f"{metric.name} = {format_call(metric)} {metric.argument_type}{where}{by} over {over}"


class Shards:
    """The shards of one task in one micro-batch: loaded when rows come for them, committed together at the end."""

    def __init__(self, place: TaskPlace, stage: Stage, time_column: str, shards: int, memory_bytes: int):
        self._place = place
        self._stage = stage
        self._time = time_column
        self._memory_bytes = memory_bytes
        check_layout(place.folder, stage, shards)
        self._before = shard_versions(place)
        self._mine = range(place.partition, shards, place.partitions)
        self._open: dict[int, tuple[MeasureTask, Version | None]] = {}

    def task(self, shard: int) -> MeasureTask:
        if shard not in self._open:
            self._open[shard] = self._load(shard)
        return self._open[shard][0]

    def _store(self, shard: int) -> ShardStore:
        return ShardStore(self._place.folder / f"shard-{shard}")

    def _load(self, shard: int) -> tuple[MeasureTask, Version | None]:
        store, number = self._store(shard), self._before.get(shard, _NEVER_TOUCHED)
        if number == _NEVER_TOUCHED:
            return self._empty(store), None
        cached = _CACHE.take(store.folder, number, store.identity(number))
        if cached is not None:
            return cached
        version = store.load(number)
        task = self._empty(store)
        task.restore({name: table.copy() for name, table in version.tables.items()}, version.values)
        return task, version

    def _empty(self, store: ShardStore) -> MeasureTask:
        store.folder.mkdir(parents=True, exist_ok=True)
        return MeasureTask(
            self._stage, self._time, may_be_late=True, memory_bytes=self._memory_bytes, folder=store.folder
        )

    def commit(self) -> None:
        """Write the versions of the shards that had rows, then the record that makes them count."""
        place = self._place
        versions = {shard: self._before[shard] for shard in self._mine if shard in self._before}
        for shard, (task, before) in self._open.items():
            store = self._store(shard)
            tables, values = task.dump()
            version = store.commit(place.batch, before, tables, values)
            versions[shard] = place.batch
            _CACHE.put(store.folder, task, version)
            store.collect(place.batch - KEPT_BATCHES, time.time())
        place.record.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place.record, json.dumps(versions).encode())
        shutil.rmtree(place.folder / "batches" / str(place.batch - KEPT_BATCHES - 1), ignore_errors=True)


class _Cache:
    """Tasks that a worker process has at hand. One is used only if it is the very commit that is wanted."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[Path, tuple[MeasureTask, Version]] = OrderedDict()

    def take(self, folder: Path, number: int, identity: str | None) -> tuple[MeasureTask, Version] | None:
        """It is taken out: a batch that fails halfway must not leave a changed task behind."""
        found = self._tasks.pop(folder, None)
        if found is None or found[1].number != number or found[1].identity != identity:
            return None
        return found

    def put(self, folder: Path, task: MeasureTask, version: Version) -> None:
        self._tasks[folder] = (task, version)
        while len(self._tasks) > _MOST_CACHED:
            self._tasks.popitem(last=False)


_CACHE: Final = _Cache()
