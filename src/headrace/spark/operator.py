"""A stage of the plan as a Spark operator: shuffle, sort, and one column of answers beside the others.

Only the columns that the metrics read travel to Python, as Arrow batches; all others wait in the JVM.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import DecimalType, DoubleType, FloatType, IntegralType

from headrace.measure.definition import Definition
from headrace.measure.plan import Stage
from headrace.measure.task import MeasureTask
from headrace.spark.schema import spark_struct

ROWS_AT_ONCE: Final = 1 << 16
_ANSWERS: Final = "__headrace_answers"
CODE: Final = "__headrace_code"
"""What became of a row, as a number (`measure.admission`); of several stages the worst."""

Batches: TypeAlias = Iterator[tuple[pa.Array, ...]]
Answering: TypeAlias = Callable[[Batches], Iterator[pa.Array]]
"""What runs in the Python workers, once for each partition: batches of columns in, one struct of answers a row out."""


@dataclass(frozen=True)
class StageOperator(ABC):
    """Adds the metrics of one stage to a DataFrame. How rows get to their task, and what it does, is the host's."""

    definition: Definition
    stage: Stage
    parallelism: int | None
    memory_bytes: int

    def __call__(self, df: DataFrame) -> DataFrame:
        arranged = self._sorted(self._partitioned(df))
        answers = self._udf(df)(*[self._input(name) for name in self._inputs()])
        with_answers = arranged.select("*", answers.alias(_ANSWERS))
        names = [metric.name for metric in self.stage.metrics]
        columns = [F.col(_ANSWERS).getField(name).alias(name) for name in names]
        if self.with_codes:
            code = F.col(_ANSWERS).getField(CODE)
            worst = F.greatest(column(CODE), code) if CODE in df.columns else code
            columns.append(worst.alias(CODE))
        return with_answers.select(*[column(name) for name in df.columns if name != CODE], *columns)

    @property
    def with_codes(self) -> bool:
        """Is there a column more, which says what became of the row?"""
        return self.definition.status is not None

    @abstractmethod
    def _partitioned(self, df: DataFrame) -> DataFrame:
        """All rows of a group in one partition."""

    @abstractmethod
    def _answering(self, df: DataFrame) -> Answering: ...

    def _inputs(self) -> list[str]:
        """The columns that travel to Python."""
        settings = self.definition.settings()
        return list(dict.fromkeys([*settings.columns, *self.stage.columns]))

    def _input(self, name: str) -> Column:
        """A row whose arrival is not known is not measured, as one whose time is not known."""
        arrival = self.definition.arrival
        if name == self.definition.time and arrival is not None:
            return F.when(column(arrival).isNotNull(), column(name))
        return column(name)

    def _sorted(self, df: DataFrame) -> DataFrame:
        """In the order of arrival; ties are broken by all that the metrics read: answers depend on the data only."""
        definition = self.definition
        order = [definition.arrival, definition.time, definition.id, *self.stage.columns]
        return df.sortWithinPartitions(*[column(name) for name in dict.fromkeys(order) if name is not None])

    def _udf(self, df: DataFrame) -> Callable[..., Column]:
        fields = [(metric.name, metric.type) for metric in self.stage.metrics]
        if self.with_codes:
            fields.append((CODE, pa.int32()))
        answer = _hinted(self._answering(df), len(self._inputs()))
        # Spark's own stubs know neither hints nor structs here; Spark knows both.
        make_udf: Any = arrow_udf
        udf: Any = make_udf(answer, spark_struct(fields))
        made: Callable[..., Column] = udf.asNondeterministic()
        return made


@dataclass(frozen=True)
class BatchStage(StageOperator):
    """On a batch DataFrame: each partition is one task that starts with nothing."""

    def _partitioned(self, df: DataFrame) -> DataFrame:
        if not self.stage.partitioner:
            return df.repartition(1)
        keys = [hash_key(df, name) for name in self.stage.partitioner]
        return df.repartition(self.parallelism, *keys) if self.parallelism else df.repartition(*keys)

    def _answering(self, df: DataFrame) -> Answering:
        stage, names = self.stage, self._inputs()
        settings, with_codes = self.definition.settings(self.memory_bytes), self.with_codes

        def measure(batches: Batches) -> Iterator[pa.Array]:
            task = MeasureTask(stage, settings)
            metrics = [metric.name for metric in stage.metrics]
            for rows in gathered(batches, names):
                answers = task.push(rows)
                if with_codes:
                    yield pa.StructArray.from_arrays([*answers, pa.array(task.codes, pa.int32())], [*metrics, CODE])
                else:
                    yield pa.StructArray.from_arrays(answers, metrics)

        return measure


def gathered(batches: Batches, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Spark's small batches joined: a push has a price of its own, and with many metrics it shows."""
    waiting: list[pa.RecordBatch] = []
    for columns in batches:
        waiting.append(pa.RecordBatch.from_arrays(list(columns), names=names))
        if sum(batch.num_rows for batch in waiting) >= ROWS_AT_ONCE:
            yield joined(waiting)
            waiting = []
    if waiting:
        yield joined(waiting)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches).combine_chunks()
    return next(iter(table.to_batches()), batches[0])


def _hinted(answering: Answering, columns: int) -> Callable[..., Any]:
    """Spark reads the kind of UDF from hints, and gives arrays, not tuples of them, where there is one column."""

    def measure(batches: Any) -> Iterator[pa.Array]:
        return answering(batches if columns > 1 else ((batch,) for batch in batches))

    given: Any = tuple[pa.Array, ...] if columns > 1 else pa.Array
    measure.__annotations__ = {"batches": Iterator[given], "return": Iterator[pa.Array]}
    return measure


def column(name: str) -> Column:
    """A column by its exact name, dots and spaces included."""
    return F.col("`" + name.replace("`", "``") + "`")


def hash_key(df: DataFrame, name: str) -> Column:
    """-0.0 and 0.0 are one group, so they must meet in one partition. A wider type of a value has the same hash."""
    type = df.schema[name].dataType
    if isinstance(type, (DoubleType, FloatType)):
        return column(name).cast("double") + F.lit(0.0)
    if isinstance(type, IntegralType):
        return column(name).cast("bigint")
    if isinstance(type, DecimalType):
        return column(name).cast(f"decimal(38, {type.scale})")
    return column(name)
