"""What sources and sinks promise: all that a flow reads from the world outside, and writes to it.

A *split* of a source is a sequence of records that is the same whenever it is read again: a file, a partition of a
topic, a function of numbers. One task reads one split, and its position is part of the task's commit.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Feed:
    """The next records of a split. `position` is what `open` wants to go on after them: plain values for JSON."""

    batch: pa.RecordBatch | None
    position: Any
    ended: bool = False


class SplitReader(ABC):
    """Reads one split."""

    @abstractmethod
    def poll(self, most_records: int) -> Feed | None:
        """What comes next; None if there is nothing yet. Never waits."""

    def due_s(self) -> float:
        """In how many seconds it is worth to ask again, after there was nothing."""
        return 0.01

    def close(self) -> None:  # noqa: B027
        """Give back what it holds."""


@dataclass(frozen=True)
class Opening:
    """Who opens a split, and when the flow first started, in microseconds: decided once, the same at every restart."""

    flow: str
    task: str
    split: int
    splits: int
    began_us: int
    clock: Callable[[], float] = time.time
    """Seconds since 1970: of this machine, or of a simulated one."""
    node: str = ""
    """The source or sink."""
    wake: Callable[[], None] = lambda: None
    """To be called, from any thread, when there is something after there was nothing."""
    beginning: Any = None
    """What `beginning` of the source or sink gave when the flow first started: decided once, too."""


class Source(ABC):
    """Where records come from."""

    schema: pa.Schema

    def splits(self) -> int | None:
        """How many there are; None where there may be as many as the stage has tasks."""
        return None

    def beginning(self) -> Any:
        """Where its start is, if it is not the same at every look: asked for once, plain values for JSON."""
        return None

    @abstractmethod
    def open(self, opening: Opening, position: Any) -> SplitReader:
        """From a position of a `Feed`, or from the start (None): the same one for all who open it, at any time."""

    def check(self) -> None:  # noqa: B027
        """Raises an error that says what is wrong with it, before anything starts."""


class SinkWriter(ABC):
    """Takes the records of one task, in their order."""

    @abstractmethod
    def write(self, first: int, batch: pa.RecordBatch) -> None:
        """Records `first`, `first + 1`, …: after a restart some come again, with the same numbers."""

    @abstractmethod
    def cut(self) -> Callable[[], Any]:
        """A commit begins: all that was written so far is in it. The function makes it safe, in a thread of its own,

        and gives what `open` wants after a restart, as plain values for JSON.
        """

    def close(self) -> None:  # noqa: B027
        """Give back what it holds; what was not committed comes again."""


class Sink(ABC):
    """Where records go."""

    shows_at_commit: bool = True
    """Can records be seen only once a commit is whole? Then a substream has not ended before."""
    keeps_first: bool = False
    """May several copies of a task write to it, because of each record it keeps the first copy?"""

    @property
    def keeps_until_commit(self) -> bool:
        """Does it hold what it is given in memory until a commit? Then a task that gives much commits sooner."""
        return self.shows_at_commit

    def beginning(self) -> Any:
        """What must be known of how it was before the flow: asked for once, plain values for JSON."""
        return None

    @abstractmethod
    def open(self, opening: Opening, committed: Any) -> SinkWriter:
        """`committed` is what the last commit gave; None at the first start."""

    def problem(self, schema: pa.Schema) -> str | None:
        """Why it cannot take these records, with the fix."""
        return None

    def check(self) -> None:  # noqa: B027
        """Raises an error that says what is wrong with it, before anything starts."""
