"""What is said of a query from what its program has kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.demo.programs import EventWindows
from headrace.spark.program_progress import ProgramProgress, read_program_progress
from headrace.spark.synchronized_stream import FAR
from headrace.state.places import place_of
from headrace.synchronize.codec import Codec
from headrace.synchronize.versions import Versions

_NOTHING = pa.table({})


def _versions(folder: Path) -> Versions:
    return Versions(place_of(str(folder)), "q", "EventWindows", Codec(EventWindows()))


def _save(folder: Path, batch: int, waiting: pa.Table, **newest: int) -> None:
    for task in range(2):
        _versions(folder).save(batch, task, 2, task == 0, 0, newest, waiting if task else _NOTHING)


def _read(folder: Path, *streams: str) -> ProgramProgress:
    return read_program_progress(_versions(folder), "q", streams, "time")


def test_a_query_that_has_not_begun(tmp_path: Path) -> None:
    found = _read(tmp_path, "a", "b")
    assert found == ProgramProgress("q", -1, {"a": None, "b": None}, 0, ())
    assert str(found) == "query q, batch -1: no event waits"


def test_a_silent_stream_is_named_with_how_long_it_has_been_where_it_is(tmp_path: Path) -> None:
    for batch in range(3, 8):
        _save(tmp_path, batch, pa.table({"time": list(range(5, batch + 5))}), a=10 * batch, b=4 if batch > 4 else 2)
    found = _read(tmp_path, "a", "b")
    assert (found.batch, found.streams, found.waiting) == (7, {"a": 70, "b": 4}, 7)
    assert str(found) == ("query q, batch 7: 7 events wait\n  waiting for stream b: since batch 5 it has come to 4")


def test_what_is_older_than_all_that_is_kept_is_said_to_be_so(tmp_path: Path) -> None:
    for batch in range(30):
        _save(tmp_path, batch, pa.table({"time": [9 + batch]}), a=10 * batch + 10, b=2)
    since = _read(tmp_path, "a", "b").waits_for
    assert since == ("waiting for stream b: since batch 19 or before it has come to 2",)


def test_a_stream_of_which_nothing_has_come(tmp_path: Path) -> None:
    _save(tmp_path, 0, pa.table({"time": [5]}), a=5, b=FAR)
    found = _read(tmp_path, "a", "b", "c")
    assert found.streams == {"a": 5, "b": None, "c": None}
    assert found.waits_for == (
        "waiting for stream b: nothing has come of it",
        "waiting for stream c: nothing has come of it",
    )


def test_times_of_time_stamps_and_one_stream_without_a_name(tmp_path: Path) -> None:
    times: Any = pa.array([1_700_000_000_000_000], pa.timestamp("us"))
    _save(tmp_path, 0, pa.table({"time": times}), **{"None": 1_700_000_000_000_000})
    found = _read(tmp_path, "None")
    assert found.waits_for == ("waiting for a later event: since batch 0 it has come to 2023-11-14 22:13:20.000000",)


def test_times_of_dates(tmp_path: Path) -> None:
    _save(tmp_path, 0, pa.table({"time": pa.array([20_000], pa.date32())}), **{"None": 20_000})
    assert _read(tmp_path, "None").waits_for == ("waiting for a later event: since batch 0 it has come to 2024-10-04",)


def test_where_nothing_waits_nobody_is_waited_for(tmp_path: Path) -> None:
    _save(tmp_path, 0, _NOTHING, a=5, b=1)
    assert _read(tmp_path, "a", "b").waits_for == ()


def test_a_batch_that_is_not_all_there_is_not_looked_at(tmp_path: Path) -> None:
    _save(tmp_path, 0, _NOTHING, a=5, b=1)
    _versions(tmp_path).save(1, 0, 2, True, 0, {"a": 9, "b": 9}, _NOTHING)
    assert _read(tmp_path, "a", "b").batch == 0
