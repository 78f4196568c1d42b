"""`RoundRobin`: LiveRobin's deterministic merge. Copies of a task that read the same inputs take the same order.

Each input holds records and *beats*, which are the same pulse in all of them: numbered from 1, without gaps. A *cycle*
is what is before the same beat in each input. Within a cycle each input gives one record in its turn, round after
round, and is passed over once it has given its beat; when all have, the next cycle begins, with the turn where it is.
A beat is sent on once, where it is read first. An input that has ended is passed over for ever.

So the n-th record of an input in a cycle is in round n of it, and the merge waits at the first place, in the order of
(cycle, round, turn), whose input does not have it yet: all before leaves. That is where the literal algorithm would
block. The order is a function of what the inputs hold; not of how they are cut into batches, nor of what comes when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import QueueDamaged
from headrace.model.jit import Flags, Ints, kernel
from headrace.replicate.runs import Run, Shelf, gathered, numbers_where

BEAT_BYTES: Final = 64
"""What a beat that waits counts: an input far ahead of the others holds many of them, and must look full too."""
_NOTHING, _BEAT, _END, _OPEN = 0, 1, 2, 3
"""What follows the records of an input in a cycle; nothing: it is passed over. Open: not known yet."""


@dataclass
class _Input:
    shelf: Shelf = field(default_factory=Shelf)
    counts: deque[int] = field(default_factory=lambda: deque([0]))
    """How many records are before each beat that waits, and after the last."""
    beats: int = 0
    """The last beat that has come."""
    is_ended: bool = False
    """Has its end come?"""

    @property
    def is_empty(self) -> bool:
        return not self.is_ended and len(self.counts) == 1 and not self.counts[0]


class RoundRobin:
    """The merge at work. It keeps what is not released yet, whose turn it is, and who has given his beat."""

    def __init__(self, names: list[str]):
        """`names` are for messages: where each input comes from."""
        self._names = names
        self._inputs = [_Input() for _ in names]
        self._turn = 0
        self._sent = 0
        """The last beat that was sent on."""
        self._has_given: Flags = np.zeros(len(names), np.uint8)
        """Its beat of the open cycle."""
        self._has_left: Flags = np.zeros(len(names), np.uint8)
        """All of it, with its end."""
        self._beats: Ints = np.zeros(len(names), np.int64)
        """How many of its beats have left."""
        self._taken: Ints = np.zeros(len(names), np.int64)

    # -------------------------------------------------------------------- push

    def push(self, at: int, batch: pa.RecordBatch) -> None:
        """Records of an input. Raises QueueDamaged where they come after its end."""
        held = self._going_on(at)
        held.shelf.push(batch)
        held.counts[-1] += batch.num_rows

    def beat(self, at: int, number: int) -> None:
        """The next beat of an input. Raises QueueDamaged where it is another one."""
        held = self._going_on(at)
        if number != held.beats + 1:
            raise QueueDamaged(self._names[at], f"beat {number} comes after beat {held.beats}, where they rise by one")
        held.beats = number
        held.counts.append(0)

    def end(self, at: int) -> None:
        """Nothing more will come."""
        self._going_on(at).is_ended = True

    def _going_on(self, at: int) -> _Input:
        held = self._inputs[at]
        if held.is_ended:
            raise QueueDamaged(self._names[at], "it goes on after its end")
        return held

    # ----------------------------------------------------------------- release

    def release(self) -> list[Run]:
        """All that can leave, in order: records, and the beats that are sent on between them."""
        if self.is_over or self._inputs[self._turn].is_empty:
            return []
        counts, stops = self._cycles()
        inputs: Ints = np.empty(_most_rows(counts, stops), np.int64)
        sent_before: Ints = np.empty(counts.shape[1], np.int64)
        beats, ends = self._beats.copy(), self._has_left.copy()
        found: Ints = np.array([self._turn, self._sent, 0, 0], np.int64)
        _walk(counts, stops, self._has_given, self._has_left, self._beats, found, inputs, sent_before)
        self._turn, _, rows, sent = found.tolist()
        first, self._sent = self._sent + 1, self._sent + sent
        leaving = np.bincount(inputs[:rows], minlength=len(self._inputs))
        self._taken += leaving + (self._beats - beats) + (self._has_left - ends)
        for held, records, passed in zip(self._inputs, leaving.tolist(), (self._beats - beats).tolist(), strict=True):
            for _ in range(passed):
                records -= held.counts.popleft()
            held.counts[0] -= records
        sent_on = [(row, first + n) for n, row in enumerate(sent_before[:sent].tolist())]
        return gathered([held.shelf for held in self._inputs], inputs[:rows], sent_on)

    def _cycles(self) -> tuple[Ints, Flags]:
        """For each input and cycle, how many records there are, and what follows them.

        From the open cycle to the first that not all have the beat of: none after that can begin.
        """
        ahead = [len(held.counts) + given for held, given in zip(self._inputs, self._has_given.tolist(), strict=True)]
        going_on = [many for many, held in zip(ahead, self._inputs, strict=True) if not held.is_ended]
        width = min(going_on) if going_on else max(ahead)
        counts, stops = [], []
        for held, given, left in zip(self._inputs, self._has_given.tolist(), self._has_left.tolist(), strict=True):
            here = [] if left else list(islice(held.counts, width - given))
            after = [_BEAT] * len(here)
            if here and len(here) == len(held.counts):
                after[-1] = _END if held.is_ended else _OPEN
            before, rest = [0] * given, [0] * (width - given - len(here))
            counts.append(before + here + rest)
            stops.append(before + after + rest)
        return np.array(counts, np.int64), np.array(stops, np.uint8)

    # ------------------------------------------------------------------- state

    @property
    def taken(self) -> list[int]:
        """For each input, how many items have left since the start: each record, each beat and the end is one."""
        found: list[int] = self._taken.tolist()
        return found

    @property
    def is_over(self) -> bool:
        """Have all inputs ended, and has all left?"""
        return bool(self._has_left.all())

    @property
    def waiting_for(self) -> set[int]:
        """The inputs that the open cycle needs more of and that hold nothing; all others are ahead.

        After a release the first of them is the one that the merge is blocked on.
        """
        return {
            at
            for at, held in enumerate(self._inputs)
            if held.is_empty and not self._has_given[at] and not self._has_left[at]
        }

    @property
    def rows(self) -> int:
        return sum(held.shelf.rows for held in self._inputs)

    def rows_of(self, at: int) -> int:
        return self._inputs[at].shelf.rows

    def bytes_of(self, at: int) -> int:
        held = self._inputs[at]
        return held.shelf.size_bytes + BEAT_BYTES * (len(held.counts) - 1)

    def snapshot(self) -> dict[str, Any]:
        """Everything needed to go on after what was released."""
        return {
            "turn": self._turn,
            "sent": self._sent,
            "given": numbers_where(self._has_given.tolist()),
            "ended": numbers_where(self._has_left.tolist()),
            "beats": self._beats.tolist(),
            "taken": self.taken,
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """As it was. What has not left is pushed again: of each input, from item `taken[at]` on."""
        self._turn, self._sent = values["turn"], values["sent"]
        self._has_given[:], self._has_left[:] = 0, 0
        self._has_given[values["given"]] = 1
        self._has_left[values["ended"]] = 1
        self._beats[:], self._taken[:] = values["beats"], values["taken"]
        self._inputs = [
            _Input(beats=int(beats), is_ended=bool(over))
            for beats, over in zip(self._beats, self._has_left, strict=True)
        ]


def _most_rows(counts: Ints, stops: Flags) -> int:
    """No more than these leave: an input that is ahead in the last cycle gives at most one more than who is last."""
    is_open = stops[:, -1] == _OPEN
    last = counts[:, -1]
    if is_open.any():
        last = np.minimum(last, last[is_open].min() + 1)
    return int(counts[:, :-1].sum() + last.sum())


@kernel
def _walk(
    counts: Ints, stops: Flags, has_given: Flags, has_left: Flags, beats: Ints, found: Ints, inputs: Ints, sent: Ints
) -> None:
    """Give each its turn until one has nothing to give.

    `found` is (turn, last beat sent on, rows, beats sent on); `inputs` gets the input of each row, and `sent` the row
    before which each beat is sent on.
    """
    many, width = counts.shape
    ring = np.empty(many, np.int64)
    turn, last, rows, sends = found[0], found[1], 0, 0
    is_blocked = False
    for cycle in range(width):
        size = 0
        for step in range(many):
            at = (turn + step) % many
            if stops[at, cycle] != _NOTHING:
                ring[size] = at
                size += 1
        while size and not is_blocked:
            kept = 0
            for place in range(size):
                at = ring[place]
                if counts[at, cycle] > 0:
                    counts[at, cycle] -= 1
                    inputs[rows] = at
                    rows += 1
                    ring[kept] = at
                    kept += 1
                elif stops[at, cycle] == _OPEN:
                    turn, is_blocked = at, True
                    break
                elif stops[at, cycle] == _BEAT:
                    has_given[at] = 1
                    beats[at] += 1
                    if beats[at] > last:
                        last = beats[at]
                        sent[sends] = rows
                        sends += 1
                else:
                    has_left[at] = 1
                turn = (at + 1) % many
            size = kept
        if is_blocked:
            break
        has_given[:] = 0
    found[0], found[1], found[2], found[3] = turn, last, rows, sends
