"""Files of the embedded log that went bad: damage is found and told, and a bad tail record is made anew."""

from __future__ import annotations

import os
import random

import pytest

from headrace.errors import QueueDamaged, QueueError
from headrace.queues import tail
from headrace.queues.log import LogQueues
from headrace.testing.queue_contract import fill, frame, number_of, read_new

from .conftest import QUEUE, drain, flip, folder, numbers, segments

# ------------------------------------------------------------------------ damage


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
