"""What is said to be written is there after a power cut: its content, and its name in all folders above it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.flow.io import Opening
from headrace.model.folders import make_folder
from headrace.state.places import LocalPlace, place_of

_BATCH = pa.record_batch({"n": [1, 2, 3]})


@pytest.fixture
def safe(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """All paths that a power cut leaves."""
    found: set[Path] = set()
    fsync = os.fsync

    def sync(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_dir():
            found.update(path.iterdir())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", sync)
    return found


def _are_safe(safe: set[Path], path: Path, root: Path) -> bool:
    return {path, *path.parents} - {root, *root.parents} <= safe


def test_a_file_of_a_place(safe: set[Path], tmp_path: Path) -> None:
    place = place_of(str(tmp_path))
    for name in ("f/tasks/k.0/a", "f/tasks/k.0/b", "f/flow"):
        place.write(name, b"abc")
        assert _are_safe(safe, tmp_path / name, tmp_path)


def test_a_file_that_a_place_adopts(safe: set[Path], tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(b"abc")
    place = LocalPlace(str(tmp_path / "state"))
    place.adopt(tmp_path / "made", "q/files/1.sst")
    assert place.read("q/files/1.sst") == b"abc"
    assert _are_safe(safe, tmp_path / "state/q/files/1.sst", tmp_path)


def test_a_file_of_a_parquet_sink(safe: set[Path], tmp_path: Path) -> None:
    sink = hr.parquet(str(tmp_path / "more" / "out"))
    sink.check()
    writer = sink.open(Opening("f", "x.0", 0, 1, 255, node="out"), None)
    writer.write(0, _BATCH)
    writer.cut()()
    [path] = (tmp_path / "more" / "out").iterdir()
    assert _are_safe(safe, path, tmp_path)


def test_a_file_that_another_copy_has_named(safe: set[Path], tmp_path: Path) -> None:
    """It may be the other one's, and not safe yet: the commit of this one counts on it."""
    one, other = (hr.parquet(str(tmp_path)).open(Opening("f", "x.0", 0, 1, 255, node="out"), None) for _ in range(2))
    for writer in (one, other):
        safe.clear()
        writer.write(0, _BATCH)
        writer.cut()()
        [path] = tmp_path.iterdir()
        assert _are_safe(safe, path, tmp_path)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_file_system_that_syncs_no_folders(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
