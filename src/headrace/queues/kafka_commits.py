"""Tells Kafka, in the background, what a reader has acknowledged: for `backlog`, and for every tool that shows lag."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

_EVERY_S: Final = 0.1
_SELDOM_S: Final = 0.5
_FEW: Final = 64
_AGAIN_S: Final = 2.0
"""When a commit that nothing is known of is sent again."""


class Commits:
    """The newest position of each queue, ten times a second or less, by a thread that sleeps when there is nothing.

    What becomes of a commit is known once the consumer is polled, if that has not failed by then: until it is known, a
    position is committed again from time to time.
    """

    def __init__(self, commit: Callable[[Mapping[str, int]], None], positions: Mapping[str, int]):
        self._commit = commit
        # A reader counts from where it begins.
        self._unsure = {queue: position for queue, position in positions.items() if position >= 0}
        self._sent: dict[str, int] = {}
        self._lock = threading.Lock()
        self._some = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-kafka-commits", daemon=True)
        self._some.set()
        self._thread.start()

    def add(self, queue: str, position: int) -> None:
        with self._lock:
            self._unsure[queue] = position
        self._some.set()

    def answered(self, positions: Mapping[str, int], is_done: bool) -> None:
        """What became of a commit. One that failed does not matter where there is something newer."""
        if not is_done:
            self._some.set()
            return
        with self._lock:
            self._unsure = {queue: at for queue, at in self._unsure.items() if positions.get(queue) != at}

    def stop(self) -> None:
        """With a last commit of what is waiting."""
        self._stopped.set()
        self._some.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._some.wait(_AGAIN_S if self._unsure else None)
            self._some.clear()
            if not self._stopped.is_set():
                self._stopped.wait(_EVERY_S if self._send() > _FEW else _SELDOM_S)
        self._send()

    def _send(self) -> int:
        """How many frames were acknowledged since the last time, of the busiest queue."""
        with self._lock:
            positions = dict(self._unsure)
        moved = max((position - self._sent.get(queue, position) for queue, position in positions.items()), default=0)
        self._sent.update(positions)
        if positions:
            # It is for backlogs only: what goes wrong is made good by the next one.
            with suppress(Exception):
                self._commit(positions)
        return moved


def committed_of(partitions: list[Any], queue_of: Mapping[str, str]) -> dict[str, int]:
    """What a commit was about."""
    return {queue_of[each.topic]: each.offset for each in partitions}
