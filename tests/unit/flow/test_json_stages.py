"""JSON in and out of flows."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import FlowError
from headrace.flow.builder import Flow
from headrace.flow.json_stages import from_json, json_objects, to_json
from headrace.flow.sequential import run_sequentially
from headrace.flow.sinks import callback
from headrace.flow.sources import generate

SCHEMA = pa.schema(
    [("id", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("amount", pa.float64()), ("n", pa.int64())]
)


def _messages(*values: Any) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary()), "offset": pa.array(range(len(values)), pa.int64())})


def test_objects_become_columns_and_what_is_missing_is_null() -> None:
    found = from_json(SCHEMA, keep=("offset",))(
        _messages(b'{"id": "a", "ts": "2024-02-29T23:59:59.5Z", "amount": 1, "more": [1]}', b'{\n  "n": 7\n}', b"{}")
    )
    assert found.schema.names == ["id", "ts", "amount", "n", "offset"]
    assert found.to_pylist() == [
        {"id": "a", "ts": dt.datetime(2024, 2, 29, 23, 59, 59, 500_000, dt.UTC), "amount": 1.0, "n": None, "offset": 0},
        {"id": None, "ts": None, "amount": None, "n": 7, "offset": 1},
        {"id": None, "ts": None, "amount": None, "n": None, "offset": 2},
    ]


@pytest.mark.parametrize("count", [1, 100])
def test_dates_are_texts(count: int) -> None:
    schema = pa.schema([("day", pa.date32())])
    assert from_json(schema)(_messages(*[b'{"day": "2024-02-29"}'] * count)).column(0)[-1].as_py() == dt.date(
        2024, 2, 29
    )
    with pytest.raises(ValueError, match=r"column day: .*2024-02-30"):
        from_json(schema)(_messages(*[b'{"day": "2024-02-30"}'] * count))


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("text", ["1.234567890123456789", "12345678901234567890.123456789012345678", "1e19", "-7"])
def test_decimals_are_what_was_written(text: str, count: int) -> None:
    found = from_json(pa.schema([("x", pa.decimal128(38, 18))]))(_messages(*[f'{{"x": {text}}}'.encode()] * count))
    assert found.column(0)[-1].as_py() == Decimal(text)


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize(
    ("type", "text", "said"),
    [
        (pa.float64(), "1e400", "Number too big to be stored in double"),
        (pa.float64(), "9" * 400, "column x: there is a number too large for double"),
        (pa.float64(), "-Infinity", "column x: there is a number too large for double"),
        (pa.float32(), "-1e39", "column x: there is a number too large for float"),
        (pa.decimal128(5, 2), "1.255", "requires scale 3"),
        (pa.decimal128(5, 2), "1000", "column x: there is a number too large for decimal128(5, 2)"),
        (pa.decimal128(38, 18), "1e400", "Number too big to be stored in double"),
    ],
)
def test_numbers_that_a_column_cannot_hold_are_refused(type: pa.DataType, text: str, said: str, count: int) -> None:
    good = [b'{"x": 1}', b"{}"] * (count // 2)
    with pytest.raises(ValueError, match=re.escape(said)):
        from_json(pa.schema([("x", type)]))(_messages(*good, f'{{"x": {text}}}'.encode()))


def test_a_batch_of_none() -> None:
    assert from_json(SCHEMA)(_messages()).schema == SCHEMA


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"nonsense", "not one JSON object"),
        (b'{"id": "a"', "not one JSON object"),
        (b'{"id": 1}', "Column(/id) changed from string to number"),
        (b'{"ts": "yesterday"}', "couldn't parse:yesterday"),
        (b'{"n": 1.5}', "couldn't parse:1.5"),
        (b'{"id" "a"}', "Missing a colon after a name"),
        (b'{"id": "a\nb"}', "Invalid encoding in string"),
        (b"[1]", "not one JSON object"),
        (b'{"id": "a"} {"id": "b"}', "not one JSON object"),
        (b"", "not one JSON object"),
        (b'{"id": "a", "id": "b"}', "specified twice"),
        (None, "no value"),
    ],
)
def test_what_is_no_such_object_is_told_and_goes_aside(value: bytes | None, said: str) -> None:
    good = b'{"id": "good"}'
    flow = Flow("parsing")
    raw = flow.source("raw", generate(lambda first, count: _messages(good, value, good).slice(first, count), 3))
    parsed = flow.stage("parse", from_json(SCHEMA), raw, on_error="side")
    flow.sink("good", parsed, callback(print))
    flow.sink("bad", parsed.side("errors"), callback(print))
    found = run_sequentially(flow.graph())
    assert found["good"]["id"].to_pylist() == ["good", "good"]
    assert said in found["bad"]["reason"][0].as_py()
    assert found["bad"]["offset"].to_pylist() == [1]


def test_binary_and_other_things_are_not_for_json() -> None:
    with pytest.raises(FlowError, match="JSON has no binary for column raw; use string"):
        from_json(pa.schema([("raw", pa.binary())]))
    with pytest.raises(FlowError, match="wants the columns"):
        from_json({"id": "string"})
    with pytest.raises(FlowError, match="no column card for the key"):
        to_json(key="card")(pa.record_batch({"id": ["a"]}))


_VALUES = {
    pa.string(): st.text(st.characters(exclude_categories=["Cs"])),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.decimal128(10, 2): st.decimals(-1000, 1000, places=2),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(dt.datetime(1900, 1, 1), timezones=st.just(dt.UTC)),
    pa.binary(): st.binary(max_size=3),
    pa.list_(pa.float64()): st.lists(st.floats(), max_size=2),
}


@given(
    st.sampled_from(list(_VALUES)).flatmap(lambda kind: st.tuples(st.just(kind), st.lists(_VALUES[kind] | st.none())))
)
def test_every_value_is_json(case: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = case
    texts = json_objects(pa.record_batch({'a "b"': pa.array(values, kind)})).to_pylist()
    for value, text in zip(values, texts, strict=True):
        found = json.loads(text, parse_constant=lambda name: pytest.fail(name))['a "b"']
        if isinstance(value, float):
            assert found == (value if math.isfinite(value) else None)
        elif isinstance(value, int | str | bool | None):
            assert found == value
        elif isinstance(value, dt.datetime):
            assert dt.datetime.fromisoformat(found) == value


def test_what_is_written_can_be_read() -> None:
    batch = pa.record_batch(
        [["a", None], pa.array([1, 2], SCHEMA.types[1]), [0.1, 1e300], [2**63 - 1, -5]], schema=SCHEMA
    )
    written = to_json(key="id")(batch)
    assert written.schema.names == ["key", "value"]
    assert from_json(SCHEMA)(written).equals(batch)


@given(
    st.lists(st.sampled_from((b"{", b"}", b'"', b":", b",", b"n", b"1", b" ", b"\n", b"[", b"]")), max_size=8),
    st.data(),
)
def test_what_is_wrong_in_one_message_is_not_made_good_by_another(parts: list[bytes], data: st.DataObject) -> None:
    """Two messages together are what they are alone, or are refused."""
    text = b'{"n": 1} {"n":2}' if data.draw(st.booleans()) else b"".join(parts)
    cut = data.draw(st.integers(0, len(text)))
    parse = from_json(SCHEMA)

    def alone(value: bytes) -> list[Any] | None:
        try:
            return list(parse(_messages(value)).to_pylist())
        except ValueError:
            return None

    one, other = text[:cut], text[cut:]
    each = [alone(one), alone(other)]
    try:
        both = parse(_messages(one, other)).to_pylist()
    except ValueError:
        assert None in each
    else:
        assert both == [*(each[0] or []), *(each[1] or [])]
        assert None not in each
