"""Steps into aggregators: what leaves of every kind do once the steps are written."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.measure.aggregator import Aggregator
from headrace.measure.events import NUMBER_ROW, TIME_ROW, EventEncoder
from headrace.measure.steps import KIND, ROW, SOURCE, STEP_SLOT, Steps, gather
from headrace.measure.words import Words
from headrace.model.jit import Ints


def replay(
    written: Ints, parts: tuple[Ints, Ints, Ints], aggregators: Sequence[Aggregator], encoder: EventEncoder
) -> None:
    """Push the steps through the aggregators; `parts` are the event matrices that their sources point into."""
    source = written[SOURCE]
    steps = Steps(
        kind=written[KIND],
        slot=written[STEP_SLOT],
        row=written[ROW],
        time=gather(TIME_ROW, source, *parts),
        number=gather(NUMBER_ROW, source, *parts),
    )
    values: dict[object, Words] = {}
    for aggregator in aggregators:
        argument = aggregator.metric.argument
        if argument not in values:
            values[argument] = encoder.values(argument, source, parts)
        aggregator.push(steps, values[argument])
