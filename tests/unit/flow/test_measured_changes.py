"""Metrics that come while a flow runs: what they answer does not depend on crashes before they take over."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.flow.files import FilesInMemory
from headrace.flow.measured import Measured, measured_stages, plain_definition
from headrace.flow.operators import Operator, Shape
from headrace.measure import definition as definitions
from headrace.measure import events as layouts
from headrace.spark.metrics import Metrics
from headrace.testing.oracle import oracle_table

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("card", pa.string()), ("x", pa.int64())])
PRESENT = Metrics("SELECT count(*) AS n FROM p GROUP BY card OVER sliding 10 seconds", time="ts", keep="5 seconds")
PREPARED, SWITCHED, END = 20, 50, 70
SAYS = {PREPARED: "prepare", SWITCHED: "switch"}


def _events(first: int, count: int) -> pa.RecordBatch:
    """One a second."""
    numbers = range(first, first + count)
    times = pa.array([n * 1_000_000 for n in numbers], SCHEMA.types[0])
    return pa.record_batch([times, [f"c{n % 2}" for n in numbers], pa.array(numbers, pa.int64())], schema=SCHEMA)


def _answers(added: str, crashes: set[int], says: dict[int, str] = SAYS) -> list[Any]:
    """Of the metric that is added, from where it answers on."""
    later = PRESENT.definition.adding(added)
    (drawn,) = measured_stages("score", PRESENT.definition, SCHEMA, 1 << 26, ())
    files, found = FilesInMemory(), list[Any]()
    operator = _opened(drawn, files)
    for at in range(END):
        if at in says:
            operator.change({"change": at, "say": says[at], "metrics": plain_definition(later)})
        if at in crashes:
            content = operator.content()
            operator = _opened(drawn, files)
            operator.restore([content])
        [(_, given)] = operator.apply(_events(at, 1))
        found += given.column("later").to_pylist() if "later" in given.schema.names else []
    return found


def _opened(drawn: Measured, files: FilesInMemory) -> Operator:
    return drawn.open(Shape("score", {"": drawn.given}, files=files))


@pytest.mark.parametrize("crashes", [{45}, {21, 30, 49}, {PREPARED, SWITCHED, 60}])
@pytest.mark.parametrize("function", ["count(*)", "sum(x)"])
@pytest.mark.parametrize("window", ["sliding 100 seconds", "infinite", "sliding 25 events"])
def test_a_crash_while_a_metric_is_made_ready_takes_nothing_from_it(
    crashes: set[int], function: str, window: str
) -> None:
    """Its window is longer than that of all others, and nobody had asked for its column."""
    added = f"SELECT {function} AS later FROM p GROUP BY card OVER {window}"
    with patch.object(definitions, "STREAM_CHUNK_EVENTS", 2):
        undisturbed = _answers(added, set())
        assert _answers(added, crashes) == undisturbed
    assert len(undisturbed) == END - SWITCHED


@pytest.mark.parametrize("crashes", [{26}, set(range(70))])
@pytest.mark.parametrize("chunk_events", [2, 100])
def test_what_was_made_ready_and_given_up_leaves_nothing(crashes: set[int], chunk_events: int) -> None:
    """Its column was remembered for a while: it is as if that had not been, whatever had got into files."""
    added = "SELECT sum(x) AS later FROM p GROUP BY card OVER sliding 100 seconds"
    says = {20: "prepare", 25: "forget", 28: "prepare", 32: "switch"}
    with patch.object(definitions, "STREAM_CHUNK_EVENTS", chunk_events):
        undisturbed = _answers(added, set(), says)
        assert _answers(added, crashes, says) == undisturbed
    assert undisturbed[:3] == [28 + 30 + 32, 29 + 31 + 33, 28 + 30 + 32 + 34]


def _total(column: str) -> str:
    return f"SELECT sum({column}) AS {column}_total FROM p GROUP BY card OVER sliding 15 seconds"


@pytest.mark.parametrize("late", [0, 6, 15])
@pytest.mark.parametrize("commits", [range(0, 40, 5), range(40)], ids=["few commits", "a commit for each event"])
def test_events_of_other_metrics_are_written_anew(late: int, commits: range) -> None:
    """What is remembered has as many words as before the change, but they are others."""
    first = Metrics(_total("x"), time="ts", keep="20 seconds", keep_columns=["x", "y"]).definition
    second = first.adding(_total("y")).removing("x_total")
    files, parts, found = FilesInMemory(), list[bytes](), list[Any]()
    events = [_events(at - (late if at % 5 == 4 else 0), 1) for at in range(40)]
    with patch.object(definitions, "STREAM_CHUNK_EVENTS", 4):
        schema = SCHEMA.append(pa.field("y", pa.int64()))
        before, after = (measured_stages("score", d, schema, 1 << 26, ("x", "y"))[0] for d in (first, second))
        operator = _opened(before, files)
        for at, rows in enumerate(events):
            if at in commits:
                parts.append(operator.changes() or operator.content())
            if at in (10, 20, 25, 30):
                operator = _opened(before if at < 20 else after, files)
                operator.restore(parts)
            [(_, given)] = operator.apply(rows.append_column("y", pc.multiply(rows["x"], 7)))
            found += pc.multiply(given["x_total"], 7).to_pylist() if at < 20 else given["y_total"].to_pylist()
    table = pa.Table.from_batches(events).append_column("place", pa.array(range(40)))
    expected = oracle_table(_total("x"), table, time="ts", arrival="place")["x_total"]
    assert found == pc.multiply(expected, 7).to_pylist()


@pytest.mark.parametrize("removed", [10, 30])
def test_groups_that_come_back_are_the_same_groups(removed: int) -> None:
    """Events that are remembered know their groups, also those of metrics that are gone for a while."""
    by_both = "SELECT count(*) AS visits FROM p GROUP BY card, shop OVER sliding 30 seconds"
    plain = Metrics(PRESENT.definition.text, time="ts", keep="40 seconds").definition
    both = plain.adding(by_both)
    schema = SCHEMA.append(pa.field("shop", pa.string()))
    files, parts, found, rows = FilesInMemory(), list[bytes](), dict[int, Any](), list[pa.RecordBatch]()
    with patch.object(definitions, "STREAM_CHUNK_EVENTS", 4):
        drawn = [
            measured_stages("score", each, schema, 1 << 26, ["shop"])[0] for each in (both, both.removing("visits"))
        ]
        operator = _opened(drawn[0], files)
        for at in range(60):
            is_gone = removed <= at < removed + 10
            if at % 5 == 0 or at in (removed, removed + 10):
                parts.append(operator.changes() or operator.content())
                operator = _opened(drawn[1] if is_gone else drawn[0], files)
                operator.restore(parts)
            # Which shops come first is another one each time.
            rows.append(_events(at, 1).append_column("shop", pa.array([f"s{(at * at // 7) % 5}"])))
            [(_, given)] = operator.apply(rows[-1])
            found.update({} if is_gone else {at: given["visits"][0].as_py()})
    table = pa.Table.from_batches(rows).append_column("place", pa.array(range(60)))
    expected = oracle_table(by_both, table, time="ts", arrival="place")["visits"].to_pylist()
    assert found == {at: expected[at] for at in found}


def test_a_group_that_had_events_while_its_metric_was_gone_is_not_forgotten_before_them() -> None:
    by_both = "SELECT count(*) AS visits FROM p GROUP BY card, shop OVER sliding 30 seconds"
    plain = Metrics(PRESENT.definition.text.replace("10", "30"), time="ts", keep="5 seconds").definition
    both = plain.adding(by_both)
    schema = SCHEMA.append(pa.field("shop", pa.string()))
    files, found, rows = FilesInMemory(), dict[int, Any](), list[pa.RecordBatch]()
    with patch.object(definitions, "STREAM_CHUNK_EVENTS", 1), patch.object(layouts, "_FEW_GROUPS", 1):
        texts = both, both.removing("visits")
        drawn = [measured_stages("score", each, schema, 1 << 26, ["shop"])[0] for each in texts]
        operator = _opened(drawn[0], files)
        for at in range(0, 60, 2):
            is_gone = 10 <= at < 24
            if at % 4 == 0 or at in (10, 24):
                content = operator.content()
                operator = _opened(drawn[is_gone], files)
                operator.restore([content])
            shop = "once" if at in (0, 20) else "often" if at < 40 else f"new {at}"
            rows.append(_events(at, 1).append_column("shop", pa.array([shop])))
            [(_, given)] = operator.apply(rows[-1])
            found.update({} if is_gone else {at: given["visits"][0].as_py()})
    table = pa.Table.from_batches(rows).append_column("place", pa.array(range(len(rows))))
    expected = oracle_table(by_both, table, time="ts", arrival="place")["visits"].to_pylist()
    assert found == {at: expected[at // 2] for at in found}
