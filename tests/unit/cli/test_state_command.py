"""`headrace state` over a small state, made without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.measure.definition import Definition
from headrace.spark.location import stage_state
from headrace.spark.versions import Shards, TaskPlace

from .conftest import Command

TEXT = "SELECT sum(amount) AS spent, count(*) AS n FROM payments GROUP BY card OVER sliding 5 minutes"
BATCHES = 13


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Thirteen batches of three payments each."""
    rows = pa.record_batch(
        {
            "ts": pa.array([0, 1_000_000, None], pa.timestamp("us", "UTC")),
            "card": pa.array(["a", "b", "a"]),
            "amount": pa.array([1.5, 2.5, 3.5]),
        }
    )
    definition = Definition(TEXT, "ts")
    [stage] = definition.plan(rows.schema).stages
    folder = tmp_path / "state"
    state = stage_state(
        str(folder), stage, definition, rows.schema,
        keep_columns=(), memory_bytes=1 << 20, shards=2, versions=100, backend="columnar",
    )  # fmt: skip
    for batch in range(BATCHES):
        shards = Shards(state, TaskPlace("query", batch, 0, 1))
        shards.task(batch % 2).push(rows)
        shards.commit()
    return folder


def test_show_says_what_is_there(headrace: Command, location: Path) -> None:
    said = headrace("state", "show", str(location))
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("by-card of query query: ")
    assert lines[1:4] == [
        "  batch 12; versions 0 to 12; 2 shards",
        "  39 rows: 26 ok, 13 discarded",
        "  remembers 26 events, 1970-01-01 00:00:00 to 1970-01-01 00:00:01: 0 bytes in files",
    ]
    assert any("sum(amount) of double by card over sliding 5m" in line for line in lines)


def test_show_for_machines(headrace: Command, location: Path) -> None:
    [stage] = json.loads(headrace("state", "show", str(location), "--json").out)["stages"]
    assert (stage["query"], stage["stage"], stage["shards"]) == ("query", "by-card", 2)
    assert stage["progress"]["counts"] == {"ok": 26, "late": 0, "rewritten": 0, "duplicate": 0, "discarded": 13}
    assert stage["progress"]["bytes"]["metric n"] > 0


def test_verify_finds_damage(headrace: Command, location: Path) -> None:
    assert headrace("state", "verify", str(location)).out.startswith("ok: ")
    path = max(location.rglob("*.state"))
    path.write_bytes(path.read_bytes()[:-1])
    said = headrace("state", "verify", str(location))
    assert said.code == 1
    assert f"damaged: query/by-card/files/{path.name}: it is shorter than what was written" in said.out
    [damage] = json.loads(headrace("state", "verify", str(location), "--json").out)["damaged"]
    assert damage["file"].endswith(path.name)


def test_gc_deletes_what_nobody_needs(headrace: Command, location: Path) -> None:
    said = headrace("state", "gc", str(location), "--versions", "2", "--dry-run")
    assert "would delete query/by-card/batches/000000000009" in said.out
    assert len(list(location.rglob("*.manifest"))) == BATCHES
    found = json.loads(headrace("state", "gc", str(location), "--versions", "2", "--json").out)
    assert "query/by-card/batches/000000000009" in found["deleted"]
    assert len(list(location.rglob("*.manifest"))) == 3
    assert headrace("state", "verify", str(location)).code == 0


def test_a_location_without_state(headrace: Command, tmp_path: Path) -> None:
    said = headrace("state", "show", str(tmp_path / "nothing"))
    assert said.code == 2
    assert "there is no state at" in said.err
    assert "name the folder that was given as state=" in said.err
