"""A stage of the plan as a Spark operator: shuffle, sort, and one column of answers beside the others.

Only the columns that the metrics read travel to Python, as Arrow batches; all others wait in the JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DoubleType, FloatType

from headrace.measure.definition import Definition
from headrace.measure.plan import Stage
from headrace.measure.task import MeasureTask
from headrace.spark.schema import spark_struct

_ANSWERS = "__headrace_answers"


@dataclass(frozen=True)
class StageOperator:
    """Adds the metrics of one stage to a batch DataFrame."""

    definition: Definition
    stage: Stage
    parallelism: int | None
    memory_bytes: int

    def __call__(self, df: DataFrame) -> DataFrame:
        answers = self._udf()(*[self._input(name) for name in self._columns()])
        arranged = self._sorted(self._partitioned(df))
        with_answers = arranged.select("*", answers.alias(_ANSWERS))
        names = [metric.name for metric in self.stage.metrics]
        columns = [F.col(_ANSWERS).getField(name).alias(name) for name in names]
        return with_answers.select("*", *columns).drop(_ANSWERS)

    def _columns(self) -> list[str]:
        return list(dict.fromkeys([self.definition.time, *self.stage.columns]))

    def _input(self, name: str) -> Column:
        """A row whose arrival is not known is not measured, as one whose time is not known."""
        arrival = self.definition.arrival
        if name == self.definition.time and arrival is not None:
            return F.when(column(arrival).isNotNull(), column(name))
        return column(name)

    def _partitioned(self, df: DataFrame) -> DataFrame:
        if not self.stage.partitioner:
            return df.repartition(1)
        keys = [_hash_key(df, name) for name in self.stage.partitioner]
        return df.repartition(self.parallelism, *keys) if self.parallelism else df.repartition(*keys)

    def _sorted(self, df: DataFrame) -> DataFrame:
        """In the order of arrival; ties are broken by all that the metrics read: answers depend on the data only."""
        definition = self.definition
        order = [definition.arrival, definition.time, definition.id, *self.stage.columns]
        return df.sortWithinPartitions(*[column(name) for name in dict.fromkeys(order) if name is not None])

    def _udf(self) -> Callable[..., Column]:
        fields = [(metric.name, metric.type) for metric in self.stage.metrics]
        names, late = self._columns(), self.definition.arrival is not None
        answer = _answering(self.stage, self.definition.time, names, late, self.memory_bytes)
        # Spark's own stubs know neither hints nor structs here; Spark knows both.
        make_udf: Any = arrow_udf
        udf: Any = make_udf(answer, spark_struct(fields))
        return cast(Callable[..., Column], udf.asNondeterministic())


def _answering(stage: Stage, time: str, names: list[str], may_be_late: bool, memory_bytes: int) -> Callable[..., Any]:
    """The function that runs in the Python workers, once for each partition."""

    def measure(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        task = MeasureTask(stage, time, may_be_late=may_be_late, memory_bytes=memory_bytes)
        metrics = [metric.name for metric in stage.metrics]
        for columns in batches:
            answers = task.push(pa.RecordBatch.from_arrays(list(columns), names=names))
            yield pa.StructArray.from_arrays(answers, names=metrics)

    def measure_one(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return measure((batch,) for batch in batches)

    # Spark reads the kind of UDF from the hints, and gives arrays, not tuples of them, where there is one column.
    answer, given = (measure, tuple[pa.Array, ...]) if len(names) > 1 else (measure_one, pa.Array)
    answer.__annotations__ = {"batches": Iterator[given], "return": Iterator[pa.Array]}  # type: ignore[valid-type]
    return answer


def column(name: str) -> Column:
    """A column by its exact name, dots and spaces included."""
    return F.col("`" + name.replace("`", "``") + "`")


def _hash_key(df: DataFrame, name: str) -> Column:
    """-0.0 and 0.0 are one group, so they must meet in one partition."""
    if isinstance(df.schema[name].dataType, (DoubleType, FloatType)):
        return column(name) + F.lit(0.0)
    return column(name)
