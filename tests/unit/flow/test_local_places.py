"""Relative places are those of the driver when the flow starts, whatever becomes of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.flow.builder import Flow
from headrace.flow.local_places import whole_path, with_whole_paths
from headrace.flow.sinks import ParquetSink
from headrace.spark.live import state_at

from .coordinator_script import make


def test_commits_and_sinks_stay_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flow = Flow("f")
    flow.sink("out", flow.source("numbers", hr.generate(make, 10)), hr.parquet("out"))
    assert state_at("some at") == f"{tmp_path}/some at/state"
    assert with_whole_paths(flow.graph()).node("out").sink == ParquetSink(f"{tmp_path}/out")


@pytest.mark.parametrize("place", ["/data/flows", "s3://bucket/flows", "file:///data/flows", "memory://x"])
def test_what_is_whole_stays(place: str) -> None:
    assert whole_path(place) == place
    assert state_at(place) == f"{place}/state"
