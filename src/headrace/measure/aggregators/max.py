"""max(x): the largest value. NaN is larger than every number, as in Spark."""

from __future__ import annotations

from headrace.measure.aggregator import Aggregator, same_type
from headrace.measure.extremum import AnyOrderExtremum, InOrderExtremum
from headrace.model.signature import Signature

_SIGNATURE = Signature(name="max", result_type=same_type, about="the largest x")


class LateMax(AnyOrderExtremum):
    signature = _SIGNATURE
    largest = 1


class Max(InOrderExtremum):
    signature = _SIGNATURE
    largest = 1

    @classmethod
    def when_late(cls) -> type[Aggregator]:
        return LateMax
