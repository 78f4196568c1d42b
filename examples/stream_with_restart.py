"""A stream of payments, stopped in the middle and started again: no payment is counted twice, none is forgotten.

Files arrive in a folder; each is a micro-batch. The query is stopped after two of them and goes on with the rest.
A Kafka topic would do as well: spark.readStream.format("kafka") instead of the folder.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import headrace as hr
from headrace.spark.session import local_session

METRICS = """
    SELECT count(*) AS n, sum(amount) AS spent FROM payments GROUP BY card OVER sliding 5 minutes;
    SELECT countDistinct(card) AS cards FROM payments GROUP BY merchant OVER sliding 1 hour
"""
SCHEMA = "txn long, ts timestamp, card string, merchant string, amount double"


def main() -> None:
    spark = local_session("stream with restart")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        arrive(spark, place, 0, 400)
        arrive(spark, place, 400, 300)
        run(spark, place, parallelism=2)
        print("stopped after", answers(spark, place).count(), "payments")
        arrive(spark, place, 700, 200)
        arrive(spark, place, 900, 100)
        query, metrics = run(spark, place, parallelism=4)
        print(metrics.progress(query).counts)

        expected = hr.Metrics(METRICS, time="ts", id="txn").measure(payments(spark, 0, 1000))
        found = answers(spark, place)
        print("answers:", found.count())
        print("different from those of the batch:", found.exceptAll(expected).count())
    spark.stop()


def payments(spark: SparkSession, first: int, count: int) -> DataFrame:
    """A payment every 11 seconds, of 7 cards at 3 merchants."""
    return spark.range(first, first + count, 1, 1).selectExpr(
        "id AS txn",
        "timestamp_seconds(1772539200 + id * 11) AS ts",
        "concat('card-', id * id % 7) AS card",
        "concat('merchant-', id % 3) AS merchant",
        "CAST(id % 40 + 0.25 AS double) AS amount",
    )


def arrive(spark: SparkSession, place: Path, first: int, count: int) -> None:
    payments(spark, first, count).write.mode("append").parquet(str(place / "in"))


def run(spark: SparkSession, place: Path, parallelism: int) -> tuple[object, hr.Metrics]:
    """Answer all that has arrived, one file after the other, then stop."""
    metrics = hr.Metrics(METRICS, time="ts", id="txn", state=str(place / "state"), parallelism=parallelism)
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(place / "in"))
    query = (
        stream.transform(metrics.measure)
        .writeStream.format("parquet")
        .option("path", str(place / "out"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query, metrics


def answers(spark: SparkSession, place: Path) -> DataFrame:
    return spark.read.parquet(str(place / "out"))


if __name__ == "__main__":
    main()
