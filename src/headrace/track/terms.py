"""What a tracker is told to do, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import pyarrow as pa


class Mode(IntEnum):
    """Who promises the end of a substream."""

    AT_THE_END = 0
    """All sources, when they end."""
    MARKER = 1
    """Any source, by a record."""
    EACH_MARKER = 2
    """Each source, by a record of its own."""
    RISING = 3
    """Each source, by a label that is higher."""
    WHENEVER = 4
    """Nobody: it has ended for now when nothing of it is on the way, and may begin again."""


class Told(IntEnum):
    """What a notice says."""

    STARTED = 0
    ENDED = 1
    UP_TO = 2
    """All labels below a tick have ended."""
    GONE = 3
    """Ended at all points: to be forgotten."""
    OVER = 4
    """Nothing more will be told: all sources have ended, and all that they gave."""


@dataclass(frozen=True)
class Point:
    """Where it is wanted to know."""

    name: str
    groups: tuple[int, ...]
    starts: bool = False
    is_firm: bool = False


@dataclass(frozen=True)
class Tracking:
    """What an agent is for."""

    groups: int
    points: tuple[Point, ...]
    producers: tuple[str, ...]
    sources: tuple[int, ...]
    """The numbers of those producers that are sources."""
    label: pa.DataType
    mode: Mode
    consistent: bool = False
    counted: frozenset[int] = frozenset()
    """The groups in which records are counted, and have no tokens: see `Region.counted`."""
    inexact: frozenset[int] = frozenset()
    """Those sources that know of a new substream in which run it began, and not at which record."""

    @property
    def needs_clock(self) -> bool:
        """Are ends told in the order of times? Labels that rise have an order of their own."""
        return self.consistent and self.mode != Mode.RISING


@dataclass(frozen=True)
class Notice:
    """The same of some substreams, in their order. `point` is the number of who is to hear it; -1 is all tasks."""

    point: int
    told: Told
    ids: Sequence[int] = (0,)
    names: Sequence[Any] = (None,)
    tick: int = 0
