"""One table that arrives as a stream of files, measured by any metrics, again and again.

```python
stream = FileStream(spark, tmp_path, table)
stream.arrive([100, 50])                       # two micro-batches
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


class FileStream:
    """A folder with input files, a checkpoint, a state location and a Parquet sink."""

    def __init__(self, spark: SparkSession, folder: Path, table: pa.Table):
        self.spark = spark
        self.folder = folder
        self.table = table
        self.state = str(folder / "state")
        self.arrived = 0
        (folder / "in").mkdir(parents=True)

    def arrive(self, sizes: list[int], table: pa.Table | None = None) -> None:
        """The next rows of the table (or of another one) come in files of these sizes."""
        rows = self.table if table is None else table
        for size in sizes:
            path = self.folder / "in" / f"{self.arrived:06d}.parquet"
            pq.write_table(rows.slice(self.arrived, size), path)
            os.utime(path, (1_000_000_000 + self.arrived, 1_000_000_000 + self.arrived))
            self.arrived += size

    def source(self) -> DataFrame:
        """The stream, with the columns of the newest file, one file a micro-batch."""
        newest = str(max((self.folder / "in").iterdir()))
        schema = self.spark.read.parquet(newest).schema
        stream = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return stream.parquet(str(self.folder / "in"))

    def run(self, metrics: Metrics, each: Callable[[DataFrame, int], None] | None = None) -> Any:
        """Take all that has arrived, then stop; gives the query."""
        answered = self.source().transform(metrics.measure)
        writer = answered.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))
        if each is None:
            writer = writer.format("parquet").option("path", str(self.folder / "out"))
        else:
            writer = writer.foreachBatch(each)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def answers(self, *by: str) -> pa.Table:
        """All that the sink has, in the order of these columns."""
        # Spark knows which files count; their columns may differ where those of the stream have changed.
        files = self.spark.read.parquet(str(self.folder / "out")).inputFiles()
        tables = [pq.read_table(unquote(urlparse(file).path), coerce_int96_timestamp_unit="us") for file in files]
        found = pa.concat_tables(tables, promote_options="permissive")
        return found.sort_by([(name, "ascending") for name in by]) if by else found
