"""sum(x): exact. Integers and decimals never wrap, doubles equal `math.fsum` of the window."""

from __future__ import annotations

import pyarrow as pa

from headrace.measure.aggregator import Aggregator, is_number, needs_number
from headrace.measure.exact import SUM, ExactTotals, bounds_of
from headrace.measure.jit import Ints
from headrace.measure.steps import Steps
from headrace.measure.words import Words, is_float
from headrace.model.signature import Signature
from headrace.state.ragged import Ragged
from headrace.state.tables import Tables

_SPARK_EXTRA_DIGITS = 10


def _result(type: pa.DataType | None) -> pa.DataType | str:
    if type is None or not is_number(type):
        return needs_number("sum", type)
    if is_float(type):
        return pa.float64()
    if pa.types.is_decimal(type):
        return pa.decimal128(min(38, type.precision + _SPARK_EXTRA_DIGITS), type.scale)
    return pa.int64()


class Sum(Aggregator):
    signature = Signature(name="sum", result_type=_result, about="the exact total of x")

    def prepare(self) -> None:
        assert self.metric.argument_type is not None
        self._totals = ExactTotals(self.metric.argument_type)
        self._bounds = bounds_of(self.type)

    def grow(self, slots: int) -> None:
        self._totals.grow(slots)

    def dump(self) -> Tables:
        return self._totals.dump()

    def restore(self, tables: Tables) -> None:
        self._totals.restore(tables)

    def take_groups(self, slots: Ints) -> Ragged:
        return self._totals.take_groups(slots)

    def put_groups(self, slots: Ints, groups: Ragged) -> None:
        self._totals.put_groups(slots, groups)

    def clear_groups(self) -> None:
        self._totals.clear_groups()

    def push(self, steps: Steps, values: Words) -> None:
        if is_float(self.type):
            self._totals.push_doubles(steps, values, self.answers, SUM)
        elif not self._totals.push_integers(steps, values, self.answers, SUM, 0, self._bounds):
            raise self.overflow()
