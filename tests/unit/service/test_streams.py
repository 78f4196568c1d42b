"""Streams of the front end: how they are written, and what is said where they are wrong."""

from __future__ import annotations

from decimal import Decimal

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
        (pa.float64(), ["1", "1.5", "1e300", "null"], ['"1"', "true", "[]", "1e400", "-1e400", "9" * 400]),
        (pa.float32(), ["1", "1.5", "3.4e38", "null"], ["1e39", "-1e39", "1e400", "9" * 40]),
        (
            pa.decimal128(5, 2),
            ["1.25", '"1.25"', "7", "999.99", "1.2500", "125e-2", "0e9"],
            ["1.255", '"x"', "true", "1000", "1e999", "1e99999999999999999999", '"NaN"', '"Infinity"', "9" * 400],
        ),
        (pa.string(), ['"a"', '""', "null"], ["1", "1.5", "{}"]),
        (pa.date32(), ['"2026-03-03"'], ['"3.3.2026"', "5", "20260303.0"]),
        (pa.timestamp("us", "UTC"), ['"2026-03-03T12:00:00Z"', '"2026-03-03T12:00:00+02:00"'], ['"noon"', "7", "7.5"]),
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


@pytest.mark.parametrize(
    "text", ["1.234567890123456789", "12345678901234567890.123456789012345678", "-0.000000000000000001", "1e19", "7"]
)
def test_decimals_are_what_was_written(text: str) -> None:
    schema = pa.schema([("x", pa.decimal128(38, 18))])
    for value in (text, f'"{text}"'):
        found = from_json_body(f'{{"x": {value}}}'.encode(), schema, ()).column("x")[0].as_py()
        assert found == Decimal(text)


@pytest.mark.parametrize(
    ("type", "text", "said"),
    [
        (pa.float64(), "-1e400", "event 0, field x: -1e400 is not a double"),
        (pa.float32(), "1e39", "event 0, field x: 1e39 is not a float"),
        (pa.decimal128(5, 2), "1.255", "event 0, field x: 1.255 is not a decimal(5,2)"),
        (pa.decimal128(5, 2), "1000", "event 0, field x: 1000 is not a decimal(5,2)"),
        (pa.string(), "1.50", "event 0, field x: 1.50 is not a string"),
        (pa.int64(), "9" * 5000, f"event 0, field x: {'9' * 60}… is not a bigint"),
    ],
)
def test_numbers_that_are_refused_are_shown_as_they_were_written(type: pa.DataType, text: str, said: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        from_json_body(f'{{"x": {text}}}'.encode(), pa.schema([("x", type)]), ())
    assert str(refused.value) == said


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_in_json_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused, match=f"{text} is not in JSON"):
        from_json_body(f'{{"x": {text}}}'.encode(), pa.schema([("x", pa.float64())]), ())
