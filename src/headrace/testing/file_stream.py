"""Streams made of files, which arrive one a micro-batch, and queries over them that can be stopped and started.

```python
stream = TableStream(spark, tmp_path, table)
stream.arrive_rows([100, 50])                  # two micro-batches
stream.run(hr.Metrics(TEXT, time="ts", state=stream.state))
answers = stream.answers("txn")
```
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from headrace.spark.metrics import Metrics

_FIRST_TIME = 1_000_000_000


class FileStream:
    """A folder with input files, a checkpoint and a Parquet sink."""

    def __init__(self, spark: SparkSession, folder: Path):
        self.spark = spark
        self.folder = folder
        self.source = folder / "in"
        self.out = folder / "out"
        self.checkpoint = folder / "checkpoint"
        self.source.mkdir(parents=True, exist_ok=True)

    def arrive(self, *tables: pa.Table) -> None:
        """Each is a micro-batch."""
        for table in tables:
            number = len(list(self.source.iterdir()))
            path = self.source / f"{number:06d}.parquet"
            pq.write_table(table, path)
            # The file source takes files by age, and needs whole milliseconds between them.
            os.utime(path, (_FIRST_TIME + number, _FIRST_TIME + number))

    def frame(self) -> DataFrame:
        """The stream, with the columns of the newest file, one file a micro-batch."""
        schema = self.spark.read.parquet(str(max(self.source.iterdir()))).schema
        return self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.source))

    def run(self, metrics: Metrics, each: Callable[[DataFrame, int], None] | None = None) -> Any:
        """Answer all that has arrived, then stop; gives the query, raises what it raises."""
        # Moments in files as Arrow writes them, with their zone.
        self.spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        writer = self.frame().transform(metrics.measure).writeStream.option("checkpointLocation", str(self.checkpoint))
        to_files = writer.format("parquet").option("path", str(self.out))
        writer = to_files if each is None else writer.foreachBatch(each)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def answers(self, *by: str) -> pa.Table:
        """What the sink has, exactly once, in the order of these columns."""
        # Spark knows which files count; their columns may differ where those of the stream have changed.
        files = self.spark.read.parquet(str(self.out)).inputFiles()
        tables = [pq.read_table(unquote(urlparse(file).path)) for file in files]
        found = pa.concat_tables(tables, promote_options="permissive")
        return found.sort_by([(name, "ascending") for name in by]) if by else found


class TableStream(FileStream):
    """One table that arrives in pieces, measured by any metrics, again and again."""

    def __init__(self, spark: SparkSession, folder: Path, table: pa.Table):
        super().__init__(spark, folder)
        self.table = table
        self.state = str(folder / "state")
        self.arrived = 0

    def arrive_rows(self, sizes: list[int], table: pa.Table | None = None) -> None:
        """The next rows of the table (or of another one), in micro-batches of these sizes."""
        rows = self.table if table is None else table
        for size in sizes:
            self.arrive(rows.slice(self.arrived, size))
            self.arrived += size
