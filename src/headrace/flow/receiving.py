"""What a task takes of its inbox: each record once, and none missing."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import QueueDamaged
from headrace.flow.losses import Loss
from headrace.flow.plan import TaskPlan
from headrace.flow.pulses import BEATS
from headrace.flow.regions import AGENT
from headrace.model.frames import Frame, Kind


def new_part(
    plan: TaskPlan, numbers: dict[int, int], changed: int, losses: Sequence[Loss], frame: Frame, position: int
) -> Frame | None:
    """What of a frame has not come before. Raises QueueDamaged where something is missing before it.

    `numbers` is, for each channel, what is to come next, and is raised here; `changed` is the last change.
    """
    queue = str(plan.inbox)
    if not all(loss.counts(queue, position, frame.stamp) for loss in losses):
        return None
    if frame.message is not None and "change" in frame.message:
        return frame if frame.message["change"] > changed else None
    if frame.message is not None and "beat" in frame.message and frame.channel == BEATS:
        return frame if plan.takes_beats else None
    if frame.kind == Kind.REPORT and plan.vertex.name == AGENT:
        return frame
    expected = numbers.get(frame.channel)
    if expected is None:
        if plan.channels:
            raise QueueDamaged(str(plan.inbox), f"it has a frame of channel {frame.channel}, which is not its")
        expected = frame.first  # a queue from outside may have lost its beginning: to `truncate`
    if frame.first > expected:
        raise QueueDamaged(
            str(plan.inbox),
            f"records {expected} to {frame.first - 1} of channel {frame.channel} are missing; restore the queues "
            f"from a copy, or start the flow anew under another name",
        )
    if frame.kind == Kind.HEARTBEAT:
        return frame
    if frame.end <= expected:
        return None
    numbers[frame.channel] = frame.end
    return frame.since(expected)
