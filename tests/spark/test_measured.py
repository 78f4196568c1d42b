"""Metrics in a flow on real Spark: the same answers as on the other two hosts, whatever dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.queues.log import LogQueues
from headrace.testing.flows import until
from headrace.testing.random_streams import check_random_live, check_random_stream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", [3, 11])
def test_three_hosts_give_the_same_answers(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    (tmp_path / "stream").mkdir()
    check_random_stream(spark, tmp_path / "stream", seed)
    check_random_live(spark, tmp_path / "live", seed)


TWO_STAGES = """
    SELECT count(*) AS n FROM p GROUP BY card OVER sliding 1 hour;
    SELECT count(*) AS busy FROM p GROUP BY shop OVER sliding 1 hour
"""
LATER = """
    SELECT max(amount) AS top FROM p GROUP BY card OVER sliding 1 hour;
    SELECT sum(amount) AS taken FROM p GROUP BY shop OVER sliding 1 hour
"""
WHOLE = [(name, pa.int64()) for name in ("id", "card", "shop")]
SCHEMA = pa.schema([*WHOLE, ("ts", pa.timestamp("us", "UTC")), ("amount", pa.float64())])


def _event(n: int) -> dict[str, Any]:
    return {"id": n, "ts": n * 1_000_000, "card": n % 3, "shop": n % 2, "amount": float(n * 7 % 50)}


@pytest.mark.parametrize("parallelism", [1, 2])
def test_metrics_of_two_stages_change_while_the_flow_runs(
    spark: SparkSession, tmp_path: Path, parallelism: int
) -> None:
    """Also where both stages share a task, and so an inbox. (One by one: two tasks by card do not keep the order of
    events on their way to those by shop.)"""
    flow = hr.Flow("changing")
    metrics = hr.Metrics(TWO_STAGES, time="ts", id="id", keep_columns=["amount"])
    events = flow.source("events", hr.queue("events", SCHEMA))
    flow.sink("answers", flow.measure("score", metrics, events, parallelism=parallelism), hr.queue("answers"))
    queues = LogQueues(tmp_path / "queues")
    job = flow.start(spark, tmp_path / "at", queues=queues, commit_s=0.2)
    found: dict[int, dict[str, Any]] = {}
    with hr.Sender(queues, "events") as sender, hr.Receiver(queues, "answers") as receiver:

        def answered(first: int, count: int) -> list[dict[str, Any]]:
            for n in range(first, first + count):
                sender.send(pa.RecordBatch.from_pylist([_event(n)], SCHEMA))
                until(lambda n=n: _take(receiver, found) > n)  # type: ignore[misc]
            return [found[n] for n in range(first, first + count)]

        def later(n: int) -> dict[str, float]:
            before = [_event(m) for m in range(n + 1)]
            top = max(e["amount"] for e in before if e["card"] == n % 3)
            return {"top": top, "taken": sum(e["amount"] for e in before if e["shop"] == n % 2)}

        assert all("top" not in answer for answer in answered(0, 20))
        job.add_metrics("score", LATER)
        for answer in answered(20, 20):
            assert {name: answer[name] for name in ("top", "taken")} == later(answer["id"])
        with pytest.raises(
            hr.DefinitionError, match="need other stages than the flow has, which are by card, and by shop"
        ):
            job.add_metrics("score", "SELECT count(*) AS all_of_it FROM p OVER sliding 1 hour")
        job.remove_metric("score", "top")
        for answer in answered(40, 10):
            assert "top" not in answer
            assert answer["taken"] == later(answer["id"])["taken"]
    assert job.stop(timeout_s=60)


def _take(receiver: hr.Receiver, found: dict[int, dict[str, Any]]) -> int:
    for batch in receiver.receive(0.1):
        found.update({row["id"]: row for row in batch.to_pylist()})
    return len(found)
