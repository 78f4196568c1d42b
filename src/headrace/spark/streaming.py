"""A stage of the plan on a streaming DataFrame: a versioned function over each micro-batch.

Keys hash to a fixed number of shards; a task owns the shards that are its number modulo the number of tasks, so
parallelism can change while state stays where it is. Batch b starts from the versions of b - 1 and commits b after its
last row: a rerun of b gives the same rows and the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.errors import StateError
from headrace.measure.plan import Stage
from headrace.spark.operator import Operator, column, hash_key
from headrace.spark.versions import Shards, TaskPlace

SHARDS: Final = 16
_ROWS_AT_ONCE: Final = 1 << 17
_SHARD: Final = "__headrace_shard"


@dataclass(frozen=True)
class StreamingStage(Operator):
    """Adds the metrics of one stage to a streaming DataFrame."""

    state: str
    number: int
    shards: int = SHARDS

    def _inputs(self) -> list[str]:
        return [*super()._inputs(), _SHARD]

    def _partitioned(self, df: DataFrame) -> DataFrame:
        partitions = self._partitions(df)
        return df.withColumn(_SHARD, self._shard(df)).repartitionById(partitions, F.col(_SHARD))

    def _partitions(self, df: DataFrame) -> int:
        wanted = self.parallelism or int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        return min(wanted, self.shards) if self.stage.partitioner else 1

    def _shard(self, df: DataFrame) -> Column:
        if not self.stage.partitioner:
            return F.lit(0)
        keys = [hash_key(df, name) for name in self.stage.partitioner]
        return F.pmod(F.xxhash64(*keys), F.lit(self.shards)).cast("int")

    def _function(self, df: DataFrame) -> Callable[..., Any]:
        names, partitions, shards = self._inputs()[:-1], self._partitions(df), self.shards
        stage, time, memory_bytes, state, number = (
            self.stage, self.definition.time, self.memory_bytes, self.state, self.number,
        )  # fmt: skip

        def measure(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
            place = _place(Path(state), number, partitions)
            mine = Shards(place, stage, time, shards, memory_bytes)
            for rows, shard_of_row in _gathered(batches, names):
                yield _answers(stage, mine, rows, shard_of_row)
            mine.commit()

        return measure


def _place(state: Path, number: int, partitions: int) -> TaskPlace:
    context = TaskContext.get()
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    if context is None or batch is None or query is None:
        raise StateError("a streaming metric ran outside of a streaming query")
    return TaskPlace(state / query / f"stage-{number}", int(batch), context.partitionId(), partitions)


def _gathered(
    batches: Iterator[tuple[pa.Array, ...]], names: list[str]
) -> Iterator[tuple[pa.RecordBatch, np.ndarray[Any, Any]]]:
    """Spark's small batches joined into larger ones: each is cut into shards, which has a price of its own."""
    parts: list[pa.RecordBatch] = []
    count = 0

    def joined() -> tuple[pa.RecordBatch, np.ndarray[Any, Any]]:
        table = pa.Table.from_batches(parts).combine_chunks()
        rows = table.to_batches()[0]
        return rows.select(names), rows.column(_SHARD).to_numpy()

    for columns in batches:
        if len(columns[0]):
            parts.append(pa.RecordBatch.from_arrays(list(columns), names=[*names, _SHARD]))
            count += len(columns[0])
        if count >= _ROWS_AT_ONCE:
            yield joined()
            parts, count = [], 0
    if count:
        yield joined()


def _answers(stage: Stage, mine: Shards, rows: pa.RecordBatch, shard_of_row: np.ndarray[Any, Any]) -> pa.Array:
    """The answers of rows in their order, each computed by the shard it belongs to."""
    order = np.argsort(shard_of_row, kind="stable")
    present, starts = np.unique(shard_of_row[order], return_index=True)
    ends = [*starts[1:].tolist(), len(order)]
    arranged = rows.take(pa.array(order))
    pieces = []
    for shard, start, end in zip(present.tolist(), starts.tolist(), ends, strict=True):
        answers = mine.task(shard).push(arranged.slice(start, end - start))
        pieces.append(pa.StructArray.from_arrays(answers, names=[metric.name for metric in stage.metrics]))
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return pa.concat_arrays(pieces).take(pa.array(back))


__all__ = ["SHARDS", "StreamingStage", "column"]
