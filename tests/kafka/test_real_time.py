"""Source order through queries in Real-Time Mode, also where their driver, with its merger, is killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.spark.broker import Broker

from .topics import answers, fill, new_topic

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(300)]
PATIENCE_S = 120.0
CHAOS = pytest.mark.chaos
# A session of its own: its jars are there from the start, and every task of the query has a slot.
QUERY = """
import sys, time
from pyspark.sql import functions as F
import headrace as hr
from headrace.spark.kafka import kafka_settings
from headrace.spark.session import local_session

servers, source, to, checkpoint, last = sys.argv[1:]
spark = local_session(cores=8, **kafka_settings(), spark__sql__shuffle__partitions="4")
options = {"kafka.bootstrap.servers": servers, "subscribe": source, "startingOffsets": "earliest"}
messages = spark.readStream.format("kafka").options(**options).option("includeHeaders", "true").load()
rows = messages.repartition(4).where("offset % 7 != 0").select(
    "key", F.concat(F.lit("answer to "), F.col("value").cast("string")).alias("value"), "headers", "offset"
)
ordered = hr.order_query(
    rows, to, servers, checkpoint=checkpoint, parallelism=4, trigger={"realTime": "5 seconds"}
)
while (ordered.progress.released or 0) < int(last):
    assert not ordered.wait(0.1), "it ended"
ordered.stop()
spark.stop()
"""


@pytest.mark.parametrize(
    ("count", "kills"),
    [
        (20_000, 0),
        pytest.param(20_000, 3, marks=pytest.mark.chaos),
        pytest.param(1_000_000, 0, marks=pytest.mark.chaos),
    ],
)
def test_rows_of_a_query_in_real_time_leave_in_the_order_of_its_source(
    kafka_broker: Broker, tmp_path: Path, count: int, kills: int
) -> None:
    source, to = new_topic(kafka_broker), new_topic(kafka_broker)
    command = [sys.executable, "-c", QUERY, kafka_broker.address, source, to, str(tmp_path / "checkpoint")]
    for number in range(kills + 1):
        fill(kafka_broker, source, range(number * count, (number + 1) * count))
        with subprocess.Popen([*command, str((number + 1) * count - 1)], stderr=subprocess.PIPE, text=True) as child:
            if number < kills:
                before, deadline = len(answers(kafka_broker, to)), time.monotonic() + PATIENCE_S
                while len(answers(kafka_broker, to)) <= before + 100 * number:
                    assert child.poll() is None and time.monotonic() < deadline  # noqa: PT018
                child.kill()  # most likely between two commits of the query, or in a transaction of the merger
            else:
                _, said = child.communicate(timeout=PATIENCE_S)
                assert child.returncode == 0, said[-3000:]
        expected = [(n, f"answer to {n}") for n in range(count * (number + 1)) if n % 7]
        found = answers(kafka_broker, to)
        assert found == expected[: len(found)]
    assert found == expected
