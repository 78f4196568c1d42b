"""Streams of the front end: how they are written, and what is said where they are wrong."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import DefinitionError, HeadraceError, ParseError, RequestRefused
from headrace.service.events import from_json_body
from headrace.service.streams import StreamSpec, read_streams

METRIC = "SELECT count(*) AS n FROM payments GROUP BY card OVER sliding 5 minutes"
PAYMENTS = "CREATE STREAM payments (txn STRING ID, ts TIMESTAMP TIME, card STRING, amount DECIMAL(10, 2));"


def test_a_file_has_streams_and_their_metrics() -> None:
    text = f"""
        {PAYMENTS}
        create stream logins (id long id, at timestamp time, user string);
        {METRIC};
        SELECT count(*) AS tries FROM logins GROUP BY user OVER sliding 1 hour
    """
    payments, logins = read_streams(text)
    assert (payments.name, payments.time, payments.id) == ("payments", "ts", "txn")
    assert payments.schema.field("amount").type == pa.decimal128(10, 2)
    assert (logins.name, logins.columns["id"], logins.metrics().names) == ("logins", "bigint", ("tries",))
    assert StreamSpec.from_json(payments.as_json()) == payments


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (METRIC, "there is no stream; say what its events are: CREATE STREAM"),
        (f"{PAYMENTS} {PAYMENTS} {METRIC}", "stream payments is created twice"),
        (PAYMENTS.replace(" TIME,", ",") + METRIC, "stream payments has no time column; mark one"),
        (PAYMENTS.replace(" ID,", ",") + METRIC, "stream payments has no id column"),
        (PAYMENTS.replace("card STRING", "card STRING ID") + METRIC, "two ID columns"),
        (PAYMENTS.replace("card STRING", "card") + METRIC, "'card' is no column; write NAME TYPE"),
        (PAYMENTS.replace("card STRING", "card STRNG") + METRIC, "there is no type STRNG; did you mean string"),
        (PAYMENTS.replace("card STRING", "status STRING") + METRIC, "a column cannot be called status"),
        (f"{PAYMENTS} {METRIC.replace('payments', 'paiments')}", "no metric is over stream payments"),
        (f"{PAYMENTS} {METRIC}; {METRIC.replace('payments', 'logins')}", "there is no stream logins"),
        (f"{PAYMENTS} {METRIC.replace('card', 'cards')}", "did you mean card"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text: str, said: str) -> None:
    with pytest.raises(HeadraceError) as raised:
        read_streams(text)
    assert said in str(raised.value)


def test_errors_show_the_line_of_the_file() -> None:
    with pytest.raises(ParseError, match="line 3"):
        read_streams(f"{PAYMENTS}\n{METRIC};\nSELECT count( FROM payments")


def test_names_are_for_queues_too() -> None:
    with pytest.raises(DefinitionError, match="stream name 'a-b'"):
        StreamSpec("a-b", {"id": "string", "ts": "timestamp"}, "ts", "id", METRIC)


@pytest.mark.parametrize(
    ("type", "good", "bad"),
    [
        (pa.bool_(), ["true", "false", "null"], ["1", '"true"']),
        (pa.int8(), ["127", "-128", "null"], ["128", "1.5", "true", '"1"']),
        (pa.float64(), ["1", "1.5", "1e300", "null"], ['"1"', "true", "[]"]),
        (pa.decimal128(5, 2), ["1.25", '"1.25"', "7", "999.99"], ["1.255", '"x"', "true", "1000", "1e999"]),
        (pa.string(), ['"a"', '""', "null"], ["1", "{}"]),
        (pa.date32(), ['"2026-03-03"'], ['"3.3.2026"', "5"]),
        (pa.timestamp("us", "UTC"), ['"2026-03-03T12:00:00Z"', '"2026-03-03T12:00:00+02:00"'], ['"noon"', "7"]),
        (pa.timestamp("us"), ['"2026-03-03T12:00:00"'], ['"2026-03-03T12:00:00Z"']),
        (pa.binary(), ['"AGE="'], ['"?"', "1"]),
    ],
)
def test_values_are_what_the_stream_says(type: pa.DataType, good: list[str], bad: list[str]) -> None:
    schema = pa.schema([("x", type)])
    for value in good:
        assert from_json_body(f'{{"x": {value}}}'.encode(), schema, ()).num_rows == 1
    for value in bad:
        with pytest.raises(RequestRefused):
            from_json_body(f'{{"x": {value}}}'.encode(), schema, ())
