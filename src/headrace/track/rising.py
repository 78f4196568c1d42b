"""Labels of a source that rise: how high they are, what that promises, and which of them go back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import numpy as np

from headrace.track.rows import Ints

NOTHING: Final = -(1 << 63)
ALL: Final = (1 << 63) - 1


class Risen:
    """Of one task of a source.

    What leaves a task in one run is told by consumer, and for one after the other: a lower label may be told after a
    higher one that it came before. So a label is measured by those before the run, and by those before it on its lane,
    which is what keeps the order of its records.

    A label that is held back by a stage of the task may come late, and nothing above it is promised until then.
    """

    def __init__(self, slack: int):
        self._slack = slack
        self.highest = NOTHING
        self.below = NOTHING
        """What is promised: all labels below it."""
        self._start = -1
        """The step at which the last run began. A run may be told in several parts."""
        self._before = NOTHING
        self._lanes: dict[int, int] = {}
        """How high the run has come, by lane."""
        self.held: Counter[int] = Counter()
        self._released: tuple[int, set[int]] = (-1, set())
        """The run in which the last labels were released, and those: they may leave in it yet."""

    def hold(self, numbers: Iterable[int]) -> None:
        self.held.update(numbers)

    def release(self, start: int, numbers: Iterable[int]) -> None:
        """In the run that began at a step."""
        if self._released[0] != start:
            self._released = (start, set())
        for number in numbers:
            self._released[1].add(number)
            self.held[number] -= 1
        self.held = +self.held

    def settle(self) -> None:
        """All that was given is known: what is promised now. `ALL` is not, before the source is over."""
        least = min(self.held, default=self.highest)
        self.below = max(self.below, min(self.highest - self._slack, least, ALL - 1))

    def take(self, start: int, lane: int, numbers: Ints) -> Ints:
        """The places of those that have gone back further than they may."""
        if start != self._start:
            self._start, self._before, self._lanes = start, self.highest, {}
        if not len(numbers):
            return np.zeros(0, np.int64)
        tops = np.maximum(np.maximum.accumulate(numbers), self._lanes.get(lane, self._before))
        top = self._lanes[lane] = int(tops[-1])
        self.highest = max(self.highest, top)
        # Without a sign the difference is right, however far apart they are.
        back = np.flatnonzero(tops.view(np.uint64) - numbers.view(np.uint64) > np.uint64(self._slack))
        late = self.held.keys() | (self._released[1] if self._released[0] == start else set())
        return back[~np.isin(numbers[back], list(late))] if late and len(back) else back
