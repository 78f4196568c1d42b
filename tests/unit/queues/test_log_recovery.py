"""The embedded log after its end: a writer that was killed, a machine that lost its power."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import QueueDamaged, QueueError
from headrace.queues import tail
from headrace.queues.log import LogQueues
from headrace.testing.queue_contract import fill, frame, read_new

from .conftest import QUEUE, flip, folder, numbers, segments


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
