"""Late, repeated and malformed events on a stream: answered, said so, counted, and never silently dropped."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headrace as hr
from headrace.measure.definition import Definition
from headrace.measure.policy import Policy
from headrace.measure.run import measure_table
from headrace.model.ticks import MINUTE, SECOND, Ticks
from headrace.testing.compare import assert_same_answers
from headrace.testing.file_stream import TableStream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TEXT = """
    SELECT sum(amount) AS spent FROM payments GROUP BY card OVER sliding 5 minutes;
    SELECT count(*) AS n FROM payments GROUP BY shop OVER sliding 1 minute
"""


def payments() -> pa.Table:
    """Ten in order, then one late, one too late, one txn twice, one without a time and one without an arrival."""
    seconds: list[int | None] = [*range(0, 100, 10), 85, 20, 110, 110, None, 130, 140]
    rows = len(seconds)
    txn = [*range(12), 12, 12, 14, 15, 16]
    offset = [*range(rows - 2), None, rows - 1]
    return pa.table(
        {
            "offset": pa.array(offset, pa.int64()),
            "ts": pa.array([None if s is None else s * SECOND for s in seconds], pa.timestamp("us", "UTC")),
            "txn": pa.array(txn, pa.int64()),
            "card": ["a"] * rows,
            "shop": ["x"] * rows,
            "amount": [1.0] * rows,
        }
    )


def test_every_row_is_answered_and_says_what_became_of_it(spark: SparkSession, tmp_path: Path) -> None:
    stream = TableStream(spark, tmp_path, payments())
    metrics = hr.Metrics(
        TEXT, time="ts", id="txn", arrival="offset", late="discard", closure="1 minute", dedup="10 m", status="status",
        state=stream.state, parallelism=2,
    )  # fmt: skip
    stream.arrive_rows([5, 6])
    stream.run(metrics)
    stream.arrive_rows([4, 2])
    query = stream.run(metrics)

    answers = stream.answers("txn", "status")
    assert answers.num_rows == 17
    policy = Policy("discard", Ticks(MINUTE), None, Ticks(10 * MINUTE))
    definition = Definition(TEXT, "ts", "txn", "offset", policy=policy, status="status")
    expected = measure_table(definition, payments()).sort_by([("txn", "ascending"), ("status", "ascending")])
    names = ["txn", *metrics.names, "status", "status_reason"]
    assert_same_answers(answers.select(names), expected.select(names))
    statuses = dict(zip(answers["txn"].to_pylist(), answers["status"].to_pylist(), strict=True))
    assert (statuses[9], statuses[10], statuses[11], statuses[14]) == ("ok", "late", "discarded", "discarded")
    reasons = dict(zip(answers["txn"].to_pylist(), answers["status_reason"].to_pylist(), strict=True))
    assert reasons[11] == "more than 1m behind the newest event of its group"
    assert reasons[14] == "ts is null or out of range"
    assert reasons[15] == "offset is null"
    assert answers.filter(pa.compute.equal(answers["status"], "duplicate"))["spent"].to_pylist() == [None]

    progress = metrics.progress(query)
    assert progress.rows == 17
    assert progress.counts == {"ok": 12, "late": 1, "rewritten": 0, "duplicate": 1, "discarded": 3}
    assert "12 ok, 1 late, 1 duplicate, 3 discarded" in str(progress)
    observed = [batch["observedMetrics"]["headrace"] for batch in map(dict_of, query.recentProgress)]
    assert sum(batch["events"] for batch in observed) == 6
    assert sum(batch["duplicate"] for batch in observed) == 1
    assert sum(batch["discarded"] for batch in observed) == 3


def dict_of(progress: object) -> dict[str, dict[str, dict[str, int]]]:
    found = progress["observedMetrics"]  # type: ignore[index]
    return {"observedMetrics": {name: dict(row.asDict()) for name, row in found.items()}}


def test_the_status_column_must_have_a_name_of_its_own(spark: SparkSession) -> None:
    metrics = hr.Metrics("SELECT count(*) AS n FROM t OVER sliding 1 m", time="ts", status="shop")
    with pytest.raises(hr.DefinitionError, match="there is a column shop already"):
        metrics.measure(spark.createDataFrame(payments()))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"late": "drop"}, "late= must be one of 'accept', 'rewrite', 'discard', not 'drop'"),
        ({"closure": "soon"}, "closure=: 'soon' is not a duration; write it as '5 minutes' or '1h30m'"),
        ({"keep": "1 month"}, "keep=: a month has no fixed length; say it in days"),
        ({"shards": 0}, "shards must be at least 1, not 0"),
    ],
)
def test_wrong_settings_are_named(arguments: dict[str, object], problem: str) -> None:
    with pytest.raises(hr.DefinitionError) as raised:
        hr.Metrics("SELECT count(*) AS n FROM t OVER sliding 1 m", time="ts", **arguments)  # type: ignore[arg-type]
    assert problem in str(raised.value)
