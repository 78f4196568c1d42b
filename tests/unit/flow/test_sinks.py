"""Sinks: each record once in what they leave behind, whoever wrote it and however often."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import FlowError, StageFailed
from headrace.flow.io import Opening, SinkWriter

_NUMBERS = pa.schema([("n", pa.int64())])


def _batch(first: int, end: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, end), pa.int64())], schema=_NUMBERS)


def _writer(folder: Path, task: int = 0, flow: str = "f", node: str = "out", began_us: int = 255) -> SinkWriter:
    return hr.parquet(str(folder)).open(Opening(flow, f"x.{task}", task, 2, began_us, node=node), None)


def _found(folder: Path) -> list[int]:
    files = sorted(path for path in folder.iterdir() if path.suffix == ".parquet" and not path.name.startswith("."))
    return [number for path in files for number in pq.read_table(path).column("n").to_pylist()]


def _write(writer: SinkWriter, first: int, end: int, sizes: Sequence[int] = (1000,)) -> None:
    """Records, in batches of these sizes, and a commit."""
    at = 0
    while first < end:
        size = min(sizes[at % len(sizes)], end - first)
        writer.write(first, _batch(first, first + size))
        first, at = first + size, at + 1
    writer.cut()()


def test_a_file_for_each_commit(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    _write(writer, 0, 5, (2,))
    writer.cut()()
    _write(writer, 5, 7)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "f-ff-out-0-000000000000000.parquet",
        "f-ff-out-0-000000000000005.parquet",
    ]
    assert _found(tmp_path) == list(range(7))


def test_what_is_written_while_a_commit_is_under_way_is_in_the_next(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    writer.write(0, _batch(0, 3))
    publish = writer.cut()
    writer.write(3, _batch(3, 5))
    assert _found(tmp_path) == []
    publish()
    assert _found(tmp_path) == [0, 1, 2]
    writer.cut()()
    assert _found(tmp_path) == list(range(5))


def test_what_was_not_committed_is_not_there(tmp_path: Path) -> None:
    writer = _writer(tmp_path)
    writer.write(0, _batch(0, 3))
    writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_commit_that_is_done_again_changes_nothing(tmp_path: Path) -> None:
    _write(_writer(tmp_path), 0, 5)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    _write(_writer(tmp_path), 0, 5)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_columns_that_change_within_a_commit(tmp_path: Path) -> None:
    """As where metrics are added: a file has records of the same columns."""

    def write(writer: SinkWriter, first: int) -> None:
        for each in range(first, 6):
            batch = _batch(each, each + 1)
            writer.write(each, batch if each < 4 else batch.append_column("more", pa.array([0.5])))
        writer.cut()()

    write(_writer(tmp_path), 0)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert [pq.read_schema(path).names for path in sorted(before)] == [["n"], ["n", "more"]]
    assert _found(tmp_path) == list(range(6))
    write(_writer(tmp_path), 0)
    write(_writer(tmp_path), 2)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("again", [[(0, 3), (3, 8)], [(0, 8)], [(0, 5), (5, 8)], [(0, 7), (7, 8)]], ids=str)
def test_another_copy_that_has_more_or_less_to_write(tmp_path: Path, again: list[tuple[int, int]]) -> None:
    _write(_writer(tmp_path), 0, 3)
    writer = _writer(tmp_path)
    for first, end in again:
        _write(writer, first, end)
    assert _found(tmp_path) == list(range(8))


def test_a_copy_that_commits_less_at_a_time_does_not_write_again(tmp_path: Path) -> None:
    _write(_writer(tmp_path), 0, 10)  # and then it died, before its manifest was there
    writer = _writer(tmp_path)
    _write(writer, 0, 5)
    _write(writer, 5, 12)
    assert _found(tmp_path) == list(range(12))


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_two_writers_of_the_same_records(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """In any turns, each with commits of its own, each starting again from one of them."""
    folder = tmp_path_factory.mktemp("sink")
    writers = [_writer(folder), _writer(folder)]
    reached, commits = [0, 0], [0]
    for who in data.draw(st.lists(st.integers(0, 1), max_size=8)):
        end = min(20, reached[who] + data.draw(st.integers(0, 6)))
        _write(writers[who], reached[who], end, data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
        reached[who] = end
        commits.append(end)
        if data.draw(st.booleans()):
            writers[who] = _writer(folder)
            reached[who] = data.draw(st.sampled_from(commits))
    for who in (0, 1):
        _write(writers[who], reached[who], 20)
    assert sorted(_found(folder)) == list(range(20))


def test_tasks_do_not_meet(tmp_path: Path) -> None:
    _write(_writer(tmp_path, 0), 0, 3)
    _write(_writer(tmp_path, 1), 0, 3)
    assert sorted(_found(tmp_path)) == [0, 0, 1, 1, 2, 2]


def test_two_sinks_of_one_task_may_share_a_folder(tmp_path: Path) -> None:
    _write(_writer(tmp_path, node="one"), 0, 3)
    other = _writer(tmp_path, node="other")
    other.write(0, _batch(100, 103))
    other.cut()()
    assert sorted(_found(tmp_path)) == [0, 1, 2, 100, 101, 102]


def test_a_sink_whose_name_ends_like_a_task_has_files_of_its_own(tmp_path: Path) -> None:
    _write(_writer(tmp_path, 0, node="out-1"), 0, 50)
    _write(_writer(tmp_path, 0, node="out-1"), 50, 70)
    _write(_writer(tmp_path, 1, node="out"), 0, 3)
    names = [path.name for path in tmp_path.iterdir() if path.name.startswith("f-ff-out-1-00")]
    assert names == ["f-ff-out-1-000000000000000.parquet"]
    assert len(_found(tmp_path)) == 73


def test_a_flow_that_is_begun_anew_does_not_take_old_files_for_its_own(tmp_path: Path) -> None:
    _write(_writer(tmp_path, began_us=1), 0, 3)
    _write(_writer(tmp_path, began_us=2), 0, 3)
    assert sorted(_found(tmp_path)) == [0, 0, 1, 1, 2, 2]


def test_a_flow_of_another_name_does_not_take_old_files_for_its_own(tmp_path: Path) -> None:
    _write(_writer(tmp_path, flow="first"), 0, 3)
    writer = _writer(tmp_path, flow="second")
    writer.write(0, _batch(100, 103))
    writer.cut()()
    assert sorted(_found(tmp_path)) == [0, 1, 2, 100, 101, 102]


def test_leftovers_of_a_crash_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / ".f-ff-out-0-000000000000000.parquet.0123").write_bytes(b"torn")
    _write(_writer(tmp_path), 0, 3)
    assert _found(tmp_path) == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == [
        "f-ff-out-0-000000000000000.parquet"
    ]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "f-ff-out-0-000000000000000.parquet").write_bytes(b"torn")
    with pytest.raises(FlowError, match=r"f-ff-out-0-000000000000000\.parquet"):
        _write(_writer(tmp_path), 0, 3)


def test_an_empty_file_does_not_hold_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(_NUMBERS.empty_table(), tmp_path / "f-ff-out-0-000000000000000.parquet")
    looks: list[Any] = []
    right = pq.read_metadata

    def counted(path: Any, *more: Any) -> Any:
        looks.append(path)
        assert len(looks) < 10, "it looks again and again"
        return right(path, *more)

    monkeypatch.setattr(pq, "read_metadata", counted)
    with contextlib.suppress(FlowError):  # to say so is well, too
        _write(_writer(tmp_path), 0, 3)


def test_a_folder_is_made(tmp_path: Path) -> None:
    hr.parquet(str(tmp_path / "a" / "b")).check()
    assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_that_cannot_be_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FlowError, match=f"sink folder {folder}: .*; name a folder that can be written"):
            hr.parquet(str(folder)).check()


def test_a_folder_that_has_gone_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(
        FlowError, match=r"sink folder .*gone: cannot write f-ff-out-0-000000000000000\.parquet \(No such file"
    ):
        _write(_writer(tmp_path / "gone"), 0, 3)


def test_a_callback_that_raises_is_named_with_record_and_line() -> None:
    def shop(batch: pa.RecordBatch) -> None:
        raise ValueError("closed")

    writer = hr.callback(shop).open(Opening("f", "x.0", 0, 1, 0, node="out"), None)
    with pytest.raises(StageFailed, match=r"stage out: ValueError: closed\n.* in shop: .*\n.* one of 2 from {'n': 0}"):
        writer.write(0, _batch(0, 2))


def test_a_callback_is_called_at_once() -> None:
    seen: list[Any] = []
    writer = hr.callback(seen.append).open(Opening("f", "out.0", 0, 1, 0), None)
    writer.write(0, _batch(0, 2))
    assert [batch.to_pylist() for batch in seen] == [[{"n": 0}, {"n": 1}]]
    assert writer.cut()() is None
    assert len(seen) == 1
