"""A task: one stage of the plan over one partition. Rows in the order of arrival go in, answers come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.language.nodes import LastEvents
from headrace.measure.aggregator import Aggregator
from headrace.measure.count_leaf import CountLeaf
from headrace.measure.events import TIME_ROW, EventEncoder
from headrace.measure.functions import aggregator_of
from headrace.measure.jit import Ints
from headrace.measure.keys import BytesIndex
from headrace.measure.leaf import Batch, WindowLeaf
from headrace.measure.plan import Leaf, Stage
from headrace.measure.reservoir import MEMORY_BYTES, EventReservoir
from headrace.measure.steps import NEVER
from headrace.measure.words import to_words
from headrace.model.ticks import DAY, FARTHEST
from headrace.state.tables import Tables, part_of, under


class MeasureTask:
    """Answers every row with all metrics of the stage. How rows are cut into batches does not matter."""

    def __init__(
        self,
        stage: Stage,
        time: str,
        *,
        may_be_late: bool,
        memory_bytes: int = MEMORY_BYTES,
        folder: Path | None = None,
    ):
        """`may_be_late`: rows may come in another order than that of their times, so nothing is forgotten.

        `folder`: where full chunks of events stay, for a task that is dumped and restored.
        """
        self._stage = stage
        self._time = time
        self._may_be_late = may_be_late
        self._texts = BytesIndex()
        self._encoder = EventEncoder(stage, self._texts)
        self.reservoir = EventReservoir(self._encoder.rows, memory_bytes, folder=folder)
        self._windows: list[WindowLeaf] = []
        self._counts: list[CountLeaf] = []
        self._aggregators: list[Aggregator] = []
        for leaf in stage.leaves:
            self._plant(leaf)
        self._next_number = 0
        self._newest = NEVER

    def _plant(self, leaf: Leaf) -> None:
        # The last N events are those that came last: whatever their times, they come in order.
        late = self._may_be_late and not isinstance(leaf.window, LastEvents)
        aggregators = [aggregator_of(metric.function, late)(metric, self._texts) for metric in leaf.metrics]
        self._aggregators.extend(aggregators)
        if isinstance(leaf.window, LastEvents):
            self._counts.append(CountLeaf(leaf, aggregators, self._encoder))
            return
        for together in _by_late_mode(aggregators) if self._may_be_late else [aggregators]:
            self._windows.append(WindowLeaf(leaf, together, self._encoder))

    def dump(self) -> tuple[Tables, dict[str, Any]]:
        """Everything needed to go on after the last pushed row: tables, and small values that belong to them."""
        events, chunks = self.reservoir.dump()
        tables = {
            "clock": np.array([self._next_number, self._newest], np.int64),
            **under("texts", self._texts.dump()),
            **under("groups", self._encoder.dump()),
            **under("events", events),
        }
        for i, leaf in enumerate(self._leaves):
            tables.update(under(f"leaf-{i}", leaf.dump()))
        return tables, {"chunks": chunks}

    def restore(self, tables: Tables, values: Mapping[str, Any]) -> None:
        """Go on where a task of the same stage was dumped; the tables are this task's from now on."""
        self._next_number, self._newest = (int(value) for value in tables["clock"])
        self._texts.restore(part_of("texts", tables))
        self._encoder.restore(part_of("groups", tables))
        self.reservoir.restore(part_of("events", tables), values["chunks"])
        for i, leaf in enumerate(self._leaves):
            leaf.restore(part_of(f"leaf-{i}", tables))

    @property
    def _leaves(self) -> list[WindowLeaf | CountLeaf]:
        return [*self._windows, *self._counts]

    def push(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """The answers of the rows, one array for each metric of the stage. Rows that cannot be measured get nulls."""
        times, known = self._ticks(rows.column(self._time))
        if known.all():
            return self._answer(rows, times)
        answers = self._answer(rows.filter(pa.array(known)), times[known])
        index = pa.array(np.cumsum(known) - 1, mask=~known)
        return [answer.take(index) for answer in answers]

    def _answer(self, rows: pa.RecordBatch, times: Ints) -> list[pa.Array]:
        if rows.num_rows == 0:
            return [pa.array([], metric.type) for metric in self._stage.metrics]
        events = self._encoder.encode(rows, times, self._next_number)
        batch = Batch(events, self._next_number, self._late_rows(times))
        if self._windows:
            self.reservoir.push(events)
        for window in self._windows:
            window.push(batch, self.reservoir)
        for count in self._counts:
            count.push(batch)
        found = {aggregator.metric.name: aggregator.finish() for aggregator in self._aggregators}
        self._next_number += rows.num_rows
        self._newest = max(self._newest, int(events[TIME_ROW].max()))
        self._forget()
        return [found[metric.name] for metric in self._stage.metrics]

    def _ticks(self, column: pa.Array) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Times, and where they are known: not null, and not so far off that a window's edge would leave 64 bits."""
        words = to_words(column, self._texts)
        unit = DAY if pa.types.is_date(column.type) else 1
        near = (words.word >= -FARTHEST // unit) & (words.word <= FARTHEST // unit)
        return words.word * unit, (words.valid != 0) & near

    def _late_rows(self, times: Ints) -> Ints:
        before = np.maximum.accumulate(np.concatenate([[self._newest], times[:-1]]))
        return np.flatnonzero(times < before)

    def _forget(self) -> None:
        if not self._may_be_late and self._windows:
            self.reservoir.drop_until(min(window.needed_after for window in self._windows))


def _by_late_mode(aggregators: Sequence[Aggregator]) -> list[list[Aggregator]]:
    """Aggregators that treat late events in the same way share their steps."""
    groups: dict[tuple[int, int], list[Aggregator]] = {}
    for aggregator in aggregators:
        groups.setdefault((aggregator.late_mode, aggregator.late_keep), []).append(aggregator)
    return list(groups.values())
