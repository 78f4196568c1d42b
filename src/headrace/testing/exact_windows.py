"""Windows as slices: for big tables with distinct times, what every event's window holds, found by binary search.

The second path beside DuckDB: sums of doubles that equal `math.fsum` on every row (DuckDB's own are not exact), and any
aggregation by its definition on chosen rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.language import evaluate
from headrace.language.nodes import Expr, Infinite, Item, LastEvents, Literal, Sliding, Statement, Tumbling, Window
from headrace.testing.definitions import answer, result_type

Ints: TypeAlias = npt.NDArray[np.int64]


class ExactWindows:
    """The windows of one statement over a table whose rows arrive in order of time, at distinct times.

    `counted` lists the rows that pass WHERE, group by group, in order of time; the window of row i is
    `counted[low[i]:high[i]]`.
    """

    def __init__(self, statement: Statement, table: pa.Table, time: str):
        self.batch = table.combine_chunks().to_batches()[0]
        self._fsums: dict[Expr, tuple[list[float | None], Ints]] = {}
        self.low = np.zeros(table.num_rows, np.int64)
        self.high = np.zeros(table.num_rows, np.int64)
        times = np.asarray(self.batch.column(time).cast(pa.int64()))
        passes = self._passes(statement)
        counted: list[Ints] = []
        start = 0
        for rows in groups(self.batch, [column.name for column in statement.group_by], times):
            kept = rows[passes[rows]]
            low, high = bounds(statement.window, times[rows], times[kept])
            self.low[rows], self.high[rows] = start + low, start + high
            counted.append(kept)
            start += len(kept)
        self.counted: Ints = np.concatenate(counted) if counted else np.zeros(0, np.int64)

    def _passes(self, statement: Statement) -> npt.NDArray[np.bool_]:
        if statement.where is None:
            return np.ones(self.batch.num_rows, np.bool_)
        return np.asarray(pc.fill_null(evaluate(statement.where, self.batch), False))

    def fsums(self, argument: Expr) -> tuple[list[float | None], Ints]:
        """For every row `math.fsum` of a double argument over its window (null where it has no value), and how many."""
        if argument not in self._fsums:
            self._fsums[argument] = self._computed_fsums(argument)
        return self._fsums[argument]

    def _computed_fsums(self, argument: Expr) -> tuple[list[float | None], Ints]:
        values = evaluate(argument, self.batch).take(pa.array(self.counted))
        # Nulls are left out once, so that a window is a slice of plain floats.
        before = np.concatenate([[0], np.cumsum(np.asarray(values.is_valid()))]).astype(np.int64)
        low, high = before[self.low], before[self.high]
        present = values.drop_null().to_pylist()
        sums = [
            math.fsum(present[first:last]) if last > first else None
            for first, last in zip(low.tolist(), high.tolist(), strict=True)
        ]
        return sums, high - low

    def answers(self, item: Item, rows: Iterable[int]) -> pa.Array:
        """The answers to chosen rows, by the definition of the aggregation."""
        argument = evaluate(item.args[0], self.batch) if item.args else None
        kind = result_type(item.function, argument.type if argument is not None else None)
        parameters = [float(arg.value) for arg in item.args[1:] if isinstance(arg, Literal)]  # type: ignore[arg-type]
        function = item.function if item.args else "count(*)"
        found: list[Any] = []
        for row in rows:
            window = self.counted[self.low[row] : self.high[row]]
            values = argument.take(pa.array(window)).to_pylist() if argument is not None else window.tolist()
            found.append(answer(function, values, parameters, kind))
        return pa.array(found, kind)


def groups(batch: pa.RecordBatch, keys: list[str], times: Ints) -> Iterator[Ints]:
    """The rows of each group, in order of time. Null is a group; keys are texts or integers."""
    code = np.zeros(batch.num_rows, np.int64)
    for key in keys:
        encoded = batch.column(key).dictionary_encode(null_encoding="encode")
        code = code * len(encoded.dictionary) + np.asarray(encoded.indices)
    order = np.lexsort((times, code))
    starts = np.flatnonzero(np.diff(code[order])) + 1
    yield from np.split(order, starts) if len(order) else []


def bounds(window: Window, asking: Ints, counted: Ints) -> tuple[Ints, Ints]:
    """For each time in `asking`, which slice of the sorted times `counted` is in its window."""
    if isinstance(window, LastEvents):
        high = np.searchsorted(counted, asking, side="right")
        return np.maximum(0, high - window.count), high
    newest = asking - window.delay
    high = np.searchsorted(counted, newest, side="right")
    if isinstance(window, Sliding):
        return np.searchsorted(counted, newest - window.width, side="right"), high
    if isinstance(window, Tumbling):
        return np.searchsorted(counted, newest // window.width * window.width, side="left"), high
    assert isinstance(window, Infinite)
    return np.zeros(len(asking), np.int64), high
