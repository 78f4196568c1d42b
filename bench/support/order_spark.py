"""The window sort that a Spark user has: the pipeline of `bench/order.py` as an ordinary Structured Streaming query.

Numbers stand for times, a millisecond each, so a window of 1000 numbers is one of a second. Windows are collected in
Spark's state, leave when the watermark has passed them, and every micro-batch is sorted before it is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.support.order_flows import LAST, WINDOW, Ints, last_map, now_us, same, without_sevens

_ROWS_A_BATCH: Final = 200_000
_EVERY_S: Final = 0.5
_SCHEMA: Final = "n long, made_us long"


def run_query(spark: SparkSession, folder: Path, records: int, width: int, rate: float | None = None) -> Ints:
    """What the query wrote, in its order: number, made, process, emit. Only of windows that are complete.

    With a rate: micro-batches of so many records every half second. A record is made when the first stage has it, not
    when it was due: that favours the query.
    """
    rows_a_batch = _ROWS_A_BATCH if rate is None else int(rate * _EVERY_S)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    given = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_a_batch)
    source = given.option("numPartitions", 2).load().where(F.col("value") < records).select(F.col("value").alias("n"))
    kept = source.repartition(width).mapInArrow(_first, _SCHEMA)
    last = kept.repartition(LAST).mapInArrow(_last, f"{_SCHEMA}, process_us long")
    timed = last.withColumn("ts", F.timestamp_millis("n")).withWatermark("ts", "0 seconds")
    rows = F.sort_array(F.collect_list(F.struct("n", "made_us", "process_us"))).alias("rows")
    windows = timed.groupBy(F.window("ts", f"{WINDOW} milliseconds")).agg(rows)
    found: list[Ints] = []

    def write(batch: DataFrame, number: int) -> None:
        ordered = batch.orderBy("window.start").select(F.inline("rows"))
        table = ordered.toArrow()
        block = [table.column(name).to_numpy() for name in ("n", "made_us", "process_us")]
        found.append(np.stack([*block, np.full(table.num_rows, now_us())], axis=1))

    query = (
        windows.writeStream.foreachBatch(write)
        .outputMode("append")
        .option("checkpointLocation", str(folder / "check"))
        .trigger(processingTime="0 seconds" if rate is None else f"{_EVERY_S} seconds")
        .start()
    )
    # The watermark stops a window before the last number: what is past the end only moves it on.
    whole = (records // WINDOW - 1) * WINDOW
    while query.isActive and not (found and any(len(part) and part[-1, 0] >= whole - 2 for part in found)):
        query.awaitTermination(1)
    query.stop()
    spark.conf.unset("spark.sql.shuffle.partitions")
    taken = np.concatenate(found)
    return taken[taken[:, 0] < whole]


def _first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        made = batch.append_column("made_us", pa.array(np.full(batch.num_rows, now_us())))
        yield same(without_sevens(made))


def _last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield last_map(batch)
