"""The agent of what is tracked, as a stage of the flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.charging import Region
from headrace.flow.operators import Operator, Outputs, Shape
from headrace.flow.regions import AGENT, GONE, notices
from headrace.model.failures import problem_of
from headrace.track import agent_state
from headrace.track.agent import Agent
from headrace.track.terms import Notice


def agent_of(operators: Mapping[str, Operator]) -> AgentOperator | None:
    """Of the task of an agent."""
    found = operators.get(AGENT)
    return found if isinstance(found, AgentOperator) else None


def heard_reports(operators: Mapping[str, Operator]) -> dict[str, int]:
    """Of the task of an agent: how far each task has reported; of others nothing."""
    agent = agent_of(operators)
    return {} if agent is None else agent.heard()


class AgentOperator(Operator):
    """The agent in one task: it has the substreams of its share."""

    def __init__(self, region: Region, shape: Shape):
        self._region, self._shape = region, shape
        self.agent = Agent(region.tracking)
        self._schema = notices(region.tracking.label)
        self._since: list[pa.RecordBatch] = []
        """The reports since the last snapshot: what has changed."""
        self._rows, self._is_much = 0, False
        """How many rows they had; were they more than there is? Most of that has gone, and they need not be kept."""
        self.changes_are_all = False
        self._asked: dict[str, Any] = {}

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        raise FlowError(f"stage {self._shape.stage} was given records, and takes reports")

    def take(self, reports: Sequence[pa.RecordBatch]) -> Outputs:
        told = self.agent.take(*reports)
        self._note(reports)
        return self._outputs(told)

    def _note(self, reports: Sequence[pa.RecordBatch]) -> None:
        """For the next snapshot."""
        self._rows += sum(report.num_rows for report in reports)
        if self._rows > self.agent.size:
            self._is_much, self._since = True, []
        elif not self._is_much:
            self._since.extend(reports)

    def _outputs(self, told: list[Notice]) -> Outputs:
        """Runs of notices for one point, in their order."""
        found: Outputs = []
        at = 0
        while at < len(told):
            stop = at
            while stop < len(told) and told[stop].point == told[at].point:
                stop += 1
            run = told[at:stop]
            point = self._region.tracking.points[run[0].point].name if run[0].point >= 0 else GONE
            ids, sizes = [word for each in run for word in each.ids], [len(each.ids) for each in run]
            arrays = [
                pa.array(np.repeat(np.array([each.told for each in run], np.int8), sizes)),
                pa.array(np.array(ids, np.uint64).view(np.int64)),
                pa.array([name for each in run for name in each.names], self._region.tracking.label),
                pa.array(np.repeat(np.array([each.tick for each in run], np.int64), sizes)),
            ]
            found.append((point, pa.RecordBatch.from_arrays(arrays, schema=self._schema)))
            at = stop
        return found

    def heard(self) -> dict[str, int]:
        """How far each task has reported."""
        known = self.agent.memory.known.tolist()
        return {f"reports {number} to {self._shape.index}": max(step, 0) for number, step in enumerate(known)}

    # -------------------------------------------------------------------- people

    def change(self, message: Mapping[str, Any]) -> None:
        """Somebody asks about a substream: the answer is in the next report. Raises nothing: it would be read again."""
        try:
            said = self.agent.why(int(message["word"], 16))
        except Exception as error:  # as of a question that was asked before ids were sent
            said = f"the tracker cannot look it up ({problem_of(error)}); ask again"
        self._asked = {"number": message.get("change", 0), "question": message.get("question"), "why": said}

    def report(self) -> Mapping[str, Any]:
        memory = self.agent.memory
        names = [str(name) for name in self.agent.open_names(10)]
        waits = [f"source {name} has not ended, nor promised all" for name in self.agent.waits_for()]
        return {
            "open": len(self.agent.sums), "ended": memory.count, "open_for_longest": names, "waits_for": waits,
            "asked": self._asked,
        }  # fmt: skip

    # ------------------------------------------------------------------- state

    def changes(self) -> bytes | None:
        if not self._rows:
            return None
        self.changes_are_all = self._is_much
        if self._is_much:
            return self.content()
        since = self._since
        self._since, self._rows = [], 0
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, since[0].schema) as writer:
            for batch in since:
                writer.write_batch(batch)
        return b"+" + sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

    def content(self) -> bytes:
        self._since, self._rows, self._is_much = [], 0, False
        return b"=" + agent_state.dump(self.agent)

    def restore(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            if bytes(part[:1]) == b"=":
                self.agent = Agent(self._region.tracking)
                agent_state.load(self.agent, bytes(part[1:]))
            else:
                self.agent.take(*pa.ipc.open_stream(pa.py_buffer(part)[1:]))
