"""`ByLeader`: KaZoo's merge. One copy of a task says in which order all of them take what their inputs hold.

The agreed order is runs of (input, how many items): a record is an item, and so is the end of an input, which is its
last. What the order names leaves as soon as it is here, and nothing overtakes it: a copy that does not have it yet
waits. Nor does the leader take anything before its own order has come back to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import QueueDamaged
from headrace.model.jit import Ints
from headrace.replicate.runs import Run, Shelf, gathered, numbers_where

SHARE: Final = 4096
"""How many items of one input an order names in a row, at most: the others do not wait long for their turn."""


class ByLeader:
    """The merge at work. It keeps what is not released yet, and the order of what is to come."""

    def __init__(self, names: list[str], share: int = SHARE):
        """`names` are for messages: where each input comes from."""
        self._names, self._share = names, share
        self._shelves = [Shelf() for _ in names]
        self._has_ended = [False] * len(names)
        self._taken = [0] * len(names)
        self._here = [0] * len(names)
        """How many items have come, from the start."""
        self._ordered = [0] * len(names)
        """How many of them, or of those to come, the order names."""
        self._proposed = [0] * len(names)
        """How many it names once what was proposed has come back."""
        self._order: deque[tuple[int, int]] = deque()

    # -------------------------------------------------------------------- push

    def push(self, at: int, batch: pa.RecordBatch) -> None:
        """Records of an input. Raises QueueDamaged where they come after its end."""
        self._check_goes_on(at)
        self._shelves[at].push(batch)
        self._here[at] += batch.num_rows

    def end(self, at: int) -> None:
        """Nothing more will come. Raises QueueDamaged where the order names more than there is."""
        self._check_goes_on(at)
        self._has_ended[at] = True
        self._here[at] += 1
        self._check_is_there(at)

    def order(self, runs: Sequence[tuple[int, int]]) -> None:
        """What leaves after all that is in the order already. Raises QueueDamaged where there is no such thing."""
        for at, count in runs:
            if not 0 <= at < len(self._names) or count <= 0:
                raise QueueDamaged(
                    ", ".join(self._names), f"their order names {count} items of input {at} of {len(self._names)}"
                )
            self._ordered[at] += count
            self._proposed[at] = max(self._proposed[at], self._ordered[at])
            self._check_is_there(at)
            if self._order and self._order[-1][0] == at:
                count += self._order.pop()[1]
            self._order.append((at, count))

    def _check_goes_on(self, at: int) -> None:
        if self._has_ended[at]:
            raise QueueDamaged(self._names[at], "it goes on after its end")

    def _check_is_there(self, at: int) -> None:
        beyond = self._ordered[at] - self._here[at]
        if self._has_ended[at] and beyond > 0:
            raise QueueDamaged(self._names[at], f"its order names {beyond} items after its end")

    # ----------------------------------------------------------------- propose

    def unordered(self) -> list[tuple[int, int]]:
        """What is here and in no order yet, as a leader would order it: all inputs in turn, a share of each."""
        return self._shares(self._ordered)

    def propose(self) -> list[tuple[int, int]]:
        """The same, but for what was proposed before: it is in the order once it comes back through `order`."""
        found = self._shares(self._proposed)
        self._proposed = [max(pair) for pair in zip(self._proposed, self._here, strict=True)]
        return found

    def forget_proposals(self) -> None:
        """Who proposed them does not lead any more: what is in no order may be proposed again."""
        self._proposed = list(self._ordered)

    def _shares(self, since: list[int]) -> list[tuple[int, int]]:
        left = [(at, here - before) for at, (here, before) in enumerate(zip(self._here, since, strict=True))]
        found: list[tuple[int, int]] = []
        while left := [(at, count) for at, count in left if count > 0]:
            found += [(at, min(count, self._share)) for at, count in left]
            left = [(at, count - self._share) for at, count in left]
        return found

    # ----------------------------------------------------------------- release

    def release(self) -> list[Run]:
        """All that can leave, in order: up to the first item of the order that is not here yet."""
        rows: list[tuple[int, int]] = []
        while self._order:
            at, count = self._order[0]
            leaving = min(count, self._here[at] - self._taken[at])
            if leaving:
                self._taken[at] += leaving
                rows.append((at, leaving - self._is_drained(at)))
            if leaving < count:
                self._order[0] = at, count - leaving
                break
            self._order.popleft()
        if not rows:
            return []
        ats, counts = np.array(rows, np.int64).T
        inputs: Ints = np.repeat(ats, counts)
        return gathered(self._shelves, inputs)

    def _is_drained(self, at: int) -> bool:
        """Has its end left? It was in the run that left last then, for there is nothing behind it."""
        return self._has_ended[at] and self._taken[at] == self._here[at]

    # ------------------------------------------------------------------- state

    @property
    def taken(self) -> list[int]:
        """For each input, how many items have left since the start: each record, and the end, is one."""
        return list(self._taken)

    @property
    def is_over(self) -> bool:
        """Have all inputs ended, and has all left?"""
        return all(self._is_drained(at) for at in range(len(self._names)))

    @property
    def waiting_for(self) -> set[int]:
        """The input whose item is the next of the order and is not here; none where there is no order to follow."""
        return {at for at, _ in islice(self._order, 1) if self._here[at] == self._taken[at]}

    @property
    def rows(self) -> int:
        return sum(shelf.rows for shelf in self._shelves)

    def rows_of(self, at: int) -> int:
        return self._shelves[at].rows

    def bytes_of(self, at: int) -> int:
        return self._shelves[at].size_bytes

    def snapshot(self) -> dict[str, Any]:
        """Everything needed to go on after what was released; proposals are forgotten."""
        return {
            "taken": self.taken,
            "ended": numbers_where([self._is_drained(at) for at in range(len(self._names))]),
            "order": [list(run) for run in self._order],
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """As it was. What has not left is pushed again: of each input, from item `taken[at]` on."""
        self._shelves = [Shelf() for _ in self._names]
        self._taken = list(values["taken"])
        self._here, self._ordered = list(self._taken), list(self._taken)
        self._has_ended = [at in values["ended"] for at in range(len(self._names))]
        self._order.clear()
        self.order([(at, count) for at, count in values["order"]])
        self.forget_proposals()
