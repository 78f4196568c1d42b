from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.demo.programs import EventWindows
from headrace.errors import ProgramError
from headrace.flow.synchronized import planned
from headrace.synchronize.codec import Codec
from headrace.synchronize.gang_task import GangTask
from headrace.synchronize.inputs import Inputs
from headrace.synchronize.mailbox import LAST, Events


class Alone:
    """The gang of a task that has no others."""

    task, size = 0, 1

    def say(self, to: int, *contents: bytes) -> None:
        raise AssertionError

    def hear(self, wait_s: float) -> Any:
        assert not wait_s, "it waits for nobody"

    def leave(self) -> None:
        pass


def _batch(task: GangTask, events: Events) -> Iterator[pa.RecordBatch]:
    return task.run(iter([events]))


def _stretch(task: GangTask, events: Events) -> Iterator[pa.RecordBatch]:
    return task.run_stretch(0, events)


@pytest.mark.parametrize("run", [_batch, _stretch])
@pytest.mark.parametrize("is_last", [False, True])
def test_an_event_behind_which_nothing_can_be(
    run: Callable[[GangTask, Events], Iterator[pa.RecordBatch]], is_last: bool
) -> None:
    program = EventWindows()
    plan = planned(program, Inputs(program.name, "time", ("kind",)), 1, None, "sequential")
    time, arrival = LAST
    batch = pa.RecordBatch.from_pylist([{"time": time, "kind": "barrier", "value": 0}])
    ranks = np.array([arrival if is_last else arrival - 1])
    tag = plan.space.base_of("barrier", None)
    events = Events(batch, np.array([time]), ranks, np.array([tag]))
    task = GangTask(plan, Alone(), Codec(program), pa.schema([(name, pa.null()) for name in batch.schema.names]))
    if not is_last:
        assert sum(given.num_rows for given in run(task, events)) == 1
        return
    with pytest.raises(ProgramError, match="an event has the time 9223372036854775807 and the arrival"):
        list(run(task, events))
