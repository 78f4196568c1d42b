"""What queues in Kafka promise beyond the contract: brokers that are away, or crash in mid-stream."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from multiprocessing.queues import SimpleQueue

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from headrace.errors import QueueDamaged, QueueError, QueueUnreachable
from headrace.queues import kafka_reader
from headrace.queues.kafka import KafkaQueues
from headrace.queues.protocol import Entry, Reader, Writer
from headrace.spark.broker import Broker
from headrace.testing.cluster import free_port
from headrace.testing.kafka import new_kafka_queues

pytestmark = pytest.mark.kafka
PATIENCE_S = 60.0


def read(reader: Reader, queues: list[str], count: int) -> list[Entry]:
    entries: list[Entry] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(entries) < count and time.monotonic() < deadline:
        entries += reader.poll(queues, 0.5)
    assert len(entries) == count
    return entries


@pytest.mark.chaos  # librdkafka has been seen to abort, once, when a broker died
def test_a_crash_of_the_broker_loses_doubles_and_reorders_nothing(kafka_broker: Broker) -> None:
    queues = new_kafka_queues(kafka_broker)
    queues.create(["shared", "own"])
    enough = threading.Event()
    sent: dict[bytes, int] = {}

    def write(name: bytes) -> None:
        number = 0
        with queues.writer() as writer:
            while not enough.is_set() and number < 200_000:
                frames = [b"%s-%d" % (name, number + index) for index in range(3)]
                writer.append("shared", frames)
                writer.append("own", frames) if name == b"x" else None
                number += 3
                enough.wait(0.001)
            writer.sync(["shared", "own"])
        sent[name] = number

    threads = [threading.Thread(target=write, args=(name,)) for name in (b"x", b"y")]
    with queues.reader("r", {"shared": 0, "own": 0}) as reader:
        for thread in threads:
            thread.start()
        try:
            entries = _read_at_least(reader, 500)
            kafka_broker.kill()
            for _ in range(20):
                entries += reader.poll(["shared", "own"], 0.01)
            kafka_broker.start()
            seen = len(entries)
            entries += _read_at_least(reader, 500)
        finally:
            enough.set()
            for thread in threads:
                thread.join(PATIENCE_S)
        assert sorted(sent) == [b"x", b"y"]
        entries += read(reader, ["shared", "own"], sent[b"x"] * 2 + sent[b"y"] - len(entries))
        assert reader.poll(["shared", "own"], 0.3) == []
    assert len(entries) > seen
    assert _numbers(entries, "own", b"x") == list(range(sent[b"x"]))
    for name in (b"x", b"y"):
        assert _numbers(entries, "shared", name) == list(range(sent[name]))
    assert queues.bounds("shared") == (0, sent[b"x"] + sent[b"y"])


def _read_at_least(reader: Reader, count: int) -> list[Entry]:
    entries: list[Entry] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(entries) < count and time.monotonic() < deadline:
        entries += reader.poll(["shared", "own"], 0.5)
    assert len(entries) >= count
    return entries


def _numbers(entries: list[Entry], queue: str, name: bytes) -> list[int]:
    frames = [bytes(entry.frame) for entry in entries if entry.queue == queue]
    return [int(frame[2:]) for frame in frames if frame.startswith(name)]


@pytest.mark.chaos  # librdkafka has been seen to abort, once, when a broker died
def test_a_broker_that_is_away_for_long_is_told_and_nothing_is_lost(
    kafka_broker: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    queues = new_kafka_queues(kafka_broker, timeout_s=1.0)
    queues.create(["a"])
    with queues.writer() as writer, queues.reader("r", {"a": 0}) as reader:
        writer.append("a", [b"0"])
        writer.sync(["a"])
        assert [entry.frame for entry in read(reader, ["a"], 1)] == [b"0"]
        kafka_broker.kill()
        writer.append("a", [b"1", b"2"])
        with pytest.raises(QueueUnreachable, match=r"tried for 1 s to append 2 frames.*headrace kafka start"):
            writer.sync(["a"])
        with pytest.raises(QueueUnreachable, match="headrace kafka start"):
            read(reader, ["a"], 1)
        kafka_broker.start()
        writer.append("a", [b"3"])
        _sync_when_back(writer)
        assert [entry.frame for entry in _read_when_back(reader, 3)] == [b"1", b"2", b"3"]
    assert queues.bounds("a") == (0, 4)
    assert capfd.readouterr().err == ""


def _sync_when_back(writer: Writer) -> None:
    for _ in range(int(PATIENCE_S)):
        try:
            return writer.sync(["a"])
        except QueueUnreachable:
            continue
    raise AssertionError("it does not come back")


def _read_when_back(reader: Reader, count: int) -> list[Entry]:
    entries: list[Entry] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(entries) < count and time.monotonic() < deadline:
        try:
            entries += reader.poll(["a"], 0.5)
        except QueueUnreachable:
            continue
    return entries


def test_where_there_is_no_broker_everything_says_so_in_time(capfd: pytest.CaptureFixture[str]) -> None:
    queues = KafkaQueues(f"127.0.0.1:{free_port()}", "t-", timeout_s=0.5)
    for tried in (
        lambda: queues.create(["a"]),
        lambda: queues.delete(["a"]),
        lambda: queues.bounds("a"),
        lambda: queues.seal("a"),
        lambda: queues.truncate("a", 0),
        lambda: queues.reader("r", {"a": 0}),
        lambda: queues.writer().append("a", [b"1"]),
    ):
        start = time.monotonic()
        with pytest.raises(QueueUnreachable, match=r"127\.0\.0\.1.*Connection refused.*headrace kafka start"):
            tried()
        assert time.monotonic() - start < 10
    assert capfd.readouterr().err == ""


def _append_and_sync(writer: Writer, frames: list[bytes]) -> None:
    writer.append("a", frames)
    writer.sync(["a"])


def test_what_was_appended_before_a_queue_was_sealed_is_safe(kafka_broker: Broker) -> None:
    queues = new_kafka_queues(kafka_broker)
    queues.create(["a"])
    with queues.writer() as writer:
        _append_and_sync(writer, [b"0"])
        queues.seal("a")
        writer.sync(["a"])
    assert queues.bounds("a")[1] >= 1


def test_a_sealed_queue_is_closed_to_writers_of_other_processes(kafka_broker: Broker) -> None:
    queues = new_kafka_queues(kafka_broker)
    queues.create(["a", "b"])
    elsewhere: KafkaQueues = pickle.loads(pickle.dumps(queues))  # knows nothing of what is done here
    with elsewhere.writer() as writer:
        writer.append("a", [b"0"])
        writer.sync(["a"])
        queues.seal("a")
        writer.append("b", [b"1"])
        with pytest.raises(QueueError, match="queue a: it is sealed"):  # by either: the answer may come at once
            _append_and_sync(writer, [b"1", b"2"])
        writer.sync(["b"])
        with pytest.raises(QueueError, match="queue a: it is sealed"):
            writer.append("a", [b"3"])
        writer.append("b", [b"2"])
        writer.sync(["b"])
    with queues.reader("r", {"a": 0, "b": 0}) as reader:
        entries = read(reader, ["a", "b"], 3)
        assert reader.poll(["a"], 0.2) == []
    assert sorted((entry.queue, entry.frame) for entry in entries) == [("a", b"0"), ("b", b"1"), ("b", b"2")]


def test_a_queue_that_nobody_asks_for_does_not_fill_the_memory(
    kafka_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_reader, "_KEPT_BYTES", 0)  # then it is 256 KB a queue
    queues = new_kafka_queues(kafka_broker)
    queues.create(["busy", "quiet"])
    with queues.writer() as writer, queues.reader("r", {"busy": 0, "quiet": 0}) as reader:
        for number in range(300):
            writer.append("busy", [number.to_bytes(4, "big") * 5000])
        writer.append("quiet", [b"0"])
        writer.sync(["busy", "quiet"])
        assert [entry.frame for entry in read(reader, ["quiet"], 1)] == [b"0"]
        assert reader.poll(["quiet"], 0.5) == []
        assert reader._sizes["busy"] < 2_000_000
        assert reader._paused == {"busy"}
        writer.append("quiet", [b"1"])
        assert [entry.frame for entry in read(reader, ["quiet"], 1)] == [b"1"]
        numbers = [int.from_bytes(entry.frame[:4], "big") for entry in read(reader, ["busy", "quiet"], 300)]
    assert numbers == list(range(300))


def test_a_reader_that_truncation_has_overtaken_is_told(kafka_broker: Broker) -> None:
    queues = new_kafka_queues(kafka_broker)
    queues.create(["a"])
    with queues.writer() as writer:
        writer.append("a", [b"%d" % number for number in range(10)])
        writer.sync(["a"])
    queues.truncate("a", 6)
    for position, message in ((2, "position 2 is not there: it has 6 to 10"), (-1, "position -1 is before its start")):
        with queues.reader("r", {"a": position}) as reader, pytest.raises(QueueDamaged, match=message):
            read(reader, ["a"], 1)
    with pytest.raises(QueueError, match="ends before position 11"):
        queues.truncate("a", 11)


def test_names_that_kafka_takes_for_the_same_are_two_queues(kafka_broker: Broker) -> None:
    queues = new_kafka_queues(kafka_broker)
    queues.create(["a.b", "a_b", "..."])
    with queues.writer() as writer:
        writer.append("a.b", [b"dot"])
        writer.append("a_b", [b"line"])
    with queues.reader("r", {"a.b": 0, "a_b": 0}) as reader:
        found = {entry.queue: entry.frame for entry in read(reader, ["a.b", "a_b"], 2)}
    assert found == {"a.b": b"dot", "a_b": b"line"}


def test_a_topic_that_forgets_is_no_queue(kafka_broker: Broker) -> None:
    queues = new_kafka_queues(kafka_broker)
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    for made in admin.create_topics([NewTopic(queues.topic("a"), 1, 1)]).values():
        made.result()
    with queues.writer() as writer, pytest.raises(QueueError, match=r"may lose frames \(retention\.ms is 604800000\)"):
        writer.append("a", [b"0"])


def test_frames_as_long_as_a_topic_takes_and_longer(kafka_broker: Broker) -> None:
    queues = new_kafka_queues(kafka_broker)
    queues.create(["a"])
    with queues.writer() as writer:
        writer.append("a", [bytes(64 << 20)])
        with pytest.raises(QueueError, match=r"a frame of 68,157,440 bytes is too long.*cut it"):
            writer.append("a", [b"small", bytes(65 << 20)])
        writer.sync(["a"])
    with queues.reader("r", {"a": 0}) as reader:
        assert [len(entry.frame) for entry in read(reader, ["a"], 1)] == [64 << 20]


def test_hundreds_of_queues(kafka_broker: Broker) -> None:
    queues = new_kafka_queues(kafka_broker)
    names = [f"q{number}" for number in range(200)]
    queues.create(names)
    with queues.writer() as writer, queues.reader("r", dict.fromkeys(names, 0)) as reader:
        for name in names:
            writer.append(name, [name.encode()])
        writer.sync(names)
        assert {entry.queue: entry.frame for entry in read(reader, names, 200)} == {n: n.encode() for n in names}
    queues.delete(names)


def _append_and_look(queues: KafkaQueues, answers: SimpleQueue[tuple[int, int]]) -> None:
    with queues.writer() as writer:
        writer.append("a", [b"0"])
        writer.sync(["a"])
    answers.put(queues.bounds("a"))


def test_queues_work_in_a_forked_process(kafka_broker: Broker) -> None:
    queues = new_kafka_queues(kafka_broker)
    queues.create(["a"])
    context = multiprocessing.get_context("fork")
    answers: SimpleQueue[tuple[int, int]] = context.SimpleQueue()
    child = context.Process(target=_append_and_look, args=(queues, answers))
    child.start()
    child.join(PATIENCE_S / 2)
    if child.is_alive():
        child.kill()
    assert child.exitcode == 0
    assert answers.get() == (0, 1)


def test_settings_are_kept_out_of_sight_and_wrong_ones_are_refused() -> None:
    assert "secret" not in repr(KafkaQueues("b:9092", "t-", {"sasl.password": "secret"}))
    with pytest.raises(QueueError, match="prefix='a b'"):
        KafkaQueues("b:9092", "a b")
    with pytest.raises(QueueError, match=r"no\.such\.setting"):
        KafkaQueues("b:9092", "t-", {"no.such.setting": "1"}).writer()
