"""`headrace check` of a program; of metric texts it is tested in test_app.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .conftest import Command

PROGRAM: Final = """
import pyarrow as pa
from headrace.synchronize.program import Program

class Counters(Program):
    outputs = pa.schema([("key", pa.int64()), ("count", pa.int64())])

    def depends(self, a, b):
        return a[1] == b[1] and "r" in (a[0], b[0])

    def init(self):
        return {}

    def update(self, state, event):
        count = state.get(event.key, 0)
        if event.kind == "i":
            return {**state, event.key: count + 1}, []
        return {**state, event.key: 0}, [(event.key, count)]

    def fork(self, state, left, right):
        mine = {key: count for key, count in state.items() if left(("r", key))}
        return mine, {key: count for key, count in state.items() if key not in mine}

    def join(self, left, right):
        return {key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}}
"""
BROKEN: Final = PROGRAM.replace("if key not in mine", 'if right(("r", key))')
ROWS: Final = [{"kind": kind, "key": key} for kind, key in [("i", 1), ("i", 2), ("r", 1), ("i", 2), ("r", 2)]]


def _write(name: str) -> None:
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), name)
    elif name.endswith(".csv"):
        Path(name).write_text("kind,key\n" + "".join(f"{row['kind']},{row['key']}\n" for row in ROWS))
    else:
        lines = json.dumps(ROWS) if name.startswith("array") else "\n".join(map(json.dumps, ROWS))
        Path(name).write_text(lines)


@pytest.mark.parametrize("data", ["events.parquet", "events.csv", "lines.json", "array.json"])
def test_a_good_program(headrace: Command, data: str) -> None:
    Path("counters.py").write_text(PROGRAM)
    _write(data)
    said = headrace("check", "counters.py", "--events", data, "--tag", "kind,key", "--seed", "3")
    assert (said.code, said.err) == (0, "")
    assert "join undoes fork" in said.out
    assert said.out.endswith("ok: Counters keeps all rules on 5 events with 4 tags, seed 3\n")


def test_a_broken_program_exits_with_1_and_a_story(headrace: Command) -> None:
    Path("counters.py").write_text(BROKEN)
    _write("events.csv")
    said = headrace("check", "counters.py", "--events", "events.csv", "--tag", "kind,key")
    assert (said.code, said.err) == (1, "")
    assert said.out.startswith("program Counters: it breaks the rule fork-join:\n")
    assert "update        kind='i' key=1 → {1: 1}" in said.out


def test_the_one_program_is_found_or_named(headrace: Command) -> None:
    own = '    tag = ("kind", "key")\n\n    def examples(self):\n        return ' + repr(ROWS) + "\n"
    Path("two.py").write_text(PROGRAM + own + "\nclass Others(Counters):\n    pass\n")
    assert headrace("check", "two.py") == (
        2,
        "",
        "error: two.py has several programs, Counters, Others; say which with --class Counters\n",
    )
    assert "ok: Others keeps" in headrace("check", "two.py", "--class", "Others").out
    said = headrace("check", "two.py", "--class", "Thirds")
    assert said == (2, "", "error: two.py has no program Thirds; it has Counters, Others\n")


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        ("x = 1", [], "counters.py has no program; it needs a class that is a hr.Program"),
        ("x = 1\nx.y()", [], "counters.py, line 2: AttributeError: 'int' object has no attribute 'y'"),
        ("class :", [], "counters.py, line 1: SyntaxError"),
        ("import sys\nsys.exit(0)", [], "counters.py, line 2: SystemExit: 0"),
        (PROGRAM, [], "there are no events to try it with; give some (--events)"),
        (PROGRAM, ["--events", "events.csv"], "say which column has the tag of an event"),
        (PROGRAM, ["--events", "events.csv", "--tag", "kin"], "its events have no column kin; they have kind, key"),
        (PROGRAM, ["--events", "none.csv"], "none.csv: there is no such file"),
        (PROGRAM, ["--events", "counters.py", "--input-format", "parquet"], "counters.py"),
        (PROGRAM, ["--stream", "a"], "--stream is for metric texts, and FILE is counters.py"),
        (PROGRAM + "\n    def __init__(self, size):\n        pass\n", [], "it cannot be made"),
        (PROGRAM.replace('event.kind == "i"', "event.sort"), ["--events", "events.csv", "--tag", "kind,key"], "sort"),
    ],
)
def test_what_is_wrong_is_said(headrace: Command, text: str, arguments: list[str], problem: str) -> None:
    Path("counters.py").write_text(text)
    _write("events.csv")
    said = headrace("check", "counters.py", *arguments)
    assert (said.code, said.out) == (2, "")
    assert problem in said.err
    assert "Traceback" not in said.err


def test_no_file_and_options_of_programs_for_a_text(headrace: Command) -> None:
    assert headrace("check", "counters.py") == (2, "", "error: counters.py: there is no such file\n")
    said = headrace("check", "rules.sql", "--tag", "kind")
    assert said == (2, "", "error: --tag is for programs, FILE.py, and FILE is rules.sql\n")
