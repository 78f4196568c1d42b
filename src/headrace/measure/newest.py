"""The newest two events of every group: the state below last and prev."""

from __future__ import annotations

import numpy as np

from headrace.measure.aggregator import Aggregator
from headrace.measure.steps import ANSWER, INSERT, REMOVE, REPLAY, Steps
from headrace.measure.words import Words, is_wide
from headrace.model.jit import Flags, Ints, grown, kernel
from headrace.state.ragged import Ragged, reach
from headrace.state.tables import Tables

# Columns of the state, by slot: how many events are in the window, then two records of four.
_EVENTS, _LAST, _PREV = 0, 1, 5
_WORD, _HIGH, _VALID, _TIME = 0, 1, 2, 3
_COLUMNS = 9


@kernel
def _push_newest(
    kind: Ints, slot: Ints, row: Ints, time: Ints, word: Ints, high: Ints, valid: Flags,
    state: Ints, out: Ints, out_high: Ints, out_valid: Flags, rank: int,
) -> None:  # fmt: skip
    """`rank` 0 answers with the newest event, 1 with the one before it."""
    wide = len(high) > 0
    for i in range(len(kind)):
        group = state[slot[i]]
        if kind[i] == ANSWER:
            if group[_EVENTS] > rank:
                at = _PREV if rank else _LAST
                out[row[i]] = group[at + _WORD]
                out_valid[row[i]] = group[at + _VALID]
                if wide:
                    out_high[row[i]] = group[at + _HIGH]
            continue
        if kind[i] == REMOVE:
            group[_EVENTS] -= 1
            continue
        place = _LAST
        if kind[i] == INSERT and group[_EVENTS] > 0 and time[i] < group[_LAST + _TIME]:
            place = _PREV
            if group[_EVENTS] > 1 and time[i] < group[_PREV + _TIME]:
                place = _EVENTS
        group[_EVENTS] += 1
        if place == _EVENTS:
            continue
        if place == _LAST:
            for j in range(4):
                group[_PREV + j] = group[_LAST + j]
        group[place + _WORD] = word[i]
        group[place + _HIGH] = high[i] if wide else 0
        group[place + _VALID] = valid[i]
        group[place + _TIME] = time[i]


class Newest(Aggregator):
    """What last and prev share."""

    late_mode = REPLAY
    late_keep = 2
    rank: int

    def prepare(self) -> None:
        record = (_WORD, _HIGH, _VALID, _TIME) if is_wide(self.type) else (_WORD, _VALID, _TIME)
        self._record = len(record)
        self._kept = np.array([_EVENTS, *(_LAST + c for c in record), *(_PREV + c for c in record)], np.int64)
        self.clear_groups()

    def clear_groups(self) -> None:
        self._state: Ints = np.zeros((0, _COLUMNS), np.int64)
        self._slots = 0

    def grow(self, slots: int) -> None:
        self._state, self._slots = grown(self._state, slots), max(self._slots, slots)

    def dump(self) -> Tables:
        return {"newest": self._state[: self._slots]}

    def restore(self, tables: Tables) -> None:
        self._state, self._slots = tables["newest"], len(tables["newest"])

    def take_groups(self, slots: Ints) -> Ragged:
        """How many events there are, and the records of the newest two as far as they are there."""
        self.grow(reach(slots))
        events = self._state[slots, _EVENTS]
        records = np.minimum(events, 2)
        return Ragged.of_rows(self._state[slots[:, None], self._kept], (events > 0) + records * self._record)

    def put_groups(self, slots: Ints, groups: Ragged) -> None:
        self.grow(reach(slots))
        self._state[slots[:, None], self._kept] = groups.to_rows(len(self._kept))

    def push(self, steps: Steps, values: Words) -> None:
        out = self.answers
        _push_newest(
            steps.kind, steps.slot, steps.row, steps.time, values.word, values.high, values.valid,
            self._state, out.word, out.high, out.valid, self.rank,
        )  # fmt: skip
