"""A literal, slow version of `measure.admission`: which events count, row by row, in plain Python."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.testing.definitions import identity
from headrace.testing.oracle import arrival_order, microseconds


@dataclass(frozen=True)
class Rules:
    """Lengths of time in microseconds; None for no limit."""

    late: str = "accept"
    closure: int = 600_000_000
    keep: int | None = None
    dedup: int | None = None


def statuses(
    table: pa.Table, rules: Rules, *, time: str, group: tuple[str, ...], id: str | None, arrival: str | None
) -> tuple[list[str], list[int | None]]:
    """The status of every row, and the time at which it counts (None where it does not)."""
    found: list[str] = ["discarded"] * table.num_rows
    counted: list[int | None] = [None] * table.num_rows
    keys = [table.column(name).to_pylist() for name in group]
    ids: list[Any] = table.column(id).to_pylist() if id is not None else [None] * table.num_rows
    newest: dict[Hashable, int] = {}
    seen: dict[Hashable, int] = {}
    top: int | None = None
    times = microseconds(table.column(time))
    # The oracle's order of arrival, whatever becomes of the rows.
    for event in arrival_order(table, time, id, arrival):
        moment = times[event.row]
        assert moment is not None
        key = tuple(identity(column[event.row]) for column in keys)
        known = newest.get(key)
        name = (key, identity(ids[event.row]))
        if rules.dedup is not None and ids[event.row] is not None and name in seen:
            assert known is not None
            forgotten = max(known, moment) - rules.dedup
            if rules.keep is not None and top is not None:
                forgotten = max(forgotten, top - rules.keep - rules.dedup)
            if seen[name] > forgotten:
                found[event.row] = "duplicate"
                continue
        if rules.keep is not None and top is not None and moment < top - rules.keep:
            continue
        status = "ok"
        if known is not None and moment < known:
            status = "late"
            if rules.late != "accept" and moment < known - rules.closure:
                if rules.late == "discard":
                    continue
                status, moment = "rewritten", known - rules.closure
        newest[key] = max(moment, newest.get(key, moment))
        top = moment if top is None else max(top, moment)
        seen[name] = moment
        found[event.row], counted[event.row] = status, moment
    return found, counted
