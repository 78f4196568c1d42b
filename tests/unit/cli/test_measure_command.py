"""`headrace measure`, and what `check` and `explain` say of data, on the session of the tests."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .conftest import Command, Said

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("on_spark")]

CSV = """\
txn,ts,card,amount,note
1,2026-03-03 10:00:00.123456,a,1.50,"he said ""hi"", once"
2,2026-03-03T10:00:01Z,b,2,
3,,a,3," padded "
4,2026-03-03 10:00:02
5,2026-03-03 10:04:59,a,3.25,Zoë
"""
RULES = "SELECT count(*) AS n, sum(amount) AS spent FROM payments GROUP BY card OVER sliding 5 minutes"


@pytest.fixture(autouse=True)
def rules(headrace: Command) -> None:
    """The folder of a test has the rules and the payments."""
    Path("rules.sql").write_text(RULES)
    Path("payments.csv").write_text(CSV)


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return sorted(csv.DictReader(file), key=lambda row: row["txn"])


def lines_of(said: Said) -> list[str]:
    return [line.rstrip() for line in said.out.splitlines()]


def test_csv_in_csv_out_with_rejected_rows_set_aside(headrace: Command) -> None:
    said = headrace("measure", "rules.sql", "-i", "payments.csv", "-o", "out/scored.csv", "--time", "ts", "--id", "txn")
    assert (said.code, said.err) == (0, "")
    assert [list(row.values()) for row in rows("out/scored.csv")] == [
        ["1", "2026-03-03T10:00:00.123456Z", "a", "1.5", 'he said "hi", once', "1", "1.5"],
        ["2", "2026-03-03T10:00:01.000000Z", "b", "2.0", "", "1", "2.0"],
        ["5", "2026-03-03T10:04:59.000000Z", "a", "3.25", "Zoë", "2", "4.75"],
    ]
    without_time, short = rows("out/scored.csv.rejected")
    assert (without_time["reason"], without_time["note"]) == ("ts is null", " padded ")
    assert short["reason"] == "not a CSV record with 5 fields: 4,2026-03-03 10:00:02"
    assert [line.split(maxsplit=1) for line in lines_of(said) if not line.startswith("seconds")] == [
        ["rows", "3"],
        ["metrics", "2: n, spent"],
        ["rejected", "2 rows, with reasons in out/scored.csv.rejected"],
        ["written", "to  out/scored.csv"],
    ]
    assert [path.name for path in Path("out").iterdir() if path.name.startswith(".")] == []


def test_a_folder_of_parts_in_and_out_as_parquet(headrace: Command) -> None:
    Path("days").mkdir()
    head, *lines = CSV.splitlines(keepends=True)
    Path("days/one.csv").write_text(head + "".join(lines[:2]))
    Path("days/two.csv.gz").write_bytes(gzip.compress((head + lines[4]).encode()))
    said = headrace("measure", "rules.sql", "-i", "days", "-o", "scored", "--time", "ts")
    assert said.code == 0
    assert "rejected    0 rows" in said.out
    assert Path("scored/_SUCCESS").exists()
    assert not Path("scored.rejected").exists()
    table = pq.read_table("scored").sort_by("txn")
    assert table["n"].to_pylist() == [1, 1, 2]
    assert table.schema.field("ts").type == pa.timestamp("us", "UTC")
    assert (
        headrace("measure", "rules.sql", "-i", "scored", "-o", "again.parquet", "--time", "ts").code == 2
    )  # n is taken


def test_one_parquet_file_keeps_types_and_answers(headrace: Command) -> None:
    said = headrace("measure", "rules.sql", "-i", "payments.csv", "-o", "scored.parquet", "--time", "ts")
    assert said.code == 0
    table = pq.read_table("scored.parquet").sort_by("txn")
    assert table.column_names == ["txn", "ts", "card", "amount", "note", "n", "spent"]
    assert table["spent"].to_pylist() == [1.5, 2.0, 4.75]
    assert pq.read_table("scored.parquet.rejected")["reason"].to_pylist()[0] == "ts is null"


def test_json_lines_with_times_and_a_broken_record(headrace: Command) -> None:
    records = [{"txn": 1, "ts": "2026-03-03T10:00:00Z", "card": "a", "amount": 1}, {"txn": 2, "ts": None, "card": "a"}]
    Path("p.jsonl").write_text("\n".join([*map(json.dumps, records), "{broken", ""]))
    text = "SELECT topK(amount, 2) AS top FROM payments GROUP BY card OVER infinite"
    Path("rules.sql").write_text(text)
    said = headrace("measure", "rules.sql", "-i", "p.jsonl", "-o", "scored.csv", "--time", "ts")
    assert said.code == 0
    assert [row["top"] for row in rows("scored.csv")] == ['[{"value":1,"count":1}]']
    assert sorted(row["reason"] for row in rows("scored.csv.rejected")) == [
        "not a JSON record with 4 fields: {broken",
        "ts is null",
    ]


def test_a_json_array_is_read_too(headrace: Command) -> None:
    Path("p.json").write_text(
        json.dumps([{"txn": n, "ts": "2026-03-03T10:00:00Z", "card": "a", "amount": n} for n in (1, 2)], indent=1)
    )
    assert headrace("measure", "rules.sql", "-i", "p.json", "-o", "scored.csv", "--time", "ts", "--id", "txn").code == 0
    assert [row["spent"] for row in rows("scored.csv")] == ["1", "3"]


def test_arrival_replays_the_order_in_which_events_came(headrace: Command) -> None:
    Path("late.csv").write_text(
        "txn,ts,seq,card,amount\n1,2026-03-03 10:00:00,2,a,1\n2,2026-03-03 10:01:00,1,a,1\n3,2026-03-03 10:02:00,,a,1\n"
    )
    said = headrace("measure", "rules.sql", "-i", "late.csv", "-o", "scored.csv", "--time", "ts", "--arrival", "seq")
    assert said.code == 0
    assert [row["n"] for row in rows("scored.csv")] == ["1", "1"]
    assert [row["reason"] for row in rows("scored.csv.rejected")] == ["seq is null"]


@pytest.mark.parametrize(
    ("values", "time_format", "reason"),
    [
        (
            ["31/12/2025 10:00", "31/12/2025 10:04", "32/12/2025 10:05"],
            "dd/MM/yyyy HH:mm",
            "t does not read as dd/MM/yyyy HH:mm: 32/12/2025 10:05",
        ),
        (["1767175200000", "1767175440000", ""], "ms", "t is null"),
    ],
)
def test_times_of_other_kinds_are_read_with_a_format(
    headrace: Command, values: list[str], time_format: str, reason: str
) -> None:
    Path("old.csv").write_text("txn,t,card,amount\n" + "".join(f"{i},{t},a,1\n" for i, t in enumerate(values)))
    command = ("measure", "rules.sql", "-i", "old.csv", "-o", "scored.csv", "--time", "t")
    refused = headrace(*command)
    assert refused.code == 2
    assert "time column t is" in refused.err
    assert "--time-format" in refused.err
    assert headrace(*command, "--time-format", time_format).code == 0
    assert [(row["t"], row["n"]) for row in rows("scored.csv")] == [
        ("2025-12-31T10:00:00.000000Z", "1"),
        ("2025-12-31T10:04:00.000000Z", "2"),
    ]
    assert [row["reason"] for row in rows("scored.csv.rejected")] == [reason]


def test_data_without_rows_gives_the_columns_without_rows(headrace: Command) -> None:
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("card", pa.string()), ("amount", pa.float64())])
    pq.write_table(schema.empty_table(), "none.parquet")
    Path("none.csv").write_text("ts,card,amount\n")
    for name in ("none.parquet", "none.csv"):
        said = headrace("measure", "rules.sql", "-i", name, "-o", "scored.csv", "--time", "ts", "--overwrite")
        assert said.code == 0
        assert "rows        0" in said.out
        assert Path("scored.csv").read_text() == "ts,card,amount,n,spent\n"


def test_when_every_row_is_rejected_they_are_still_counted(headrace: Command) -> None:
    Path("p.csv").write_text("txn,ts,card,amount\n1,,a,1\n2,,a,1\n3,2026-03-03 10:00:00\n")
    said = headrace("measure", "rules.sql", "-i", "p.csv", "-o", "scored.csv", "--time", "ts")
    assert said.code == 0
    assert "rows        0" in said.out
    assert "rejected    3 rows" in said.out
    assert len(rows("scored.csv.rejected")) == 3


def test_the_reason_finds_another_name_where_the_data_has_that_one(headrace: Command) -> None:
    Path("p.csv").write_text("txn,ts,card,amount,Reason\n1,,a,1,mine\n2,2026-03-03 10:00:00,a,1,mine\n")
    assert headrace("measure", "rules.sql", "-i", "p.csv", "-o", "scored.csv", "--time", "ts").code == 0
    [rejected] = rows("scored.csv.rejected")
    assert (rejected["Reason"], rejected["headrace_reason"]) == ("mine", "ts is null")


def test_what_is_there_is_only_replaced_when_asked_and_only_by_a_whole_result(headrace: Command) -> None:
    command = ("measure", "rules.sql", "-i", "payments.csv", "-o", "scored.csv", "--time", "ts")
    Path("scored.csv").write_text("mine")
    Path("scored.csv.rejected").write_text("from before")
    said = headrace(*command)
    assert said == (2, "", "error: scored.csv: already exists; add --overwrite to replace it\n")
    Path("rules.sql").write_text("SELECT sum(cast(amount AS bigint) * 9000000000000000000) AS s FROM p OVER infinite")
    assert headrace(*command, "--overwrite").code == 2  # overflows while it runs
    assert Path("scored.csv").read_text() == "mine"
    Path("rules.sql").write_text(RULES)
    Path("payments.csv").write_text("\n".join(CSV.splitlines()[:3]))
    assert headrace(*command, "--overwrite").code == 0
    assert len(rows("scored.csv")) == 2
    assert not Path("scored.csv.rejected").exists()
    assert [path.name for path in Path().iterdir() if path.name.startswith(".")] == []


def test_a_folder_with_other_things_is_not_overwritten(headrace: Command) -> None:
    Path("home").mkdir()
    Path("home/diary.txt").write_text("dear diary")
    said = headrace("measure", "rules.sql", "-i", "payments.csv", "-o", "home", "--time", "ts", "--overwrite")
    assert said.code == 2
    assert "is a folder with other things in it" in said.err
    assert Path("home/diary.txt").exists()


BAD = {
    "unknown column": (
        "SELECT sum(amonut) AS s FROM p GROUP BY card OVER sliding 5m",
        "ts",
        "there is no column amonut",
    ),
    "wrong type": (
        "SELECT sum(card) AS s FROM p GROUP BY card OVER sliding 5m",
        "ts",
        "sum needs a number, not string",
    ),
    "duplicate name": ("SELECT sum(amount) AS n, count(*) AS n FROM p OVER sliding 5m", "ts", "cannot be called n"),
    "name of a column": ("SELECT sum(amount) AS card FROM p OVER sliding 5m", "ts", "cannot be called card"),
    "not a time": (RULES, "card", "time column card is string, not a time"),
    "no such time": (RULES, "tss", "did you mean ts?"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_the_data_is_refused_before_anything_is_written(headrace: Command, case: str) -> None:
    text, time, problem = BAD[case]
    Path("rules.sql").write_text(text)
    for command in (
        ("measure", "rules.sql", "-i", "payments.csv", "-o", "scored.csv", "--time", time),
        ("check", "rules.sql", "--schema-from", "payments.csv", "--time", time),
        ("explain", "rules.sql", "--input", "payments.csv", "--time", time),
    ):
        said = headrace(*command)
        assert (said.code, said.out) == (2, "")
        assert problem in said.err
        assert "Traceback" not in said.err
    assert not Path("scored.csv").exists()


def test_an_overflow_in_a_worker_is_told_like_any_other_problem(headrace: Command) -> None:
    Path("rules.sql").write_text("SELECT sum(cast(amount AS bigint) * 9000000000000000000) AS s FROM p OVER infinite")
    said = headrace("measure", "rules.sql", "-i", "payments.csv", "-o", "scored.csv", "--time", "ts")
    assert said.code == 2
    assert said.err.startswith("error: ")
    assert "does not fit" in said.err
    assert len(said.err.splitlines()) < 4


def test_a_damaged_file_is_named(headrace: Command) -> None:
    Path("bad.parquet").write_bytes(b"PAR1" + b"x" * 30 + b"PAR1")
    said = headrace("measure", "rules.sql", "-i", "bad.parquet", "-o", "scored.csv", "--time", "ts")
    assert said.code == 2
    assert said.err.startswith("error: bad.parquet: Spark cannot read it as parquet: ")


def test_check_with_data_shows_the_types_and_finds_the_time(headrace: Command) -> None:
    said = headrace("check", "rules.sql", "--schema-from", "payments.csv")
    assert said.code == 0
    assert [line.split()[-1] for line in said.out.splitlines()[:3]] == ["type", "bigint", "double"]
    assert "fits payments.csv" in said.out
    Path("untimed.csv").write_text("card,amount\na,1\n")
    assert "no column is a timestamp" in headrace("check", "rules.sql", "--schema-from", "untimed.csv").err


def test_explain_with_data_shows_the_types(headrace: Command) -> None:
    said = headrace("explain", "rules.sql", "-i", "payments.csv")
    assert said.code == 0
    assert "spent = sum(amount): double" in said.out
