"""Queues as the ends of flows: what is sent counts once, whoever sends it."""

from __future__ import annotations

import secrets
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import QueueDamaged
from headrace.flow.builder import Flow
from headrace.flow.plan import make_plan
from headrace.flow.queue_ends import begins, outside
from headrace.flow.receiving import Receiving
from headrace.model import frames
from headrace.queues.log import LogQueues
from headrace.queues.protocol import Entry, Queues

from .coordinator_script import ignored

_SCHEMA = pa.schema([("n", pa.int64())])


def _batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=_SCHEMA)


def _receiving() -> Receiving:
    flow = Flow("f")
    flow.sink("out", flow.source("numbers", hr.queue("p", _SCHEMA)), hr.callback(ignored))
    (task,) = make_plan(flow.graph()).tasks.values()
    return Receiving(task, (), None)


def _entries(queues: Queues) -> list[Entry]:
    queue = outside("p")
    with queues.reader("test", {queue: 0}) as reader:
        return [Entry(each.queue, bytes(each.frame), each.next) for each in reader.poll([queue], 1.0)]


def test_senders_that_draw_the_same_channel_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: 7)
    queues = LogQueues(tmp_path)
    for numbers in ((1, 2, 3), (4, 5)):
        with hr.Sender(queues, "p") as sender:
            sender.send(_batch(*numbers[:1]))
            sender.send(_batch(*numbers[1:]))
    receiving = _receiving()
    found = [part.batch for entry in _entries(queues) if (part := receiving.new_part(entry, 0)) is not None]
    assert pa.Table.from_batches(found)["n"].to_pylist() == [1, 2, 3, 4, 5]
    with hr.Receiver(queues, "p") as receiver:
        assert [n for batch in receiver.receive(1.0) for n in batch["n"].to_pylist()] == [1, 2, 3, 4, 5]


def test_what_a_sender_with_a_channel_of_its_own_sends_again_counts_once(tmp_path: Path) -> None:
    queues = LogQueues(tmp_path)
    for first, numbers in ((0, (0, 1, 2)), (1, (1, 2, 3))):
        with hr.Sender(queues, "p", channel=9, first=first) as sender:
            sender.send(_batch(*numbers))
    receiving = _receiving()
    found = [part.batch for entry in _entries(queues) if (part := receiving.new_part(entry, 0)) is not None]
    assert pa.Table.from_batches(found)["n"].to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize("drawn", [False, True], ids=["counted", "drawn"])
def test_records_that_are_missing_are_named(drawn: bool) -> None:
    first = 1_795_000_000_000 << 20 if drawn else 0
    assert begins(first) is drawn
    receiving = _receiving()
    frame = frames.encode(frames.data(7, first, _batch(0)))
    assert receiving.new_part(Entry(outside("p"), frame, 1), 0) is not None
    with pytest.raises(QueueDamaged, match=f"records {first + 1} to {first + 1} of channel 7 are missing"):
        receiving.new_part(Entry(outside("p"), frames.encode(frames.data(7, first + 2, _batch(2))), 2), 0)
