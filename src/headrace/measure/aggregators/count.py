"""count(*) counts events, count(x) those where x is not null. An empty window counts 0."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.measure.aggregator import Aggregator
from headrace.measure.steps import ANSWER, REMOVE, Steps
from headrace.measure.words import Words
from headrace.model.jit import Flags, Ints, grown, kernel
from headrace.model.signature import Signature
from headrace.state.ragged import Ragged, reach
from headrace.state.tables import Tables


@kernel
def _count(kind: Ints, slot: Ints, row: Ints, valid: Flags, counts: Ints, out: Ints) -> None:
    for i in range(len(kind)):
        if kind[i] == ANSWER:
            out[row[i]] = counts[slot[i]]
        elif valid[i]:
            counts[slot[i]] += -1 if kind[i] == REMOVE else 1


class Count(Aggregator):
    signature = Signature(
        name="count",
        arguments=(0, 1),
        result_type=lambda _: pa.int64(),
        about="how many events; count(x): how many where x is not null",
    )

    def prepare(self) -> None:
        self.clear_groups()

    def clear_groups(self) -> None:
        self._counts: Ints = np.zeros(0, np.int64)
        self._slots = 0

    def grow(self, slots: int) -> None:
        self._counts, self._slots = grown(self._counts, slots), max(self._slots, slots)

    def dump(self) -> Tables:
        return {"counts": self._counts[: self._slots]}

    def restore(self, tables: Tables) -> None:
        self._counts, self._slots = tables["counts"], len(tables["counts"])

    def take_groups(self, slots: Ints) -> Ragged:
        """The count."""
        self.grow(reach(slots))
        counts = self._counts[slots]
        return Ragged((counts != 0).astype(np.int64), counts[counts != 0])

    def put_groups(self, slots: Ints, groups: Ragged) -> None:
        self.grow(reach(slots))
        self._counts[slots] = groups.heads()

    def push(self, steps: Steps, values: Words) -> None:
        _count(steps.kind, steps.slot, steps.row, values.valid, self._counts, self.answers.word)
        self.answers.valid[:] = 1
