"""State of a streaming query between micro-batches: what a task does before and after its rows.

Layout of a state location:

    QUERY/by-card/definitions/000000000000.json   what the state is of, from this batch on
    QUERY/by-card/batches, files                  versions of it (state.store)
    backfill/by-card/…                            the same, of a backfill: a query's batch 0 starts from it

Batch b starts from what the manifests of batch b - 1 name, and nothing else: a rerun of b finds the same, whatever an
earlier attempt left behind, and a missing manifest is an error, never an empty state.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, TypeAlias

from headrace.measure.chunk_files import StageFiles
from headrace.measure.plan import Stage
from headrace.measure.recorded import Recorded, check_recorded, record
from headrace.measure.task import MeasureTask, TaskSettings
from headrace.state.places import place_of
from headrace.state.rocks_files import ShardDatabase
from headrace.state.store import ShardChange, ShardVersion, StageStore
from headrace.state.tables import Fingerprints, plain

_MOST_CACHED: Final = 64
_LEAST_ROCKS_BYTES: Final = 8 << 20
BACKFILL: Final = "backfill"


@dataclass(frozen=True)
class StageState:
    """Which state a stage has, and what it is of: what every task of it is told."""

    location: str
    folder: str
    stage: Stage
    settings: TaskSettings
    shards: int
    recorded: Recorded
    kept_batches: int

    @property
    def in_rocks(self) -> bool:
        return self.recorded.backend == "rocksdb"

    @property
    def rocks_bytes(self) -> int:
        """Memory for the database of one shard."""
        return max(_LEAST_ROCKS_BYTES, self.settings.memory_bytes)


@dataclass(frozen=True)
class TaskPlace:
    """Which task of which batch of which query this is."""

    query: str
    batch: int
    task: int
    tasks: int


@dataclass
class OpenShard:
    """A shard at work: its task, what its rows were at the last commit, and its database, if it has one."""

    task: MeasureTask
    prints: Fingerprints
    database: ShardDatabase | None


class Shards:
    """The shards of one task in one micro-batch: loaded when rows come for them, committed together at the end."""

    def __init__(self, state: StageState, place: TaskPlace):
        self._state = state
        self._place = place
        self._store = StageStore(place_of(state.location), f"{place.query}/{state.folder}")
        self._before = self._versions()
        self._mine = range(place.task, state.shards, place.tasks)
        self._open: dict[int, OpenShard] = {}

    def _versions(self) -> dict[int, ShardVersion]:
        place, state = self._place, self._state
        if place.batch == 0:
            record(self._store, 0, state.recorded)
            return self._backfilled()
        self._begins_late = check_recorded(self._store, place.batch, state.recorded)
        return {} if self._begins_late else self._store.versions(place.batch - 1, place.task, place.tasks)

    def _backfilled(self) -> dict[int, ShardVersion]:
        """What a backfill has left for the first batch."""
        self._begins_late = False
        if self._place.query == BACKFILL:
            return {}
        backfill = StageStore(self._store.place, f"{BACKFILL}/{self._state.folder}")
        if not backfill.has_batch(0):
            return {}
        check_recorded(backfill, 1, self._state.recorded)
        return backfill.versions(0, self._place.task, self._place.tasks)

    def task(self, shard: int) -> MeasureTask:
        if shard not in self._open:
            self._open[shard] = self._load(shard)
        return self._open[shard].task

    def _load(self, shard: int) -> OpenShard:
        before, files = self._before.get(shard), StageFiles(self._store, self._place.batch)
        if before is not None:
            cached = _CACHE.take(self._key(shard), before.identity, self._state)
            if cached is not None:
                cached.task.go_on(files)
                return cached
        database = self._database(before)
        groups = None if database is None else database.groups
        task = MeasureTask(self._state.stage, self._state.settings, files, groups)
        prints = Fingerprints()
        if before is not None:
            tables = self._store.load(before)
            prints.changes(tables)
            task.restore(plain(tables), before.values, before.files)
        elif self._begins_late:
            task.begins_late = True
        return OpenShard(task, prints, database)

    def _database(self, before: ShardVersion | None) -> ShardDatabase | None:
        if not self._state.in_rocks:
            return None
        found = None if before is None else before.values["rocks"]
        return ShardDatabase(self._store, found, self._state.rocks_bytes)

    def commit(self) -> None:
        """Write the versions of the shards that had rows, with those that had none, in one manifest."""
        place = self._place
        for shard in self._open.values():
            shard.task.flush()
        changed, untouched = {}, {}
        for number in self._mine:
            before = self._before.get(number)
            if number in self._open:
                changed[number] = self._change(self._open[number], before)
            elif before is not None:
                untouched[number] = before
        versions = self._store.commit(place.batch, place.task, place.tasks, untouched, changed)
        for number, shard in self._open.items():
            _CACHE.put(self._key(number), versions[number].identity, self._state, shard)
        if place.task == 0:
            self._store.collect(place.batch, self._state.kept_batches)

    def _change(self, shard: OpenShard, before: ShardVersion | None) -> ShardChange:
        tables, values, files = shard.task.dump()
        if shard.database is not None:
            values["rocks"], more = shard.database.publish(self._store, self._place.batch)
            files = (*files, *more)
        return ShardChange(before, shard.prints, tables, files, values)

    def _key(self, shard: int) -> tuple[str, str, int]:
        return self._state.location, self._store.folder, shard


_Key: TypeAlias = tuple[str, str, int]


class _Cache:
    """Tasks that a worker process has at hand. One is used only if it is the very commit that is wanted."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[_Key, tuple[str, Recorded, TaskSettings, OpenShard]] = OrderedDict()

    def take(self, key: _Key, identity: str, state: StageState) -> OpenShard | None:
        """It is taken out: a batch that fails halfway must not leave a changed task behind."""
        found = self._tasks.pop(key, None)
        # A query that was started anew may have other metrics.
        if found is None or found[:3] != (identity, state.recorded, state.settings):
            return None
        return found[3]

    def put(self, key: _Key, identity: str, state: StageState, held: OpenShard) -> None:
        self._tasks[key] = (identity, state.recorded, state.settings, held)
        while len(self._tasks) > _MOST_CACHED:
            self._tasks.popitem(last=False)


_CACHE: Final = _Cache()
