from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import DefinitionError
from headrace.measure.definition import Definition
from headrace.measure.policy import Policy
from headrace.model.ticks import HOUR, SECOND, Ticks

SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("card", pa.string()),
        ("merchant", pa.string()),
        ("amount", pa.float64()),
        ("offset", pa.int64()),
    ]
)

TEXT = """
SELECT sum(amount) AS spent, count(*) AS n FROM payments GROUP BY card OVER sliding 5 minutes;
SELECT avg(amount) AS usual FROM payments WHERE amount > 0 GROUP BY card, merchant OVER sliding 1 hour;
SELECT max(amount) AS top FROM payments GROUP BY card OVER sliding 5 minutes;
SELECT count(*) AS seen FROM payments GROUP BY merchant OVER sliding 100 events
"""


def test_groupings_share_the_partitioner_of_a_part_of_them() -> None:
    plan = Definition(TEXT, "ts").plan(SCHEMA)
    assert [stage.partitioner for stage in plan.stages] == [("card",), ("merchant",)]
    assert plan.names == ("spent", "n", "usual", "top", "seen")
    assert [metric.name for metric in plan.stages[0].metrics] == ["spent", "n", "top", "usual"]


def test_metrics_that_differ_in_aggregation_only_share_a_leaf() -> None:
    card = Definition(TEXT, "ts").plan(SCHEMA).stages[0]
    assert [[metric.name for metric in leaf.metrics] for leaf in card.leaves] == [["spent", "n", "top"], ["usual"]]


def test_a_grouping_alone_uses_all_its_columns() -> None:
    text = "SELECT count(*) AS n FROM p GROUP BY card, merchant OVER infinite"
    assert Definition(text, "ts").plan(SCHEMA).stages[0].partitioner == ("card", "merchant")


def test_no_group_by_has_a_stage_of_its_own() -> None:
    text = "SELECT count(*) AS n FROM p OVER infinite; SELECT count(*) AS m FROM p GROUP BY card OVER infinite"
    assert [stage.partitioner for stage in Definition(text, "ts").plan(SCHEMA).stages] == [(), ("card",)]


def test_a_stage_reads_only_what_its_metrics_use() -> None:
    stages = Definition(TEXT, "ts").plan(SCHEMA).stages
    assert stages[0].columns == ("amount", "card", "merchant")
    assert stages[1].columns == ("merchant",)


def test_explain_shows_what_is_shared() -> None:
    assert Definition(TEXT, "ts", id="offset").explain(SCHEMA) == (
        """\
5 metrics in 2 stages; events arrive in the order of ts, ties by offset
├─ stage 1: partition by card
│  ├─ reads ts, amount, card, merchant
│  ├─ iterators: head now, tail 5m ago, tail 1h ago
│  ├─ window sliding 5m  (shared by 3 metrics)
│  │  └─ every event  (shared by 3 metrics)
│  │     └─ group by card  (shared by 3 metrics)
│  │        ├─ spent = sum(amount): double
│  │        ├─ n     = count(*): bigint
│  │        └─ top   = max(amount): double
│  └─ window sliding 1h
│     └─ where amount > 0
│        └─ group by card, merchant
│           └─ usual = avg(amount): double
└─ stage 2: partition by merchant
   ├─ reads ts, merchant
   ├─ iterators: own queue of 100 events
   └─ window sliding 100 events
      └─ every event
         └─ group by merchant
            └─ seen = count(*): bigint"""
    )


def test_explain_says_what_becomes_of_late_and_repeated_events() -> None:
    policy = Policy("discard", closure=Ticks(30 * SECOND), dedup=HOUR)
    first = Definition(TEXT, "ts", id="offset", policy=policy).explain().splitlines()[0]
    assert first.endswith("; events more than 30s late are discarded; an event counts once by its offset within 1h")


def test_explain_without_a_schema_has_no_types() -> None:
    assert "spent = sum(amount)\n" in Definition(TEXT, "ts").explain()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"time": "tss"}, "time column tss is not in the data; did you mean ts?"),
        ({"time": "amount"}, "time column amount is double, not a time"),
        ({"time": "ts", "id": "nothing"}, "id column nothing is not in the data; it has ts, card"),
        ({"time": "ts", "arrival": "ofset"}, "arrival column ofset is not in the data; did you mean offset?"),
    ],
)
def test_wrong_columns_are_named(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(DefinitionError) as raised:
        Definition(TEXT, **arguments).bind(SCHEMA)
    assert problem in str(raised.value)


def test_a_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(DefinitionError, match="column card is in the data more than once"):
        Definition(TEXT, "ts").bind(pa.schema([*SCHEMA, ("card", pa.string())]))


def test_several_streams_need_a_choice() -> None:
    text = "SELECT count(*) AS a FROM one OVER infinite; SELECT count(*) AS b FROM two OVER infinite"
    with pytest.raises(DefinitionError, match='choose it with stream="one"'):
        Definition(text, "ts")
    assert Definition(text, "ts", stream="two").names == ("b",)
    with pytest.raises(DefinitionError, match="no metric is over stream three"):
        Definition(text, "ts", stream="three")
