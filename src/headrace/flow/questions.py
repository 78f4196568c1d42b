"""Asking a running flow about a substream: the question goes to the inbox of the agent, the answer is in its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.plan import Plan
from headrace.flow.regions import AGENT
from headrace.flow.substreams import ids_of
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
    try:
        label = pa.array([substream]).cast(region.tracking.label)
    except (pa.ArrowException, TypeError, ValueError):
        raise FlowError(f"{substream!r} is no substream: they are {region.tracking.label}") from None
    shard = int(ids_of(label)[0]) % len(plan.agents)
    task = f"{AGENT}.{shard}"
    deadline, number = time.monotonic() + timeout_s, 0
    with queues.writer() as writer:
        while time.monotonic() < deadline:
            found = reports().get(task, {})
            asked = found.get("stages", {}).get(AGENT, {}).get("asked", {})
            if number and asked.get("number", 0) >= number:
                if asked["substream"] == _plain(substream):
                    return f"{region.tracked.name} {substream}: {asked['why']}"
                number = 0  # somebody else asked at the same time
            if not number and found:
                number = found["last_change"] + 1
                message = {"change": number, "stage": AGENT, "substream": _plain(substream)}
                writer.append(plan.agents[shard], [frames.encode(frames.control(0, 0, message))])
            time.sleep(_LOOK_S)
    raise FlowError(f"flow {plan.graph.name}: its tracker did not answer within {timeout_s:g} seconds; is it running?")


def _plain(value: Any) -> Any:
    return value if isinstance(value, int | float | str | bool) else str(value)
