"""stdDev(x): the sample standard deviation from exact moments; null for fewer than two values."""

from __future__ import annotations

import pyarrow as pa

from headrace.measure.aggregator import Aggregator, is_number, needs_number
from headrace.measure.moments import ExactMoments
from headrace.measure.steps import Steps
from headrace.measure.words import Words
from headrace.model.signature import Signature


def _result(type: pa.DataType | None) -> pa.DataType | str:
    return pa.float64() if is_number(type) else needs_number("stdDev", type)


class StdDev(Aggregator):
    signature = Signature(
        name="stdDev",
        result_type=_result,
        aliases=("stddev_samp", "std_dev"),
        about="the sample standard deviation of x",
    )

    def prepare(self) -> None:
        assert self.metric.argument_type is not None
        self.state = self._moments = ExactMoments(self.metric.argument_type)

    def push(self, steps: Steps, values: Words) -> None:
        self._moments.push(steps, values, self.answers.word, self.answers.valid)
