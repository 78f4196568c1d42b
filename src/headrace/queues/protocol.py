"""What every kind of queue promises. `log` keeps queues in files, `kafka` in topic partitions; a flow cannot tell.

A queue is a FIFO log of encoded frames with *positions*. Any number of processes append to one queue: a queue decides
once in which order their frames come, and every reader sees that order, now and after any crash. A position is a number
that means something to its queue alone: 0 is the start of a new queue, an entry names the position after itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Entry:
    """An encoded frame as it is in a queue."""

    queue: str
    frame: bytes | memoryview
    next: int
    """The position after it: where to read on."""


class Writer(ABC):
    """Appends to queues. One a thread; a process has as many as it likes."""

    @abstractmethod
    def append(self, queue: str, frames: Sequence[bytes]) -> None:
        """In this order, after all that this writer has appended to the queue before. Raises QueueError if sealed.

        Whole frames or none: a reader never sees a part of one. A frame may be lost if its writer dies before `sync`,
        and then so are those that it appended to the queue afterwards.
        """

    @abstractmethod
    def sync(self, queues: Collection[str]) -> None:
        """When it returns, all that was appended to these queues, by whomever, is as safe as the queue can make it.

        The one thing that another thread may call, while this one goes on appending.
        """

    @abstractmethod
    def backlog(self, queue: str) -> int:
        """About how many bytes of a queue its slowest reader has not acknowledged; 0 where nobody reads it yet."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Reader(ABC):
    """Reads some queues, each from a position on."""

    @abstractmethod
    def poll(self, queues: Collection[str], timeout_s: float, most_bytes: int = 4 << 20) -> list[Entry]:
        """What these queues have next, of each in its order: at once if there is something, else when it comes.

        Nothing if nothing comes in time. About `most_bytes` a queue at most, at least one frame. Queues of the reader
        that are not asked for keep what they have; a busy queue does not keep the others waiting.
        """

    @abstractmethod
    def acknowledge(self, queue: str, position: int) -> None:
        """This reader will not ask again for what is before the position; for `backlog` only."""

    @abstractmethod
    def wake(self) -> None:
        """Let a `poll` of another thread return at once."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Queues(ABC):
    """All queues of one kind at one place. Can be pickled, and opened by any process that reaches the place."""

    @abstractmethod
    def create(self, names: Sequence[str]) -> None:
        """Those that are not there yet. A name is of letters, digits, `-`, `_` and `.`, 1 to 200 of them."""

    @abstractmethod
    def writer(self) -> Writer: ...

    @abstractmethod
    def reader(self, name: str, positions: Mapping[str, int]) -> Reader:
        """`name` is for `backlog`: readers of one name take turns at reading, those of different names all read.

        Raises QueueDamaged, when polled, where a position is before the start or past the end of its queue.
        """

    def incarnation(self) -> str:
        """Another one when frames that were not synced may have been lost since.

        Where it can be: such queues stamp frames, as they take them, with `time.monotonic_ns` of the machine.
        """
        return ""

    @abstractmethod
    def bounds(self, queue: str) -> tuple[int, int]:
        """The positions of the first frame that is still there, and after the last one."""

    @abstractmethod
    def truncate(self, queue: str, position: int) -> None:
        """What is before the position may go, now or later."""

    @abstractmethod
    def seal(self, queue: str) -> None:
        """Nothing can be appended any more."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """With all that is in them. What is not there is as good as deleted."""
