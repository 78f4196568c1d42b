"""The comparison of answers must see every difference, and say where it is."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.testing.compare import assert_same_answers


def column(*values: Any, type: pa.DataType | None = None) -> pa.Table:
    return pa.table({"m": pa.array(values, type)})


@pytest.mark.parametrize(
    ("values", "type"),
    [
        ([0.0, math.nan, None, math.inf], pa.float64()),
        ([1, None], pa.int64()),
        ([Decimal("1.10"), None], pa.decimal128(10, 2)),
        (["", None, "é"], pa.string()),
        (
            [[{"value": math.nan, "count": 1}], []],
            pa.list_(pa.struct([("value", pa.float64()), ("count", pa.int64())])),
        ),
    ],
)
def test_equal_answers_are_the_same(values: list[Any], type: pa.DataType) -> None:
    assert_same_answers(column(*values, type=type), column(*values, type=type))


def test_zeros_are_equal_whatever_their_sign() -> None:
    assert_same_answers(column(0.0), column(-0.0))


@pytest.mark.parametrize(
    ("was", "wanted"),
    [
        (1.0, math.nextafter(1.0, 2.0)),
        (math.nan, 1.0),
        (None, 0.0),
        (math.inf, 1.7976931348623157e308),
        (1, 2),
        (None, 0),
        ("a", "A"),
        (Decimal("1.10"), Decimal("1.11")),
        ([{"value": "a", "count": 1}], [{"value": "a", "count": 2}]),
        ([1, 2], [2, 1]),
    ],
)
def test_different_answers_are_not(was: Any, wanted: Any) -> None:
    type = pa.array([wanted]).type
    with pytest.raises(AssertionError, match="column m, row 1"):
        assert_same_answers(column(wanted, was, type=type), column(wanted, wanted, type=type))


def test_ulps_are_counted_at_the_size_of_the_answer() -> None:
    near = math.nextafter(math.nextafter(1e100, math.inf), math.inf)
    assert_same_answers(column(near), column(1e100), ulps=2)
    assert_same_answers(column(near), column(1e100), ulps={"m": 2})
    with pytest.raises(AssertionError):
        assert_same_answers(column(near), column(1e100), ulps=1)
    with pytest.raises(AssertionError):
        assert_same_answers(column(math.inf), column(1.7976931348623157e308), ulps=4)


def test_types_columns_and_rows_must_agree() -> None:
    with pytest.raises(AssertionError, match="type int32, not int64"):
        assert_same_answers(column(1, type=pa.int32()), column(1, type=pa.int64()))
    with pytest.raises(AssertionError, match="columns"):
        assert_same_answers(column(1), column(1).rename_columns(["other"]))
    with pytest.raises(AssertionError, match="2 rows, not 1"):
        assert_same_answers(column(1, 2), column(1))


def test_the_message_shows_the_event_and_its_window() -> None:
    table = pa.table({"id": [7, 8], "m": [1, 2]})
    wrong = pa.table({"id": [7, 8], "m": [1, 3]})
    with pytest.raises(AssertionError, match=r"row 1: 3, expected 2\n.*'id': 8.*\n.*\[\(0, 'm'\), \(1, 1\)\]"):
        assert_same_answers(wrong, table, inputs=lambda metric, row: [(0, metric), (1, row)])
