"""Elections by the log alone: copies that die, start again and read late agree on one order, and somebody goes on."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import QueueDamaged
from headrace.replicate.by_leader import ByLeader
from headrace.replicate.leader import Leadership

SILENCE_S, ALIVE_S, STEP_S = 0.5, 0.1, 0.02
ITEMS = 40


def claim(epoch: int, by: int, life: str = "a") -> dict[str, Any]:
    return {"claim": epoch, "by": by, "life": life}


def made(copy: int, life: str = "a") -> Leadership:
    return Leadership(copy, life, SILENCE_S, ALIVE_S)


def elected(copy: int = 0, now_s: float = 0.0) -> Leadership:
    leadership = made(copy)
    leadership.tick(now_s)
    [claims] = leadership.tick(now_s + 1)
    assert leadership.heard(claims, now_s + 1) is None
    assert leadership.is_leader
    return leadership


# ------------------------------------------------------------------ by hand


def test_silence_starts_an_election_and_the_first_copy_is_first() -> None:
    first, second = made(0), made(1)
    assert [first.tick(10.0), first.tick(10.49), second.tick(10.0), second.tick(10.59)] == [[]] * 4
    assert first.tick(10.5) == [claim(1, 0)]
    assert first.tick(10.6) == [], "it is on its way"
    assert not first.is_leader
    assert first.proposal([(0, 1)]) is None
    for each in (first, second):
        assert each.heard(claim(1, 0), 10.6) is None
    assert (first.is_leader, first.term, second.is_leader, second.leader) == (True, 1, False, 0)
    assert second.tick(11.19) == []
    assert second.tick(11.21) == [claim(2, 1)]


def test_the_leader_shows_that_it_lives_when_it_has_nothing_to_order() -> None:
    leader, follower = elected(), made(1)
    follower.heard(claim(1, 0), 1.0)
    assert leader.tick(1.05) == []
    assert leader.tick(1.1) == [{"epoch": 1, "alive": 1}]
    assert leader.proposal([(0, 3)]) == {"epoch": 1, "version": 1, "runs": [[0, 3]]}
    assert leader.tick(1.15) == []
    assert leader.tick(1.21) == [{"epoch": 1, "alive": 2}]
    follower.heard({"epoch": 1, "alive": 2}, 1.5)
    assert follower.tick(2.05) == []
    follower.heard({"epoch": 0, "alive": 9}, 2.05)  # of who led before: it says nothing
    assert follower.tick(2.15) == [claim(2, 1)]


def test_orders_count_in_their_epoch_and_once() -> None:
    reader = made(2)
    order = {"epoch": 1, "version": 1, "runs": [[0, 2], [1, 1]]}
    assert reader.heard(order, 0.0) is None, "nobody leads in epoch 1 yet"
    reader.heard(claim(1, 0), 0.0)
    assert reader.heard(order, 0.0) == [(0, 2), (1, 1)]
    assert reader.heard(order, 0.0) is None, "a repetition"
    assert reader.heard({**order, "version": 3}, 0.0) is None, "it skips 2"
    reader.heard(claim(3, 1), 0.0)
    reader.heard(claim(2, 0), 0.0)  # too late
    assert reader.heard({**order, "version": 2}, 0.0) is None, "of a leader that was"
    assert reader.heard({**order, "version": 2, "epoch": 3}, 0.0) == [(0, 2), (1, 1)]
    assert reader.snapshot() == {"epoch": 3, "version": 2, "leader": 1}


def test_several_orders_may_be_on_their_way() -> None:
    leader = elected()
    orders = [leader.proposal([(0, n)]) for n in (1, 2, 3)]
    assert [order["version"] for order in orders if order] == [1, 2, 3]
    assert leader.proposal([]) is None
    for order, runs in zip(orders, [[(0, 1)], [(0, 2)], [(0, 3)]], strict=True):
        assert order is not None
        assert leader.heard(json.loads(json.dumps(order)), 1.0) == runs
    assert leader.is_leader


def test_what_seems_lost_is_appended_again() -> None:
    leadership = made(0)
    leadership.tick(0.0)
    assert leadership.tick(0.5) == leadership.tick(1.0) == [claim(1, 0)]
    leadership.heard(claim(1, 0), 1.0)
    orders = [leadership.proposal([(0, 1)]), leadership.proposal([(1, 1)])]
    assert leadership.tick(1.4) == [{"epoch": 1, "alive": 1}]
    assert leadership.tick(1.5) == orders
    assert leadership.heard({"epoch": 1, "version": 1, "runs": [[0, 1]]}, 1.6) == [(0, 1)]
    assert leadership.heard(claim(1, 0), 1.6) is None, "nor does its claim count twice"
    assert (leadership.is_leader, leadership.tick(2.1)) == (True, orders[1:])


def test_a_leader_steps_down_for_a_higher_claim() -> None:
    leader = elected()
    order = leader.proposal([(0, 1)])
    assert order is not None
    leader.heard(claim(2, 1), 1.0)
    assert (leader.is_leader, leader.term, leader.proposal([(0, 1)])) == (False, 0, None)
    assert leader.heard(order, 1.0) is None
    assert leader.tick(1.4) == []
    assert leader.tick(1.5) == [claim(3, 0)]


def test_who_starts_again_does_not_take_its_earlier_life_for_itself() -> None:
    again = made(0, "b")
    again.restore(elected().snapshot())
    assert (again.epoch, again.leader, again.is_leader) == (1, 0, False)
    again.tick(5.0)
    assert again.tick(5.5) == [claim(2, 0, "b")]
    # It has not read the log to its end: its earlier life had claimed the same epoch, and made orders.
    again.heard(claim(2, 0), 5.5)
    assert (again.leader, again.is_leader, again.proposal([(1, 7)])) == (0, False, None)
    assert again.heard({"epoch": 2, "version": 1, "runs": [[0, 4]]}, 5.6) == [(0, 4)]
    again.heard(claim(2, 0, "b"), 5.6)
    assert not again.is_leader, "it came too late"
    assert again.tick(6.2) == [claim(3, 0, "b")]
    again.heard(claim(3, 0, "b"), 6.2)
    assert again.is_leader


def test_two_lives_of_one_name_are_found_out() -> None:
    leader = elected()
    leader.proposal([(1, 7)])
    with pytest.raises(QueueDamaged, match=r"order 1 of epoch 1 .* copy 0 has had two lives of the name a"):
        leader.heard({"epoch": 1, "version": 1, "runs": [[0, 4]]}, 1.0)


def test_a_clock_that_goes_back_is_believed() -> None:
    follower = made(0)
    follower.tick(1000.0)
    assert follower.tick(3.0) == []
    assert follower.tick(3.4) == []
    assert follower.tick(3.5) == [claim(1, 0)]
    follower.heard(claim(1, 0), 2.0)
    assert follower.tick(2.1) == [{"epoch": 1, "alive": 1}]
    assert follower.tick(1.0) == []
    assert follower.tick(1.1) == [{"epoch": 1, "alive": 2}]


@pytest.mark.parametrize(
    "entry", [{}, {"claim": 1, "by": 0}, {"epoch": 0, "version": 1}, {"epoch": 0, "version": 1, "runs": [3]}]
)
def test_what_is_no_entry_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(QueueDamaged, match="order log of t: it has an entry that is no claim, order or sign of life"):
        Leadership(0, "a", log="order log of t").heard(entry, 0.0)


# ---------------------------------------------------------------- simulated


class Copy:
    """A copy of a task: reads the log when it can, pushes what it has of its inputs, and keeps what it released."""

    def __init__(self, world: World, number: int, saved: dict[str, Any] | None = None):
        self.world = world
        world.lives += 1
        self.leadership = made(number, f"life {world.lives}")
        self.merge = ByLeader([f"input {at}" for at in range(world.inputs)])
        self.position, self.term = 0, 0
        self.found: list[tuple[int, int]] = []
        self.orders: list[tuple[int, Any]] = []
        if saved is not None:
            values = json.loads(saved["values"])
            self.leadership.restore(values["leadership"])
            self.merge.restore(values["merge"])
            self.position = values["position"]
            self.found, self.orders = list(saved["found"]), list(saved["orders"])
        self.pushed = self.merge.taken

    def save(self) -> dict[str, Any]:
        values = {
            "leadership": self.leadership.snapshot(),
            "merge": self.merge.snapshot(),
            "position": self.position,
        }
        return {"values": json.dumps(values), "found": list(self.found), "orders": list(self.orders)}

    def take(self, at: int, count: int) -> None:
        count = min(count, ITEMS - self.pushed[at])
        if count > 0:
            values = range(self.pushed[at], self.pushed[at] + count)
            self.merge.push(at, pa.record_batch({"n": pa.array(values, pa.int64())}))
            self.pushed[at] += count
        elif self.pushed[at] == ITEMS:
            self.merge.end(at)
            self.pushed[at] += 1

    def read(self, count: int) -> None:
        for entry in self.world.log[self.position : self.position + count]:
            runs = self.leadership.heard(json.loads(entry), self.world.now_s)
            self.position += 1
            if runs is not None:
                self.orders.append((self.leadership.version, runs))
                self.merge.order(runs)
        if self.leadership.term != self.term:
            self.term = self.leadership.term
            self.merge.forget_proposals()
        for run in self.merge.release():
            assert run.records is not None
            self.found += zip(run.inputs.tolist(), run.records.column(0).to_pylist(), strict=True)

    def tell(self) -> list[dict[str, Any]]:
        found = self.leadership.tick(self.world.now_s)
        if self.leadership.is_leader:
            order = self.leadership.proposal(self.merge.propose())
            found += [order] if order else []
        return found


class World:
    """Copies, one log, and what is on its way to it: entries of any copy come late, out of order, twice or never."""

    def __init__(self, seed: int):
        self.rng = rng = random.Random(seed)
        self.inputs = rng.randint(1, 3)
        self.now_s = rng.uniform(0, 100)
        self.lives = 0
        self.log: list[str] = []
        self.on_the_way: list[str] = []
        self.loss = rng.choice((0.0, 0.0, 0.1))
        self.late = rng.choice((0.0, 0.5, 0.95))
        self.crashes = rng.choice((0.0, 0.01, 0.05))
        self.reads = rng.choice(((0, 0, 1, 5, 100), (0,) * 9 + (1,), (0,) * 30 + (20,)))
        self.copies: list[Copy | None] = [Copy(self, number) for number in range(rng.randint(2, 3))]
        self.saved: list[dict[str, Any] | None] = [None] * len(self.copies)

    def append(self, entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            if self.rng.random() >= self.loss:
                self.on_the_way.append(json.dumps(entry))
            if self.rng.random() < 0.05:
                self.on_the_way.append(json.dumps(entry))
        if self.rng.random() < 0.1:
            self.rng.shuffle(self.on_the_way)
        while self.on_the_way and self.rng.random() >= self.late:
            self.log.append(self.on_the_way.pop(0))

    def step(self) -> None:
        """Somebody does something; or dies, or starts again from what it saved last."""
        rng = self.rng
        self.now_s += rng.choice((0, STEP_S, 5 * STEP_S)) if rng.random() < 0.99 else -1.0
        number = rng.randrange(len(self.copies))
        copy = self.copies[number]
        if copy is None:
            if rng.random() < 0.2:
                self.copies[number] = Copy(self, number, self.saved[number])
            return
        if rng.random() < self.crashes:
            self.copies[number] = None
            return
        copy.take(rng.randrange(self.inputs), rng.randint(0, 3))
        copy.read(rng.choice(self.reads))
        self.append(copy.tell())
        if rng.random() < 0.1:
            self.saved[number] = copy.save()

    def finish(self, survivors: list[int]) -> None:
        """Nothing bad happens any more to those who live: in so many seconds all has left them."""
        self.loss = self.late = 0.0
        for number in range(len(self.copies)):
            dead = number not in survivors
            self.copies[number] = None if dead else self.copies[number] or Copy(self, number, self.saved[number])
        alive = [copy for copy in self.copies if copy is not None]
        for _ in range(int(8 / STEP_S)):
            self.now_s += STEP_S
            for copy in alive:
                for at in range(self.inputs):
                    if copy.pushed[at] <= ITEMS:
                        copy.take(at, ITEMS)
                copy.read(len(self.log))
                self.append(copy.tell())
            if all(copy.merge.is_over for copy in alive):
                return
        raise AssertionError("no progress: " + ", ".join(str(copy.leadership.snapshot()) for copy in alive))


def check(seed: int) -> None:
    world = World(seed)
    histories: list[Copy] = []
    for _ in range(world.rng.choice((0, 50, 400))):
        world.step()
        histories += [copy for copy in world.copies if copy is not None and copy not in histories]
    many = len(world.copies)
    world.finish(world.rng.sample(range(many), world.rng.randint(1, many)))
    alive = [copy for copy in world.copies if copy is not None]
    longest = alive[0]
    assert [version for version, _ in longest.orders] == list(range(1, len(longest.orders) + 1)), seed
    for copy in [*histories, *alive]:
        assert copy.orders == longest.orders[: len(copy.orders)], seed
        assert copy.found == longest.found[: len(copy.found)], seed
    for at in range(world.inputs):
        assert [n for each, n in longest.found if each == at] == list(range(ITEMS)), seed


def test_all_copies_take_one_order_and_somebody_goes_on() -> None:
    for seed in range(150):
        check(seed)


@pytest.mark.chaos
def test_all_copies_take_one_order_at_length() -> None:
    for seed in range(150, 10_000):
        check(seed)
