"""Rows of a query in Real-Time Mode: in order, each once, however they come; and none before its turn."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OrderBroken
from headrace.order.by_offset import OffsetsMerge
from headrace.order.columns import SEQUENCE
from headrace.order.runs import Done

PATHS = 3
SCHEMA = pa.schema([(SEQUENCE, pa.int64()), ("value", pa.string())])


def take(merge: OffsetsMerge, at: int, first: int, sequences: list[int], says: str = "row") -> None:
    values = [f"{says} {n}" for n in sequences]
    rows = pa.record_batch([pa.array(sequences, pa.int64()), values], schema=SCHEMA)
    merge.take(at, first, rows, np.array([hash(value) % (1 << 32) for value in values], np.int64))


def out(merge: OffsetsMerge) -> list[int]:
    rows = merge.release()
    if rows is None:
        return []
    assert rows.column("value").to_pylist() == [f"row {n}" for n in rows.column(0).to_pylist()]
    return rows.column(0).to_pylist()  # type: ignore[no-any-return]


def new() -> OffsetsMerge:
    return OffsetsMerge([f"p{at}" for at in range(PATHS)], Done(), [0] * PATHS)


def test_rows_leave_as_soon_as_those_before_them_have() -> None:
    merge = new()
    take(merge, 0, 0, [0, 3])
    assert out(merge) == [], "who knows where the source begins"
    merge.commit(1)
    assert out(merge) == [0]
    assert (merge.held, merge.waits_for) == (1, (1,))
    take(merge, 1, 0, [2, 1])
    assert out(merge) == [1, 2, 3]
    assert (merge.held, merge.waits_for, merge.offsets) == (0, (), [2, 2, 0])


def test_what_is_behind_one_that_was_filtered_away_waits_for_the_commit() -> None:
    merge = new()
    merge.commit(0)
    take(merge, 0, 0, [0, 2, 3, 5])
    assert out(merge) == [0]
    assert merge.offsets == [1, 0, 0], "what waits is read again after a restart"
    merge.commit(5)
    assert out(merge) == [2, 3, 5], "4 does not come any more, and 5 is next"
    assert merge.done.released == 5


def test_what_comes_twice_leaves_once_and_two_with_one_offset_are_named() -> None:
    merge = new()
    merge.commit(0)
    take(merge, 0, 0, [0, 1, 3])
    assert out(merge) == [0, 1]
    take(merge, 1, 0, [0, 1, 2, 3, 3])
    assert out(merge) == [2, 3]
    assert merge.dropped == 4
    take(merge, 1, 5, [5])
    with pytest.raises(OrderBroken, match=r"p1: .* two rows have the sequence 5, and each must have its own"):
        take(merge, 1, 6, [5], says="other")
    with pytest.raises(OrderBroken, match=r"p2: .* two rows have the sequence 1"):
        take(merge, 2, 0, [1], says="other")


@given(st.integers(0, 1 << 32))
def test_any_order_any_commits_any_restarts(seed: int) -> None:
    choose = Random(seed)
    count = choose.randrange(200)
    kept = [n for n in range(count) if choose.random() < choose.choice([0.5, 0.9, 1.0])]
    logs: list[list[int]] = [[] for _ in range(PATHS)]
    merge, read, found = new(), [0] * PATHS, list[int]()
    at, committed, due = 0, 0, list[tuple[int, list[int]]]()
    while committed < count or any(read[path] < len(log) for path, log in enumerate(logs)) or due:
        step = choose.random()
        if step < 0.4 and at < count:  # tasks write some rows, in any order among them
            end = min(count, at + choose.randrange(1, 20))
            rows = [n for n in kept if at <= n < end]
            choose.shuffle(rows)
            for n in rows:
                choose.choice(logs).append(n)
            at = end
        elif step < 0.5 and at > committed:
            committed = at
            due.append((committed, [len(log) for log in logs]))
        elif step < 0.6:  # the query fails, and does all again since its commit
            at = committed
        elif step < 0.65:
            merge = OffsetsMerge([f"p{path}" for path in range(PATHS)], merge.done, [*merge.offsets])
            read, due = [*merge.offsets], [(committed, [len(log) for log in logs])]
        else:
            path = choose.randrange(PATHS)
            some = logs[path][read[path] : read[path] + choose.randrange(1, 30)]
            if some:
                take(merge, path, read[path], some)
                read[path] += len(some)
        while due and all(have >= end for have, end in zip(read, due[0][1], strict=True)):
            merge.commit(due.pop(0)[0])
        found += out(merge)
        assert found == kept[: len(found)]
    assert found == kept
