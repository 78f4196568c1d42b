"""`hr.Metrics`: exact metrics over real sliding windows, as columns of a DataFrame."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.errors import DefinitionError
from headrace.language import BoundMetric
from headrace.measure.definition import Definition
from headrace.measure.plan import Stage
from headrace.measure.reservoir import MEMORY_BYTES
from headrace.model.ticks import FARTHEST
from headrace.spark.operator import BatchStage, StageOperator, column
from headrace.spark.schema import arrow_schema
from headrace.spark.streaming import StreamingStage

STATE_CONF: Final = "headrace.state.location"


class Metrics:
    """A set of metrics over one stream of events.

    `text`         statements of the metric language, separated by semicolons
    `time`         the column with the time of an event (timestamp or date)
    `id`           a column that tells events of the same time apart
    `arrival`      a column with the order in which events really came (an offset, a sequence);
                   without it they are taken to have come in the order of (time, id)
    `stream`       which stream of the text is meant, if it names several
    `parallelism`  partitions of each stage; Spark's own choice if not given
    `state`        a folder that all workers reach, where a streaming query keeps its state between batches
    `memory_bytes` how much of its window a Python worker keeps in memory; the rest goes to disk

    >>> metrics = Metrics("SELECT count(*) AS n FROM payments GROUP BY card OVER sliding 5 minutes", time="ts")
    >>> metrics.names
    ('n',)
    """

    def __init__(
        self,
        text: str,
        *,
        time: str,
        id: str | None = None,
        arrival: str | None = None,
        stream: str | None = None,
        parallelism: int | None = None,
        memory_bytes: int = MEMORY_BYTES,
        state: str | None = None,
    ):
        if parallelism is not None and parallelism < 1:
            raise DefinitionError(f"parallelism must be at least 1, not {parallelism}")
        self.definition = Definition(text, time, id, arrival, stream)
        self._parallelism = parallelism
        self._memory_bytes = memory_bytes
        self._state = state

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that `measure` adds, in order."""
        return self.definition.names

    def measure(self, df: DataFrame) -> DataFrame:
        """Every row and column of `df`, and one more column for each metric.

        Rows whose time (or arrival) is null, or whose time is 36,500 years away, have null metrics and count nowhere;
        `rejected` lists them.
        """
        plan = self.definition.plan(arrow_schema(df))
        columns = [column(name) for name in df.columns]
        for number, stage in enumerate(plan.stages):
            df = self._operator(df, number, stage)(df)
        return df.select(*columns, *[column(name) for name in plan.names])

    def _operator(self, df: DataFrame, number: int, stage: Stage) -> StageOperator:
        common = (self.definition, stage, self._parallelism, self._memory_bytes)
        if not df.isStreaming:
            return BatchStage(*common)
        state = self._state or df.sparkSession.conf.get(STATE_CONF, None)
        if state is None:
            raise DefinitionError(
                "a streaming DataFrame needs a place to keep state between batches: "
                f'Metrics(..., state="/path/to/state") or spark.conf.set("{STATE_CONF}", "/path/to/state")'
            )
        return StreamingStage(*common, state=state, number=number)

    def rejected(self, df: DataFrame, reason: str = "reason") -> DataFrame:
        """The rows of `df` that cannot be measured, with why in a column called `reason`."""
        self.check(df)
        if reason.lower() in (name.lower() for name in df.columns):
            raise DefinitionError(f'the data has a column {reason}; name another one: rejected(df, reason="why")')
        time = self.definition.time
        reasons = F.when(column(time).isNull(), F.lit(f"{time} is null"))
        reasons = reasons.when(
            F.abs(F.unix_micros(column(time).cast("timestamp"))) > FARTHEST, F.lit(f"{time} is out of range")
        )
        if self.definition.arrival is not None:
            arrival = self.definition.arrival
            reasons = reasons.when(column(arrival).isNull(), F.lit(f"{arrival} is null"))
        return df.withColumn(reason, reasons).where(column(reason).isNotNull())

    def check(self, schema: DataFrame | StructType | pa.Schema) -> tuple[BoundMetric, ...]:
        """Check names and types against a schema; gives the metrics with the types of their answers."""
        return self.definition.bind(arrow_schema(schema))

    def explain(self, schema: DataFrame | StructType | pa.Schema | None = None) -> str:
        """The plan as a tree: stages, windows, filters, groups, metrics, and what they share."""
        return self.definition.explain(None if schema is None else arrow_schema(schema))

    def __repr__(self) -> str:
        return f"Metrics({', '.join(self.names)}; time={self.definition.time})"
