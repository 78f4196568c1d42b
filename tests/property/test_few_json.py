"""A few JSON objects are read and written as many are."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.flow.few_json import FEW, FEW_READ
from headrace.flow.json_stages import FromJson, json_objects

SCHEMA = pa.schema(
    [
        ("whole", pa.int64()),
        ("small", pa.int8()),
        ("double", pa.float64()),
        ("word", pa.string()),
        ("yes", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
    ]
)
NUMBERS = ["0", "-0", "-0.0", "1.0", "1e2", "1E400", "NaN", "-Infinity", "9" * 19, "9" * 400, "01", "1.", "0.1", "127"]
MOMENTS = [
    "2020-01-01", "2020-02-30T00:00:00Z", "2020-01-01 10:11:12", "2020-01-01T00:00:00.5Z", "2020-01-01T00:00:00+02:00",
    "0000-01-01T00:00:00", "9999-12-31T23:59:59.999999Z", "2020-01-01T00:00:00.1234567", "٢٠٢٠-01-01T00:00:00", "",
    "2020-01-01T24:00:00",
]  # fmt: skip
texts = st.one_of(st.text(max_size=6), st.sampled_from(MOMENTS))
values = st.one_of(
    st.sampled_from([*NUMBERS, "true", "null", '"\\ud800"', '"\\u00e9"', "[1]", '{"a": 1, "a": 2}', '"\x01"']),
    st.integers().map(str),
    st.floats().map(json.dumps),
    texts.map(json.dumps),
    texts.map(lambda text: json.dumps(text, ensure_ascii=False)),
)
names = st.sampled_from([*SCHEMA.names, "other", "whol\\u0065"])
objects = st.lists(st.tuples(names, values), max_size=6).map(
    lambda pairs: "{" + ", ".join(f'"{name}": {value}' for name, value in pairs) + "}"
)


def _outcome(values: list[bytes]) -> Any:
    try:
        read = FromJson(SCHEMA)(pa.record_batch({"value": pa.array(values)}))
    except ValueError:
        return None
    # A moment may be one that Python has none for.
    columns = [each.view(pa.int64()) if pa.types.is_timestamp(each.type) else each for each in read.columns]
    return [repr(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]


@settings(max_examples=400)
@given(objects)
@example('{"double": -0}')
@example('{"other": 1e999}')
@example('{"other": "\\uD800", "whole": 1}')
def test_one_is_read_as_one_of_many(text: str) -> None:
    """Where a record cannot be read among many, it is asked for alone: what counts is a record that can be."""
    line = text.encode(errors="surrogatepass")
    alone, among = _outcome([line]), _outcome([line] * (FEW_READ + 1))
    if alone is None or among is None:
        assert alone is among
    else:
        assert among == alone * (FEW_READ + 1)


TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.one_of(st.floats(), st.floats(-1e6, 1e6), st.integers(-(10**12), 10**12).map(float)),
    pa.string(): st.text(max_size=6),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", "UTC"): st.integers(-(10**17), 3 * 10**17),
    pa.timestamp("us"): st.integers(-(10**17), 3 * 10**17),
    pa.timestamp("ms", "Europe/Paris"): st.integers(0, 10**12),
    pa.date32(): st.integers(-10_000, 40_000),
    pa.float32(): st.floats(width=32),
    pa.list_(pa.int64()): st.lists(st.integers(0, 9), max_size=3),
}


@settings(max_examples=200)
@given(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=5).flatmap(
    lambda types: st.tuples(st.just(types), st.lists(
        st.tuples(*(st.one_of(st.none(), TYPES[type]) for type in types)), min_size=1, max_size=2 * FEW))
))  # fmt: skip
def test_one_is_written_as_one_of_many(made: tuple[list[pa.DataType], list[tuple[Any, ...]]]) -> None:
    types, rows = made
    columns = [pa.array([row[i] for row in rows], type) for i, type in enumerate(types)]
    batch = pa.RecordBatch.from_arrays(columns, [f'c{i} é"' for i in range(len(types))])
    alone = [json_objects(batch.slice(i, 1))[0].as_py() for i in range(len(rows))]
    many = json_objects(pa.concat_batches([batch] * (FEW + 1)))
    assert many.to_pylist() == alone * (FEW + 1)
    for text in alone:
        json.loads(text)
