"""Steps into aggregators: what leaves of every kind do once the steps are written."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.measure.aggregator import Aggregator
from headrace.measure.events import EventEncoder
from headrace.measure.steps import Steps
from headrace.measure.words import Words
from headrace.model.jit import Ints


def replay(
    written: Ints, parts: tuple[Ints, Ints, Ints], aggregators: Sequence[Aggregator], encoder: EventEncoder
) -> None:
    """Push the steps through the aggregators; `parts` are the event matrices that their sources point into."""
    steps = Steps(written, parts)
    values: dict[object, Words] = {}
    for aggregator in aggregators:
        argument = aggregator.metric.argument
        if argument not in values:
            values[argument] = encoder.values(argument, steps)
        aggregator.push(steps, values[argument])
