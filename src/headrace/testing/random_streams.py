"""Random streams: events, metrics, micro-batches, restarts, crashes and numbers of tasks, all from one seed.

```python
check_random_stream(spark, tmp_path, seed=7)    # AssertionError where stream, batch and oracle are not of one mind
check_random_live(spark, tmp_path, seed=7)      # the same of a flow, whose workers are killed meanwhile
```
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from headrace.flow.sinks import parquet
from headrace.flow.sources import generate
from headrace.measure import definition as definitions
from headrace.measure.definition import Definition
from headrace.measure.run import measure_table
from headrace.spark.live import Flow
from headrace.spark.metrics import Metrics
from headrace.testing.admitted import Rules, statuses
from headrace.testing.compare import assert_same_answers
from headrace.testing.flows import kill_workers, written
from headrace.testing.oracle import Oracle
from headrace.testing.strategies import event_tables
from headrace.testing.streams import FolderStream
from headrace.testing.texts import metric_texts

Draw = Callable[[st.SearchStrategy[Any]], Any]

_DRAWN = 8
_SLOW_S = 0.03
"""How long a live event takes to come: there must be time to kill somebody."""
_SECOND = 1_000_000


@dataclass(frozen=True)
class StreamCase:
    """`table` has what the stream has, and `row` (its number), `batch` and `place`, the order in which it arrives."""

    text: str
    table: pa.Table
    settings: dict[str, Any]
    starts: tuple[tuple[int, int], ...]
    """For each start of the query: how many micro-batches have arrived until then, and the number of tasks."""
    chunk_events: int

    def micro_batch(self, number: int) -> pa.Table:
        return self.table.filter(pc.equal(self.table["batch"], number)).drop_columns(["batch", "place"])

    def __str__(self) -> str:
        sizes = [self.micro_batch(number).num_rows for number in range(self.starts[-1][0])]
        said = {"rows of each micro-batch": sizes, "(micro-batches, tasks) of each start": self.starts, **self.settings}
        return "\n".join([self.text, *(f"  {name}: {value}" for name, value in said.items())])


@st.composite
def stream_cases(draw: Draw) -> StreamCase:
    """A few events in three to six micro-batches (some of them empty), and two or three starts of the query."""
    table = draw(event_tables(max_rows=40))
    text = draw(metric_texts(table.schema))
    arrival = "arrival" if draw(st.booleans()) else None
    late = draw(st.sampled_from(("accept",) * 6 + ("rewrite", "discard")))
    if late != "accept" or draw(st.integers(0, 5)) == 0:
        # Repeated ids do not tell rows of one time apart, so something else must.
        arrival = "arrival"
        table = _with(table, arrival, pa.array(draw(st.permutations(range(len(table)))), pa.int64()))
        table = _with(table, "id", pc.bit_wise_and(table["id"], draw(st.sampled_from((7, 15)))))
    batches = draw(st.integers(3, 6))
    numbers = sorted(draw(st.lists(st.integers(0, batches - 1), min_size=len(table), max_size=len(table))))
    if draw(st.booleans()):
        table = table.take(pc.sort_indices(table, [(name, "ascending") for name in (arrival or "ts", "ts", "id")]))
    table = table.append_column("batch", pa.array(numbers, pa.int64()))
    table = _later_by_batch(table, draw(st.sampled_from((0, 0, 30))))
    ends = [*sorted(draw(st.sets(st.integers(1, batches - 1), min_size=1, max_size=2))), batches]
    return StreamCase(
        text=text,
        table=_with_places(table, arrival),
        settings={
            "time": "ts",
            "id": "id",
            "arrival": arrival,
            "late": late,
            "closure": draw(st.sampled_from(("1 second", "10 seconds", "10 minutes"))),
            # Longer than any event here is late: nothing is too old to be answered.
            "keep": draw(st.sampled_from(("5 minutes", "1 day", None))),
            "dedup": draw(st.sampled_from((None, "3 seconds", "10 minutes"))),
            "shards": draw(st.sampled_from((2, 3, 16, 16))),
        },
        starts=tuple((end, draw(st.sampled_from((1, 2, 5)))) for end in ends),
        chunk_events=draw(st.sampled_from((2, 5, 1 << 14))),
    )


def stream_case(seed: int) -> StreamCase:
    """The same one for the same seed (and the same Hypothesis)."""
    found: list[StreamCase] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=_DRAWN,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(stream_cases())
    def draw_some(case: StreamCase) -> None:
        found.append(case)

    draw_some()
    # Its first examples are its simplest ones.
    return max(found[_DRAWN // 2 :], key=lambda case: len(case.table))


def check_random_stream(spark: SparkSession, folder: Path, seed: int) -> None:
    """Raise AssertionError unless the stream of this seed is answered as the batch does, and as the oracle does."""
    case = stream_case(seed)
    try:
        _check(spark, folder, case)
    except Exception as error:
        again = f"make chaos SEED={seed} RUNS=1 ARGS='-k random_streams'"
        raise AssertionError(f"{error}\n\nstream of seed {seed}, which runs again with: {again}\n{case}") from error


def check_random_live(spark: SparkSession, folder: Path, seed: int, kills: int = 2) -> None:
    """Raise AssertionError unless a flow answers the stream of this seed as the batch does, though workers die."""
    case = stream_case(seed)
    metrics = Metrics(case.text, **{**case.settings, "arrival": "place"})
    stages = len(metrics.definition.plan(case.table.schema).stages)
    tasks = max(tasks for _, tasks in case.starts)
    with patch.object(definitions, "STREAM_CHUNK_EVENTS", case.chunk_events):
        # A second stage has an order of arrival of its own where the first one has several tasks: unless it is ordered.
        flow = _flow(metrics, case.table.sort_by("place").combine_chunks(), tasks, folder / "out", stages > 1)
    job = flow.start(spark, folder / "at", workers=1, commit_s=0.1, batch_records=1)
    killed = kill_workers(job, kills, seed, pause_s=(0.3, 0.8))
    if not job.wait(120):
        raise AssertionError(f"the flow of seed {seed} did not end, {killed} of its workers were killed\n{case}")
    names = ["row", *metrics.names]
    expected = measure_table(metrics.definition, case.table).select(names)
    try:
        assert_same_answers(written(folder / "out").sort_by("row").select(names), expected)
    except AssertionError as error:
        raise AssertionError(f"{error}\n\nflow of seed {seed}, {killed} workers killed\n{case}") from error


def _flow(metrics: Metrics, rows: pa.Table, tasks: int, out: Path, is_ordered: bool) -> Flow:
    flow = Flow("measuring")

    def events(first: int, count: int) -> pa.RecordBatch:
        time.sleep(_SLOW_S)
        found = rows.slice(first, count).to_batches()
        return found[0] if found else pa.RecordBatch.from_pylist([], rows.schema)

    came = flow.source("events", generate(events, len(rows)))
    came = came.ordered() if is_ordered else came
    flow.sink("out", flow.measure("score", metrics, came, parallelism=tasks), parquet(str(out)))
    return flow


def _check(spark: SparkSession, folder: Path, case: StreamCase) -> None:
    stream = FolderStream(spark, folder, case.text, **case.settings)
    arrived = 0
    with patch.object(definitions, "STREAM_CHUNK_EVENTS", case.chunk_events):
        for end, tasks in case.starts:
            stream.arrive(*[case.micro_batch(number) for number in range(arrived, end)])
            arrived = end
            stream.run_tasks(tasks)
    metrics = Metrics(case.text, **{**case.settings, "arrival": "place"})
    names = ["row", *metrics.names]
    answers = stream.answers().sort_by("row").select(names)
    assert_same_answers(answers, measure_table(metrics.definition, case.table).select(names))
    admitted = _admitted(case, metrics.definition)
    if admitted is not None:
        oracle = Oracle(case.text, admitted, time="counts_at", arrival="place")
        counted = answers.filter(pc.is_in(answers["row"], admitted["row"].combine_chunks()))
        assert_same_answers(counted, oracle.table().select(names), ulps=oracle.ulps(), inputs=oracle.inputs)


def _admitted(case: StreamCase, definition: Definition) -> pa.Table | None:
    """The rows that count, with the times at which they do: literally, by the rules; None where stages may differ."""
    stages, policy = definition.plan(case.table.schema).stages, definition.policy
    if len(stages) > 1 and (policy.late != "accept" or policy.dedup is not None):
        return None
    rules = Rules(policy.late, policy.closure, None, policy.dedup)
    _, times = statuses(case.table, rules, time="ts", group=stages[0].partitioner, id="id", arrival="place")
    moved = case.table.append_column("counts_at", pa.array(times, pa.timestamp("us", "UTC")))
    return moved.filter(pc.is_valid(moved["counts_at"]))


def _with_places(table: pa.Table, arrival: str | None) -> pa.Table:
    """Where each row comes in the order of arrival: null where its time or arrival is."""
    names = [name for name in ("batch", arrival, "ts", "id") if name is not None]
    order = np.asarray(pc.sort_indices(table, [(name, "ascending") for name in names]))
    places = np.empty(len(table), np.int64)
    places[order] = np.arange(len(table))
    unknown = np.asarray(table["ts"].is_null())
    if arrival is not None:
        unknown = unknown | np.asarray(table[arrival].is_null())
    table = table.append_column("row", pa.array(np.arange(len(table))))
    return table.append_column("place", pa.array(places, mask=unknown))


def _later_by_batch(table: pa.Table, seconds: int) -> pa.Table:
    """Time goes on from batch to batch, so that old events are no longer needed."""
    shift = pc.multiply(table["batch"], seconds * _SECOND).cast(pa.duration("us"))
    return _with(table, "ts", pc.add(table["ts"], shift))


def _with(table: pa.Table, name: str, column: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)
