"""Fraud detection: transactions are compared with a model, which every rule trains anew from the transactions.

A model that all transactions use and that all of them train: the loop that cannot be sharded. The state is two parts, a
sum that is shared out (join adds) and a model that is copied to both sides of a fork.

Several definitions of the model are about. The paper's prose: a transaction is flagged if it equals, modulo 1000, "the
sum of the previous transactions" and "the last rule event". Its code (Figure 15): the time of the last rule plus one;
and a sum that is never set back, though a rule is to give "an aggregate of the transactions since the last rule".
Chosen is the prose: a rule gives the sum of the transactions since the rule before, sets `mark` to (that sum + its
own value) mod 1000, and starts the sum at 0. A transaction is flagged if its value mod 1000 is `mark`, at first 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.demo.programs.arrays import (
    Stream,
    in_time_order,
    int_column,
    interleaved,
    is_kind,
    slotted_times,
    totals_between,
)
from headrace.synchronize.program import Program, Tags, Update

MODULO: Final = 1000

EVENTS = pa.schema([("time", pa.int64()), ("kind", pa.string()), ("value", pa.int64()), ("stream", pa.string())])


@dataclass(frozen=True)
class Model:
    """`mark` is what fraud looks like, of the last of `rules` rules; `total` is of the transactions since."""

    rules: int = 0
    mark: int = 0
    total: int = 0


class Fraud(Program):
    """Gives every transaction that is flagged, and for every rule the sum of the transactions since the last."""

    tag = "kind"
    time = "time"
    tags = ("transaction", "rule")
    outputs = pa.schema([("time", pa.int64()), ("kind", pa.string()), ("value", pa.int64())])
    depends: Mapping[str, tuple[str, ...]] = {"rule": ("rule", "transaction")}

    def init(self) -> Model:
        return Model()

    def update(self, state: Model, event: Any) -> Update:
        if event.kind == "transaction":
            is_flagged = event.value % MODULO == state.mark
            given = [(event.time, event.kind, event.value)] if is_flagged else []
            return replace(state, total=state.total + event.value), given
        mark = (state.total + event.value) % MODULO
        return Model(state.rules + 1, mark, 0), [(event.time, event.kind, state.total)]

    def fork(self, state: Model, left: Tags, right: Tags) -> tuple[Model, Model]:
        """The model goes to both sides; the sum to the one that has the rules, or else to the left."""
        without = replace(state, total=0)
        return (without, state) if right("rule") else (state, without)

    def join(self, left: Model, right: Model) -> Model:
        """Where one side had a rule, the other had no events: the model of more rules is the one of now."""
        newer = max(left, right, key=lambda side: side.rules)
        return replace(newer, total=left.total + right.total)

    def update_batch(self, state: Model, events: pa.RecordBatch) -> tuple[Model, pa.RecordBatch | None]:
        """The mark of a window is of the sum before it alone, so all windows of a run are found at once."""
        if not events.num_rows:
            return state, None
        values, is_rule = int_column(events, "value"), ~is_kind(events, "transaction")
        rules = np.flatnonzero(is_rule)
        totals = totals_between(np.where(is_rule, 0, values) if len(rules) else values, rules, state.total)
        given = (totals[:-1] % MODULO).astype(np.int64) + values[rules] % MODULO
        marks = np.concatenate(([state.mark], given % MODULO))
        window = np.cumsum(is_rule) if len(rules) else 0
        is_given = values % MODULO == marks[window]
        is_given[rules] = True
        rows = np.flatnonzero(is_given)
        state = Model(state.rules + len(rules), int(marks[-1]), int(totals[-1]))
        if not len(rows):
            return state, None
        shown = values[rows]
        shown[is_rule[rows]] = totals[:-1]
        columns = events.select(["time", "kind"]).take(pa.array(rows)).columns
        return state, pa.RecordBatch.from_arrays([*columns, pa.array(shown)], names=self.outputs.names)

    def examples(self) -> list[dict[str, Any]]:
        """Every value is below 3 modulo 1000, and so is every mark: about every third transaction is flagged."""
        rows: list[dict[str, Any]] = []
        since = 0
        for time in range(40):
            if time % 6 == 5 or time == 18:
                # So that the mark is 0, 1 or 2 when the examples come in this order.
                kind, value, since = "rule", (time % 3 - since) % MODULO, 0
            else:
                kind, value = "transaction", MODULO * (time % 4) + time * time % 3
                since += value
            rows.append({"time": time, "kind": kind, "value": value, "stream": f"{kind}s"})
        return rows


def generate(
    streams: int = 4, windows: int = 5, transactions_per_window: int = 10_000, seed: int = 1, ties: bool = False
) -> pa.Table:
    """Streams of transactions from 0 to 9999, so many a rule and stream, and one stream of rules from 0 to 999."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(streams):
        times, ends = slotted_times(windows, transactions_per_window, rng)
        value = rng.integers(0, 10 * MODULO, len(times))
        made.append(Stream(f"transactions-{number}", times, {"kind": "transaction", "value": value}))
    made.append(Stream("rules", ends, {"kind": "rule", "value": rng.integers(0, MODULO, windows)}))
    return interleaved(made, EVENTS, tie=8 if ties else 1)


def expected(events: pa.Table) -> pa.Table:
    """Window by window: the mark of each is of the sum of the one before."""
    events = in_time_order(events)
    values, times = int_column(events, "value"), int_column(events, "time")
    rules = np.flatnonzero(is_kind(events, "rule"))
    mark, start = 0, 0
    found: list[tuple[int, str, int]] = []
    for stop in [*rules.tolist(), len(values)]:
        window = values[start:stop]
        rows = start + np.flatnonzero(window - window // MODULO * MODULO == mark)
        found += [(int(times[row]), "transaction", int(values[row])) for row in rows.tolist()]
        if stop < len(values):
            total = sum(window.tolist())
            found.append((int(times[stop]), "rule", total))
            mark = (total + int(values[stop])) % MODULO
        start = stop + 1
    return pa.Table.from_pylist([dict(zip(Fraud.outputs.names, row, strict=True)) for row in found], Fraud.outputs)
