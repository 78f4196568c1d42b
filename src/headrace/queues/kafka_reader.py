"""Reads queues that are in Kafka: one consumer, told what to read, without a group that shares it out.

The client fetches ahead, all queues into one line. What comes for a queue that is not asked for is kept here; where
that is much, its fetching is paused, so the memory is bounded and the others are not held up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, Final

from headrace.errors import QueueDamaged, QueueError
from headrace.queues.kafka_client import Trouble, client_settings, confluent, new_client, queue_error, unreachable
from headrace.queues.kafka_commits import Commits, committed_of
from headrace.queues.protocol import Entry, Reader

_WAKE_S: Final = 0.005
"""The client cannot be woken, so it waits this long at a time."""
_AT_ONCE: Final = 64
_KEPT_BYTES: Final = 64 << 20
"""What is kept of queues that are not asked for, about, all together."""
_LOOK_S: Final = 2.0

_SETTINGS: Final[Mapping[str, str]] = {
    "fetch.wait.max.ms": "50",
    # Looked at again soon when there is room: the defaults are for bulk.
    "fetch.queue.backoff.ms": "5",
    "fetch.error.backoff.ms": "20",
    "queued.max.messages.kbytes": str(8 << 10),
}


class KafkaReader(Reader):
    """Belongs to the process and, but for `wake`, to the thread that made it."""

    def __init__(
        self,
        servers: str,
        settings: Mapping[str, str],
        timeout_s: float,
        group: str,
        topics: Mapping[str, str],
        positions: Mapping[str, int],
    ):
        self._kafka: Any = confluent()
        self._servers = servers
        self._timeout_s = timeout_s
        self._trouble = Trouble()
        self._group = group
        self._topics = dict(topics)
        self._queue_of = {topic: queue for queue, topic in topics.items()}
        self._next = dict(positions)
        self._kept: dict[str, deque[Entry]] = {queue: deque() for queue in topics}
        self._sizes = dict.fromkeys(topics, 0)
        self._most_kept = max(256 << 10, _KEPT_BYTES // max(1, len(topics)))
        self._paused: set[str] = set()
        self._problems: dict[str, QueueError] = {}
        self._woken = threading.Event()
        self._consumer = self._consumer_of(settings)
        try:
            self._assign()
        except BaseException:
            self._consumer.close()
            raise
        self._commits = Commits(self._commit, positions)

    # ----------------------------------------------------------------- reading

    def poll(self, queues: Collection[str], timeout_s: float, most_bytes: int = 4 << 20) -> list[Entry]:
        deadline = time.monotonic() + timeout_s
        for queue in queues:
            self._resume(queue)
        self._fill(queues, most_bytes)
        while True:
            if entries := self._take(queues, most_bytes):
                return entries
            left = deadline - time.monotonic()
            if left <= 0 or self._woken.is_set():
                self._woken.clear()
                return []
            message = self._consumer.poll(min(left, _WAKE_S))
            if message is None:
                self._expect_broker()
            else:
                self._keep(message)
                self._fill(queues, most_bytes)

    def _fill(self, queues: Collection[str], most_bytes: int) -> None:
        """Take over what the client has: all of it until there is something of every queue, but not much more."""
        room = most_bytes
        while True:
            messages = self._consumer.consume(_AT_ONCE, 0)
            for message in messages:
                room -= self._keep(message)
            if len(messages) < _AT_ONCE or (room <= 0 and any(self._kept[queue] for queue in queues)):
                return

    def _take(self, queues: Collection[str], most_bytes: int) -> list[Entry]:
        entries: list[Entry] = []
        for queue in queues:
            kept, room = self._kept[queue], most_bytes
            while kept and (room >= len(kept[0].frame) or room == most_bytes):
                entry = kept.popleft()
                room -= len(entry.frame)
                self._sizes[queue] -= len(entry.frame)
                entries.append(entry)
        if not entries:
            for queue in queues:
                if queue in self._problems:
                    raise self._problems[queue]
        return entries

    def _keep(self, message: Any) -> int:
        """How many bytes it has."""
        if message.error() is not None:
            self._note(message)
            return 0
        self._trouble.is_over()
        queue, offset, frame = self._queue_of[message.topic()], message.offset(), message.value()
        wanted = self._next[queue]
        if offset < wanted or queue in self._problems:
            return 0  # fetched again after a pause
        if offset > wanted:
            self._problems[queue] = QueueDamaged(queue, f"positions {wanted} to {offset} are missing")
            return 0
        self._next[queue] = offset + 1
        if frame is None:
            return 0  # the queue was being sealed
        self._kept[queue].append(Entry(queue, frame, offset + 1))
        self._sizes[queue] += len(frame)
        if self._sizes[queue] > self._most_kept and queue not in self._paused:
            self._paused.add(queue)
            self._consumer.pause([self._partition(queue)])
        return len(frame)

    def _check(self, queue: str) -> None:
        if queue not in self._kept:
            raise QueueError(f"reader {self._group} was not opened for queue {queue}: name its position")

    def _resume(self, queue: str) -> None:
        self._check(queue)
        if queue in self._paused and self._sizes[queue] * 2 <= self._most_kept:
            self._paused.discard(queue)
            self._consumer.resume([self._partition(queue)])

    def wake(self) -> None:
        self._woken.set()

    # ---------------------------------------------------------------- problems

    def _note(self, message: Any) -> None:
        error, queue = message.error(), self._queue_of.get(message.topic() or "")
        if queue is None or queue in self._problems:
            return
        if error.name() == "_AUTO_OFFSET_RESET":
            self._problems[queue] = self._out_of_range(queue)
        elif error.name() not in ("_PARTITION_EOF", "_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN"):
            doing = f"read queue {queue}"
            self._problems[queue] = queue_error(error, doing, self._servers, self._timeout_s, self._trouble)

    def _out_of_range(self, queue: str) -> QueueDamaged:
        wanted, has = self._next[queue], ""
        try:
            start, end = self._consumer.get_watermark_offsets(self._partition(queue), timeout=_LOOK_S)
            has = f": it has {start} to {end}"
        except self._kafka.KafkaException:
            pass  # then without
        return QueueDamaged(queue, f"position {wanted} is not there{has}")

    def _expect_broker(self) -> None:
        """Silence may be an idle queue or a broker that is gone: after a while of trouble, ask."""
        since = self._trouble.down_since
        if since is None or time.monotonic() - since < self._timeout_s:
            return
        try:
            self._consumer.list_topics(next(iter(self._queue_of)), timeout=_LOOK_S)
        except self._kafka.KafkaException:
            waited = time.monotonic() - since
            raise unreachable("read", self._servers, waited, self._trouble.reason) from None
        self._trouble.is_over()

    # ------------------------------------------------------------ acknowledged

    def acknowledge(self, queue: str, position: int) -> None:
        self._check(queue)
        self._commits.add(queue, position)

    def _commit(self, positions: Mapping[str, int]) -> None:
        offsets = [self._partition(queue, position) for queue, position in positions.items()]
        self._consumer.commit(offsets=offsets, asynchronous=True)

    def _on_commit(self, error: Any, partitions: list[Any]) -> None:
        self._commits.answered(committed_of(partitions, self._queue_of), error is None)

    def close(self) -> None:
        self._commits.stop()
        self._consumer.close()

    # ------------------------------------------------------------------ set up

    def _consumer_of(self, settings: Mapping[str, str]) -> Any:
        own = {
            "group.id": self._group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "on_commit": self._on_commit,
        }
        wanted = client_settings(self._servers, {**_SETTINGS, **settings}, self._trouble, own)
        return new_client(self._kafka.Consumer, wanted)

    def _assign(self) -> None:
        try:
            there = self._consumer.list_topics(timeout=self._timeout_s).topics
        except self._kafka.KafkaException as error:
            self._consumer.poll(0)
            problem = queue_error(error.args[0], "open a reader", self._servers, self._timeout_s, self._trouble)
            raise problem from None
        for queue, topic in self._topics.items():
            if topic not in there:
                raise QueueError(f"there is no queue {queue} at {self._servers}; create it first")
            if self._next[queue] < 0:
                self._problems[queue] = QueueDamaged(queue, f"position {self._next[queue]} is before its start")
        self._consumer.assign([self._partition(queue, at) for queue, at in self._next.items() if at >= 0])

    def _partition(self, queue: str, offset: int = -1001) -> Any:
        return self._kafka.TopicPartition(self._topics[queue], 0, offset)
