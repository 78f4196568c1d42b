"""Queues in Apache Kafka: a queue is a topic of one partition, a position is an offset, a frame is a message.

What Kafka adds to the promises of `protocol`, or asks for:

- **Appending is asynchronous.** `append` hands frames to the client and returns; `sync` waits until Kafka has them on
  all replicas that are in sync (`acks=all`). What goes wrong with a queue is raised by the next `append` or `sync` of
  it, and ever after: open another writer. Frames are neither lost, doubled nor reordered while a broker is away, for
  however long (the producer is idempotent). `sync` raises QueueUnreachable when it has waited for `timeout_s`; the
  frames are kept, and it can be called again.
- **Sealing is done by the broker**: the longest message that the topic takes is set to 0 bytes. When `seal` returns,
  no writer of any process gets a frame into the queue, not even one that has been cut off and comes back. A writer
  that is open in another process learns it from the broker's answer, so from `sync` or a later `append`; a new one,
  or one in the process that has sealed it, from its next `append`.
- **Truncating** moves the start of the queue at once; the disk is freed in whole segments of 128 MB, some time later.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import QueueError, QueueUnreachable
from headrace.model.frames import MOST_BYTES
from headrace.queues.kafka_admin import KafkaAdmin, Topic, check_name, topic_of
from headrace.queues.kafka_backlog import BacklogWatch
from headrace.queues.kafka_client import (
    Deliveries,
    Lot,
    Trouble,
    client_settings,
    confluent,
    new_client,
    queue_error,
    unreachable,
)
from headrace.queues.kafka_reader import KafkaReader
from headrace.queues.protocol import Queues, Writer

TIMEOUT_S: Final = 30.0
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{0,40}")
_MESSAGE_EXTRA: Final = 1024
"""More than Kafka adds to a message."""
_WISHES: Final = {"linger.ms": "0", "retry.backoff.ms": "20", "queue.buffering.max.kbytes": str(256 << 10)}
_NEEDS: Final = {
    "enable.idempotence": True,
    "acks": "all",
    # A frame that is given up while a later one arrives would be a hole: none is given up.
    "message.timeout.ms": 0,
    "message.max.bytes": MOST_BYTES + (1 << 20),
}
_FULL_PAUSE_S: Final = 0.01
_USUAL_FRAME_BYTES: Final = 1024


@dataclass(frozen=True)
class KafkaQueues(Queues):
    """All queues whose topics begin with a prefix. `settings` are those of librdkafka, as for TLS and SASL."""

    servers: str
    prefix: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    replication: int | None = None
    """How many brokers keep a queue; as the cluster wants it, unless you say it."""
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    """More settings for new topics, for example a smaller `max.message.bytes` where a cluster asks for it."""
    timeout_s: float = TIMEOUT_S
    """How long to wait for a broker that does not answer."""
    _sealed_here: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    """What this process has sealed: its writers need not ask the broker."""

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise QueueError(f"prefix={self.prefix!r}: use at most 40 letters, digits, '-', '_' and '.'")
        if not self.servers:
            raise QueueError("servers='': name a broker, for example 127.0.0.1:9092")

    def create(self, names: Sequence[str]) -> None:
        self._admin().create(self._topics(names), self.replication, self.topic_settings)

    def delete(self, names: Sequence[str]) -> None:
        self._admin().delete(self._topics(names))
        self._sealed_here.difference_update(names)

    def writer(self) -> KafkaWriter:
        return KafkaWriter(self)

    def reader(self, name: str, positions: Mapping[str, int]) -> KafkaReader:
        check_name(name)
        topics = {queue: self.topic(queue) for queue in positions}
        return KafkaReader(self.servers, self.settings, self.timeout_s, self.prefix + name, topics, positions)

    def bounds(self, queue: str) -> tuple[int, int]:
        doing, topic, admin = f"look at queue {queue}", self.topic(queue), self._admin()
        return admin.ends([topic], doing, last=False)[topic], admin.ends([topic], doing)[topic]

    def truncate(self, queue: str, position: int) -> None:
        if position < 0:
            raise QueueError(f"queue {queue}: there is no position {position}")
        try:
            self._admin().truncate(self.topic(queue), position, f"truncate queue {queue}")
        except QueueError as error:
            if "OFFSET_OUT_OF_RANGE" not in str(error):
                raise
            raise QueueError(f"queue {queue} ends before position {position}: it cannot be truncated there") from None

    def seal(self, queue: str) -> None:
        self._admin().seal(self.topic(queue), f"seal queue {queue}")
        self._sealed_here.add(queue)

    def topic(self, queue: str) -> str:
        """The topic that a queue is in."""
        return topic_of(self.prefix, queue)

    def _topics(self, names: Sequence[str]) -> list[str]:
        return list(dict.fromkeys(self.topic(name) for name in names))

    def _admin(self) -> KafkaAdmin:
        # One a process: a client does not survive a fork, and is not pickled. That of the parent is kept in a forked
        # child: to close it would wait for threads that the child does not have.
        made: dict[int, KafkaAdmin] = self.__dict__.setdefault("_made", {})
        if os.getpid() not in made:
            made[os.getpid()] = KafkaAdmin(self.servers, self.settings, self.timeout_s)
        return made[os.getpid()]

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_made"}


class KafkaWriter(Writer):
    """Belongs to the process that made it."""

    def __init__(self, queues: KafkaQueues):
        self._queues = queues
        self._process = os.getpid()
        self._trouble = Trouble()
        settings = client_settings(queues.servers, {**_WISHES, **queues.settings}, self._trouble, _NEEDS)
        self._producer = new_client(confluent().Producer, settings)
        self._topics: dict[str, Topic] = {}
        self._queue_of: dict[str, str] = {}
        self._failed: dict[str, QueueError] = {}
        self._deliveries = Deliveries(self._on_delivery)
        self._sizes: dict[str, tuple[int, int]] = {}
        self._backlogs: BacklogWatch | None = None
        self._gave_up = False

    def append(self, queue: str, frames: Sequence[bytes]) -> None:
        if os.getpid() != self._process:
            raise QueueError("a writer does not work in a forked process: open one there")
        if queue in self._queues._sealed_here:
            raise QueueError(f"cannot append to queue {queue}: it is sealed")
        self._raise_failure(queue)
        topic = self._topics.get(queue) or self._open(queue)
        count, size = self._sizes[queue]
        for frame in frames:
            if len(frame) + _MESSAGE_EXTRA > topic.most_bytes:
                raise QueueError(
                    f"queue {queue}: a frame of {len(frame):,} bytes is too long, topic {topic.name} takes "
                    f"{topic.most_bytes - _MESSAGE_EXTRA:,} bytes; cut it, or raise max.message.bytes of the topic"
                )
        lot, left = self._deliveries.begin(len(frames)), len(frames)
        try:
            for frame in frames:
                self._produce(topic.name, frame, lot)
                left -= 1
                size += len(frame)
        finally:
            lot.withdraw(left)
        self._sizes[queue] = count + len(frames), size
        self._producer.poll(0)
        self._raise_failure(queue)

    def sync(self, queues: Collection[str]) -> None:
        if left := self._deliveries.wait(self._producer, self._deliveries.cut(), self._queues.timeout_s):
            self._gave_up = True
            raise self._unreachable(f"append {left} frames, which are kept")
        self._gave_up = False
        for queue in queues:
            self._raise_failure(queue)

    def backlog(self, queue: str) -> int:
        if self._backlogs is None:
            self._backlogs = BacklogWatch(self._queues._admin(), self._queues.prefix)
        count, size = self._sizes.get(queue, (0, 0))
        return self._backlogs.frames(self._queues.topic(queue)) * (size // count if count else _USUAL_FRAME_BYTES)

    def close(self) -> None:
        """What was appended is sent first. Raises QueueUnreachable where it cannot be, unless `sync` has said so."""
        if self._backlogs is not None:
            self._backlogs.stop()
        timeout_s = 0 if self._gave_up else self._queues.timeout_s
        left = self._deliveries.wait(self._producer, self._deliveries.cut(), timeout_s)
        if left:
            self._producer.purge()
            self._producer.poll(0)
        if left and not self._gave_up:
            self._gave_up = True
            raise self._unreachable(f"append {left} frames, which are lost")

    def _open(self, queue: str) -> Topic:
        topic = self._queues._admin().topic(self._queues.topic(queue), f"append to queue {queue}")
        self._topics[queue] = topic
        self._queue_of[topic.name] = queue
        self._sizes.setdefault(queue, (0, 0))
        return topic

    def _produce(self, topic: str, frame: bytes, lot: Lot) -> None:
        deadline = 0.0
        while True:
            try:
                self._producer.produce(topic, frame, partition=0, on_delivery=lot.answer)
                return
            except BufferError:
                deadline = deadline or time.monotonic() + self._queues.timeout_s
                if time.monotonic() > deadline:
                    self._gave_up = True
                    raise self._unreachable("append a frame: the frames before it fill the memory for them") from None
                self._producer.poll(_FULL_PAUSE_S)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is None:
            return
        queue = self._queue_of[message.topic()]
        doing = f"append to queue {queue}"
        if error.name() == "MSG_SIZE_TOO_LARGE":
            # The size was looked at before: the topic takes less than it did.
            problem = QueueError(f"cannot {doing}: it is sealed")
        else:
            problem = queue_error(error, doing, self._queues.servers, self._queues.timeout_s, self._trouble)
        self._failed.setdefault(queue, problem)

    def _raise_failure(self, queue: str) -> None:
        if queue in self._failed:
            raise self._failed[queue]

    def _unreachable(self, doing: str) -> QueueUnreachable:
        return unreachable(doing, self._queues.servers, self._queues.timeout_s, self._trouble.reason)
