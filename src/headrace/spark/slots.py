"""Task slots of a session: how many there are, and which flows of this process hold them.

Without a job, which would wait for a slot.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.errors import FlowError

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


def free_slots(spark: SparkSession, what: str) -> int:
    """Those that no flow of this process holds. Raises FlowError, naming `what` needs one, where there is none."""
    slots = slot_count(spark)
    with _lock:
        holders = _holders(spark)
    free = max(0, slots - sum(each.count for each in holders))
    if not free:
        raise FlowError(_held(slots, free, holders, what, 1))
    return free


@dataclass(frozen=True, eq=False)
class Claim:
    """The slots of a flow, from before it starts until its last worker is gone."""

    spark: SparkSession
    flow: str
    location: str
    count: int

    def release(self) -> None:
        with _lock:
            if self in _claims:
                _claims.remove(self)

    def shares_slots(self, spark: SparkSession) -> bool:
        if is_connect(spark):
            return self.spark is spark
        return self.spark.sparkContext is spark.sparkContext


_lock: Final = threading.Lock()
_claims: Final[list[Claim]] = []


def claim(
    spark: SparkSession, flow: str, location: str, tasks: int, wanted: int | None = None, copies: int = 1
) -> Claim:
    """Raises FlowError where there are too few slots, or where this flow runs here already."""
    with _lock:
        _claims[:] = [each for each in _claims if not is_stopped(each.spark)]
        if any((each.flow, each.location) == (flow, location) for each in _claims):
            raise FlowError(
                f"flow {flow} runs already in this process, with its commits at {location}; stop it first, "
                f"job.stop(), or start it at another place"
            )
        count = _workers(slot_count(spark), _holders(spark), flow, tasks, wanted, copies)
        claimed = Claim(spark, flow, location, count)
        _claims.append(claimed)
        return claimed


def _holders(spark: SparkSession) -> list[Claim]:
    return [each for each in _claims if not is_stopped(each.spark) and each.shares_slots(spark)]


def _workers(slots: int, holders: list[Claim], flow: str, tasks: int, wanted: int | None, copies: int) -> int:
    if copies > min(wanted or slots, slots):
        which = f"this session has {slots} task slots" if wanted is None or wanted > slots else f"workers={wanted}"
        raise FlowError(
            f"{copies} copies of a task need {copies} workers, each in a slot of its own, and {which}; start Spark "
            f'with more cores, for example master("local[{copies}]"), or ask for fewer replicas'
        )
    count = 1 if wanted is None else min(wanted, tasks)
    if count > slots:
        raise FlowError(
            f"{count} workers need {count} task slots, and this session has {slots}; start Spark with more cores, for "
            f'example master("local[{count}]"), or say workers={slots}'
        )
    free = max(0, slots - sum(each.count for each in holders))
    needed = max(count, copies)
    if needed > free:
        raise FlowError(_held(slots, free, holders, f"flow {flow}", needed))
    return min(tasks, free) if wanted is None else count


def _held(slots: int, free: int, holders: list[Claim], what: str, needed: int) -> str:
    who = ", ".join(f"flow {each.flow} holds {each.count}" for each in holders)
    largest = max(holders, key=lambda each: each.count)
    fewer = f"start flow {largest.flow} with workers=1" if largest.count > 1 else "start Spark with more cores"
    own = "a task slot" if needed == 1 else f"{needed} task slots"
    return (
        f"{what} needs {own} of its own, and of the {slots} of this session {free} are free: {who}; "
        f"{fewer}, or stop flow {largest.flow} first"
    )
