"""Do copies of a task send the same? What came last is kept for a while, and second copies are held against it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.errors import CopiesDiffer
from headrace.model import frames
from headrace.model.frames import Frame, Kind

_MOST_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class _Kept:
    channel: int
    first: int
    end: int
    checksum: int
    content: bytes


class _Line:
    """What is kept of one channel, in its order. A copy may be far behind: what it sends is found at once."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._ends: list[int] = []
        self._gone = 0

    def add(self, kept: _Kept) -> None:
        self._kept.append(kept)
        self._ends.append(kept.end)

    def forget_first(self) -> None:
        self._gone += 1
        if 2 * self._gone > len(self._kept):
            del self._kept[: self._gone], self._ends[: self._gone]
            self._gone = 0

    def between(self, first: int, end: int) -> Iterator[_Kept]:
        """All that has some of these numbers."""
        at = bisect_right(self._ends, first, lo=self._gone)
        while at < len(self._kept) and self._kept[at].first < end:
            yield self._kept[at]
            at += 1


class SecondCopies:
    """Of what one task receives. A copy that is so far behind that its records are not kept any more is not checked."""

    def __init__(self, producer: Callable[[int], str], task: str):
        """`producer` names the task that sends on a channel."""
        self._producer, self._task = producer, task
        self._kept: deque[_Kept] = deque()
        self._by_channel: dict[int, _Line] = {}
        self._size = 0

    def look(self, frame: Frame, content: bytes | memoryview, had: int) -> None:
        """A frame of which the numbers before `had` have come. Raises CopiesDiffer where those were others."""
        if frame.kind != Kind.DATA:
            return
        checksum = frames.checksum_of(content)
        if frame.first < had:
            self._compare(frame, checksum, had)
        if frame.end > had:
            kept = _Kept(frame.channel, frame.first, frame.end, checksum, bytes(content))
            self._kept.append(kept)
            self._by_channel.setdefault(frame.channel, _Line()).add(kept)
            self._size += len(content)
            while self._size > _MOST_BYTES:
                oldest = self._kept.popleft()
                self._by_channel[oldest.channel].forget_first()
                self._size -= len(oldest.content)

    def _compare(self, frame: Frame, checksum: int, had: int) -> None:
        if frame.channel not in self._by_channel:
            return
        until = min(frame.end, had)
        for kept in self._by_channel[frame.channel].between(frame.first, until):
            if (kept.first, kept.end, kept.checksum) == (frame.first, frame.end, checksum):
                continue
            first, end = max(kept.first, frame.first), min(kept.end, until)
            batch, mine = frames.decode(kept.content).batch, frame.batch
            assert batch is not None and mine is not None  # noqa: PT018
            one, other = batch.slice(first - kept.first, end - first), mine.slice(first - frame.first, end - first)
            if not one.equals(other):
                self._refuse(frame.channel, first, one, other)

    def _refuse(self, channel: int, first: int, one: pa.RecordBatch, other: pa.RecordBatch) -> None:
        """Not where they are equal but for what is not a number."""
        for at, (a, b) in enumerate(zip(one.to_pylist(), other.to_pylist(), strict=True)):
            if not _same(a, b):
                raise CopiesDiffer(self._producer(channel), self._task, first + at, a, b)
        if one.schema != other.schema:
            raise CopiesDiffer(self._producer(channel), self._task, first, one.schema.names, other.schema.names)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    is_nan = isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    return bool(is_nan or a == b)
