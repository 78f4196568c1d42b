"""Every example runs and prints what it should; what the pages show below a piece of Python is what it prints."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from headrace.spark import session

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if "```python" in page.read_text()]
SHOWN = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)

LINES = {
    "auctions_joined.py": [
        "4000 events, 5 windows, 206 who entered and opened an auction, such as",
        "  00:00:00  1000  Saul Shultz",
        "as a query over all events gives them: yes",
    ],
    "changes_in_order.py": [
        "2000 changes, 0 refused; 166 orders are left, such as",
        "as if applied one by one: yes",
        "without ordered(), changes are refused: yes",
    ],
    "epoch_snapshots.py": [
        "3000 payments, 6 days, 30 states of 5 tasks",
        "  day 2: 7457.50 in 97 accounts, 7457.50 in 5 countries",
        "the same when it starts from the evening of day 2: yes",
    ],
    "first_metric.py": ["|  5|2026-03-03 12:05:00| ann| 60.00|  3|85.00|"],
    "fraud_model.py": [
        "program FraudModel: consistent on 12 events with 2 tags, seed 0",
        "19980 payments, 1844 alerts, 20 models, such as",
        "as the loop gives them: yes",
    ],
    "fraud_rules.py": ["card testing        : 12 stolen cards,   0 others"],
    "friends_of_friends.py": [
        "search 7 is complete: 86 people, 52 of them 4 steps away",
        "20 searches, each as one by one: yes",
        "with friends that are loaded: the same; kept in the end: 0",
    ],
    "replay_arrival.py": [
        "   101  12:04      20            530                30  <- the late payment was not there yet"
    ],
    "spending_flow.py": ["flow spending: 5 tasks, 4 queues", "17119 alerts, 17119 payments"],
    "stream_with_restart.py": [
        "stopped after 700 payments",
        "{'ok': 1000, 'late': 0, 'rewritten': 0, 'duplicate': 0, 'discarded': 0}",
        "different from those of the batch: 0",
    ],
    "survives_a_crash.py": [
        "without copies: each payment is scored once, as one by one: yes",
        "with two copies: each payment is scored once, as one by one: yes",
    ],
}
"""Lines that an example must print."""


def test_every_example_has_lines_to_look_for() -> None:
    assert sorted(LINES) == [example.name for example in EXAMPLES]


AS_A_PROGRAM = ("first_metric.py",)
"""As its user runs it; the others share the session of all tests."""


@pytest.mark.spark
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path, request: pytest.FixtureRequest) -> None:
    if example.name in AS_A_PROGRAM:
        done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 0, done.stderr
        found = done.stdout
    else:
        found = _run_here(example, request.getfixturevalue("spark"))
    for line in LINES[example.name]:
        assert line in found.splitlines(), found


def _run_here(example: Path, spark: SparkSession) -> str:
    """What it prints, with a session that it neither starts nor stops."""
    printed = io.StringIO()
    with (
        patch.object(session, "local_session", lambda *_, **__: spark),
        patch.object(SparkSession, "stop"),
        contextlib.redirect_stdout(printed),
    ):
        runpy.run_path(str(example), run_name="__main__")
    return printed.getvalue()


@dataclass(frozen=True)
class Piece:
    """A piece of Python on a page, the line above it, and the output shown below it."""

    code: str
    line: int
    shown: str | None


def pieces_of(page: Path) -> list[Piece]:
    text = page.read_text()
    return [Piece(m[1], text.count("\n", 0, m.start(1)), m[2]) for m in SHOWN.finditer(text)]


def without_blanks_at_ends(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _marked(page: Path) -> object:
    return pytest.param(page, id=page.name, marks=[pytest.mark.spark] if "local_session" in page.read_text() else [])


@pytest.mark.parametrize("page", [_marked(page) for page in PAGES])
def test_page_shows_what_its_python_prints(page: Path, request: pytest.FixtureRequest) -> None:
    if "local_session" in page.read_text():
        # The page's own session is then that of all tests, which is small and is stopped in the end.
        request.getfixturevalue("spark")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for piece in pieces_of(page):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * piece.line + piece.code, str(page), "exec"), namespace)
        assert without_blanks_at_ends(printed.getvalue()) == without_blanks_at_ends(piece.shown or ""), (
            f"{page.name}:{piece.line}"
        )
