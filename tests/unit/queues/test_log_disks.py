"""The embedded log and its disk: full, forbidden or failing, and when it is synced."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import QueueError
from headrace.queues import log
from headrace.queues.log import LogQueues
from headrace.queues.protocol import Writer
from headrace.testing.full_disk import small_disk
from headrace.testing.queue_contract import eventually, frame, number_of

from .conftest import QUEUE, folder, numbers, segments

# ------------------------------------------------------------------------- disks


class FailingWrites:
    """`os.pwrite` on a disk that is full: the first frame goes in by half."""

    def __init__(self, code: int):
        self.code, self.is_full, self._pwrite = code, True, os.pwrite

    def __call__(self, fd: int, content: Any, offset: int) -> int:
        if not self.is_full or len(content) < 48:
            return self._pwrite(fd, content, offset)
        if offset % 2 == 0 and len(content) > 100:
            return self._pwrite(fd, content[:51], offset)
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize("before", [0, 2, 9])
def test_full_disk(queues: LogQueues, monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    disk = FailingWrites(errno.ENOSPC)
    with queues.writer() as writer:
        for number in range(before):
            writer.append(QUEUE, [frame(number, size=200)])
        bounds = queues.bounds(QUEUE)
        monkeypatch.setattr(os, "pwrite", disk)
        for _ in range(3):
            with pytest.raises(QueueError, match=rf"{folder(queues)}: the disk is full; free some space"):
                writer.append(QUEUE, [frame(90, size=201), frame(91)])
            assert queues.bounds(QUEUE) == bounds
        disk.is_full = False
        writer.append(QUEUE, [frame(before)])
    assert numbers(queues) == list(range(before + 1))


def test_disk_that_is_really_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        if disk is None:
            pytest.skip("this process may not mount")
        queues = LogQueues(disk.folder / "root", fsync="never", segment_bytes=2000)
        queues.create([QUEUE])
        with queues.writer() as writer, queues.reader("r", {QUEUE: 0}) as reader:
            writer.append(QUEUE, [frame(0, size=5000)])
            disk.fill()
            for size in (5000, 50_000, 5000):
                with pytest.raises(QueueError, match="the disk is full; free some space"):
                    writer.append(QUEUE, [frame(1, size=size), frame(2, size=size)])
            with pytest.raises(QueueError, match="the disk is full; free some space"):
                queues.create(["another"])
            assert [number_of(entry) for entry in reader.poll([QUEUE], 0)] == [0]
            reader.acknowledge(QUEUE, queues.bounds(QUEUE)[1])
            writer.sync([QUEUE])
            disk.free()
            queues.create(["another"])
            assert queues.bounds("another") == (0, 0)
            writer.append(QUEUE, [frame(1)])
            assert [number_of(entry) for entry in reader.poll([QUEUE], 0)] == [1]


def test_bad_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(QueueError, match=r"file.*choose a folder"):
            LogQueues(root).create([QUEUE])

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(QueueError, match=r"may not write there; change the rights"):
        LogQueues(tmp_path / "new").create([QUEUE])


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(QueueError, match="'always', 'interval', 'never'"):
        LogQueues(tmp_path, fsync="sometimes")  # type: ignore[arg-type]
    with pytest.raises(QueueError, match="segment_bytes"):
        LogQueues(tmp_path, segment_bytes=0)


# ------------------------------------------------------------------------- fsync


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often what kind of file was synced."""
    counts: Counter[str] = Counter()
    fdatasync, fsync = os.fdatasync, os.fsync

    def count(real: Callable[[int], None]) -> Callable[[int], None]:
        def counted(fd: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{fd}"))
            counts["folder" if path.is_dir() else path.suffix or path.name] += 1
            real(fd)

        return counted

    monkeypatch.setattr(os, "fdatasync", count(fdatasync))
    monkeypatch.setattr(os, "fsync", count(fsync))
    return counts


def test_never_syncs_only_when_asked(queues: LogQueues, synced: Counter[str]) -> None:
    with queues.writer() as writer:
        for number in range(30):
            writer.append(QUEUE, [frame(number, size=300)])
        assert not synced
        writer.sync([QUEUE])
        assert synced == {".seg": len(segments(queues)), "folder": 1, "tail": 1}
        writer.sync([QUEUE])
        assert synced["tail"] == 1, "there was nothing new"
        writer.append(QUEUE, [frame(30)])
        synced.clear()
        writer.sync([QUEUE])
        assert synced[".seg"] <= 2


def test_always_syncs_before_the_frames_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = LogQueues(tmp_path, fsync="always")
    queues.create([QUEUE])
    seen: list[list[int]] = []
    fdatasync = os.fdatasync

    def look_first(fd: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fdatasync)
            seen.append([number_of(entry) for entry in reader.poll([QUEUE], 0)])
        fdatasync(fd)

    with queues.reader("r", {QUEUE: 0}) as reader, queues.writer() as writer:
        monkeypatch.setattr(os, "fdatasync", look_first)
        for number in range(3):
            writer.append(QUEUE, [frame(number)])
    assert seen == [[], [0], [1]]


def test_interval_syncs_by_itself(tmp_path: Path, synced: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "INTERVAL_S", 0.05)
    queues = LogQueues(tmp_path, fsync="interval")
    queues.create([QUEUE])
    synced.clear()
    with queues.writer() as writer:
        for number in range(100):
            writer.append(QUEUE, [frame(number)])
        assert eventually(lambda: synced["tail"] > 0)
        assert synced[".seg"] < 50
    with queues.files(QUEUE) as files:
        assert files.start_and_synced()[1] == files.tail()[0]


def test_interval_syncs_now_and_then_however_much_comes(
    tmp_path: Path, synced: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something new while it syncs is for the next time: otherwise it would sync all the time."""
    monkeypatch.setattr(log, "INTERVAL_S", 3600.0)
    queues = LogQueues(tmp_path, fsync="interval")
    queues.create([QUEUE])
    with queues.writer() as writer:
        writer.append(QUEUE, [frame(0)])
        syncer = writer._syncer
        assert syncer is not None
        real, rounds = syncer._sync, 0

        def sync_while_more_comes(queue: str) -> None:
            nonlocal rounds
            rounds += 1
            assert rounds < 10, "it never waits"
            real(queue)
            writer.append(QUEUE, [frame(rounds)])

        monkeypatch.setattr(syncer, "_sync", sync_while_more_comes)
        syncer._sync_dirty()
        assert rounds == 1
        monkeypatch.setattr(syncer, "_sync", real)
    with queues.files(QUEUE) as files:
        assert files.start_and_synced()[1] == files.tail()[0]


def append_and_sync(writer: Writer) -> None:
    writer.append(QUEUE, [frame(0)])
    writer.sync([QUEUE])


def test_a_failed_sync_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for policy in ("always", "never"):
        queues = LogQueues(tmp_path / policy, fsync=policy)
        queues.create([QUEUE])
        with queues.writer() as writer, monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            with pytest.raises(QueueError, match="the disk fails"):
                append_and_sync(writer)
