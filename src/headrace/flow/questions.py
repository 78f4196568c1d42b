"""Asking a running flow about a substream: the question goes to the inbox of the agent, the answer is in its report.

Inboxes outlive workers: a question that an agent cannot take would be read again by each that takes its place. So who
asks reckons the id of the substream, and the agent looks up a number.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.plan import Plan
from headrace.flow.regions import AGENT
from headrace.flow.substreams import ids_of
from headrace.measure.words import is_text
from headrace.model import frames
from headrace.queues.protocol import Queues

_LOOK_S: Final = 0.02


def why(
    plan: Plan, queues: Queues, reports: Callable[[], Mapping[str, Mapping[str, Any]]], substream: Any, timeout_s: float
) -> str:
    """What a substream still waits for, in a sentence. Raises FlowError."""
    region = plan.region
    if region is None:
        raise FlowError(f"flow {plan.graph.name} is not tracked; say stream.tracked(by=...) of what is to be known")
    word = int(ids_of(_label_of(substream, region.tracking.label))[0])
    shard, question = word % len(plan.agents), uuid.uuid4().hex
    task = f"{AGENT}.{shard}"
    deadline, number = time.monotonic() + timeout_s, 0
    with queues.writer() as writer:
        while time.monotonic() < deadline:
            found = reports().get(task, {})
            asked = found.get("stages", {}).get(AGENT, {}).get("asked", {})
            if number and asked.get("number", 0) >= number:
                if asked.get("question") == question:
                    return f"{region.tracked.name} {substream}: {asked['why']}"
                number = 0  # somebody else asked at the same time
            if not number and found:
                number = found["last_change"] + 1
                message = {"change": number, "stage": AGENT, "question": question, "word": f"{word:x}"}
                writer.append(plan.agents[shard], [frames.encode(frames.control(0, 0, message))])
            time.sleep(_LOOK_S)
    raise FlowError(f"flow {plan.graph.name}: its tracker did not answer within {timeout_s:g} seconds; is it running?")


def _label_of(substream: Any, label: pa.DataType) -> pa.Array:
    """A column of it alone; text is read. Raises FlowError for what is none, as b"5" where they are texts."""
    try:
        text = isinstance(substream, str) and not is_text(label)
        found = pa.array([substream]).cast(label) if text else pa.array([substream], label)
        if found.null_count == 0 and (isinstance(substream, str) or _is_same(substream, found[0].as_py(), label)):
            return found
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    raise FlowError(f"{substream!r} is no substream of this flow: they are {label}")


def _is_same(asked: Any, label: Any, type: pa.DataType) -> bool:
    """Was nothing lost? A float of 32 bits is near what was asked, and what is not a number does not equal itself."""
    return bool(asked == label or pa.types.is_floating(type))
