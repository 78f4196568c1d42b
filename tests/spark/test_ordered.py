"""Source order on real Spark, whatever dies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.errors import FlowError
from headrace.testing.flows import assert_conflux, conflux, kill_workers

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_killed_workers_do_not_disturb_the_order(spark: SparkSession, tmp_path: Path) -> None:
    records = 300_000
    job = conflux(tmp_path / "out", records, first=5, last=3).start(spark, tmp_path / "at", commit_s=0.2)
    kill_workers(job, kills=3, seed=1, pause_s=(0.4, 0.9))
    assert job.wait(200)
    assert_conflux(tmp_path / "out", records)


@pytest.mark.chaos
def test_what_was_stopped_goes_on_in_order(spark: SparkSession, tmp_path: Path) -> None:
    records = 400_000
    for drain in (True, False):
        job = conflux(tmp_path / "out", records, first=3).start(spark, tmp_path / "at", commit_s=0.2, batch_records=512)
        job.wait(0.8)
        assert job.stop(drain=drain, timeout_s=100)
    assert conflux(tmp_path / "out", records, first=3).start(spark, tmp_path / "at").wait(200)
    assert_conflux(tmp_path / "out", records)


def test_rows_of_a_dataframe_reach_a_sink_in_order(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(20_000, numPartitions=4).selectExpr("id", "hash(id) % 100 AS `at.s`")
    written = tmp_path / "rows"
    rows.transform(hr.ordered(by=["at.s", "id"])).write.json(str(written))
    [file] = written.glob("*.json")
    found = [(row["at.s"], row["id"]) for row in map(json.loads, file.read_text().splitlines())]
    assert found == sorted((row["at.s"], row["id"]) for row in rows.collect())
    with pytest.raises(FlowError, match=r"there is no column ts; there are id, at\.s"):
        rows.transform(hr.ordered(by="ts"))
    with pytest.raises(FlowError, match="name a column"):
        hr.ordered(by=[])
    with pytest.raises(FlowError, match="a stream has no end, and cannot be put in order of value as a whole"):
        spark.readStream.format("rate").load().transform(hr.ordered(by="value"))
