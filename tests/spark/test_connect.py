"""Spark Connect gives the answers that classic Spark and the oracle give. One process, one server, for all of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.testing.compare import assert_same_answers
from headrace.testing.contracts import every_metric
from headrace.testing.oracle import Oracle
from headrace.testing.payments import EVERY_AGGREGATION, payments
from headrace.testing.scenarios import every_kind
from headrace.testing.spark import dataframe, on_connect

pytestmark = [pytest.mark.spark, pytest.mark.connect, pytest.mark.timeout(600)]

PAYMENTS = 50_000
OVER_A_DAY = EVERY_AGGREGATION.format(w="day", window="sliding 1 day")
OVER_A_WEEK = EVERY_AGGREGATION.format(w="week", window="sliding 7 days").replace("BY card", "BY merchant")
TWO_PARTITIONERS = f"{OVER_A_DAY};{OVER_A_WEEK}"
EVERY_METRIC = every_metric("sliding 9s") + "; SELECT count(*) AS overall FROM events OVER infinite"


def measured(spark: SparkSession, text: str, table: pa.Table, arrival: str | None = None) -> pa.Table:
    metrics = hr.Metrics(text, time="ts", id="id", arrival=arrival, parallelism=2)
    return dataframe(spark, table).transform(metrics.measure).toArrow().sort_by("id").combine_chunks()


def ask(spark: SparkSession, events: pa.Table, paid: pa.Table) -> dict[str, Any]:
    """Runs in the other process."""
    metrics = hr.Metrics(EVERY_METRIC, time="ts", id="id", arrival="arrival")
    df = dataframe(spark, events)
    try:
        too_much = "SELECT sum(i64 * 1000000000) AS total FROM events OVER infinite"
        df.transform(hr.Metrics(too_much, time="ts").measure).collect()
        overflow = "none"
    except Exception as error:
        overflow = str(error)
    return {
        "events": measured(spark, EVERY_METRIC, events, arrival="arrival"),
        "payments": measured(spark, TWO_PARTITIONERS, paid),
        "plan": metrics.explain(df),
        "rejected": metrics.rejected(df).count(),
        "overflow": overflow,
    }


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return on_connect(ask, every_kind(), payments(PAYMENTS))


def test_every_function_over_every_type_equals_the_oracle(answers: dict[str, Any]) -> None:
    oracle = Oracle(EVERY_METRIC, every_kind().sort_by("id"), time="ts", id="id", arrival="arrival")
    assert_same_answers(answers["events"], oracle.table(), ulps=oracle.ulps(), inputs=oracle.inputs)


def test_payments_get_the_rows_of_classic_spark(spark: SparkSession, answers: dict[str, Any]) -> None:
    assert answers["payments"].equals(measured(spark, TWO_PARTITIONERS, payments(PAYMENTS)))


def test_explain_rejected_and_errors_work_there_too(answers: dict[str, Any]) -> None:
    metrics = hr.Metrics(EVERY_METRIC, time="ts", id="id", arrival="arrival")
    assert answers["plan"] == metrics.explain(every_kind().schema)
    assert answers["rejected"] == 0
    assert "does not fit bigint" in answers["overflow"]


class Broken:
    """Cannot be unpickled: the call fails in the other process before it starts a server, which would take seconds."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (int, ("no number",))


def test_what_fails_there_is_told_here() -> None:
    with pytest.raises(RuntimeError, match=r"measured failed on Spark Connect:(.|\n)*ValueError: .*'no number'"):
        on_connect(measured, Broken())
