"""The flows of the bench of replicated tasks: maps that do nothing, and the monitoring of customers.

Each knows what must come out of it, so that a record that is lost or comes twice is found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.demo.monitoring import Large, Often, monitoring, notified, watched
from headrace.demo.saas_events import CONTROLS, Saas

OUT: Final = "out"
CONTROLS_A_SECOND: Final = 5.0
_MICROS: Final = 1_000_000


@dataclass(frozen=True)
class Load(ABC):
    """A flow with a steady source of so many events a second, and a queue `out` of records that have `n` and `ts`."""

    rate: int

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Those that tell records apart, `n` first."""

    @property
    @abstractmethod
    def source(self) -> str:
        """The task that makes events."""

    @abstractmethod
    def flow(self, name: str) -> hr.Flow: ...

    @abstractmethod
    def expected(self, count: int) -> pa.Table:
        """All that comes of the first so many events, in no order."""

    def faults(self, found: pa.Table, given: int) -> tuple[int, int]:
        """How many records are lost, and how many came twice or should not have come.

        `given` is what a source says that it has given: less than came of it, where it started again just now.
        """
        count = max(given, 1 + (pc.max(found["n"]).as_py() if found.num_rows else -1))
        came, wanted = _counted(found, self.columns), _counted(self.expected(count), self.columns)
        both = wanted.join(came, list(self.columns), join_type="full outer", right_suffix="_came")
        surplus = pc.subtract(both["count_came"].fill_null(0), both["count"].fill_null(0)).to_numpy()
        return int(-surplus[surplus < 0].sum()), int(surplus[surplus > 0].sum())


def _counted(table: pa.Table, columns: tuple[str, ...]) -> pa.Table:
    counts = table.select(columns).append_column("one", pa.repeat(1, table.num_rows))
    return counts.group_by(list(columns)).aggregate([("one", "sum")]).rename_columns([*columns, "count"])


# ------------------------------------------------------------------------- maps


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@dataclass(frozen=True)
class Maps(Load):
    """Events through some maps of two tasks each; every task sends to both tasks of the next map, in turn."""

    maps: int = 3

    columns = ("n",)
    source = "events.0"

    def flow(self, name: str) -> hr.Flow:
        flow = hr.Flow(name)
        stream = flow.source("events", hr.rate(self.rate))
        for number in range(self.maps):
            stream = flow.stage(f"map-{number}", same, stream, parallelism=2, route=hr.rebalance())
        flow.sink(OUT, stream, hr.queue(OUT))
        return flow

    def expected(self, count: int) -> pa.Table:
        return pa.table({"n": np.arange(count)})


# ------------------------------------------------------------------- monitoring


@dataclass(frozen=True)
class Monitoring(Load):
    """The monitoring of customers, with two tasks that make notifications.

    Control events are for customers that have no events. So they cost what they cost in the paper, and what comes out
    does not depend on when they come: it is known.
    """

    columns = ("n", "policy", "rule", "recipient")
    source = "events.0"

    def flow(self, name: str) -> hr.Flow:
        saas, flow = self._saas, hr.Flow(name)

        def controls_of_others(batch: pa.RecordBatch) -> pa.RecordBatch:
            made = saas.controls_at(batch)
            return made.set_column(2, CONTROLS.field(2), pc.add(made.column("customer"), saas.customers))

        events = flow.stage("made", saas.events_at, flow.source("events", hr.rate(self.rate)))
        controls = flow.stage("said", controls_of_others, flow.source("controls", hr.rate(CONTROLS_A_SECOND)))
        flow.sink(OUT, monitoring(flow, events, controls), hr.queue(OUT))
        return flow

    def expected(self, count: int) -> pa.Table:
        numbers = np.arange(count)
        moments = pa.array((numbers * _MICROS / self.rate).astype(np.int64)).cast(pa.timestamp("us", "UTC"))
        messages = watched(self._saas.events_at(pa.record_batch({"n": pa.array(numbers), "ts": moments})))
        matches = [join().on_batch(messages) for join in (Large, Often)]
        return pa.Table.from_batches([notified(each) for each in matches if each is not None])

    @property
    def _saas(self) -> Saas:
        return Saas(per_second=self.rate, controls_per_second=CONTROLS_A_SECOND)
