"""Results that were worked out on paper."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.demo.programs import EventWindows, Fraud, KeyCounters, Outliers, PageViews, SmartHome
from headrace.demo.programs import event_windows as windows
from headrace.demo.programs.outliers import EVENTS, score_of
from headrace.demo.programs.smart_home import ALL, predicted
from headrace.synchronize.program import Program
from headrace.synchronize.sequential import run_sequentially


def given(program: Program, rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    _, found = run_sequentially(program, pa.Table.from_pylist(rows))
    return [tuple(row.values()) for row in found.to_pylist()]


def test_key_counters_of_the_paper_give_1_then_0() -> None:
    events = [("increment", 1), ("increment", 2), ("reset", 1), ("increment", 2), ("reset", 1)]
    rows = [{"time": time, "kind": kind, "key": key} for time, (kind, key) in enumerate(events)]
    assert given(KeyCounters(), rows) == [(2, 1, 1), (4, 1, 0)]
    state, _ = run_sequentially(KeyCounters(), pa.Table.from_pylist(rows))
    assert state == {2: 2}


def test_windows_are_of_the_values_between_two_barriers() -> None:
    first = {1: 1, 3: 5, 4: 3, 7: 7, 15: 3}
    second = {6: 6, 8: 5, 10: 6, 11: 5, 12: 1, 13: 0, 14: 9}
    rows = [
        {"time": time, "kind": "value", "value": value, "stream": stream}
        for stream, values in (("A1", first), ("A2", second))
        for time, value in values.items()
    ]
    rows += [{"time": time, "kind": "barrier", "value": 0, "stream": "B"} for time in (2, 5, 9, 16)]
    table = pa.Table.from_pylist(rows, windows.EVENTS)
    _, found = run_sequentially(EventWindows(), table.sort_by("time"))
    assert found.column("total").to_pylist() == [1, 8, 18, 24]
    assert windows.expected(table).equals(found)


def test_an_update_of_a_page_gives_what_was_known_before() -> None:
    rows = [
        {"time": 1, "kind": "view", "page": 7, "user": 3, "info": None},
        {"time": 2, "kind": "update", "page": 7, "user": None, "info": 80333},
        {"time": 3, "kind": "view", "page": 7, "user": 4, "info": None},
        {"time": 4, "kind": "update", "page": 7, "user": None, "info": 10115},
        {"time": 5, "kind": "view", "page": 8, "user": 4, "info": None},
        {"time": 6, "kind": "view", "page": 7, "user": 5, "info": None},
    ]
    assert given(PageViews(), rows) == [
        (1, "view", 7, 3, None),
        (2, "update", 7, None, None),
        (3, "view", 7, 4, 80333),
        (4, "update", 7, None, 80333),
        (5, "view", 8, 4, None),
        (6, "view", 7, 5, 10115),
    ]


def test_the_mark_of_fraud_is_of_the_sum_since_the_last_rule_and_the_rule() -> None:
    values = [("transaction", 3000), ("transaction", 42), ("rule", 8), ("transaction", 1050), ("transaction", 50)]
    values += [("rule", 5), ("transaction", 50), ("transaction", 105)]
    rows = [{"time": time, "kind": kind, "value": value} for time, (kind, value) in enumerate(values)]
    assert given(Fraud(), rows) == [
        (0, "transaction", 3000),  # the mark is 0 at first
        (2, "rule", 3042),  # (3042 + 8) mod 1000 = 50
        (3, "transaction", 1050),
        (4, "transaction", 50),
        (5, "rule", 1100),  # (1100 + 5) mod 1000 = 105
        (7, "transaction", 105),
    ]


def connections(sorts: list[Any]) -> list[dict[str, Any]]:
    """Of protocols, "query" among them; service, flag and the numbers are always the same."""
    rows = []
    for time, sort in enumerate(sorts):
        row: dict[str, Any] = dict.fromkeys(EVENTS.names) | {"time": time, "kind": "query", "stream": "queries"}
        if sort != "query":
            row |= {"kind": "connection", "id": time, "protocol": sort, "service": "http", "flag": "ok"}
            row |= {"duration": 5, "bytes": 100}
        rows.append(row)
    return rows


def test_outliers_are_judged_by_the_model_of_the_last_query() -> None:
    # 20 usual ones make the model. Then udp is odd to the four itemsets with the protocol: 1 + 1/2 + 1/2 + 1/3 = 14/6.
    # The mean of the 29 after that is (14/6)/29: over ten times that, and udp was seen less than 10 times by then.
    odd = [*["tcp"] * 20, "query", *["tcp"] * 28, "udp", "query"]
    assert given(Outliers(), connections(odd)) == [(50, 49, 14)]
    # Without a model, nothing is odd.
    assert given(Outliers(), connections(["tcp"] * 20 + ["udp", "query"])) == []
    # It is a candidate, but by the query it has become usual.
    assert given(Outliers(), connections([*["tcp"] * 20, "query", *["udp"] * 10, "query"])) == []
    # Not over ten times the mean: one in ten is as odd.
    assert given(Outliers(), connections([*["tcp"] * 20, "query", *["tcp"] * 9, "udp", "query"])) == []


def test_a_number_is_odd_beyond_1_96_standard_deviations() -> None:
    # Durations 0 and 10, ten each: mean 5, deviation 5; 14.8 is the border.
    itemset = (20, 100, 1000, 0, 0)
    sets = [(a, b, c) for a in ("tcp", None) for b in ("http", None) for c in ("ok", None)]
    profile = dict.fromkeys(sets[:-1], itemset)
    whole = 3 * 6 + 3 * 3 + 2
    assert score_of(profile, (1, "tcp", "http", "ok", 14, 0)) == 0
    assert score_of(profile, (1, "tcp", "http", "ok", 15, 0)) == whole
    assert score_of(profile, (1, "tcp", "http", "ok", -4, 0)) == 0
    assert score_of(profile, (1, "tcp", "http", "ok", -5, 0)) == whole
    assert score_of(profile, (1, "tcp", "http", "ok", 5, 1)) == whole


def test_a_load_is_predicted_from_this_slice_and_from_that_hour_before() -> None:
    def load(time: int, plug: int, value: int) -> dict[str, Any]:
        return {"time": time, "kind": "load", "house": 1, "household": 2, "plug": plug, "value": value}

    def end(time: int, number: int) -> dict[str, Any]:
        return {"time": time, "kind": "end", "house": ALL, "household": ALL, "plug": ALL, "value": number}

    rows = [load(1, 3, 10), load(2, 3, 11), load(3, 4, 100), end(4, 2), load(5, 3, 50), end(6, 24), end(7, 25)]
    found = given(SmartHome(), rows)
    assert found == [
        (4, 4, "all", None, None, None, 40_333),
        (4, 4, "house", 1, None, None, 40_333),
        (4, 4, "household", 1, 2, None, 40_333),
        (4, 4, "plug", 1, 2, 3, 10_500),
        (4, 4, "plug", 1, 2, 4, 100_000),
        # Slice 26 is at the hour of slice 2, of which there are averages: 121/3 and 10.5.
        (6, 26, "all", None, None, None, 45_166),
        (6, 26, "house", 1, None, None, 45_166),
        (6, 26, "household", 1, 2, None, 45_166),
        (6, 26, "plug", 1, 2, 3, 30_250),
    ]


def test_a_prediction_is_rounded_down() -> None:
    assert predicted((2, 3), None) == 666
    assert predicted((-2, 3), None) == -667
    assert predicted((1, 3), (1, 7)) == 238  # (1/3 + 1/7) / 2 = 5/21
