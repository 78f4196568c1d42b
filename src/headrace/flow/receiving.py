"""What a task takes of its inbox: each record once, and none missing."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import QueueDamaged
from headrace.flow.losses import Loss
from headrace.flow.plan import TaskPlan
from headrace.flow.pulses import BEATS
from headrace.flow.queue_ends import begins
from headrace.flow.regions import AGENT
from headrace.flow.second_copies import SecondCopies
from headrace.model import frames
from headrace.model.frames import Frame, Kind
from headrace.queues.protocol import Entry


class Receiving:
    """Of one task: what is to come next on each channel, and what has come, for second copies of it."""

    def __init__(self, plan: TaskPlan, losses: Sequence[Loss], second: SecondCopies | None):
        self._plan, self._losses, self._second = plan, losses, second
        self.next: dict[int, int] = dict.fromkeys(plan.channels, 0)

    def new_part(self, entry: Entry, changed: int) -> Frame | None:
        """What of a frame has not come before; `changed` is the last change. Raises QueueDamaged, CopiesDiffer."""
        plan, queue, frame = self._plan, str(self._plan.inbox), frames.decode(entry.frame)
        if not all(loss.counts(queue, entry.next, frame.stamp) for loss in self._losses):
            return None
        if frame.message is not None and "change" in frame.message:
            return frame if frame.message["change"] > changed else None
        if frame.message is not None and "beat" in frame.message and frame.channel == BEATS:
            return frame if plan.takes_beats else None
        if frame.kind == Kind.REPORT and plan.vertex.name == AGENT:
            return frame
        expected = self.next.get(frame.channel)
        if expected is None:
            if plan.channels:
                raise QueueDamaged(queue, f"it has a frame of channel {frame.channel}, which is not its")
            expected = frame.first  # a queue from outside may have lost its beginning: to `truncate`
        if frame.first > expected and (plan.channels or not begins(frame.first)):
            raise QueueDamaged(
                queue,
                f"records {expected} to {frame.first - 1} of channel {frame.channel} are missing; restore the queues "
                f"from a copy, or start the flow anew under another name",
            )
        if self._second is not None and plan.channels:
            self._second.look(frame, entry.frame, expected)
        if frame.kind == Kind.HEARTBEAT:
            return frame
        if frame.end <= expected:
            return None
        self.next[frame.channel] = frame.end
        return frame.since(expected)
