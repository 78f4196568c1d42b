"""A stage of the plan on a streaming DataFrame: a versioned function over each micro-batch.

Keys hash to a fixed number of shards; a task owns the shards that are its number modulo the number of tasks, so
parallelism can change while state stays where it is. Batch b starts from the versions of b - 1 and commits b after its
last row: a rerun of b gives the same rows and the same state.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.errors import StateError
from headrace.measure.definition import Definition
from headrace.measure.plan import Stage
from headrace.measure.run import arrival_order, unmeasured
from headrace.model.jit import Ints
from headrace.spark.operator import CODE, ROWS_AT_ONCE, Answering, Batches, StageOperator, column, hash_key
from headrace.spark.versions import Shards, StageState, TaskPlace

SHARDS: Final = 16
SHARD: Final = "__headrace_shard"


@dataclass(frozen=True)
class StreamingStage(StageOperator):
    """Adds the metrics of one stage to a streaming DataFrame."""

    state: StageState

    def _inputs(self) -> list[str]:
        definition = self.definition
        names = [definition.time, definition.arrival, definition.id, *self.state.settings.kept, SHARD]
        return list(dict.fromkeys(name for name in names if name is not None))

    def _input(self, name: str) -> Column:
        return column(name)

    def _sorted(self, df: DataFrame) -> DataFrame:
        """Spark does not sort streams: the task does it, over the rows of its micro-batch."""
        return df

    def _partitioned(self, df: DataFrame) -> DataFrame:
        return df.withColumn(SHARD, self._shard(df)).repartitionById(self._partitions(df), F.col(SHARD))

    def _partitions(self, df: DataFrame) -> int:
        wanted = self.parallelism or int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
        return min(wanted, self.state.shards) if self.stage.partitioner else 1

    def _shard(self, df: DataFrame) -> Column:
        if not self.stage.partitioner:
            return F.lit(0)
        keys = [hash_key(df, name) for name in self.stage.partitioner]
        return F.pmod(F.xxhash64(*keys), F.lit(self.state.shards)).cast("int")

    def _place(self, partitions: int) -> Callable[[], TaskPlace]:
        return lambda: _place_of_task(partitions)

    def _answering(self, df: DataFrame) -> Answering:
        definition, state, names = self.definition, self.state, self._inputs()
        place, with_codes = self._place(self._partitions(df)), self.with_codes

        def measure(batches: Batches) -> Iterator[pa.Array]:
            mine = Shards(state, place())
            parts = [pa.RecordBatch.from_arrays(list(columns), names=names) for columns in batches]
            if sum(part.num_rows for part in parts):
                yield from _answers(definition, state, mine, pa.Table.from_batches(parts), with_codes)
            mine.commit()

        return measure


def _place_of_task(partitions: int) -> TaskPlace:
    context = TaskContext.get()
    batch = context.getLocalProperty("streaming.sql.batchId") if context else None
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    if context is None or batch is None or query is None:
        raise StateError("a streaming metric ran outside of a streaming query")
    return TaskPlace(query, int(batch), context.partitionId(), partitions)


def answer_struct(stage: Stage, with_codes: bool) -> pa.StructType:
    more = [(CODE, pa.int32())] if with_codes else []
    return pa.struct([*((metric.name, metric.type) for metric in stage.metrics), *more])


def struct_of(struct: pa.StructType, answers: list[pa.Array], codes: Ints) -> pa.StructArray:
    """The answers of rows, with what became of them if that is wanted."""
    more = [pa.array(codes, pa.int32())] if struct.num_fields > len(answers) else []
    return pa.StructArray.from_arrays([*answers, *more], fields=list(struct))


def _answers(
    definition: Definition, state: StageState, mine: Shards, rows: pa.Table, with_codes: bool
) -> Iterator[pa.Array]:
    """The answers of the rows in their order, each computed by the shard it belongs to, in the order of arrival."""
    order, known = arrival_order(definition, state.stage, rows)
    shard_of_row = rows.column(SHARD).to_numpy()
    by_shard = order[np.argsort(shard_of_row[order], kind="stable")]
    needed = list(dict.fromkeys([*state.settings.columns, *state.stage.columns, *state.settings.kept]))
    sorted_rows = rows.select(needed).take(pa.array(by_shard)).combine_chunks()
    shards = shard_of_row[by_shard]
    struct = answer_struct(state.stage, with_codes)
    pieces, starts = [], np.flatnonzero(np.diff(shards, prepend=-1))
    for start, end in itertools.pairwise([*starts, len(shards)] if len(starts) else []):
        task = mine.task(int(shards[start]))
        for batch in sorted_rows.slice(start, end - start).to_batches(max_chunksize=ROWS_AT_ONCE):
            answers = task.push(batch)
            pieces.append(struct_of(struct, answers, task.codes))
    unknown = unmeasured(definition, rows)
    for shard in np.unique(shard_of_row[~known]).tolist():
        mine.task(shard).note(unknown[(shard_of_row == shard) & ~known])
    nothing = [pa.nulls(int((~known).sum()), metric.type) for metric in state.stage.metrics]
    pieces.append(struct_of(struct, nothing, unknown[~known]))
    back = np.empty(rows.num_rows, np.int64)
    back[np.concatenate([by_shard, np.flatnonzero(~known)])] = np.arange(rows.num_rows)
    yield from pa.chunked_array(pieces, struct).take(pa.array(back)).chunks
