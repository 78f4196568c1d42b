"""The oracle against answers worked out by hand: it judges everything else, so nothing else judges it."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import MetricOverflow
from headrace.testing.definitions import answer, double_sum, square_root, std_dev
from headrace.testing.oracle import Oracle, oracle_table

MINUTE = 60_000_000


def events(times: list[int | None], x: list[Any] | None = None, **columns: list[Any]) -> pa.Table:
    """Events at whole minutes, with ids in the order given."""
    rows = len(times)
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "ts": pa.array([None if t is None else t * MINUTE for t in times], pa.timestamp("us", "UTC")),
            "x": pa.array(x if x is not None else list(range(1, rows + 1)), pa.int64()),
            **{name: pa.array(values) for name, values in columns.items()},
        }
    )


def answers(metric: str, table: pa.Table, arrival: str | None = None) -> list[Any]:
    call, _, rest = metric.partition(" FROM t")
    text = f"SELECT {call} AS m FROM t{rest}"
    return oracle_table(text, table, time="ts", id="id", arrival=arrival).column("m").to_pylist()  # type: ignore[no-any-return]


def test_figure_1_of_the_paper_five_events_within_five_minutes() -> None:
    # e1 to e5 at 0:50, 1:50, 2:50, 3:50 and 5:40: e5 comes 4 min 50 s after e1, so a 5-minute window holds all five.
    seconds = [50, 110, 170, 230, 340]
    table = pa.table(
        {
            "id": pa.array(range(5), pa.int64()),
            "ts": pa.array([second * 1_000_000 for second in seconds], pa.timestamp("us", "UTC")),
        }
    )
    assert answers("count(*) FROM t OVER sliding 5 minutes", table) == [1, 2, 3, 4, 5]
    # Hopping by a minute: windows start at whole minutes, and none of them holds more than four.
    hops = [sum(start <= second < start + 300 for second in seconds) for start in range(-300, 360, 60)]
    assert max(hops) == 4


def test_a_sliding_window_is_open_at_its_old_edge_and_closed_at_its_new_one() -> None:
    assert answers("sum(x) FROM t OVER sliding 5m", events([0, 1, 5, 6, 10])) == [1, 3, 5, 7, 9]


def test_ties_see_those_that_arrived_before_them() -> None:
    table = events([3, 3, 3, 4])
    assert answers("count(*) FROM t OVER sliding 5m", table) == [1, 2, 3, 4]
    assert answers("last(x) FROM t OVER sliding 5m", table) == [1, 2, 3, 4]
    assert answers("prev(x) FROM t OVER sliding 5m", table) == [None, 1, 2, 3]


def test_a_late_event_is_answered_at_its_own_time_and_seen_by_later_events() -> None:
    # In order of arrival: minutes 0, 4, 2 (late), 5.
    table = events([0, 4, 2, 5], x=[1, 10, 100, 1000], seq=[0, 1, 2, 3])
    assert answers("sum(x) FROM t OVER sliding 5m", table, "seq") == [1, 11, 101, 1110]
    assert answers("last(x) FROM t OVER sliding 5m", table, "seq") == [1, 10, 100, 1000]
    assert answers("prev(x) FROM t OVER sliding 5m", table, "seq") == [None, 1, 1, 10]
    # By count, order is arrival alone: the late event is the newest when it comes.
    assert answers("sum(x) FROM t OVER sliding 2 events", table, "seq") == [1, 11, 110, 1100]
    assert answers("last(x) FROM t OVER sliding 2 events", table, "seq") == [1, 10, 100, 1000]


def test_delayed_moves_both_edges_back() -> None:
    table = events([0, 1, 2, 3, 4])
    assert answers("sum(x) FROM t OVER sliding 2m delayed by 1m", table) == [None, 1, 3, 5, 7]
    assert answers("count(*) FROM t OVER infinite delayed by 3m", table) == [0, 0, 0, 1, 2]


def test_tumbling_starts_at_multiples_of_its_width_also_before_the_epoch() -> None:
    table = events([-3, -1, 0, 4, 5, 9])
    assert answers("sum(x) FROM t OVER tumbling 5m", table) == [1, 3, 3, 7, 5, 11]
    # One minute back: -4, -2, -1, 3, 4 and 8 are the ends of the windows.
    assert answers("sum(x) FROM t OVER tumbling 5m delayed by 1m", table) == [None, 1, 3, 3, 7, 5]


def test_a_row_that_fails_the_filter_is_answered_and_not_counted() -> None:
    table = events([0, 1, 2, 3], ok=[True, False, None, True])
    assert answers("sum(x) FROM t WHERE ok OVER sliding 5m", table) == [1, 1, 1, 5]
    assert answers("count(*) FROM t WHERE ok OVER sliding 1 events", table) == [1, 1, 1, 1]
    assert answers("sum(x) FROM t WHERE ok OVER sliding 1 events", table) == [1, 1, 1, 4]


def test_null_is_a_group_and_so_are_zero_and_nan() -> None:
    nan = math.nan
    table = events([0, 1, 2, 3, 4, 5], k=[None, 0.0, nan, -0.0, None, -nan])
    assert answers("sum(x) FROM t GROUP BY k OVER infinite", table) == [1, 2, 3, 6, 6, 9]


def test_rows_without_a_time_are_not_measured() -> None:
    table = events([0, None, 1], seq=[5, 6, None])
    assert answers("count(*) FROM t OVER infinite", table) == [1, None, 2]
    assert answers("count(*) FROM t OVER infinite", table, "seq") == [1, None, None]


def test_rows_too_far_from_the_epoch_are_not_measured() -> None:
    table = pa.table({"id": [0, 1, 2], "ts": pa.array([0, 2**60, 2**60 + 1], pa.timestamp("us", "UTC"))})
    assert answers("count(*) FROM t OVER infinite", table) == [1, 2, None]


def test_the_filter_keeps_arguments_from_failing() -> None:
    table = events([0, 1, 2], x=[2**62, 1, 2])
    assert answers("sum(x * 4) FROM t WHERE x < 10 OVER infinite", table) == [None, 4, 12]


def test_the_oracle_takes_no_sides_between_rows_that_tie() -> None:
    with pytest.raises(ValueError, match="rows 0 and 1 arrive together"):
        oracle_table("SELECT count(*) AS n FROM t OVER infinite", events([0, 0]), time="ts")


def test_it_can_say_what_a_window_holds() -> None:
    oracle = Oracle("SELECT sum(x) AS m FROM t OVER sliding 2m", events([0, 1, 2]), time="ts")
    assert oracle.inputs("m", 2) == [(MINUTE, 2), (2 * MINUTE, 3)]


def test_types_follow_the_contract() -> None:
    table = pa.table(
        {
            "ts": pa.array([0], pa.timestamp("us", "UTC")),
            "i": pa.array([1], pa.int32()),
            "d": pa.array([Decimal("1.10")], pa.decimal128(10, 2)),
            "s": ["a"],
        }
    )
    text = """SELECT sum(i) AS si, avg(i) AS ai, sum(d) AS sd, avg(d) AS ad, max(i) AS mi, topK(s, 2) AS ts2
              FROM t OVER infinite"""
    schema = oracle_table(text, table, time="ts").schema
    assert [schema.field(name).type for name in ("si", "ai", "sd", "ad", "mi")] == [
        pa.int64(), pa.float64(), pa.decimal128(20, 2), pa.decimal128(14, 6), pa.int32(),
    ]  # fmt: skip
    assert schema.field("ts2").type == pa.list_(pa.struct([("value", pa.string()), ("count", pa.int64())]))


def by_definition(function: str, values: list[Any], *parameters: float, kind: pa.DataType | None = None) -> Any:
    return answer(function, values, parameters, kind if kind is not None else pa.float64())


@pytest.mark.parametrize(
    ("function", "values", "parameters", "expected"),
    [
        ("count(*)", [None, 1], (), 2),
        ("count", [None, 1], (), 1),
        ("sum", [None], (), None),
        ("sum", [0.1] * 10, (), 1.0),
        ("avg", [1.0, 2.0, None], (), 1.5),
        ("stdDev", [2, 4, 4, 4, 5, 5, 7, 9], (), 2.138089935299395),
        ("stdDev", [1], (), None),
        ("min", [None, 3, 1], (), 1),
        ("max", ["a", "b", ""], (), "b"),
        ("min", [math.nan, 2.0], (), 2.0),
        ("first", [None, 1], (), None),
        ("last", [1, None], (), None),
        ("prev", [1, None], (), 1),
        ("prev", [1], (), None),
        ("countDistinct", [0.0, -0.0, math.nan, math.nan, None, 1.0], (), 3),
        ("median", [4, 1, 3, 2], (), 2.5),
        ("percentile", [10, 20, 30, 40, 50], (0.9,), 46.0),
        ("percentile", [], (0.9,), None),
        ("topK", ["b", "a", "c", "c", None], (2,), [{"value": "c", "count": 2}, {"value": "a", "count": 1}]),
        ("topK", [], (2,), []),
    ],
)
def test_aggregations(function: str, values: list[Any], parameters: tuple[float, ...], expected: Any) -> None:
    assert by_definition(function, values, *parameters) == expected


def test_nan_is_the_largest_number() -> None:
    assert math.isnan(by_definition("max", [1.0, math.nan, math.inf]))
    assert math.isnan(by_definition("stdDev", [1.0, math.inf]))
    assert math.isnan(by_definition("percentile", [1.0, math.nan], 0.5))


def test_doubles_are_summed_exactly() -> None:
    assert double_sum([1e300, 1.0, -1e300]) == 1.0
    assert double_sum([1e308, 1e308, -1e308]) == 1e308
    assert double_sum([1e308, 1e308]) == math.inf
    assert double_sum([-math.inf, 1.0]) == -math.inf
    assert math.isnan(double_sum([math.inf, -math.inf]))
    tenths = [0.1 * n for n in range(1000)]
    assert double_sum(tenths) == math.fsum(tenths)


def test_integers_and_decimals_do_not_wrap() -> None:
    assert by_definition("sum", [2**63 - 2, 1], kind=pa.int64()) == 2**63 - 1
    with pytest.raises(MetricOverflow):
        by_definition("sum", [2**63 - 1, 1], kind=pa.int64())
    with pytest.raises(MetricOverflow):
        by_definition("sum", [Decimal("9" * 38), Decimal(1)], kind=pa.decimal128(38, 0))
    assert by_definition("avg", [2**63 - 1, 2**63 - 1]) == float(2**63)


def test_averages_of_decimals_round_half_away_from_zero() -> None:
    assert by_definition("avg", [Decimal("0.01"), Decimal("0.02")], kind=pa.decimal128(4, 2)) == Decimal("0.02")
    assert by_definition("avg", [Decimal("-0.01"), Decimal("-0.02")], kind=pa.decimal128(4, 2)) == Decimal("-0.02")


def test_deviations_do_not_leave_the_range_of_a_double() -> None:
    assert std_dev([2.0**1000, -(2.0**1000)]) == math.sqrt(2) * 2.0**1000
    assert std_dev([2.0**-1000, -(2.0**-1000)]) == math.sqrt(2) * 2.0**-1000
    assert square_root(2) == math.sqrt(2)
    assert square_root(0) == 0.0
