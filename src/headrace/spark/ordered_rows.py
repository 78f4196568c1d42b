"""The rows of a bounded DataFrame in order, for a sink whose tasks write side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from headrace.errors import FlowError
from headrace.spark.operator import column


def ordered(by: str | Sequence[str]) -> Callable[[DataFrame], DataFrame]:
    """For `df.transform`: whatever is written of it is written in this order, by one task.

    `df.orderBy` gives partitions that are in order, each and among them; but a sink such as a topic or a table gets
    them from several tasks at a time. Rows with equal values come in any order: name more columns. A stream is refused:
    use it in `foreachBatch`; from micro-batch to micro-batch the order is that in which the source has its rows.
    """
    names = [by] if isinstance(by, str) else list(by)
    if not names:
        raise FlowError('ordered(by=[]): name a column, for example ordered(by="ts")')

    def apply(df: DataFrame) -> DataFrame:
        if df.isStreaming:
            raise FlowError(
                f"a stream has no end, and cannot be put in order of {', '.join(names)} as a whole; use ordered in "
                f"foreachBatch, hr.order_query for the order of a Kafka topic, or a flow with stream.ordered(by=...)"
            )
        missing = [name for name in names if name not in df.columns]
        if missing:
            raise FlowError(f"ordered: there is no column {', '.join(missing)}; there are {', '.join(df.columns)}")
        return df.repartition(1).sortWithinPartitions(*(column(name) for name in names))

    return apply
