"""What reads the paths of a query and writes one stream in order: to a topic, in transactions, or to a function."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import FlowError, QueueDamaged
from headrace.order.by_sequence import NEVER
from headrace.order.columns import SEQUENCE
from headrace.order.runs import BEGIN, Done, PathsMerge, Piece
from headrace.queues.kafka_client import confluent, unreachable
from headrace.spark.query_paths import TAG, TIMEOUT_S, Client, Paths

Callback = Callable[[pa.RecordBatch], None]
WRITTEN: Final = "headrace-sequence"
"""The header of a message of the output."""
WAIT_S: Final = 0.05
_AT_ONCE: Final = 10_000
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROWS: Final = pa.schema([(SEQUENCE, pa.int64()), ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)])


def rows_of(sequences: Any, messages: list[Any], headers: list[Any]) -> pa.RecordBatch:
    keys, values = [message.key() for message in messages], [message.value() for message in messages]
    others = pa.array([each[:-1] or None for each in headers], HEADERS)
    return pa.record_batch([pa.array(sequences), pa.array(keys, pa.binary()), values, others], schema=ROWS)


def headers_of(messages: list[Any], tag: str) -> list[Any]:
    """The last one of each is what the query has put there."""
    headers = [message.headers() for message in messages]
    if any(not each or each[-1][0] != tag for each in headers):
        raise FlowError(
            f"topic {messages[0].topic()} has rows that this query did not write; a query in Real-Time Mode and one in "
            f"micro-batches need topics of their own: give one of them another name"
        )
    return headers


def pieces_of(messages: list[Any]) -> Iterator[Piece]:
    """Of messages of one partition."""
    headers = headers_of(messages, TAG)
    tags = np.fromstring(b",".join(each[-1][1] for each in headers), np.int64, sep=",").reshape(-1, 3)
    rows = rows_of(tags[:, 2], messages, headers)
    is_cut = (tags[1:, 1] < 0) | (tags[:-1, 1] < 0) | (tags[1:, 0] != tags[:-1, 0])
    for start, end in pairwise([0, *(np.flatnonzero(is_cut) + 1).tolist(), len(messages)]):
        token, number, batch = tags[start].tolist()
        token, after = messages[start].offset() if number == BEGIN else token, messages[end - 1].offset() + 1
        yield Piece(token, min(number, 0), batch, tags[start:end, 1], rows.slice(start, end - start), after)


@dataclass(frozen=True)
class OrderProgress:
    """How far a merger is. `held` rows wait, `dropped` ones had come before.

    They wait for rows of the partitions `waits_for` or, in Real-Time Mode, for that offset.
    """

    batch: int | None
    released: int | None
    rows: int
    dropped: int
    held: int
    waits_for: tuple[int, ...]


class Merging(Protocol):
    """What decides which rows can leave."""

    done: Done
    dropped: int
    offsets: list[int]
    """Where to read from after a restart: another list, where it is another place."""

    @property
    def held(self) -> int: ...

    @property
    def waits_for(self) -> tuple[int, ...]: ...

    def release(self) -> pa.RecordBatch | None: ...


class Merger:
    """Reads the paths and writes the output: to a topic exactly once, to a callback at least once. One at a time."""

    def __init__(self, paths: Paths, to: str | Callback):
        self._paths, self._to, self._rows = paths, to, 0
        self._stopped, self._drains = threading.Event(), threading.Event()
        self._paused: set[int] = set()
        self._admin = Client(paths, "AdminClient", {})
        own = {"group.id": paths.topic, "enable.auto.commit": False, "auto.offset.reset": "error"}
        own |= {"isolation.level": "read_committed", "fetch.wait.max.ms": 50}
        self._consumer = Client(paths, "Consumer", own)
        self._producer = Client(paths, "Producer", {"transactional.id": f"headrace-{paths.topic}", "linger.ms": 5})
        if isinstance(to, str):
            # Ends what the merger before has left open, and shuts it out.
            self._producer(f"write to topic {to}", "init_transactions", TIMEOUT_S)
        reading = f"read topic {paths.topic}"
        places = [self._place(at) for at in range(paths.parallelism)]
        found = self._consumer(reading, "committed", places, TIMEOUT_S)
        first = [self._consumer(reading, "get_watermark_offsets", place, TIMEOUT_S)[0] for place in places]
        self._next = [each.offset if each.offset >= 0 else low for each, low in zip(found, first, strict=True)]
        # Kafka forgets groups that do nothing for a week: then the output tells.
        done = Done(*json.loads(found[0].metadata)) if found[0].offset >= 0 else Done(self._last_written())
        names = [f"topic {paths.topic}, partition {at}" for at in range(len(places))]
        self._merge: Merging = self._made(names, done, [*self._next])
        self._consumer(reading, "assign", [self._place(at, offset) for at, offset in enumerate(self._next)])

    def _made(self, names: list[str], done: Done, offsets: list[int]) -> Merging:
        self._kept: list[deque[Piece]] = [deque() for _ in names]
        self._pieces = PathsMerge(names, done, offsets)
        return self._pieces

    def _place(self, at: int, offset: int = -1001, state: str = "") -> Any:
        return confluent().TopicPartition(self._paths.topic, at, offset, state)

    def _last_written(self) -> int:
        """The highest sequence in the output; NEVER where there is none."""
        last, own = NEVER, {"group.id": self._paths.topic, "isolation.level": "read_committed"}
        if isinstance(self._to, str):
            reader = Client(self._paths, "Consumer", {**own, "enable.partition.eof": True})
            reader.it.assign([confluent().TopicPartition(self._to, 0, confluent().OFFSET_BEGINNING)])
            while (message := reader.it.poll(TIMEOUT_S)) is not None and message.error() is None:
                last = max(last, int(dict(message.headers() or ()).get(WRITTEN, NEVER)))
            if message is None or message.error().name() != "_PARTITION_EOF":
                raise unreachable(f"read topic {self._to}", self._paths.servers, TIMEOUT_S, reader.trouble.reason)
            reader.it.close()
        return last

    @property
    def progress(self) -> OrderProgress:
        done, merge = self._merge.done, self._merge
        released = None if done.released == NEVER else done.released
        return OrderProgress(done.batch, released, self._rows, merge.dropped, merge.held, merge.waits_for)

    def run(self) -> None:
        """Until `stop` is called, from another thread."""
        try:
            while not self._stopped.is_set():
                if not self._step() and self._drains.is_set() and self._has_all():
                    return
        finally:
            self._consumer.it.close()

    def stop(self, drain: bool = True) -> None:
        """With `drain`, after what is complete on the paths has left. Another one of this name goes on there."""
        (self._drains if drain else self._stopped).set()

    def _has_all(self) -> bool:
        return self._next == self._ends()

    def _ends(self) -> list[int]:
        places = [self._place(at) for at in range(len(self._next))]
        return [self._consumer("read", "get_watermark_offsets", place, TIMEOUT_S)[1] for place in places]

    def _step(self) -> bool:
        """Was there something to read?"""
        reading = f"read topic {self._paths.topic}"
        messages = self._consumer(reading, "consume", 1, WAIT_S)
        messages += self._consumer(reading, "consume", _AT_ONCE, 0) if messages else []
        by_path: dict[int, list[Any]] = {}
        for message in messages:
            at, error = message.partition(), message.error()
            if error is not None and not error.retriable():
                raise self._consumer.problem(error, reading)
            if error is None and message.offset() >= self._next[at]:  # after a pause some are read again
                if message.offset() > self._next[at]:
                    raise QueueDamaged(f"{self._paths.topic}-{at}", f"offset {self._next[at]} is missing")
                self._next[at] += 1
                by_path.setdefault(at, []).append(message)
        self._arrived(by_path)
        ahead = self._ahead()
        for method, which in (("pause", ahead - self._paused), ("resume", self._paused - ahead)):
            self._consumer(reading, method, [self._place(at) for at in which])
        self._paused = ahead
        return bool(messages)

    def _arrived(self, by_path: dict[int, list[Any]]) -> None:
        for at, mine in by_path.items():
            self._kept[at].extend(pieces_of(mine))
        while by_path and self._advance():
            pass

    def _ahead(self) -> set[int]:
        """No more is read of paths that are a micro-batch ahead: memory is bounded by one."""
        return {at for at, kept in enumerate(self._kept) if kept}

    def _advance(self) -> bool:
        was, has_moved = self._merge.offsets, False
        for at, kept in enumerate(self._kept):
            while kept and self._pieces.take(at, kept[0]):
                kept.popleft()
                has_moved = True
        self._let_go(was)
        return has_moved

    def _let_go(self, was: list[int]) -> None:
        """What can leave; `was` is where a merger would have gone on until now."""
        rows, offsets = self._merge.release(), self._merge.offsets
        if rows is not None or offsets is not was:
            self._write([] if rows is None else [rows])
        if offsets is not was:
            self._admin.it.delete_records([self._place(at, offset) for at, offset in enumerate(offsets)])

    def _write(self, batches: list[pa.RecordBatch]) -> None:
        """Rows, and how far we are: both or, but for a callback, nothing."""
        done, producer = self._merge.done, self._producer
        state = json.dumps([done.released, done.batch, done.highest])
        places = [self._place(at, offset, state) for at, offset in enumerate(self._merge.offsets)]
        if callable(self._to):
            for rows in batches:
                self._to(rows.rename_columns(["sequence", *ROWS.names[1:]]))
            self._consumer("commit", "commit", offsets=places, asynchronous=False)
        else:
            writing = f"write to topic {self._to}"
            producer(writing, "begin_transaction")
            for rows in batches:
                self._produce(self._to, rows)
            group = self._consumer.it.consumer_group_metadata()
            producer(writing, "send_offsets_to_transaction", places, group, TIMEOUT_S)
            producer(writing, "commit_transaction", TIMEOUT_S)
        self._rows += sum(rows.num_rows for rows in batches)

    def _produce(self, topic: str, rows: pa.RecordBatch) -> None:
        produce = self._producer.it.produce
        for sequence, key, value, headers in zip(*(each.to_pylist() for each in rows.columns), strict=True):
            written = [(header["key"], header["value"]) for header in headers or ()]
            written.append((WRITTEN, str(sequence)))
            while True:
                try:
                    produce(topic, value, key, 0, headers=written)
                    break
                except BufferError:
                    self._producer.it.poll(WAIT_S)
                except confluent().KafkaException as error:
                    raise self._producer.problem(error.args[0], f"write to topic {topic}") from None
