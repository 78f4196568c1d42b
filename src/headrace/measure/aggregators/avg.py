"""avg(x): the exact total divided by the count, rounded at the end."""

from __future__ import annotations

import pyarrow as pa

from headrace.measure.aggregator import Aggregator, is_number, needs_number
from headrace.measure.exact import AVERAGE, ExactTotals, bounds_of
from headrace.measure.steps import Steps
from headrace.measure.words import Words, is_float
from headrace.model.signature import Signature

_SPARK_EXTRA_DIGITS = 4


def _result(type: pa.DataType | None) -> pa.DataType | str:
    if type is None or not is_number(type):
        return needs_number("avg", type)
    if pa.types.is_decimal(type):
        scale = max(type.scale, min(37, type.scale + _SPARK_EXTRA_DIGITS))
        return pa.decimal128(min(38, type.precision + _SPARK_EXTRA_DIGITS), scale)
    return pa.float64()


class Avg(Aggregator):
    signature = Signature(
        name="avg", result_type=_result, aliases=("mean",), about="the exact total of x by the count of x"
    )

    def prepare(self) -> None:
        argument = self.metric.argument_type
        assert argument is not None
        self.state = self._totals = ExactTotals(argument)
        self._times = 10 ** (self.type.scale - argument.scale) if pa.types.is_decimal(self.type) else 0
        self._bounds = bounds_of(self.type)
        self._float = is_float(argument)

    def push(self, steps: Steps, values: Words) -> None:
        if self._float:
            self._totals.push_doubles(steps, values, self.answers, AVERAGE)
        elif not self._totals.push_integers(steps, values, self.answers, AVERAGE, self._times, self._bounds):
            raise self.overflow()
