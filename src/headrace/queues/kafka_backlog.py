"""How far the slowest reader of a queue is behind: asked for in the background, so that a writer never waits for it."""

from __future__ import annotations

import threading
import time
from typing import Final

from headrace.errors import QueueError
from headrace.queues.kafka_admin import KafkaAdmin

_EVERY_S: Final = 0.1
_SELDOM_S: Final = 0.5
"""Where hardly anything waits: to ask is work for the broker, which others wait for."""
_FEW: Final = 64
_NEW_READERS_EVERY_S: Final = 1.0
_UNASKED_S: Final = 5.0
"""After that nobody seems to want to know."""


class BacklogWatch:
    """In frames, up to 0.2 s old (1 s where hardly anything waits); a reader of a new name counts within a second."""

    def __init__(self, admin: KafkaAdmin, prefix: str):
        self._admin = admin
        self._prefix = prefix
        self._behind: dict[str, int] = {}
        self._groups: list[str] = []
        self._groups_at = float("-inf")
        self._asked_at = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def frames(self, topic: str) -> int:
        self._asked_at = time.monotonic()
        if topic not in self._behind:
            self._behind.update(self._ask([topic]))
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="headrace-kafka-backlog", daemon=True)
            self._thread.start()
        return self._behind[topic]

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s()) and time.monotonic() - self._asked_at < _UNASKED_S:
            try:
                self._behind.update(self._ask(list(self._behind)))
            except QueueError:
                continue  # the last figures must do; who appends hears of a broker that is gone
        self._admin.forget_groups()

    def _pause_s(self) -> float:
        return _EVERY_S if max(self._behind.values(), default=0) > _FEW else _SELDOM_S

    def _ask(self, topics: list[str]) -> dict[str, int]:
        if not self._groups or time.monotonic() - self._groups_at > _NEW_READERS_EVERY_S:
            self._groups = self._admin.groups(self._prefix)
            self._groups_at = time.monotonic()
        positions = [self._admin.committed(group, topics) for group in self._groups]
        ends = self._admin.ends(topics, "ask how much there is to read")
        return {
            topic: max((ends[topic] - each[topic] for each in positions if topic in each), default=0)
            for topic in topics
        }
