"""KaZoo's merge: a copy takes what the order names, when it has it, and the leader proposes each item once."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pyarrow as pa
import pytest

from headrace.errors import QueueDamaged
from headrace.replicate.by_leader import ByLeader
from headrace.replicate.runs import Run
from headrace.testing.merge_oracles import END, Item, kazoo


def batch(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"v": pa.array(values, pa.string())})


def push(merge: ByLeader, at: int, items: list[Item]) -> None:
    records = [item for item in items if isinstance(item, str)]
    merge.push(at, batch(*records))
    if END in items:
        merge.end(at)


def flat(runs: list[Run]) -> list[tuple[int, str]]:
    assert len(runs) <= 1
    found: list[tuple[int, str]] = []
    for run in runs:
        assert run.records is not None
        found += zip(run.inputs.tolist(), run.records.column(0).to_pylist(), strict=True)
    return found


def queues_of(rng: random.Random) -> list[list[Item]]:
    return [
        [*(f"{at}.{n}" for n in range(rng.choice((0, 3, 20)))), *([END] if rng.random() < 0.7 else [])]
        for at in range(rng.randint(1, 4))
    ]


def order_of(rng: random.Random, queues: list[list[Item]]) -> list[int]:
    """One input for each item, in stretches."""
    left = [len(queue) for queue in queues]
    found: list[int] = []
    while any(left):
        at = rng.choice([at for at, count in enumerate(left) if count])
        count = rng.randint(1, min(5, left[at]))
        left[at] -= count
        found += [at] * count
    return found


def runs_of(order: list[int], rng: random.Random) -> list[tuple[int, int]]:
    """Cut anywhere, also between items of one input."""
    cuts = sorted({0, len(order), *(at for at in range(1, len(order)) if order[at] != order[at - 1])})
    cuts = sorted({*cuts, *(rng.randint(0, len(order)) for _ in range(2))})
    return [(order[first], end - first) for first, end in pairwise(cuts)]


def check(seed: int) -> None:
    rng = random.Random(seed)
    queues = queues_of(rng)
    order = order_of(rng, queues)
    names = [f"input {at}" for at in range(len(queues))]
    merge, found = ByLeader(names), []
    pushed, said = [0] * len(queues), 0
    for _ in range(60):
        at = rng.randrange(len(queues))
        items = queues[at][pushed[at] : pushed[at] + rng.randint(0, 9)]
        pushed[at] += len(items)
        if items:
            push(merge, at, items)
        if rng.random() < 0.4:
            more = order[said : said + rng.randint(0, 12)]
            said += len(more)
            merge.order(runs_of(more, rng))
        if rng.random() < 0.5:
            found += flat(merge.release())
            here = [queue[:count] for queue, count in zip(queues, pushed, strict=True)]
            assert found == kazoo(here, order[:said]), seed
        if rng.random() < 0.1:
            values = json.loads(json.dumps(merge.snapshot()))
            merge = ByLeader(names)
            merge.restore(values)
            for at, queue in enumerate(queues):
                if queue[merge.taken[at] : pushed[at]]:
                    push(merge, at, queue[merge.taken[at] : pushed[at]])
    if said == len(order) and pushed == [len(queue) for queue in queues]:
        found += flat(merge.release())
        assert found == kazoo(queues, order)
        assert merge.taken == pushed
        assert merge.is_over == all(END in queue for queue in queues)
        assert (merge.rows, merge.waiting_for, merge.unordered()) == (0, set(), [])


def test_a_copy_takes_what_the_order_names_when_it_has_it() -> None:
    for seed in range(1_500):
        check(seed)


def test_a_follower_waits_for_what_is_not_here() -> None:
    merge = ByLeader(["a", "b", "c"])
    merge.push(0, batch("a1", "a2"))
    merge.push(2, batch("c1"))
    assert (merge.release(), merge.waiting_for) == ([], set()), "there is no order"
    merge.order([(0, 1), (1, 2), (0, 1), (2, 1)])
    assert flat(merge.release()) == [(0, "a1")]
    assert merge.waiting_for == {1}
    merge.push(1, batch("b1"))
    assert flat(merge.release()) == [(1, "b1")]
    assert (merge.waiting_for, merge.rows, merge.taken) == ({1}, 2, [1, 1, 0])
    merge.end(1)
    assert flat(merge.release()) == [(0, "a2"), (2, "c1")]
    assert (merge.taken, merge.rows, merge.bytes_of(0)) == ([2, 2, 1], 0, 0)


def test_all_inputs_are_proposed_in_shares() -> None:
    merge = ByLeader(["a", "b", "c"], share=3)
    merge.push(0, batch(*"12345678"))
    merge.push(2, batch(*"1234"))
    merge.end(2)
    assert merge.unordered() == [(0, 3), (2, 3), (0, 3), (2, 2), (0, 2)]
    assert merge.release() == [], "it is not the order yet"


def test_what_was_proposed_is_not_proposed_again() -> None:
    merge = ByLeader(["a", "b"])
    merge.push(0, batch("a1", "a2"))
    first = merge.propose()
    assert (first, merge.propose(), merge.unordered()) == ([(0, 2)], [], [(0, 2)])
    merge.push(0, batch("a3"))
    merge.push(1, batch("b1"))
    second = merge.propose()
    assert second == [(0, 1), (1, 1)]
    merge.order(first)
    assert (merge.propose(), merge.unordered()) == ([], [(0, 1), (1, 1)])
    merge.forget_proposals()
    assert merge.propose() == second
    merge.order([(1, 1)])  # another leads, and has other ideas
    merge.forget_proposals()
    assert (merge.propose(), merge.unordered()) == ([(0, 1)], [(0, 1)])
    assert flat(merge.release()) == [(0, "a1"), (0, "a2"), (1, "b1")]


def test_an_order_of_what_has_not_come_is_not_proposed() -> None:
    merge = ByLeader(["a"])
    merge.order([(0, 5)])
    merge.push(0, batch("a1", "a2"))
    assert (merge.unordered(), merge.propose()) == ([], [])
    merge.push(0, batch("a3", "a4", "a5", "a6"))
    assert merge.propose() == [(0, 1)]


def test_an_order_that_cannot_be_is_refused() -> None:
    merge = ByLeader(["queue a", "queue b"])
    with pytest.raises(QueueDamaged, match="queue a, queue b: their order names 1 items of input 2 of 2"):
        merge.order([(2, 1)])
    with pytest.raises(QueueDamaged, match="their order names 0 items of input 1"):
        merge.order([(1, 0)])
    merge.order([(0, 3)])
    merge.push(0, batch("a1"))
    with pytest.raises(QueueDamaged, match="queue a: its order names 1 items after its end"):
        merge.end(0)
    merge.end(1)
    with pytest.raises(QueueDamaged, match="queue b: its order names 1 items after its end"):
        merge.order([(1, 2)])
    with pytest.raises(QueueDamaged, match="queue b: it goes on after its end"):
        merge.push(1, batch("b1"))
