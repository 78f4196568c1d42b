"""What every kind of queue must pass: one function a promise of `queues.protocol`, each with queues of its own.

Positions are taken from entries and bounds only: what a number means is the business of the kind.
"""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import pytest

from headrace.errors import QueueDamaged, QueueError
from headrace.model import frames
from headrace.queues.protocol import Entry, Queues, Reader

PATIENCE_S: Final = 30.0
"""For what must come. No check waits so long unless it fails."""
_PROCESSES: Final = 3
_EACH: Final = 300


@contextmanager
def new_queues(queues: Queues, count: int = 1) -> Iterator[list[str]]:
    names = [f"contract-{uuid4().hex[:12]}-{index}" for index in range(count)]
    queues.create(names)
    try:
        yield names
    finally:
        queues.delete(names)


def frame(number: int, channel: int = 0, size: int = 0) -> bytes:
    return frames.encode(frames.control(channel, number, {"fill": "x" * size}))


def number_of(entry: Entry) -> int:
    return frames.decode(entry.frame).first


def read(reader: Reader, queues: Collection[str], count: int) -> list[Entry]:
    """So many entries, or a failed assertion."""
    entries: list[Entry] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(entries) < count and time.monotonic() < deadline:
        entries += reader.poll(queues, 0.5)
    assert len(entries) == count, f"{len(entries)} of {count} entries came"
    return entries


def read_new(queues: Queues, queue: str, position: int, count: int) -> list[Entry]:
    """As above, by a reader of its own."""
    with queues.reader(f"reader-{uuid4().hex[:8]}", {queue: position}) as reader:
        return read(reader, [queue], count)


def fill(queues: Queues, queue: str, count: int, size: int = 0) -> None:
    with queues.writer() as writer:
        for number in range(count):
            writer.append(queue, [frame(number, size=size)])
        writer.sync([queue])


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# ----------------------------------------------------------------------- order


def check_order_of_one_writer(queues: Queues) -> None:
    with new_queues(queues) as [queue], queues.writer() as writer:
        writer.append(queue, [])
        for number in range(0, 300, 3):
            writer.append(queue, [frame(number), frame(number + 1, size=5000), frame(number + 2)])
        writer.sync([queue])
        entries = read_new(queues, queue, 0, 300)
        assert [number_of(entry) for entry in entries] == list(range(300))
        assert {entry.queue for entry in entries} == {queue}
        positions = [entry.next for entry in entries]
        assert positions == sorted(set(positions))


def check_frames_come_as_they_were(queues: Queues) -> None:
    with new_queues(queues) as [queue], queues.writer() as writer:
        sent = [
            frame(0),
            frame(1, size=3 << 20),
            frames.encode(frames.heartbeat(1, 2, 77)),
            frames.encode(frames.end(1, 2)),
        ]
        writer.append(queue, sent)
        writer.sync([queue])
        # But for the stamp, which is the queue's.
        assert [frames.stamped(bytes(entry.frame), 0) for entry in read_new(queues, queue, 0, 4)] == sent


def _append_in_process(queues: Queues, queue: str, channel: int, start: Any) -> None:
    with queues.writer() as writer:
        start.wait(PATIENCE_S)
        for number in range(0, _EACH, 2):
            writer.append(queue, [frame(number, channel), frame(number + 1, channel, size=number)])
        writer.sync([queue])


def _read_in_process(queues: Queues, queue: str, name: str, start: Any, answers: Any) -> None:
    with queues.reader(name, {queue: 0}) as reader:
        start.wait(PATIENCE_S)
        entries = read(reader, [queue], _PROCESSES * _EACH)
    answers.put([(frames.decode(entry.frame).channel, number_of(entry), entry.next) for entry in entries])


def check_one_order_for_all(queues: Queues) -> None:
    """Writers in many processes, while two readers in other processes read: all see one order, now and later."""
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(_PROCESSES + 2), context.Queue()
    with new_queues(queues) as [queue]:
        arguments: list[tuple[Any, ...]] = [(queues, queue, channel, start) for channel in range(_PROCESSES)]
        tasks = [context.Process(target=_append_in_process, args=given) for given in arguments]
        tasks += [context.Process(target=_read_in_process, args=(queues, queue, n, start, answers)) for n in "ab"]
        for task in tasks:
            task.start()
        seen = [answers.get(timeout=2 * PATIENCE_S) for _ in "ab"]
        for task in tasks:
            task.join(PATIENCE_S)
        later = read_new(queues, queue, 0, _PROCESSES * _EACH)
    assert [task.exitcode for task in tasks] == [0] * len(tasks)
    assert seen[0] == seen[1]
    assert seen[0] == [(frames.decode(entry.frame).channel, number_of(entry), entry.next) for entry in later]
    for channel in range(_PROCESSES):
        assert [number for of, number, _ in seen[0] if of == channel] == list(range(_EACH))


def check_resume_after_any_entry(queues: Queues) -> None:
    with new_queues(queues) as [queue]:
        fill(queues, queue, 12, size=100)
        entries = read_new(queues, queue, 0, 12)
        for index, entry in enumerate(entries[:-1]):
            again = read_new(queues, queue, entry.next, 11 - index)
            assert [(bytes(e.frame), e.next) for e in again] == [(bytes(e.frame), e.next) for e in entries[index + 1 :]]


def check_reader_goes_on_after_its_end(queues: Queues) -> None:
    with new_queues(queues) as [queue], queues.writer() as writer, queues.reader("r", {queue: 0}) as reader:
        for number in range(20):
            writer.append(queue, [frame(number)])
            assert [number_of(entry) for entry in read(reader, [queue], 1)] == [number]


# ------------------------------------------------------------------------ poll


def check_poll_ends_in_time(queues: Queues) -> None:
    with new_queues(queues) as [queue], queues.reader("r", {queue: 0}) as reader:
        reader.poll([queue], 0)
        start = time.monotonic()
        assert reader.poll([queue], 0.2) == []
        assert 0.15 < time.monotonic() - start < PATIENCE_S / 2
        assert reader.poll([queue], 0) == []


def check_poll_waits_for_frames(queues: Queues) -> None:
    with new_queues(queues) as [queue], queues.writer() as writer, queues.reader("r", {queue: 0}) as reader:
        writer.backlog(queue)
        for number in range(5):
            later = threading.Timer(0.05, writer.append, (queue, [frame(number)]))
            later.start()
            start = time.monotonic()
            assert [number_of(entry) for entry in reader.poll([queue], PATIENCE_S)] == [number]
            assert time.monotonic() - start < PATIENCE_S / 2
            later.join()


def check_wake(queues: Queues) -> None:
    with new_queues(queues) as [queue], queues.reader("r", {queue: 0}) as reader:
        reader.poll([queue], 0)
        later = threading.Timer(0.1, reader.wake)
        later.start()
        start = time.monotonic()
        assert reader.poll([queue], PATIENCE_S) == []
        assert time.monotonic() - start < PATIENCE_S / 2
        later.join()


def check_most_bytes(queues: Queues) -> None:
    with new_queues(queues) as [queue]:
        fill(queues, queue, 40, size=10_000)
        with queues.reader("r", {queue: 0}) as reader:
            numbers: list[int] = []
            deadline = time.monotonic() + PATIENCE_S
            while len(numbers) < 40 and time.monotonic() < deadline:
                entries = reader.poll([queue], 1.0, most_bytes=25_000)
                assert sum(len(entry.frame) for entry in entries) <= 25_000 + 10_100
                numbers += [number_of(entry) for entry in entries]
            assert numbers == list(range(40))
        with queues.reader("r", {queue: 0}) as reader:
            assert eventually(lambda: [number_of(e) for e in reader.poll([queue], 1.0, most_bytes=1)] == [0])


def check_busy_queue_does_not_starve_others(queues: Queues) -> None:
    with new_queues(queues, 2) as [busy, quiet], queues.writer() as writer:
        fill(queues, busy, 200, size=10_000)
        writer.append(quiet, [frame(7)])
        writer.sync([quiet])
        with queues.reader("r", {busy: 0, quiet: 0}) as reader:
            entries: list[Entry] = []
            deadline = time.monotonic() + PATIENCE_S
            while len(entries) < 201 and time.monotonic() < deadline:
                entries += reader.poll([busy, quiet], 1.0, most_bytes=30_000)
        names = [entry.queue for entry in entries]
        assert len(entries) == 201
        assert names.index(quiet) < 150
        assert [number_of(entry) for entry in entries if entry.queue == busy] == list(range(200))


def check_queues_not_asked_for_keep_theirs(queues: Queues) -> None:
    with new_queues(queues, 2) as [first, second], queues.reader("r", {first: 0, second: 0}) as reader:
        fill(queues, first, 5)
        fill(queues, second, 5)
        assert [number_of(entry) for entry in read(reader, [second], 5)] == list(range(5))
        start = time.monotonic()
        assert reader.poll([second], 0.2) == []
        assert time.monotonic() - start > 0.15
        assert [number_of(entry) for entry in read(reader, [first], 5)] == list(range(5))


# ----------------------------------------------------------------- backpressure


def check_backlog(queues: Queues) -> None:
    with new_queues(queues) as [queue], queues.writer() as writer:
        assert writer.backlog(queue) == 0
        fill(queues, queue, 10, size=1000)
        with queues.reader("fast", {queue: 0}) as fast, queues.reader("slow", {queue: 0}) as slow:
            entries = read(fast, [queue], 10)
            read(slow, [queue], 10)
            assert eventually(lambda: writer.backlog(queue) >= 5000)
            fast.acknowledge(queue, entries[-1].next)
            slow.acknowledge(queue, entries[4].next)
            assert eventually(lambda: 2000 <= writer.backlog(queue) <= 8000)
            slow.acknowledge(queue, entries[-1].next)
            assert eventually(lambda: writer.backlog(queue) == 0)


# ------------------------------------------------------------- bounds, truncate


def check_bounds(queues: Queues) -> None:
    with new_queues(queues) as [queue]:
        assert queues.bounds(queue) == (0, 0)
        fill(queues, queue, 5)
        start, end = queues.bounds(queue)
        entries = read_new(queues, queue, start, 5)
        assert end == entries[-1].next


def check_truncate(queues: Queues) -> None:
    with new_queues(queues) as [queue]:
        fill(queues, queue, 30, size=1000)
        entries = read_new(queues, queue, 0, 30)
        position = entries[19].next
        queues.truncate(queue, position)
        queues.truncate(queue, entries[3].next)
        start, end = queues.bounds(queue)
        assert 0 <= start <= position
        assert end == entries[-1].next
        assert [number_of(entry) for entry in read_new(queues, queue, position, 10)] == list(range(20, 30))
        if start > 0:
            with queues.reader("r", {queue: 0}) as reader, pytest.raises(QueueDamaged, match=queue):
                read(reader, [queue], 1)
        queues.truncate(queue, end)
        with queues.writer() as writer:
            writer.append(queue, [frame(30)])
            writer.sync([queue])
        assert [number_of(entry) for entry in read_new(queues, queue, end, 1)] == [30]


def check_position_past_the_end(queues: Queues) -> None:
    with new_queues(queues) as [queue]:
        fill(queues, queue, 3)
        _, end = queues.bounds(queue)
        with queues.reader("r", {queue: end + 1000}) as reader, pytest.raises(QueueDamaged, match=queue):
            read(reader, [queue], 1)


# ------------------------------------------------------- create, seal and delete


def check_create_keeps_what_is_there(queues: Queues) -> None:
    with new_queues(queues) as [queue]:
        fill(queues, queue, 3)
        queues.create([queue])
        assert len(read_new(queues, queue, 0, 3)) == 3


def check_seal(queues: Queues) -> None:
    with new_queues(queues) as [queue], queues.writer() as before:
        before.append(queue, [frame(0)])
        before.sync([queue])
        queues.seal(queue)
        queues.seal(queue)
        with pytest.raises(QueueError, match="sealed"):
            before.append(queue, [frame(1)])
        with queues.writer() as after, pytest.raises(QueueError, match="sealed"):
            after.append(queue, [frame(1)])
        assert [number_of(entry) for entry in read_new(queues, queue, 0, 1)] == [0]


def check_delete(queues: Queues) -> None:
    with new_queues(queues) as [queue]:
        fill(queues, queue, 3)
        queues.delete([queue, f"never-there-{uuid4().hex[:8]}"])
        queues.delete([queue])
        queues.create([queue])
        assert queues.bounds(queue) == (0, 0)
        fill(queues, queue, 1)
        assert [number_of(entry) for entry in read_new(queues, queue, 0, 1)] == [0]


def check_queue_that_is_not_there(queues: Queues) -> None:
    queue = f"never-there-{uuid4().hex[:8]}"
    with pytest.raises(QueueError, match=queue):
        queues.bounds(queue)

    def append() -> None:
        with queues.writer() as writer:
            writer.append(queue, [frame(0)])
            writer.sync([queue])

    def poll() -> None:
        with queues.reader("r", {queue: 0}) as reader:
            reader.poll([queue], 0.1)

    for attempt in (append, poll):
        with pytest.raises(QueueError, match=queue):
            attempt()


def check_names(queues: Queues) -> None:
    for bad in ("", "a/b", "a b", "x" * 201, "größe", "a\n", "a\0b", "../a", "~a"):
        with pytest.raises(QueueError):
            queues.create([bad])
    name = f"A.b_c-{uuid4().hex}".ljust(200, "0")
    queues.create([name])
    fill(queues, name, 1)
    assert len(read_new(queues, name, 0, 1)) == 1
    queues.delete([name])


def check_pickle(queues: Queues) -> None:
    with new_queues(queues) as [queue]:
        fill(queues, queue, 3)
        other: Queues = pickle.loads(pickle.dumps(queues))
        assert other.bounds(queue) == queues.bounds(queue)
        assert [number_of(entry) for entry in read_new(other, queue, 0, 3)] == [0, 1, 2]


CHECKS: Final[tuple[Callable[[Queues], None], ...]] = (
    check_order_of_one_writer,
    check_frames_come_as_they_were,
    check_one_order_for_all,
    check_resume_after_any_entry,
    check_reader_goes_on_after_its_end,
    check_poll_ends_in_time,
    check_poll_waits_for_frames,
    check_wake,
    check_most_bytes,
    check_busy_queue_does_not_starve_others,
    check_queues_not_asked_for_keep_theirs,
    check_backlog,
    check_bounds,
    check_truncate,
    check_position_past_the_end,
    check_create_keeps_what_is_there,
    check_seal,
    check_delete,
    check_queue_that_is_not_there,
    check_names,
    check_pickle,
)
