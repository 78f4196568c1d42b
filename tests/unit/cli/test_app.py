"""What needs no Spark: help, versions, `check` and `explain` of a text, and errors as messages."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from headrace import __version__
from headrace.cli import app

from .conftest import Command

RULES = """\
SELECT count(*) AS n, sum(amount) AS spent FROM payments WHERE amount > 0 GROUP BY card OVER sliding 5 minutes;
SELECT avg(amount) AS usual FROM payments GROUP BY merchant OVER sliding 1 hour delayed by 1 minute
"""


def test_help_names_every_command(headrace: Command) -> None:
    said = headrace("--help")
    assert said.code == 0
    assert all(command in said.out for command in ("demo", "check", "explain", "measure", "state"))


@pytest.mark.parametrize("command", ["demo", "check", "explain", "measure"])
def test_every_command_has_help_with_an_example(headrace: Command, command: str) -> None:
    said = headrace(command, "-h")
    assert said.code == 0
    assert f"Usage: headrace {command} " in said.out
    assert f"\n headrace {command}" in said.out


def test_the_version_is_that_of_the_package(headrace: Command) -> None:
    assert headrace("--version").out.startswith(f"headrace {__version__} (pyspark 4.")


def test_wrong_use_exits_with_2(headrace: Command) -> None:
    assert headrace("measure", "rules.sql").code == 2
    assert headrace("nonsense").code == 2


def test_check_shows_the_metrics(headrace: Command) -> None:
    Path("rules.sql").write_text(RULES)
    said = headrace("check", "rules.sql")
    assert (said.code, said.err) == (0, "")
    assert [line.split() for line in said.out.splitlines()] == [
        ["metric", "is", "by", "over", "where"],
        ["n", "count(*)", "card", "sliding", "5m", "amount", ">", "0"],
        ["spent", "sum(amount)", "card", "sliding", "5m", "amount", ">", "0"],
        ["usual", "avg(amount)", "merchant", "sliding", "1h", "delayed", "by", "1m"],
        [],
        ["ok:", "3", "metrics;", "the", "text", "is", "right"],
    ]


def test_a_text_may_come_from_standard_input(headrace: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(RULES.encode())))
    assert headrace("check", "-").code == 0


def test_explain_prints_a_tree_that_shows_what_is_shared(headrace: Command) -> None:
    Path("rules.sql").write_text(RULES)
    said = headrace("explain", "rules.sql", "--time", "ts")
    assert said.code == 0
    assert "├─ stage 1: partition by card" in said.out
    assert "└─ stage 2: partition by merchant" in said.out
    assert "window sliding 5m  (shared by 2 metrics)" in said.out


def test_explain_takes_the_time_from_the_sql_form(headrace: Command) -> None:
    frame = "RANGE BETWEEN INTERVAL 5 MINUTES PRECEDING AND CURRENT ROW"
    Path("sql.sql").write_text(f"SELECT count(*) OVER (PARTITION BY card ORDER BY paid_at {frame}) AS n FROM payments")
    assert "in the order of paid_at" in headrace("explain", "sql.sql").out


def test_one_of_several_streams_can_be_looked_at(headrace: Command) -> None:
    Path("two.sql").write_text(
        "SELECT count(*) AS n FROM a OVER sliding 5m; SELECT count(*) AS n FROM b OVER sliding 1h"
    )
    assert "2 metrics" in headrace("check", "two.sql").out
    assert "1 metric;" in headrace("check", "two.sql", "--stream", "b").out
    assert headrace("check", "two.sql", "--stream", "c").code == 2
    assert "sliding 1h" in headrace("explain", "two.sql", "--stream", "b").out
    assert "choose it with" in headrace("explain", "two.sql").err


OVER = "FROM payments GROUP BY card OVER sliding 5 minutes"
BAD = {
    "unknown function": (f"SELECT summ(amount) {OVER}", "there is no aggregation summ", "did you mean sum?"),
    "missing window": ("SELECT sum(amount) FROM payments GROUP BY card", "every metric needs a window", "OVER sliding"),
    "unparsable duration": ("SELECT sum(amount) FROM payments OVER sliding 5 parsecs", "parsecs", "unit of time"),
    "duplicate name": (f"SELECT sum(amount) AS n, count(*) AS N {OVER}", "cannot be called N", "AS other_name"),
    "empty file": ("", "there is no metric in the text", "write a metric such as"),
    "10 MB": (f"SELECT count(*) FROM p WHERE a IN ({'12345678, ' * 1_000_000}1) OVER sliding 5m", "characters", "most"),
    "deep nesting": (f"SELECT count(*) FROM p WHERE {'(' * 50_000}a{')' * 50_000} OVER sliding 5m", "nested", "deep"),
    "deep negation": (f"SELECT count(*) FROM p WHERE {'NOT ' * 50_000}a OVER sliding 5m", "nested", "deep"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("command", ["check", "explain"])
def test_a_bad_text_is_answered_with_its_place(headrace: Command, case: str, command: str) -> None:
    text, problem, help = BAD[case]
    Path("bad.sql").write_text(text)
    said = headrace(command, "bad.sql")
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("error: line 1, column ")
    assert problem in said.err
    assert help in said.err
    assert "Traceback" not in said.err


def test_the_caret_stands_below_the_word(headrace: Command) -> None:
    Path("bad.sql").write_text(f"-- [bold]markup[/bold] is text\nSELECT summ(amount) {OVER}\n")
    lines = headrace("check", "bad.sql").err.splitlines()
    assert lines[0] == "error: line 2, column 8: there is no aggregation summ"
    assert lines[1].index("summ") == lines[2].index("^^^^")


def test_a_missing_and_a_binary_file_are_refused(headrace: Command) -> None:
    Path("picture.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    assert headrace("check", "rules.sql") == (2, "", "error: rules.sql: there is no such file\n")
    said = headrace("check", "picture.png")
    assert said.code == 2
    assert "not text" in said.err


def test_what_nobody_expected_is_one_message_and_with_debug_a_traceback(
    headrace: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("the sky fell")

    monkeypatch.setattr(app, "app", broken)
    assert headrace("check", "rules.sql") == (
        1,
        "",
        "error: something unexpected happened: RuntimeError: the sky fell\n"
        "run the same command with --debug to see the whole story\n",
    )
    assert "Traceback (most recent call last)" in headrace("check", "rules.sql", "--debug").err
