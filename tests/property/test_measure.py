"""An answer is a pure function of the order of arrival: the kernel equals brute force, however the rows are cut."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import MetricOverflow
from headrace.measure.definition import Definition
from headrace.measure.run import measure_table
from headrace.testing.compare import assert_same_answers
from headrace.testing.contracts import assert_same_outcome, outcome
from headrace.testing.oracle import Oracle
from headrace.testing.scenarios import scenario
from headrace.testing.strategies import EventCase, event_cases, event_tables, frame_sizes
from headrace.testing.values import DOUBLE, INT64, STRING, WIDE_DECIMAL, Kind

calmly = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def check(case: EventCase, frames: list[int]) -> None:
    oracle = Oracle(case.text, case.table, time=case.time, id=case.id, arrival=case.arrival)
    definition = Definition(case.text, time=case.time, id=case.id, arrival=case.arrival)
    actual = outcome(lambda: measure_table(definition, case.table, frames))
    assert_same_outcome(actual, outcome(oracle.table), oracle, f"frames {frames}, arrival {case.arrival}, {case.text}")


@given(event_cases(), st.data())
@settings(calmly, max_examples=500)
def test_the_kernel_equals_brute_force_at_every_event(case: EventCase, data: st.DataObject) -> None:
    check(case, data.draw(frame_sizes(case.table.num_rows), label="frames"))


@given(event_cases(max_rows=12, overflow=True), st.data())
@settings(calmly, max_examples=100)
def test_near_the_end_of_a_range_it_is_exact_or_an_error(case: EventCase, data: st.DataObject) -> None:
    check(case, data.draw(frame_sizes(case.table.num_rows), label="frames"))


@given(event_cases(), st.randoms(use_true_random=False))
@settings(calmly, max_examples=60)
def test_the_order_of_the_rows_in_the_table_does_not_matter(case: EventCase, dice: random.Random) -> None:
    definition = Definition(case.text, time=case.time, id=case.id, arrival=case.arrival)
    shuffled = list(range(case.table.num_rows))
    dice.shuffle(shuffled)
    try:
        expected = measure_table(definition, case.table).take(pa.array(shuffled, pa.int64()))
    except MetricOverflow:
        return
    assert_same_answers(measure_table(definition, case.table.take(pa.array(shuffled, pa.int64()))), expected)


@given(event_tables(), st.sampled_from(["sliding 5s", "sliding 3 events", "infinite", "tumbling 7s"]), st.booleans())
@settings(calmly, max_examples=80)
def test_without_an_id_ties_are_broken_by_the_data(table: pa.Table, window: str, late: bool) -> None:
    # A count over the last million events is the place in the order of arrival: whatever order the kernel has chosen
    # among ties, it must be one of time (or arrival), and all answers must follow from it.
    value = table.column_names[-1]
    text = f"""SELECT count(*) AS place FROM events OVER sliding 1000000 events;
               SELECT last({value}) AS newest, prev({value}) AS before, count({value}) AS n FROM events OVER {window}"""
    arrival = "arrival" if late else None
    answered = measure_table(Definition(text, time="ts", arrival=arrival), table)
    placed = table.set_column(0, "id", answered.column("place"))
    oracle = Oracle(text, placed, time="ts", id="id", arrival=arrival)
    asked = ["place", "newest", "before", "n"]
    assert_same_answers(answered, oracle.table(), columns=asked, inputs=oracle.inputs)


@given(event_cases(), st.sampled_from([1, 1000, 5000]))
@settings(calmly, max_examples=40)
def test_answers_do_not_depend_on_the_memory(case: EventCase, memory_bytes: int) -> None:
    definition = Definition(case.text, time=case.time, id=case.id, arrival=case.arrival)
    roomy = outcome(lambda: measure_table(definition, case.table))
    tight = outcome(lambda: measure_table(definition, case.table, [5] * 8, memory_bytes=memory_bytes))
    assert_same_outcome(tight, roomy, None, f"memory {memory_bytes}, arrival {case.arrival}, {case.text}")


@pytest.mark.parametrize("kind", [INT64, DOUBLE, WIDE_DECIMAL, STRING], ids=lambda kind: str(kind.name))
def test_hundreds_of_late_events_in_less_memory_than_one_window(kind: Kind) -> None:
    case = scenario(kind, seed=31, rows=400, arrival="arrival")
    asked = ("max(x) AS most", "prev(x) AS before", "topK(x, 3) AS top", "countDistinct(x) AS kinds", "count(*) AS n")
    windows = ("sliding 12s", "tumbling 20s delayed by 3s", "sliding 40 events", "infinite delayed by 5s")
    text = ";".join(
        f"SELECT {', '.join(f'{item}{n}' for item in asked)} FROM events WHERE ok GROUP BY key OVER {window}"
        for n, window in enumerate(windows)
    )
    oracle = Oracle(text, case.table, time="ts", id="id", arrival="arrival")
    expected = oracle.table()
    definition = Definition(text, time="ts", id="id", arrival="arrival")
    for memory_bytes, frames in ((1, [13] * 30), (4_000, [100, 1, 1, 1]), (1 << 20, [])):
        answered = measure_table(definition, case.table, frames, memory_bytes=memory_bytes)
        assert_same_answers(answered, expected, inputs=oracle.inputs)
