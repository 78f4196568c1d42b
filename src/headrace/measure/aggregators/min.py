"""min(x): the smallest value. NaN is larger than every number, as in Spark."""

from __future__ import annotations

from headrace.measure.aggregator import Aggregator, same_type
from headrace.measure.extremum import AnyOrderExtremum, InOrderExtremum
from headrace.model.signature import Signature

_SIGNATURE = Signature(name="min", result_type=same_type, about="the smallest x")


class LateMin(AnyOrderExtremum):
    signature = _SIGNATURE
    largest = -1


class Min(InOrderExtremum):
    signature = _SIGNATURE
    largest = -1

    @classmethod
    def when_late(cls) -> type[Aggregator]:
        return LateMin
