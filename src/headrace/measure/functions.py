"""Every aggregation as the language sees it."""

from __future__ import annotations

from headrace.measure.aggregators import AGGREGATORS, Aggregator
from headrace.model.signature import Signature

FUNCTIONS: tuple[Signature, ...] = tuple(aggregator.signature for aggregator in AGGREGATORS)


def aggregator_of(function: Signature, may_be_late: bool) -> type[Aggregator]:
    found = next(aggregator for aggregator in AGGREGATORS if aggregator.signature.name == function.name)
    return found.when_late() if may_be_late else found
