"""Labels of a source that rise: how high they are, what that promises, and which of them go back."""

from __future__ import annotations

from typing import Final

import numpy as np

from headrace.track.rows import Ints

NOTHING: Final = -(1 << 63)


class Risen:
    """Of one task of a source.

    What leaves a task in one run is told by consumer, and for one after the other: a lower label may be told after a
    higher one that it came before. So a label is measured by those before the run, and by those before it on its lane,
    which is what keeps the order of its records.
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

    def take(self, start: int, lane: int, numbers: Ints) -> Ints:
        """The places of those that have gone back further than they may."""
        if start != self._start:
            self._start, self._before, self._lanes = start, self.highest, {}
        if not len(numbers):
            return np.zeros(0, np.int64)
        tops = np.maximum(np.maximum.accumulate(numbers), self._lanes.get(lane, self._before))
        top = self._lanes[lane] = int(tops[-1])
        self.highest = max(self.highest, top)
        self.below = max(self.below, self.highest - self._slack)
        return np.flatnonzero(numbers < tops - self._slack)
