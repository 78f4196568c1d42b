"""sum(x): exact. Integers and decimals never wrap, doubles equal `math.fsum` of the window."""

from __future__ import annotations

import pyarrow as pa

from headrace.measure.aggregator import Aggregator, is_number, needs_number
from headrace.measure.exact import SUM, ExactTotals, bounds_of
from headrace.measure.steps import Steps
from headrace.measure.words import Words, is_float
from headrace.model.signature import Signature

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
        self.state = self._totals = ExactTotals(self.metric.argument_type)
        self._bounds = bounds_of(self.type)

    def push(self, steps: Steps, values: Words) -> None:
        if is_float(self.type):
            self._totals.push_doubles(steps, values, self.answers, SUM)
        elif not self._totals.push_integers(steps, values, self.answers, SUM, 0, self._bounds):
            raise self.overflow()
