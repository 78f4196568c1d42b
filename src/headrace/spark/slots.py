"""Task slots of a session: how many there are, asked without a job, which would wait for one of them."""

from __future__ import annotations

import re
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

_SPLITS: Final = re.compile(r"\bRange \(.*\bsplits=(\d+)\)")


def is_connect(spark: SparkSession) -> bool:
    return not hasattr(spark, "_jsparkSession")


def is_stopped(spark: SparkSession) -> bool:
    """Or is its JVM gone?"""
    session: Any = spark
    if is_connect(spark):
        return bool(session.is_stopped)
    try:
        context = spark.sparkContext._jsc
        return context is None or bool(context.sc().isStopped())
    except Exception:  # nothing answers
        return True


def slot_count(spark: SparkSession) -> int:
    """How many tasks run at the same time: what Spark makes of a range when nothing is said."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    numbers: Any = spark.range(1_000_000)
    splits = _SPLITS.search(numbers._explain_string())
    if splits is not None:
        return int(splits[1])
    return int(numbers.select(F.spark_partition_id().alias("p")).distinct().count())
