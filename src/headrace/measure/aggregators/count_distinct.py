"""countDistinct(x): how many different values that are not null; NaN is one value, 0.0 and -0.0 are the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.measure.aggregator import Aggregator
from headrace.measure.codes import OrderedCodes
from headrace.measure.steps import ANSWER, INSERT, REMOVE, Steps
from headrace.measure.tally import Tally, lower_count, raise_count
from headrace.measure.words import Words
from headrace.model.jit import Flags, Ints, grown, kernel
from headrace.model.signature import Signature
from headrace.state.ragged import Ragged, reach
from headrace.state.tables import Tables, part_of, under


@kernel
def _count_distinct(
    kind: Ints, slot: Ints, row: Ints, code: Ints, valid: Flags, table: Ints, used: Ints, distinct: Ints, out: Ints
) -> None:
    for i in range(len(kind)):
        s = slot[i]
        if kind[i] == ANSWER:
            out[row[i]] = distinct[s]
        elif not valid[i]:
            continue
        elif kind[i] == REMOVE:
            distinct[s] -= lower_count(table, used, s, code[i]) == 1
        else:
            distinct[s] += raise_count(table, used, s, code[i]) == 0


class CountDistinct(Aggregator):
    signature = Signature(
        name="countDistinct",
        result_type=lambda _: pa.int64(),
        aliases=("count_distinct",),
        about="how many different values of x",
    )

    def prepare(self) -> None:
        assert self.metric.argument_type is not None
        self._codes = OrderedCodes(self.metric.argument_type, self.texts)
        self._tally = Tally()
        self.clear_groups()

    def clear_groups(self) -> None:
        self._tally.clear_groups()
        self._distinct: Ints = np.zeros(0, np.int64)
        self._slots = 0

    def grow(self, slots: int) -> None:
        self._distinct, self._slots = grown(self._distinct, slots), max(self._slots, slots)

    def dump(self) -> Tables:
        codes, tally = (under("codes", self._codes.dump()), under("tally", self._tally.dump()))
        return {"distinct": self._distinct[: self._slots], **codes, **tally}

    def restore(self, tables: Tables) -> None:
        self._distinct, self._slots = tables["distinct"], len(tables["distinct"])
        self._codes.restore(part_of("codes", tables))
        self._tally.restore(part_of("tally", tables))

    def take_groups(self, slots: Ints) -> Ragged:
        """(code, count) of every value, by code."""
        return self._tally.take_groups(slots)

    def put_groups(self, slots: Ints, groups: Ragged) -> None:
        self.grow(reach(slots))
        self._tally.put_groups(slots, groups)
        self._distinct[slots] = groups.lengths // 2

    def push(self, steps: Steps, values: Words) -> None:
        self._tally.reserve(int((steps.kind <= INSERT).sum()))
        codes = self._codes.encode(values)
        _count_distinct(
            steps.kind, steps.slot, steps.row, codes, values.valid,
            self._tally.table, self._tally.used, self._distinct, self.answers.word,
        )  # fmt: skip
        self.answers.valid[:] = 1
