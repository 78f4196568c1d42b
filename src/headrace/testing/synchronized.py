"""The programs of `headrace.demo.programs` on every host, with what they must give."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from headrace.demo.programs import PROGRAMS
from headrace.testing.program_flows import rates_of
from headrace.testing.trees import rows_of

SMALL: Final[dict[str, dict[str, Any]]] = {
    "key_counters": {"increments": 2_000, "increments_per_reset": 40},
    "event_windows": {"windows": 12, "values_per_window": 60},
    "page_views": {"views": 2_000, "views_per_update": 60},
    "fraud": {"windows": 12, "transactions_per_window": 60},
    "outliers": {"windows": 8, "connections_per_window": 60},
    "smart_home": {"houses": 3, "slices": 8, "loads_per_slice": 4},
}
"""Few events, and many that synchronize."""


def events_of(name: str, seed: int, ties: bool = True) -> pa.Table:
    """In the order in which the sequential program takes them: the last column, `arrival`, says so."""
    events = PROGRAMS[name].generate(**SMALL[name], seed=seed, ties=ties)
    streams = np.unique(events.column("stream").to_numpy(zero_copy_only=False), return_inverse=True)[1]
    order = np.lexsort((np.arange(events.num_rows), streams, events.column("time").to_numpy()))
    return events.take(pa.array(order)).append_column("arrival", pa.array(np.arange(events.num_rows)))


def expected_of(name: str, events: pa.Table) -> Counter[tuple[Any, ...]]:
    return rows_of(PROGRAMS[name].expected(events.drop_columns(["arrival"])))


def rows_of_frame(df: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in df.collect())


# ------------------------------------------------------------------------ batch


def on_batch(
    spark: SparkSession, folder: Path, name: str, events: pa.Table, **options: Any
) -> Counter[tuple[Any, ...]]:
    """What a batch run gives, of events in several files in any order."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(1).permutation(events.num_rows)
    for number, part in enumerate(np.array_split(rows, 3)):
        pq.write_table(events.take(pa.array(part)), folder / f"{number}.parquet")
    df = spark.read.parquet(str(folder))
    return rows_of_frame(df.transform(hr.synchronize(PROGRAMS[name].program(), arrival="arrival", **options)))


# ----------------------------------------------------------------------- stream


def write_batches(folder: Path, events: pa.Table, tag: str, batches: int, seed: int) -> None:
    """Files for micro-batches, in the order of time; at the end each stream says that all has come."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.integers(0, events.num_rows, batches - 1))
    streams = sorted(set(events.column("stream").to_pylist()))
    last = [{"time": int(events.column("time").to_numpy().max()), "stream": name, "arrival": -1} for name in streams]
    beats = pa.Table.from_pylist(last, events.schema)
    parts = [events.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, events.num_rows], strict=True)]
    for number, part in enumerate([*parts, beats]):
        path = folder / f"{number:04d}.parquet"
        pq.write_table(part.take(pa.array(rng.permutation(part.num_rows))), path)
        os.utime(path, (1e9 + number, 1e9 + number))
    assert events.schema.field(tag).nullable


def on_stream(
    spark: SparkSession, folder: Path, name: str, events: pa.Table, parallelism: list[int], batches: int = 4
) -> Counter[tuple[Any, ...]]:
    """What a query gives that is stopped after some batches, and goes on with other parallelism."""
    program = PROGRAMS[name].program()
    tag: Any = program.tag  # type: ignore[attr-defined]
    first = tag if isinstance(tag, str) else tag[0]
    streams = sorted(set(events.column("stream").to_pylist()))
    files = sorted_files(folder / "all", events, first, batches)
    (folder / "in").mkdir(parents=True, exist_ok=True)
    schema = spark.read.parquet(str(folder / "all")).schema
    shares = np.array_split(np.arange(len(files)), len(parallelism))
    for leaves, share in zip(parallelism, shares, strict=True):
        for at in share.tolist():
            os.link(files[at], folder / "in" / files[at].name)
        df = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
        made = hr.synchronize(
            program, stream="stream", streams=streams, arrival="arrival", parallelism=leaves,
            state=str(folder / "state"), rates=rates_of(name, events.to_batches()) if program.table is None else None,
        )  # fmt: skip
        writer = df.transform(made).writeStream.format("parquet").option("path", str(folder / "out"))
        query = writer.option("checkpointLocation", str(folder / "check")).trigger(availableNow=True).start()
        query.awaitTermination()
    return rows_of_frame(spark.read.parquet(str(folder / "out")))


def sorted_files(folder: Path, events: pa.Table, tag: str, batches: int) -> list[Path]:
    write_batches(folder, events, tag, batches, seed=1)
    return sorted(folder.glob("*.parquet"))


# ------------------------------------------------------------------------- live


def _piece(rows: pa.RecordBatch, first: int, count: int) -> pa.RecordBatch:
    return rows.slice(first, count)


def live_flow(name: str, events: pa.Table, sink: Any, parallelism: int, heartbeat: int | None = None) -> hr.Flow:
    """A source for each stream, the program, and a sink."""
    flow = hr.Flow(name.replace("_", "-"))
    names = sorted(set(events.column("stream").to_pylist()))
    rows = events.drop_columns(["arrival"])
    drawn = []
    for stream in names:
        own = rows.filter(pa.compute.equal(rows.column("stream"), stream)).combine_chunks().to_batches()[0]
        drawn.append(flow.source(stream, hr.generate(partial(_piece, own), own.num_rows)))
    given = flow.synchronize(
        "program",
        PROGRAMS[name].program(),
        *drawn,
        parallelism=parallelism,
        heartbeat=heartbeat,
        rates=rates_of(name, rows.to_batches()),
    )
    flow.sink("out", given, sink)
    return flow
