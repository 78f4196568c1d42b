"""A stage of the plan on a streaming DataFrame: a versioned function over each micro-batch.

Keys hash to a fixed number of shards; a task owns the shards that are its number modulo the number of tasks, so
parallelism can change while state stays where it is. Batch b starts from the versions of b - 1 and commits b after its
last row: a rerun of b gives the same rows and the same state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.errors import StateError
from headrace.measure.definition import Definition
from headrace.measure.plan import Stage
from headrace.measure.run import arrival_order
from headrace.spark.operator import ROWS_AT_ONCE, Answering, Batches, StageOperator, column, hash_key
from headrace.spark.versions import Shards, TaskPlace

SHARDS: Final = 16
_SHARD: Final = "__headrace_shard"


@dataclass(frozen=True)
class StreamingStage(StageOperator):
    """Adds the metrics of one stage to a streaming DataFrame."""

    state: str
    number: int
    shards: int = SHARDS

    def _inputs(self) -> list[str]:
        definition = self.definition
        names = [definition.time, definition.arrival, definition.id, *self.stage.columns, _SHARD]
        return list(dict.fromkeys(name for name in names if name is not None))

    def _input(self, name: str) -> Column:
        return column(name)

    def _sorted(self, df: DataFrame) -> DataFrame:
        """Spark does not sort streams: the task does it, over the rows of its micro-batch."""
        return df

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

    def _answering(self, df: DataFrame) -> Answering:
        definition, stage, names, partitions = self.definition, self.stage, self._inputs(), self._partitions(df)
        shards, memory_bytes, state, number = self.shards, self.memory_bytes, Path(self.state), self.number

        def measure(batches: Batches) -> Iterator[pa.Array]:
            place = _place(state, number, partitions)
            mine = Shards(place, stage, definition.time, shards, memory_bytes)
            parts = [pa.RecordBatch.from_arrays(list(columns), names=names) for columns in batches]
            if sum(part.num_rows for part in parts):
                yield from _answers(definition, stage, mine, pa.Table.from_batches(parts))
            mine.commit()

        return measure


def _place(state: Path, number: int, partitions: int) -> TaskPlace:
    context = TaskContext.get()
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    if context is None or batch is None or query is None:
        raise StateError("a streaming metric ran outside of a streaming query")
    return TaskPlace(state / query / f"stage-{number}", int(batch), context.partitionId(), partitions)


def _answers(definition: Definition, stage: Stage, mine: Shards, rows: pa.Table) -> Iterator[pa.Array]:
    """The answers of the rows in their order, each computed by the shard it belongs to, in the order of arrival."""
    order, known = arrival_order(definition, stage, rows)
    shard_of_row = rows.column(_SHARD).to_numpy()
    needed = rows.select(list(dict.fromkeys([definition.time, *stage.columns])))
    positions, pieces = [], []
    for shard in np.unique(shard_of_row[order]).tolist():
        mine_in_order = order[shard_of_row[order] == shard]
        positions.append(mine_in_order)
        for batch in needed.take(pa.array(mine_in_order)).combine_chunks().to_batches(max_chunksize=ROWS_AT_ONCE):
            answers = mine.task(shard).push(batch)
            pieces.append(pa.StructArray.from_arrays(answers, names=[metric.name for metric in stage.metrics]))
    back = np.zeros(rows.num_rows, np.int64)
    if positions:
        back[np.concatenate(positions)] = np.arange(len(order))
    struct = pa.struct([(metric.name, metric.type) for metric in stage.metrics])
    answered = pa.chunked_array(pieces, struct).take(pa.array(back, mask=~known))
    yield from answered.chunks
