"""LiveRobin's merge, compared with the paper's Algorithm 1 at every prefix, whatever is cut and comes when."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import QueueDamaged
from headrace.replicate.round_robin import BEAT_BYTES, RoundRobin
from headrace.replicate.runs import Run
from headrace.testing.merge_oracles import END, Item, LiteralLiveRobin, first_copies, live_robin


def batch(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"v": pa.array(values, pa.string())})


def flat(runs: list[Run]) -> list[tuple[int, str] | int]:
    """Row by row; between two beats there is one run."""
    assert not any(a.beat is None and b.beat is None for a, b in pairwise(runs))
    found: list[tuple[int, str] | int] = []
    for run in runs:
        if run.beat is not None:
            found.append(run.beat)
        else:
            assert run.records is not None
            assert run.records.num_rows == len(run.inputs) > 0
            found += zip(run.inputs.tolist(), run.records.column(0).to_pylist(), strict=True)
    return found


def push(merge: RoundRobin, at: int, items: list[Item]) -> None:
    """Items of an input, in batches as long as they can be."""
    records: list[str] = []
    for item in [*items, -1]:
        if isinstance(item, str):
            records.append(item)
            continue
        if records:
            merge.push(at, batch(*records))
            records = []
        if item is END:
            merge.end(at)
        elif item != -1:
            assert isinstance(item, int)
            merge.beat(at, item)


def inputs_of(rng: random.Random) -> list[list[Item]]:
    """Up to five inputs of up to five cycles, some short of beats, some ended; they are of very different speeds."""
    found: list[list[Item]] = []
    for at in range(rng.randint(1, 5)):
        items: list[Item] = []
        speed = rng.choice((0, 1, 2, 6))
        for beat in range(1, rng.randint(1, 5)):
            items += [f"{at}.{beat}.{n}" for n in range(rng.randint(0, speed))] + [beat]
        items += [f"{at}.last.{n}" for n in range(rng.randint(0, speed))]
        found.append([*items, END] if rng.random() < 0.6 else items)
    return found


def check(seed: int) -> None:
    rng = random.Random(seed)
    queues = inputs_of(rng)
    names = [f"input {at}" for at in range(len(queues))]
    merge, literal = RoundRobin(names), LiteralLiveRobin(len(queues))
    pushed = [0] * len(queues)
    most = rng.choice((1, 4, 30))
    while left := [at for at, queue in enumerate(queues) if pushed[at] < len(queue)]:
        at = rng.choice(left)
        items = queues[at][pushed[at] : pushed[at] + rng.randint(1, most)]
        pushed[at] += len(items)
        push(merge, at, items)
        literal.queues[at].extend(items)
        if rng.random() < 0.5 or len(left) == 1:
            assert flat(merge.release()) == list(literal.run()), seed
            assert merge.taken == literal.taken
            assert merge.is_over == (len(literal.ended) == len(queues))
            assert merge.is_over or literal.next in merge.waiting_for or literal.next in literal.ended
        if rng.random() < 0.1:
            values = json.loads(json.dumps(merge.snapshot()))
            merge = RoundRobin(names)
            merge.restore(values)
            for at, queue in enumerate(queues):
                push(merge, at, queue[merge.taken[at] : pushed[at]])
    assert flat(merge.release()) == list(literal.run())
    assert merge.release() == []
    assert merge.snapshot()["taken"] == literal.taken


def test_it_is_algorithm_1_whatever_is_cut_and_comes_when() -> None:
    for seed in range(3_000):
        check(seed)


@pytest.mark.chaos
def test_it_is_algorithm_1_at_length() -> None:
    for seed in range(3_000, 40_000):
        check(seed)


def test_the_example() -> None:
    merge = RoundRobin(["a", "b"])
    push(merge, 0, ["a1", "a2", "a3", 1, "a4", 2])
    assert flat(merge.release()) == [(0, "a1")], "then it is the turn of b"
    assert merge.waiting_for == {1}
    push(merge, 1, ["b1", 1, "b2", "b3", 2])
    runs = merge.release()
    assert [run.beat for run in runs] == [None, 1, None, 2]
    assert flat(runs) == [(1, "b1"), (0, "a2"), 1, (0, "a3"), (1, "b2"), (0, "a4"), (1, "b3"), 2]
    assert (merge.taken, merge.rows, merge.waiting_for, merge.is_over) == ([6, 5], 0, {0, 1}, False)


def test_it_is_the_closed_form() -> None:
    """Whole cycles leave by (cycle, round, (input - start) mod n): another way to say what Algorithm 1 does."""
    rng = np.random.default_rng(7)
    for _ in range(200):
        counts = rng.integers(0, 5, (int(rng.integers(1, 6)), 4))
        n, start, expected = len(counts), 0, []
        merge = RoundRobin([str(at) for at in range(n)])
        for cycle in range(4):
            keys = [(int(counts[at, cycle]), (at - start) % n, at) for at in range(n)]
            items: list[tuple[int, int, tuple[int, str] | int]] = [
                (row, place, (at, f"{cycle}.{row}")) for many, place, at in keys for row in range(many)
            ]
            expected += [item for *_, item in sorted([*items, (*min(keys)[:2], cycle + 1)], key=lambda each: each[:2])]
            start = (max(keys)[2] + 1) % n
            for at in range(n):
                push(merge, at, [*(f"{cycle}.{row}" for row in range(counts[at, cycle])), cycle + 1])
        assert flat(merge.release()) == expected


def test_one_input_waits_for_nobody() -> None:
    merge = RoundRobin(["a"])
    push(merge, 0, ["a1", "a2", 1, "a3"])
    assert flat(merge.release()) == [(0, "a1"), (0, "a2"), 1, (0, "a3")]
    merge.end(0)
    assert (merge.release(), merge.is_over, merge.taken, merge.waiting_for) == ([], True, [5], set())


def test_who_has_ended_is_not_waited_for() -> None:
    merge = RoundRobin(["a", "b", "c"])
    push(merge, 1, [END])
    push(merge, 0, ["a1", "a2", 1, "a3"])
    push(merge, 2, ["c1", 1])
    assert flat(merge.release()) == [(0, "a1"), (2, "c1"), (0, "a2"), 1]
    assert merge.waiting_for == {2}, "whose turn it is, after b"
    push(merge, 2, [END])
    push(merge, 0, ["a4", 2, END])
    assert flat(merge.release()) == [(0, "a3"), (0, "a4"), 2]
    assert (merge.is_over, merge.taken, merge.rows) == (True, [7, 1, 3], 0)


def test_a_beat_that_is_not_the_next_is_refused() -> None:
    merge = RoundRobin(["queue s-0", "queue s-1"])
    merge.beat(1, 1)
    for wrong in (1, 3):
        with pytest.raises(QueueDamaged, match=f"queue s-1: beat {wrong} comes after beat 1"):
            merge.beat(1, wrong)
    again = RoundRobin(["queue s-0", "queue s-1"])
    merge.beat(0, 1)
    merge.release()
    again.restore(merge.snapshot())
    with pytest.raises(QueueDamaged, match="beat 1 comes after beat 1"):
        again.beat(0, 1)


def test_what_comes_after_the_end_is_refused() -> None:
    merge = RoundRobin(["a"])
    merge.end(0)
    for wrong in (["x"], [1], [END]):
        with pytest.raises(QueueDamaged, match="a: it goes on after its end"):
            push(merge, 0, list(wrong))


def test_what_waits_is_counted() -> None:
    merge = RoundRobin(["a", "b"])
    rows = pa.record_batch({"v": pa.array(range(100), pa.int64())})
    merge.push(1, rows)
    merge.beat(1, 1)
    assert (merge.rows_of(0), merge.rows_of(1), merge.bytes_of(1)) == (0, 100, 800 + BEAT_BYTES)
    merge.push(0, rows.slice(0, 25))
    merge.release()
    assert (merge.rows, merge.rows_of(1), merge.bytes_of(0), merge.bytes_of(1)) == (75, 75, 0, 600 + BEAT_BYTES)
    merge.end(0)
    merge.release()
    assert (merge.rows, merge.bytes_of(1)) == (0, 0)


def test_runs_are_cut_where_schemas_differ_only() -> None:
    merge = RoundRobin(["a", "b"])
    other = pa.record_batch({"w": pa.array([1, 2, 3], pa.int64())})
    merge.push(0, batch("a1"))
    merge.push(0, other)
    merge.push(0, batch("a2"))
    merge.push(1, batch("b1"))
    merge.push(1, other.slice(1))
    merge.beat(1, 1)
    merge.beat(0, 1)
    runs = merge.release()
    rows = [
        run.beat if run.records is None else (run.records.column(0).to_pylist(), run.inputs.tolist()) for run in runs
    ]
    assert rows == [(["a1", "b1"], [0, 1]), ([1, 2, 2, 3, 3], [0, 1, 0, 1, 0]), 1, (["a2"], [0])]


def test_empty_batches_say_nothing() -> None:
    merge = RoundRobin(["a", "b"])
    merge.push(0, batch())
    assert (merge.release(), merge.waiting_for, merge.taken) == ([], {0, 1}, [0, 0])


def test_an_input_far_ahead_costs_nothing_to_wait_for() -> None:
    """Each release does as much as it gives: here a row of each of two inputs, of which one holds a million."""
    merge = RoundRobin(["ahead", "slow"])
    merge.push(0, pa.record_batch({"v": pa.array(np.arange(1_000_000))}))
    one = pa.record_batch({"v": pa.array([-1], pa.int64())})
    found = 0
    for _ in range(2_000):
        merge.push(1, one)
        found += sum(len(run.inputs) for run in merge.release())
    assert found == 4_001
    assert merge.rows_of(0) == 1_000_000 - 2_001


def test_the_oracles_do_what_the_paper_says() -> None:
    assert live_robin([["a1", "a2", 1], ["b1"]]) == [(0, "a1"), (1, "b1"), (0, "a2")]
    assert live_robin([["a1", 1, "a2"], [1, "b1"]]) == [(0, "a1"), 1, (1, "b1"), (0, "a2")]
    assert first_copies([0, 0, 0, 2, 2, 2, 1]) == [0, 2]
    assert first_copies([1, 2, 3]) == [1, 2, 3]
    assert first_copies([3, 2, 1]) == [3]
