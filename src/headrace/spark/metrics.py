"""`hr.Metrics`: exact metrics over real sliding windows, as columns of a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.errors import DefinitionError
from headrace.language import BoundMetric
from headrace.language.durations import read_length
from headrace.measure.definition import Definition
from headrace.measure.plan import Plan, Stage
from headrace.measure.policy import STATUSES, Policy
from headrace.measure.reservoir import MEMORY_BYTES
from headrace.model.ticks import FARTHEST, Ticks
from headrace.spark.backfill import run_backfill
from headrace.spark.location import check_location, find_location, stage_state
from headrace.spark.operator import CODE, BatchStage, StageOperator, column
from headrace.spark.progress import Progress, read_progress
from headrace.spark.schema import arrow_schema
from headrace.spark.streaming import SHARDS, StreamingStage
from headrace.spark.versions import StageState

BACKENDS: Final = ("columnar", "rocksdb")
OBSERVED: Final = "headrace"
"""The name under which Spark's progress reports and listeners find the counts of a batch."""


class Metrics:
    """A set of metrics over one stream of events.

    `text`         statements of the metric language, separated by semicolons
    `time`         the column with the time of an event (timestamp or date)
    `id`           a column that tells events apart: those of the same time, and, with `dedup`, repeated ones
    `arrival`      a column with the order in which events really came (an offset, a sequence);
                   without it they are taken to have come in the order of (time, id)
    `stream`       which stream of the text is meant, if it names several
    `parallelism`  partitions of each stage; Spark's own choice if not given
    `memory_bytes` how much of its window a Python worker keeps in memory; the rest goes to disk
    `status`       the name of a column to add, which says of every row: ok, late, rewritten, duplicate or discarded;
                   a second one (`status_reason`) says why. On a stream the counts of every micro-batch are then in
                   Spark's own progress too, as observed metrics called `headrace`

    What to do with events that come late or twice; lengths of time are texts ("10 minutes") in the time of events:

    `late`         "accept" (count them, however late), "rewrite" (move up the time of those later than `closure`) or
                   "discard" (do not count those)
    `closure`      how late an event of a group may be and still be in time
    `dedup`        how long the id of an event is remembered: an event of the group with the same id counts once;
                   None, the default, counts every event

    For streams, and for metrics in a flow:

    `keep`         how long events stay longer than the longest window needs them, for late events and later metrics;
                   None keeps them for ever
    `keep_columns` columns to remember beside those that the metrics read, for later metrics

    For streams only:

    `state`        a folder that all workers reach (a path, or a URL that fsspec knows), for the state between batches
    `shards`       into how many parts the state is cut: the largest number of tasks that can share the work
    `versions`     how many batches back the query can be started from
    `backend`      "columnar" keeps the state of all groups in memory between batches, "rocksdb" only that of groups
                   that events touch: slower, for state larger than memory (needs `headrace[rocksdb]`)

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
        status: str | None = None,
        late: str = "accept",
        closure: str = "10 minutes",
        dedup: str | None = None,
        state: str | None = None,
        keep: str | None = "1 day",
        keep_columns: Sequence[str] = (),
        shards: int = SHARDS,
        versions: int = 10,
        backend: str = "columnar",
    ):
        if backend not in BACKENDS:
            raise DefinitionError(f"backend must be one of {', '.join(map(repr, BACKENDS))}, not {backend!r}")
        for name, value in (("parallelism", parallelism), ("shards", shards), ("versions", versions)):
            if value is not None and value < 1:
                raise DefinitionError(f"{name} must be at least 1, not {value}")
        policy = Policy(late, _length("closure", closure), _maybe("keep", keep), _maybe("dedup", dedup))
        self.definition = Definition(text, time, id, arrival, stream, policy, status)
        self._parallelism = parallelism
        self.memory_bytes = memory_bytes
        self._state = state
        self.keep_columns = tuple(keep_columns)
        self._shards = shards
        self._versions = versions
        self.backend = backend

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that `measure` adds, in order."""
        return self.definition.names

    # ---------------------------------------------------------------- measure

    def measure(self, df: DataFrame) -> DataFrame:
        """Every row and column of `df`, and one more column for each metric.

        Rows whose time (or arrival) is null, or whose time is more than 36,500 years from 1970, have null metrics and
        count nowhere; `rejected` lists them.
        """
        plan = self._plan(df)
        columns = [column(name) for name in df.columns]
        for stage in self._operators(df, plan):
            df = stage(df)
        if df.isStreaming and self.definition.status is not None:
            df = df.observe(OBSERVED, *_counts())
        return df.select(*columns, *[column(name) for name in plan.names], *self._status_columns())

    def _plan(self, df: DataFrame) -> Plan:
        schema = arrow_schema(df)
        status = self.definition.status
        taken = [name.lower() for name in (*df.columns, *self.names)]
        for name in (status, f"{status}_reason") if status is not None else ():
            if name is not None and name.lower() in taken:
                raise DefinitionError(f'there is a column {name} already; name another one: status="fate"')
        for name in self.keep_columns:
            if name not in schema.names:
                raise DefinitionError(f"keep_columns: {name} is not in the data")
        return self.definition.plan(schema)

    def _operators(self, df: DataFrame, plan: Plan) -> list[StageOperator]:
        common = (self._parallelism, self.memory_bytes)
        if not df.isStreaming:
            return [BatchStage(self.definition, stage, *common) for stage in plan.stages]
        location, is_own = find_location(df.sparkSession, self._state)
        states = [self._stage_state(location, df, stage, plan) for stage in plan.stages]
        check_location(location, states if is_own else ())
        return [
            StreamingStage(self.definition, stage, *common, state=state)
            for stage, state in zip(plan.stages, states, strict=True)
        ]

    def _stage_state(self, location: str, df: DataFrame, stage: Stage, plan: Plan) -> StageState:
        return stage_state(
            location,
            stage,
            self.definition,
            arrow_schema(df),
            keep_columns=self.keep_columns,
            memory_bytes=self.memory_bytes,
            shards=self._shards if stage.partitioner else 1,
            versions=self._versions,
            backend=self.backend,
            stages=plan.stages,
        )

    def _status_columns(self) -> list[Column]:
        definition = self.definition
        if definition.status is None:
            return []
        reasons = definition.policy.reasons(definition.time, definition.arrival, definition.id)
        return [_chosen(STATUSES).alias(definition.status), _chosen(reasons).alias(f"{definition.status}_reason")]

    # ----------------------------------------------------------------- change

    def add(self, text: str) -> Metrics:
        """More metrics for a stream that has been running: from its next start on, with what its state remembers.

        They see the events that are remembered already, as far back as those go (`progress` says how far).
        """
        self.definition = self.definition.adding(text)
        return self

    def remove(self, name: str) -> Metrics:
        """Give up a metric of a stream that has been running, from its next start on."""
        self.definition = self.definition.removing(name)
        return self

    def backfill(self, df: DataFrame) -> Progress:
        """Fill the state with the past, a batch DataFrame; a stream that starts with this state goes on from there.

        The stream may bring the end of that past again: an event whose arrival is not past the newest of its group
        in `df` is answered as a duplicate and counts once. This needs an `arrival` column of numbers or times.
        """
        if df.isStreaming:
            raise DefinitionError("backfill takes a batch DataFrame: the past, not the stream")
        plan = self._plan(df)
        location, _ = find_location(df.sparkSession, self._state)
        states = [self._stage_state(location, df, stage, plan) for stage in plan.stages]
        check_location(location, ())
        return run_backfill(self.definition, df, states, self._parallelism, self.memory_bytes)

    # ------------------------------------------------------------------- look

    def progress(self, query: Any) -> Progress:
        """What a streaming query of these metrics has done and keeps, as of its last batch."""
        location = self._state or find_location(SparkSession.active(), None)[0]
        return read_progress(location, str(query.id))

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


def _counts() -> list[Column]:
    code = column(CODE)
    counts = [F.count(F.lit(1)).alias("events")]
    for status in dict.fromkeys(STATUSES):
        codes = [i for i, other in enumerate(STATUSES) if other == status]
        counts.append(F.count_if(code.isin(codes)).alias(status))
    return counts


def _chosen(texts: Sequence[str | None]) -> Column:
    """The text with the number of the row's code."""
    return F.element_at(F.array(*[F.lit(text).cast("string") for text in texts]), column(CODE) + 1)


def _length(name: str, value: str) -> Ticks:
    return read_length(name, value)


def _maybe(name: str, value: str | None) -> Ticks | None:
    return None if value is None else read_length(name, value)
