"""The embedded log: its segments, its writers, and readers that wait."""

from __future__ import annotations

import multiprocessing
import shutil
import struct
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from headrace.errors import FrameDamaged, QueueDamaged, QueueError
from headrace.model import frames
from headrace.queues import ends, watch
from headrace.queues.log import LogQueues
from headrace.queues.watch import InotifyWatch, PollingWatch, watch_files_in
from headrace.testing.queue_contract import fill, frame, number_of

from .conftest import QUEUE, drain, folder, numbers, segments

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


def test_a_folder_that_vanishes_ends_its_readers_and_writers(queues: LogQueues) -> None:
    fill(queues, QUEUE, 3)
    with queues.writer() as writer, queues.reader("r", {QUEUE: 0}) as reader:
        assert len(reader.poll([QUEUE], 0)) == 3
        writer.append(QUEUE, [frame(3)])
        reader.poll([QUEUE], 0)
        shutil.rmtree(folder(queues))
        with pytest.raises(QueueError, match=f"the files of queue {QUEUE} are gone, while it is in use"):
            reader.poll([QUEUE], 0)
        with pytest.raises(QueueError, match=f"are gone, while it is in use|there is no queue {QUEUE}"):
            writer.sync([QUEUE])


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
