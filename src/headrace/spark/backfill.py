"""The past into the state of a stream that is to come: a batch job that leaves what batch 0 starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from headrace.errors import DefinitionError, StateMismatch
from headrace.measure.definition import Definition
from headrace.measure.words import is_ordered_word
from headrace.spark.operator import Answering, Batches, column, gathered
from headrace.spark.progress import Progress, read_progress
from headrace.spark.schema import arrow_schema
from headrace.spark.streaming import SHARD, StreamingStage, answer_struct, struct_of
from headrace.spark.versions import BACKFILL, Shards, StageState, TaskPlace
from headrace.state.places import place_of


@dataclass(frozen=True)
class BackfillStage(StreamingStage):
    """A stage over the past: batch 0 of a query called `backfill`, row after row, whatever its size."""

    def _sorted(self, df: DataFrame) -> DataFrame:
        definition = self.definition
        order = [SHARD, definition.arrival, definition.time, definition.id, *self.stage.columns]
        return df.sortWithinPartitions(*[column(name) for name in dict.fromkeys(order) if name is not None])

    def _place(self, partitions: int) -> Callable[[], TaskPlace]:
        def place() -> TaskPlace:
            context = TaskContext.get()
            assert context is not None
            return TaskPlace(BACKFILL, 0, context.partitionId(), partitions)

        return place

    def _answering(self, df: DataFrame) -> Answering:
        state, names, place = self.state, self._inputs(), self._place(self._partitions(df))
        struct = answer_struct(state.stage, self.with_codes)

        def measure(batches: Batches) -> Iterator[pa.Array]:
            mine = Shards(state, place())
            for rows in gathered(batches, names):
                for shard, part in _by_shard(rows):
                    task = mine.task(shard)
                    answers = task.push(part)
                    task.set_boundary(part)
                    yield struct_of(struct, answers, task.codes)
            mine.commit()

        return measure


def _by_shard(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Neighbours of one shard: rows are sorted by it."""
    shards = rows.column(SHARD).to_numpy(zero_copy_only=False)
    start = 0
    while start < len(shards):
        end = int(shards.searchsorted(shards[start], side="right"))
        yield int(shards[start]), rows.slice(start, end - start)
        start = end


def run_backfill(
    definition: Definition, df: DataFrame, states: Sequence[StageState], parallelism: int | None, memory_bytes: int
) -> Progress:
    if definition.arrival is None or not is_ordered_word(arrow_schema(df).field(definition.arrival).type):
        raise DefinitionError(
            "backfill needs arrival=, a column of numbers or times in the order of arrival that past and stream "
            "share (a Kafka offset, a sequence): it tells where the one ends and the other goes on"
        )
    place = place_of(states[0].location)
    others = [name for name in place.folders("") if name != BACKFILL]
    if others:
        raise StateMismatch(
            f"state location {place.location} has the state of a query ({others[0]}) that has started without this "
            f"backfill; name an empty location"
        )
    place.delete_folder(BACKFILL)
    for state in states:
        stage = BackfillStage(definition, state.stage, parallelism, memory_bytes, state=state)
        answers = [column(metric.name) for metric in state.stage.metrics]
        df.transform(stage).select(*answers).write.format("noop").mode("overwrite").save()
    return read_progress(states[0].location, BACKFILL)
