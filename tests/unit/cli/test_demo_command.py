"""`headrace demo`, whole, on a small day."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from .conftest import Command

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("on_spark")]


def test_the_demo_shows_what_hopping_windows_miss(headrace: Command) -> None:
    said = headrace("demo", "--payments", "2000", "--plot", "picture.png")
    assert (said.code, said.err) == (0, "")
    scores = {line.split()[0]: line.split()[-6:] for line in said.out.splitlines() if " of 12 " in line}
    assert scores["rapid"] == ["12", "of", "12", "12", "of", "12"]
    assert scores["paced"] == ["12", "of", "12", "0", "of", "12"]
    assert "False alarms on honest cards: 0 with sliding, 0 with hopping windows" in said.out
    assert Path("picture.png").read_bytes().startswith(b"\x89PNG")
    scored = pq.read_table("demo-output/scored.parquet")
    assert scored.num_rows == pq.read_metadata("demo-output/payments.parquet").num_rows
    assert {"payments_5m", "spent_5m", "usual_1h"} < set(scored.column_names)
    assert headrace("check", "demo-output/rules.sql").code == 0


def test_without_matplotlib_the_demo_says_how_to_get_it(headrace: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.demo.find_spec", lambda name: None)
    said = headrace("demo")
    assert said.code == 2
    assert "pip install 'headrace[demo]'" in said.err
