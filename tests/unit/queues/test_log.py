"""The files of the embedded log: what it does when they, the disk or a writer go bad."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import FrameDamaged, QueueDamaged, QueueError
from headrace.model import frames
from headrace.queues import ends, log, tail, watch
from headrace.queues.log import LogQueues
from headrace.queues.protocol import Reader, Writer
from headrace.queues.watch import InotifyWatch, PollingWatch, watch_files_in
from headrace.testing.full_disk import small_disk
from headrace.testing.queue_contract import eventually, fill, frame, number_of, read_new

QUEUE = "q"


@pytest.fixture
def queues(tmp_path: Path) -> LogQueues:
    made = LogQueues(tmp_path / "root", fsync="never", segment_bytes=2000)
    made.create([QUEUE])
    return made


def folder(queues: LogQueues) -> Path:
    return queues.folder / QUEUE


def segments(queues: LogQueues) -> list[Path]:
    return sorted(folder(queues).glob("*.seg"))


def numbers(queues: LogQueues, position: int = 0) -> list[int]:
    """All that is there from a position on."""
    found: list[int] = []
    with queues.reader("all", {QUEUE: position}) as reader:
        while entries := reader.poll([QUEUE], 0):
            found += [number_of(entry) for entry in entries]
    return found


def drain(reader: Reader, into: list[bytes] | None = None) -> None:
    """Reads until there is nothing more."""
    while entries := reader.poll([QUEUE], 0):
        (into if into is not None else []).extend(bytes(entry.frame) for entry in entries)


def in_fork(work: Callable[[], Any]) -> int:
    """How a forked process ended that did this."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def pretend_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, the machine has another boot id."""
    other = random.getrandbits(100)
    for module in ("headrace.queues.tail", "headrace.queues.recovery"):
        monkeypatch.setattr(f"{module}.boot_id", lambda: other)


# -------------------------------------------------------------------- segments


def test_segments_roll_and_are_named_by_their_first_position(queues: LogQueues) -> None:
    fill(queues, QUEUE, 40, size=200)
    files = segments(queues)
    assert len(files) > 3
    assert [int(path.stem) for path in files] == [sum(p.stat().st_size for p in files[:i]) for i in range(len(files))]
    assert numbers(queues) == list(range(40))


def test_truncate_drops_whole_segments_and_an_open_reader_goes_on(queues: LogQueues) -> None:
    with queues.writer() as writer, queues.reader("slow", {QUEUE: 0}) as slow:
        writer.append(QUEUE, [frame(0, size=200)])
        assert [number_of(entry) for entry in slow.poll([QUEUE], 0)] == [0]
        for number in range(1, 40):
            writer.append(QUEUE, [frame(number, size=200)])
        first, second = segments(queues)[:2]
        queues.truncate(QUEUE, int(second.stem) + 1)
        assert not first.exists()
        assert second.exists()
        assert queues.bounds(QUEUE)[0] == int(second.stem)
        rest: list[int] = []
        while entries := slow.poll([QUEUE], 0):
            rest += [number_of(entry) for entry in entries]
        assert rest == list(range(1, 40))


def test_reader_whose_next_segment_was_truncated_is_told(queues: LogQueues) -> None:
    with queues.writer() as writer, queues.reader("slow", {QUEUE: 0}) as slow:
        writer.append(QUEUE, [frame(0, size=200)])
        slow.poll([QUEUE], 0)
        for number in range(1, 60):
            writer.append(QUEUE, [frame(number, size=200)])
        queues.truncate(QUEUE, queues.bounds(QUEUE)[1])
        with pytest.raises(QueueDamaged, match="has been truncated: the queue begins at"):
            drain(slow)


def test_a_frame_longer_than_a_segment(queues: LogQueues) -> None:
    with queues.writer() as writer:
        writer.append(QUEUE, [frame(n, size=10_000) for n in range(3)])
        writer.append(QUEUE, [frame(3)])
    assert numbers(queues) == [0, 1, 2, 3]


def test_what_is_not_a_frame_is_not_appended(queues: LogQueues) -> None:
    with queues.writer() as writer:
        for bad in (b"", b"x" * 100, frame(0)[:-1], frame(0) + b"x"):
            with pytest.raises(FrameDamaged):
                writer.append(QUEUE, [frame(0), bad])
    assert queues.bounds(QUEUE) == (0, 0)


def test_one_writer_at_a_time(queues: LogQueues) -> None:
    with queues.writer() as writer, queues.files(QUEUE) as files:
        writer.append(QUEUE, [frame(0)])
        other = threading.Thread(target=writer.append, args=(QUEUE, [frame(1)]))
        with files.locked():
            other.start()
            other.join(0.2)
            assert other.is_alive()
            assert files.tail()[0] == len(frame(0))
        other.join(30)
    assert numbers(queues) == [0, 1]


def test_another_thread_may_sync_while_this_one_appends(queues: LogQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must wait for the lock that this thread has for its append, and not take it away."""
    write, waited = ends._write, []
    with queues.writer() as writer:
        writer.append(QUEUE, [frame(0)])
        other = threading.Thread(target=writer.sync, args=([QUEUE],))

        def write_while_other_syncs(fd: int, content: bytes, offset: int) -> None:
            other.start()
            other.join(0.3)
            waited.append(other.is_alive())
            write(fd, content, offset)

        monkeypatch.setattr(ends, "_write", write_while_other_syncs)
        writer.append(QUEUE, [frame(1)])
        other.join(30)
        assert waited == [True]
    assert numbers(queues) == [0, 1]


# --------------------------------------------------------------- killed writers


@pytest.mark.parametrize("written", [0, 1, 47, 48, 300, 1000])
@pytest.mark.parametrize("before", [0, 3, 8])
def test_killed_in_mid_write(queues: LogQueues, before: int, written: int) -> None:
    """The rest of the dead writer is seen by nobody, and the next one writes over it."""
    fill(queues, QUEUE, before, size=200)
    end = queues.bounds(QUEUE)[1]

    def die() -> None:
        pwrite = os.pwrite

        def part(fd: int, content: Any, offset: int) -> int:
            if len(content) > 100:
                pwrite(fd, content[:written], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            return pwrite(fd, content, offset)

        os.pwrite = part
        queues.writer().append(QUEUE, [frame(100 + n, size=200) for n in range(6)])

    assert in_fork(die) == -signal.SIGKILL
    assert numbers(queues) == list(range(before))
    assert queues.bounds(QUEUE)[1] == end
    fill(queues, QUEUE, 1)
    assert numbers(queues) == [*range(before), 0]
    (folder(queues) / "tail").unlink()
    assert numbers(queues) == [*range(before), 0], "nothing of the dead writer comes back when the files are scanned"


def test_killed_between_frames_and_tail(queues: LogQueues) -> None:
    def die() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tail.TailRecord, "advance", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            queues.writer().append(QUEUE, [frame(100), frame(101)])

    fill(queues, QUEUE, 2)
    assert in_fork(die) == -signal.SIGKILL
    assert numbers(queues) == [0, 1]
    fill(queues, QUEUE, 1)
    assert numbers(queues) == [0, 1, 0]


def _append_for_ever(queues: LogQueues, ready: Any) -> None:
    writer, number = queues.writer(), 0
    ready.set()
    while True:
        writer.append(QUEUE, [frame(number, size=number % 700), frame(number + 1)])
        number += 2


def test_killed_at_any_moment(queues: LogQueues) -> None:
    context, rng, runs = multiprocessing.get_context("fork"), random.Random(1), 12
    for _ in range(runs):
        ready = context.Event()
        process = context.Process(target=_append_for_ever, args=(queues, ready))
        process.start()
        assert ready.wait(30)
        time.sleep(rng.random() * 0.01)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    found = numbers(queues)
    starts = [index for index, number in enumerate(found) if number == 0]
    for start, after in zip(starts, [*starts[1:], len(found)], strict=True):
        assert found[start:after] == list(range(after - start))
        assert (after - start) % 2 == 0, "frames that were appended together come together"


def test_a_writer_does_not_work_in_a_forked_process(queues: LogQueues) -> None:
    writer = queues.writer()
    writer.append(QUEUE, [frame(0)])

    def use() -> None:
        with pytest.raises(QueueError, match="forked"):
            writer.append(QUEUE, [frame(1)])

    assert in_fork(use) == 0


# ------------------------------------------------------------------- power loss


def test_after_a_restart_the_unsynced_rest_is_cut_at_its_first_bad_frame(
    queues: LogQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    with queues.writer() as writer:
        for number in range(30):
            writer.append(QUEUE, [frame(number, size=200)])
            if number == 9:
                writer.sync([QUEUE])
    entries = read_new(queues, QUEUE, 0, 30)
    bad = entries[19].next
    path = max((path for path in segments(queues) if int(path.stem) <= bad), key=lambda path: int(path.stem))
    with path.open("r+b") as file:
        file.seek(bad - int(path.stem) + 60)
        file.write(b"\0\0\0")
    pretend_restart(monkeypatch)
    assert numbers(queues) == list(range(20))
    assert queues.bounds(QUEUE) == (0, bad)
    fill(queues, QUEUE, 5)
    assert numbers(queues) == [*range(20), *range(5)]


def test_after_a_restart_frames_past_the_written_tail_count(queues: LogQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may have written the segments, and not yet the record."""
    fill(queues, QUEUE, 3)
    old = (folder(queues) / "tail").read_bytes()
    with queues.writer() as writer:
        writer.append(QUEUE, [frame(3), frame(4)])
    (folder(queues) / "tail").write_bytes(old)
    pretend_restart(monkeypatch)
    assert numbers(queues) == list(range(5))


def test_after_a_restart_missing_synced_bytes_are_damage(queues: LogQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(queues, QUEUE, 5)
    [path] = segments(queues)
    os.truncate(path, path.stat().st_size - 1)
    pretend_restart(monkeypatch)
    with pytest.raises(QueueDamaged, match=r"seg is damaged at byte \d+.*were synced.*copy"):
        queues.bounds(QUEUE)


def test_after_a_restart_a_bad_synced_frame_is_damage(queues: LogQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(queues, QUEUE, 5)
    flip(segments(queues)[0], 90, 0)
    pretend_restart(monkeypatch)
    with pytest.raises(QueueDamaged, match="checksum"):
        numbers(queues)


# ------------------------------------------------------------------------ damage


def flip(path: Path, at: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    with path.open("r+b") as file:
        file.write(content)


def test_a_flipped_bit_is_found_wherever_it_is(queues: LogQueues) -> None:
    fill(queues, QUEUE, 25, size=300)
    rng, before = random.Random(7), read_new(queues, QUEUE, 0, 25)
    for _ in range(150):
        path, bit = rng.choice(segments(queues)), rng.randrange(8)
        at = rng.randrange(path.stat().st_size)
        flip(path, at, bit)
        good = sum(entry.next <= int(path.stem) + at for entry in before)
        seen: list[bytes] = []
        with queues.reader("r", {QUEUE: 0}) as reader:
            with pytest.raises(QueueDamaged, match=f"{path.name} is damaged at byte"):
                drain(reader, seen)
            with pytest.raises(QueueDamaged):
                reader.poll([QUEUE], 0)
        assert seen == [bytes(entry.frame) for entry in before[:good]]
        flip(path, at, bit)
    assert numbers(queues) == list(range(25))


def test_damage_in_one_queue_loses_nothing_of_another(queues: LogQueues) -> None:
    queues.create(["other"])
    fill(queues, QUEUE, 3)
    fill(queues, "other", 3)
    flip(segments(queues)[0], 50, 1)
    with queues.reader("r", {"other": 0, QUEUE: 0}) as reader:
        assert [number_of(entry) for entry in reader.poll(["other", QUEUE], 0)] == [0, 1, 2]
        assert reader.poll(["other"], 0) == []
        fill(queues, "other", 1)
        with pytest.raises(QueueDamaged):
            reader.poll(["other", QUEUE], 0)
        assert [number_of(entry) for entry in reader.poll(["other"], 0)] == [0]


@pytest.mark.parametrize("index", [0, 1, -1])
def test_a_missing_segment_is_damage(queues: LogQueues, index: int) -> None:
    fill(queues, QUEUE, 40, size=200)
    lost = segments(queues)[index]
    lost.unlink()
    with pytest.raises(QueueDamaged, match=f"segment with position {int(lost.stem)} is missing"):
        numbers(queues)


def test_a_segment_that_was_cut_is_damage_to_readers_and_writers(queues: LogQueues) -> None:
    fill(queues, QUEUE, 5)
    [path] = segments(queues)
    os.truncate(path, path.stat().st_size - 10)
    with queues.writer() as writer, pytest.raises(QueueDamaged, match="the file ends here"):
        writer.append(QUEUE, [frame(0)])
    with pytest.raises(QueueDamaged, match="is damaged at byte"):
        numbers(queues)


def test_a_position_within_a_frame_is_refused(queues: LogQueues) -> None:
    fill(queues, QUEUE, 3)
    with pytest.raises(QueueDamaged):
        numbers(queues, 5)


# ------------------------------------------------------------- the tail record


@pytest.mark.parametrize("damage", ["missing", "empty", "zeros", "noise", "short"])
def test_a_bad_tail_record_is_made_anew(queues: LogQueues, damage: str) -> None:
    fill(queues, QUEUE, 40, size=200)
    bounds, path = queues.bounds(QUEUE), folder(queues) / "tail"
    path.unlink()
    contents = {"empty": b"", "zeros": bytes(4096), "noise": random.Random(1).randbytes(4096), "short": b"HRTAIL01"}
    if damage in contents:
        path.write_bytes(contents[damage])
    assert queues.bounds(QUEUE) == bounds
    fill(queues, QUEUE, 1)
    assert numbers(queues) == [*range(40), 0]


def test_any_flipped_bit_of_the_tail_record_is_harmless(queues: LogQueues) -> None:
    fill(queues, QUEUE, 12, size=300)
    path, bounds = folder(queues) / "tail", queues.bounds(QUEUE)
    for bit in range(8 * 120):
        flip(path, bit // 8, bit % 8)
        assert queues.bounds(QUEUE) == bounds, f"bit {bit}"
    assert numbers(queues) == list(range(12))


def test_a_record_that_goes_bad_under_open_ends(queues: LogQueues) -> None:
    with queues.writer() as writer, queues.reader("r", {QUEUE: 0}) as reader:
        writer.append(QUEUE, [frame(0)])
        assert len(reader.poll([QUEUE], 0)) == 1
        flip(folder(queues) / "tail", 33, 3)
        writer.append(QUEUE, [frame(1)])
        flip(folder(queues) / "tail", 33, 3)
        assert [number_of(entry) for entry in reader.poll([QUEUE], 0)] == [1]


def test_without_a_record_damage_in_the_middle_is_not_taken_for_a_torn_end(queues: LogQueues) -> None:
    fill(queues, QUEUE, 6)
    flip(segments(queues)[0], 50, 0)
    (folder(queues) / "tail").unlink()
    with pytest.raises(QueueDamaged, match=r"is damaged at byte 0 .*checksum"):
        queues.bounds(QUEUE)


def test_without_a_record_a_torn_end_is_cut(queues: LogQueues) -> None:
    fill(queues, QUEUE, 6)
    bounds = queues.bounds(QUEUE)
    with segments(queues)[0].open("ab") as file:
        file.write(frame(6)[:-3])
    (folder(queues) / "tail").unlink()
    assert queues.bounds(QUEUE) == bounds


def test_a_seal_outlives_the_record(queues: LogQueues) -> None:
    fill(queues, QUEUE, 1)
    queues.seal(QUEUE)
    (folder(queues) / "tail").unlink()
    with queues.writer() as writer, pytest.raises(QueueError, match="sealed"):
        writer.append(QUEUE, [frame(1)])


def test_flags_that_went_bad_do_not_close_a_queue(queues: LogQueues) -> None:
    with queues.writer() as writer:
        writer.append(QUEUE, [frame(0)])
        for word in (12, 13):
            flip(folder(queues) / "tail", 8 * word + 2, 5)
            writer.append(QUEUE, [frame(word)])
    assert numbers(queues) == [0, 12, 13]


def test_a_record_of_another_version_is_left_alone(queues: LogQueues, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tail, "_MAGIC", int.from_bytes(b"HRTAIL99", "little"))
        queues.create(["newer"])
    with pytest.raises(QueueError, match="another version"):
        queues.bounds("newer")


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


# ----------------------------------------------------------------------- waking


def test_inotify_is_used_where_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(watch_files_in(tmp_path), InotifyWatch)
    monkeypatch.setattr(watch, "_REMOTE", ("",))
    assert isinstance(watch_files_in(tmp_path), PollingWatch), "on a network file system"
    monkeypatch.undo()
    monkeypatch.setenv("HEADRACE_NO_INOTIFY", "1")
    assert isinstance(watch_files_in(tmp_path), PollingWatch)


def _answer(queues: LogQueues, count: int) -> None:
    with queues.reader("echo", {"there": 0}) as reader, queues.writer() as writer:
        answered = 0
        while answered < count:
            for entry in reader.poll(["there"], 20):
                writer.append("back", [bytes(entry.frame)])
                answered += 1


@pytest.mark.parametrize("inotify", [True, False])
def test_no_wake_up_is_lost_between_processes(
    queues: LogQueues, monkeypatch: pytest.MonkeyPatch, inotify: bool
) -> None:
    """A lost one would cost seconds each time: the next frame is sent only when the last one is back."""
    if not inotify:
        monkeypatch.setenv("HEADRACE_NO_INOTIFY", "1")
    queues.create(["there", "back"])
    echo = multiprocessing.get_context("fork").Process(target=_answer, args=(queues, 1000))
    echo.start()
    start = time.monotonic()
    with queues.reader("r", {"back": 0}) as reader, queues.writer() as writer:
        for number in range(1000):
            writer.append("there", [frame(number)])
            assert [number_of(entry) for entry in reader.poll(["back"], 20)] == [number]
    echo.join(30)
    assert time.monotonic() - start < 60


def test_a_frame_that_comes_before_the_watch_is_seen_at_once(
    queues: LogQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_LONGEST_WAIT_S", 60.0)
    with queues.reader("r", {QUEUE: 0}) as reader, queues.writer() as writer:
        add = reader._watch.add

        def append_then_add(key: str, path: str) -> bool:
            writer.append(QUEUE, [frame(5)])
            return add(key, path)

        monkeypatch.setattr(reader._watch, "add", append_then_add)
        start = time.monotonic()
        assert [number_of(entry) for entry in reader.poll([QUEUE], 40)] == [5]
        assert time.monotonic() - start < 20


def test_a_queue_that_is_not_asked_for_does_not_end_the_wait(queues: LogQueues) -> None:
    queues.create(["noisy"])
    with queues.reader("r", {QUEUE: 0, "noisy": 0}) as reader, queues.writer() as writer:
        reader.poll([QUEUE, "noisy"], 0.01)
        writer.append("noisy", [frame(0)])
        waits = Counter[str]()
        wait = reader._watch.wait
        reader._watch.wait = lambda *given: (waits.update("w"), wait(*given))[1]  # type: ignore[method-assign]
        for number in range(20):
            writer.append("noisy", [frame(number)])
            assert reader.poll([QUEUE], 0.01) == []
        assert waits["w"] <= 25
        assert len(reader.poll(["noisy"], 1)) == 21


def test_deleting_a_queue_ends_its_readers_and_writers(queues: LogQueues) -> None:
    with queues.reader("r", {QUEUE: 0}) as reader, queues.writer() as writer:
        writer.append(QUEUE, [frame(0)])
        reader.poll([QUEUE], 1)
        reader.poll([QUEUE], 0.01)
        queues.delete([QUEUE])
        queues.create([QUEUE])
        with pytest.raises(QueueError, match="deleted"):
            reader.poll([QUEUE], 10)
        with pytest.raises(QueueError, match="deleted"):
            writer.append(QUEUE, [frame(1)])
    assert numbers(queues) == []


def test_backlog_counts_bytes_and_new_readers(queues: LogQueues) -> None:
    fill(queues, QUEUE, 10)
    end = queues.bounds(QUEUE)[1]
    with queues.writer() as writer, queues.reader("r", {QUEUE: 0}) as reader:
        assert writer.backlog(QUEUE) == end
        reader.acknowledge(QUEUE, 100)
        assert writer.backlog(QUEUE) == end - 100
        with queues.reader("r", {QUEUE: 0}):
            assert writer.backlog(QUEUE) == end - 100, "a reader of the same name takes over where it was"
    assert struct.unpack("<Q", (folder(queues) / "readers" / "r").read_bytes()) == (100,)
    assert frames.size_of(frame(0)) == len(frame(0))
