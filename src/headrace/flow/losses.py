"""What is to be believed of queues after the machine went down.

A queue keeps what was synced, and perhaps more: of two queues, one may have kept what came of frames that the other one
has lost. A commit has synced the queues that its task reads and writes, and all inboxes before it in which the order of
several senders was decided: all that was appended to these by the moment of the commit is there. What was appended
after the last such moment is left aside, and comes again: so what is kept never came of something that is lost. A sink
shows records to others before its commit is whole: it notes the moment first.

The moments are of the clock that all processes of the machine share, which a queue stamps its frames with. A loss is a
fact about the frames before some positions, and stays one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.flow.plan import Plan


@dataclass(frozen=True)
class Loss:
    """Between two positions of a queue (the ends of the frames), frames count if they are not stamped later."""

    starts: Mapping[str, int]
    ends: Mapping[str, int]
    moments: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def counts(self, queue: str, position: int, stamp: int) -> bool:
        """Of the frame that ends at this position."""
        if not self.starts.get(queue, 0) < position <= self.ends.get(queue, 0):
            return True
        return stamp <= self.moments.get(queue, -1)


def loss_of(plan: Plan, before: Sequence[Loss], ends: Mapping[str, int], commits: Mapping[str, int]) -> Loss:
    """`ends` is where inboxes end now; `commits` has the moment of the last commit of each task since the last loss."""
    moments: dict[str, int] = {}
    for name, moment in commits.items():
        for queue in plan.synced_with(plan.tasks[name]):
            moments[queue] = max(moments.get(queue, -1), moment)
    starts = {queue: max((loss.ends.get(queue, 0) for loss in before), default=0) for queue in ends}
    return Loss(starts, dict(ends), moments)
