"""A stream of files with its metrics, and what its state holds.

```python
stream = FolderStream(spark, tmp_path, "SELECT count(*) AS n FROM t GROUP BY card OVER sliding 5m", time="ts", id="id")
stream.arrive(table.slice(0, 100), table.slice(100, 50))    # two micro-batches
stream.run_tasks(2)                                         # takes all that has arrived, then stops
stream.arrive(table.slice(150))
stream.run_tasks(5)
stream.answers()
```
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from headrace.spark.metrics import Metrics
from headrace.state.places import LocalPlace
from headrace.state.rocks_files import ShardDatabase
from headrace.state.store import StageStore
from headrace.testing.file_stream import FileStream


class FolderStream(FileStream):
    """A stream with its metrics: `settings` are those of `Metrics`: time, id, arrival, late and so on."""

    def __init__(self, spark: SparkSession, folder: Path, text: str, **settings: Any):
        super().__init__(spark, folder)
        self.text = text
        self.settings = settings
        self.state = folder / "state"

    def arrived(self) -> pa.Table:
        return pa.concat_tables(pq.read_table(path) for path in sorted(self.source.iterdir()))

    def run_tasks(self, tasks: int) -> None:
        """Answer all that has arrived, by so many tasks; raises what the query raises."""
        self.run(Metrics(self.text, parallelism=tasks, state=str(self.state), **self.settings))

    def run_through(self, tasks: int, most: int = 40) -> list[str]:
        """Start the query again whenever it fails, until it has answered all; gives what it failed with."""
        failures: list[str] = []
        while True:
            try:
                self.run_tasks(tasks)
                return failures
            except StreamingQueryException as error:
                failures.append(str(error))
                if len(failures) > most:
                    raise

    def copied(self, folder: Path) -> FolderStream:
        """A stream that goes on from a copy of all that this one has written; what arrives comes to both."""
        other = FolderStream(self.spark, folder, self.text, **self.settings)
        other.source = self.source
        for name in ("state", "checkpoint", "out"):
            shutil.copytree(getattr(self, name), getattr(other, name), ignore=shutil.ignore_patterns(".*.crc"))
        # The sink's log has whole paths.
        for log in (other.out / "_spark_metadata").iterdir():
            log.write_text(log.read_text().replace(str(self.out), str(other.out)))
        return other


# ---------------------------------------------------------------------- state


@dataclass(frozen=True)
class ShardContent:
    """What a version of a shard holds, whatever its files are called."""

    tables: dict[str, Any]
    values: dict[str, Any]
    files: list[tuple[int, int]]
    """Size and checksum of each file of events."""


def state_content(state: Path) -> dict[tuple[str, int, int], ShardContent]:
    """Everything the last batch left, by (stage, batch, shard): what a query goes on from."""
    place = LocalPlace(str(state))
    found = {}
    for query in place.folders(""):
        for stage in place.folders(query):
            store = StageStore(place, f"{query}/{stage}")
            batch = max(number for number in store.batches() if store.has_batch(number))
            for shard, version in store.all_shards(batch).items():
                values = dict(version.values)
                events = version.files[: values["event_files"]]
                files = [(len(content), file.crc) for file in events if (content := store.read_part(file))]
                tables = store.load(version)
                if "rocks" in values:
                    tables |= _groups(store, values.pop("rocks"))
                found[stage, batch, shard] = ShardContent(tables, values, files)
    return found


def _groups(store: StageStore, rocks: dict[str, Any]) -> dict[str, Any]:
    """What a database holds, whatever its files are: all words of all groups, by key."""
    database = ShardDatabase(store, rocks, 8 << 20)
    with database.groups as groups:
        content = b"".join(key + value for key, value in groups.items())
    return {"rocks": np.frombuffer(content, np.uint8)}


def assert_same_state(actual: Path, expected: Path) -> None:
    """Raise AssertionError unless two queries that end here would go on in the same way."""
    was, wanted = state_content(actual), state_content(expected)
    assert was.keys() == wanted.keys(), f"shards {sorted(was)}, not {sorted(wanted)}"
    for key in wanted:
        problems = list(_differences(was[key], wanted[key]))
        assert not problems, f"stage {key[0]}, batch {key[1]}, shard {key[2]}: {'; '.join(problems)}"


def _differences(was: ShardContent, wanted: ShardContent) -> Iterator[str]:
    if was.values != wanted.values:
        yield f"values {was.values}, not {wanted.values}"
    if was.files != wanted.files:
        yield f"files of events {was.files}, not {wanted.files}"
    if was.tables.keys() != wanted.tables.keys():
        yield f"tables {sorted(was.tables)}, not {sorted(wanted.tables)}"
    for name in was.tables.keys() & wanted.tables.keys():
        one, other = np.asarray(was.tables[name]), np.asarray(wanted.tables[name])
        if one.dtype != other.dtype or one.shape != other.shape or one.tobytes() != other.tobytes():
            yield f"table {name} differs"
