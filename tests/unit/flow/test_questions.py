"""Asking a flow about a substream, whatever is asked."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import FlowError
from headrace.flow.agents import agent_of
from headrace.flow.builder import Flow
from headrace.flow.plan import make_plan
from headrace.flow.questions import why
from headrace.flow.sequential import InOneThread
from headrace.model import frames

from .tracked_flows import CALL, numbers

NOON = dt.datetime(2026, 1, 1, 12)


class Asked:
    """A flow whose one source has given all, and the inbox and the reports of its agent."""

    def __init__(self, labels: pa.Array):
        batch = pa.record_batch({"x": labels})
        flow = Flow("f")
        stream = flow.source("s", hr.generate(lambda first, count: batch.slice(first, count), len(labels)))
        flow.sink("done", flow.ends("ends", stream.tracked(by="x")), CALL)
        self.graph = flow.graph()
        run = InOneThread(self.graph)
        run.read(run.tasks["s.0"], 10)
        found = agent_of(run.tasks["tracker.0"].operators)
        assert found is not None
        self.agent, self.changed = found, 0

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def writer(self) -> Asked:
        return self

    def append(self, queue: str, written: Sequence[bytes]) -> None:
        message = frames.decode(written[0]).message
        assert message is not None
        self.changed = message["change"]
        self.agent.change(message)

    def reports(self) -> Mapping[str, Any]:
        return {"tracker.0": {"last_change": self.changed, "stages": {"tracker": self.agent.report()}}}

    def why(self, substream: Any) -> str:
        return why(make_plan(self.graph), self, self.reports, substream, 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "asked"),
    [
        (pa.array([5]), 5),
        (pa.array([5]), "5"),
        (pa.array([5]), 5.0),
        (pa.array(["5"]), "5"),
        (pa.array([b"5"]), b"5"),
        (pa.array([0.1, float("nan")]), float("nan")),
        (pa.array([0.1], pa.float32()), 0.1),
        (pa.array([NOON]), NOON),
        (pa.array([NOON], pa.timestamp("us", "UTC")), NOON.replace(tzinfo=dt.UTC)),
        (pa.array([NOON.date()]), NOON.date()),
        (pa.array([Decimal("5.00")]), Decimal(5)),
    ],
)
def test_a_substream_is_known_by_what_it_is(labels: pa.Array, asked: Any) -> None:
    assert Asked(labels).why(asked).endswith("it has ended")


@pytest.mark.parametrize(
    ("labels", "asked"),
    [
        *((pa.array([5]), asked) for asked in (None, b"5", dt.timedelta(1), 2**70, 5.5, True, "five", [5], object())),
        *((pa.array(["None", "b'5'", "5"]), asked) for asked in (None, b"5", 5)),
        (pa.array([NOON]), NOON.date()),
        (pa.array([NOON]), NOON.replace(tzinfo=dt.UTC)),
        (pa.array([NOON], pa.timestamp("us", "UTC")), NOON),
        (pa.array([NOON.date()]), NOON),
    ],
)
def test_what_is_no_substream_is_refused_by_who_asks(labels: pa.Array, asked: Any) -> None:
    flow = Asked(labels)
    with pytest.raises(FlowError, match="is no substream of this flow: they are"):
        flow.why(asked)
    assert not flow.changed


@pytest.mark.parametrize("message", [{"substream": "None"}, {"word": "x"}, {"word": None, "change": 3}, {}])
def test_no_question_stops_an_agent(message: dict[str, Any]) -> None:
    """What is in its inbox would be read again after each restart."""
    agent = Asked(pa.array([5])).agent
    agent.change({"change": 7, "stage": "tracker", **message})
    assert "cannot look it up" in agent.report()["asked"]["why"]


def test_a_flow_that_is_not_tracked() -> None:
    flow = Flow("f")
    flow.sink("out", flow.source("s", numbers()), CALL)
    with pytest.raises(FlowError, match="flow f is not tracked"):
        why(make_plan(flow.graph()), None, dict, 5, 1.0)  # type: ignore[arg-type]
