"""The merge of data paths: equal to the paper's, whatever comes in between, and never out of order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OrderBroken
from headrace.order.by_sequence import ALWAYS, BySequence
from headrace.order.columns import PART, PATH, SEQUENCE, SOURCE, TICK, Keys
from headrace.testing.order import END, assert_in_source_order, literal_merge

STRICT, PARTS = Keys(), Keys(has_parts=True)


def batch(*sequences: int, parts: list[int] | None = None, **more: list[int]) -> pa.RecordBatch:
    columns = {SEQUENCE: pa.array(sequences, pa.int64())}
    if parts is not None:
        columns[PART] = pa.array(parts, pa.int64())
    return pa.record_batch({**columns, **{name: pa.array(values, pa.int64()) for name, values in more.items()}})


def sequences(released: pa.RecordBatch | None) -> list[int]:
    return [] if released is None else released.column(SEQUENCE).to_pylist()


@st.composite
def queues(draw: st.DrawFn) -> list[list[tuple[int, bool]]]:
    """What a source sent along some paths, with heartbeats that never pass a record, each to its end."""
    count = draw(st.integers(1, 5))
    found: list[list[tuple[int, bool]]] = [[] for _ in range(count)]
    for sequence in range(draw(st.integers(0, 25))):
        path = draw(st.integers(-1, count - 1))  # -1: a filter
        if path >= 0:
            found[path].append((sequence, False))
        for each in draw(st.sets(st.integers(0, count - 1), max_size=count)):
            found[each].append((sequence, True))
    return [[*each, (END, True)] for each in found]


@given(queues(), st.randoms(use_true_random=False), st.integers(1, 6))
def test_it_is_the_papers_merge_whatever_comes_when(made: list[list[tuple[int, bool]]], rng, most: int) -> None:  # type: ignore[no-untyped-def]
    expected = literal_merge(made)
    merge = BySequence([f"path {at}" for at in range(len(made))], STRICT)
    left = [list(each) for each in made]
    found: list[int] = []
    while any(left):
        at = rng.choice([at for at, each in enumerate(left) if each])
        for _ in range(rng.randint(1, most)):
            if not left[at]:
                break
            tick, is_heartbeat = left[at].pop(0)
            if tick == END:
                merge.end(at)
            elif is_heartbeat:
                merge.promise(at, tick)
            else:
                merge.push(at, batch(tick))
        found += sequences(merge.release())
        assert found == [tick for tick, _ in expected[: len(found)]]
    assert found == [tick for tick, _ in expected]
    assert (merge.rows, merge.release()) == (0, None)
    assert_in_source_order(found)


@given(queues())
def test_it_releases_no_later_than_the_paper_does(made: list[list[tuple[int, bool]]]) -> None:
    """Of what has come, all that the paper's merger would have emitted is out."""
    cut = [each[: len(each) * 2 // 3] for each in made]
    merge = BySequence([str(at) for at in range(len(made))], STRICT)
    for at, each in enumerate(cut):
        for tick, is_heartbeat in each:
            if is_heartbeat:
                merge.promise(at, tick)
            else:
                merge.push(at, batch(tick))
    found = sequences(merge.release())
    least = [tick for tick, _ in literal_merge(cut)]
    assert found[: len(least)] == least


@given(queues(), st.randoms(use_true_random=False))
def test_paths_may_come_mixed_in_one_input(made: list[list[tuple[int, bool]]], rng) -> None:  # type: ignore[no-untyped-def]
    """As they do from a task with several paths: a heartbeat then is of all of them."""
    rows = sorted((tick, path) for path, each in enumerate(made) for tick, is_heartbeat in each if not is_heartbeat)
    left = {path: [tick for tick, at in rows if at == path] for path in range(len(made))}
    merge = BySequence(["all"], STRICT, [len(made)])
    found: list[int] = []
    while any(left.values()):
        mixed = []
        for _ in range(rng.randint(1, 6)):
            path = rng.choice([path for path, each in left.items() if each] or [-1])
            if path >= 0:
                mixed.append((left[path].pop(0), path))
        merge.push(0, batch(*[tick for tick, _ in mixed], **{PATH: [path for _, path in mixed]}))
        if rng.random() < 0.5:
            merge.promise(0, min((each[0] for each in left.values() if each), default=END) - 1)
        found += sequences(merge.release())
        assert found == [tick for tick, _ in rows[: len(found)]]
    merge.end(0)
    assert [*found, *sequences(merge.release())] == [tick for tick, _ in rows]


def test_children_of_a_record_keep_their_order_over_paths() -> None:
    merge = BySequence(["a", "b"], PARTS)
    merge.push(0, batch(1, 2, 2, parts=[0, 0, 2]))
    merge.push(1, batch(2, 3, parts=[1, 0]))
    assert sequences(merge.release()) == [1], "there may be more of 2"
    merge.promise(0, 2)
    merge.promise(1, 2)
    released = merge.release()
    assert released is not None
    assert released.column(PART).to_pylist() == [0, 1, 2]


def test_several_sources_are_merged_by_tick_then_source_then_number() -> None:
    merge = BySequence(["a", "b"], Keys(by_tick=True))
    merge.push(0, batch(0, 1, 2, **{TICK: [10, 10, 30], SOURCE: [0, 0, 0]}))
    merge.push(1, batch(0, 1, **{TICK: [10, 20], SOURCE: [1, 1]}))
    merge.end(0)
    merge.end(1)
    released = merge.release()
    assert released is not None
    rows = [(row[TICK], row[SOURCE], row[SEQUENCE]) for row in released.to_pylist()]
    assert rows == [(10, 0, 0), (10, 0, 1), (10, 1, 0), (20, 1, 1), (30, 0, 2)]


@pytest.mark.parametrize(
    ("keys", "before", "pushed", "said"),
    [
        (STRICT, batch(5), batch(4), "4 comes after 5"),
        (STRICT, batch(5), batch(5), "5 comes after 5"),
        (STRICT, batch(1), batch(2, 4, 3), "3 comes after 4"),
        (PARTS, batch(5, parts=[0]), batch(4, parts=[0]), "4 comes after 5"),
    ],
)
def test_what_is_out_of_order_is_refused(keys: Keys, before: pa.RecordBatch, pushed: pa.RecordBatch, said: str) -> None:
    merge = BySequence(["path 0 of map.3", "b"], keys)
    merge.push(0, before)
    with pytest.raises(OrderBroken, match=f"path 0 of map.3: it is out of order: {said}"):
        merge.push(0, pushed)


def test_a_record_after_its_heartbeat_is_refused() -> None:
    merge = BySequence(["a"], STRICT)
    merge.promise(0, 7)
    merge.promise(0, 3)  # says nothing new
    with pytest.raises(OrderBroken, match="7 comes after it was said that all up to 7 had come"):
        merge.push(0, batch(7))
    merge.end(0)
    with pytest.raises(OrderBroken, match=f"all up to {ALWAYS} had come"):
        merge.push(0, batch(8))


def test_it_goes_on_where_it_was() -> None:
    first = BySequence(["a", "b"], STRICT)
    first.push(0, batch(1, 4, 6))
    first.push(1, batch(2, 5))
    assert sequences(first.release()) == [1, 2, 4, 5]
    assert first.released_to == 5
    second = BySequence(["a", "b"], STRICT)
    second.go_on(5, [-1, -1])
    second.push(0, batch(4, 6, 7))
    assert second.release() is None, "nothing is known of the other one"
    second.promise(1, 6)
    assert sequences(second.release()) == [6]


def test_a_million_records_of_thirty_paths() -> None:
    merge = BySequence([str(at) for at in range(30)], STRICT)
    numbers = np.arange(1_000_000)
    rng = np.random.default_rng(3)
    path = rng.integers(0, 30, len(numbers))
    found = []
    for start in range(0, len(numbers), 100_000):
        for at in range(30):
            mine = numbers[start : start + 100_000][path[start : start + 100_000] == at]
            merge.push(at, pa.record_batch({SEQUENCE: pa.array(mine)}))
        released = merge.release()
        assert released is not None
        found.append(released.column(SEQUENCE).to_numpy())
    for at in range(30):
        merge.end(at)
    released = merge.release()
    assert released is not None
    assert_in_source_order(np.concatenate([*found, released.column(SEQUENCE).to_numpy()]), numbers)


def test_what_comes_late_leaves_late_and_is_counted() -> None:
    def rows(*ticks: int) -> pa.RecordBatch:
        return batch(*ticks, **{TICK: list(ticks)})

    merge = BySequence(["a", "b"], Keys(is_relaxed=True))
    merge.push(0, rows(1, 3, 5, 9))
    merge.promise(1, 4)  # somebody has lost patience
    assert sequences(merge.release()) == [1, 3]
    merge.push(1, rows(2, 4, 6))
    merge.promise(0, 9)
    merge.promise(1, 9)
    assert sequences(merge.release()) == [2, 4, 5, 6, 9]
    assert merge.inversions == 2
