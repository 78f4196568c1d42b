"""A group that leaves an aggregator as words and comes back in another one goes on as if nothing had happened."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from headrace.measure.aggregator import Aggregator, restore_all
from headrace.measure.count_leaf import CountLeaf
from headrace.measure.definition import Definition
from headrace.measure.events import EventEncoder
from headrace.measure.functions import FUNCTIONS, aggregator_of
from headrace.measure.keys import BytesIndex
from headrace.measure.leaf import Batch
from headrace.measure.plan import Leaf
from headrace.measure.steps import ADD, ANSWER, INSERT, REMOVE, REWIND, Steps
from headrace.measure.words import Words, to_words
from headrace.model.jit import Ints
from headrace.state.ragged import Ragged
from headrace.state.tables import Tables
from headrace.testing.compare import assert_same_answers
from headrace.testing.contracts import calls, every_metric, kinds_for
from headrace.testing.scenarios import every_kind
from headrace.testing.values import (
    DECIMAL,
    DOUBLE,
    INT64,
    SPECIAL_DOUBLE,
    STRING,
    TIMESTAMP,
    WIDE_DECIMAL,
    Kind,
)

FAMILIES = (INT64, DOUBLE, SPECIAL_DOUBLE, DECIMAL, WIDE_DECIMAL, STRING, TIMESTAMP)
CASES = [
    pytest.param(signature.name, kind, late, id=f"{signature.name}-{kind.name}-{'late' if late else 'in order'}")
    for signature in FUNCTIONS
    for kind in FAMILIES
    if kind in kinds_for(signature.name)
    for late in (False, True)
]
GROUPS = 7


@dataclass(frozen=True)
class Event:
    time: int
    number: int
    value: Any


Step: TypeAlias = tuple[int, int, Event | None]
"""Kind, group, event."""


@dataclass
class Script:
    """Random steps that keep the promises of a window: what is removed is there, and is the oldest where order counts.

    `windows` are the events in each group, in the order of (time, number).
    """

    kind: Kind
    late: bool
    any_order: bool
    dice: random.Random
    clock: int = 0
    number: int = 0
    windows: list[list[Event]] = field(default_factory=lambda: [[] for _ in range(GROUPS)])

    def steps(self, count: int, groups: Iterable[int]) -> list[Step]:
        """Every change is followed by an answer."""
        groups = list(groups)
        found: list[Step] = []
        for _ in range(count):
            group = self.dice.choice(groups)
            window = self.windows[group]
            if window and self.dice.random() < 0.45:
                place = self.dice.randrange(len(window)) if self.any_order else 0
                found.append((REMOVE, group, window.pop(place)))
            else:
                found.append(self._new(group))
            found.append((ANSWER, group, None))
        return found

    def empty(self, group: int) -> list[Step]:
        window = self.windows[group]
        gone: list[Step] = [(REMOVE, group, event) for event in window]
        window.clear()
        return [*gone, (ANSWER, group, None)]

    def _new(self, group: int) -> tuple[int, int, Event]:
        self.clock += self.dice.choice((0, 1, 5))
        self.number += 1
        late = self.late and self.dice.random() < 0.4
        time = self.clock - (self.dice.randrange(20) if late else 0)
        value = None if self.dice.random() < 0.15 else self.dice.choice(self.kind.values)
        event = Event(time, self.number, value)
        window = self.windows[group]
        newest = not window or window[-1].time <= time
        window.append(event)
        window.sort(key=lambda event: (event.time, event.number))
        return (ADD if newest else INSERT), group, event


class Machine:
    """An aggregator with a slot for each group; `slots[group]` is where it is."""

    def __init__(self, aggregator: Aggregator, slots: Ints, kind: Kind):
        self.aggregator = aggregator
        self.slots = slots
        self._kind = kind

    def push(self, steps: list[Step]) -> pa.Table:
        """The answers to the ANSWER steps."""
        kinds = np.array([kind for kind, _, _ in steps], np.int64)
        answers = kinds == ANSWER
        rows = np.where(answers, np.cumsum(answers) - 1, -1)
        written = np.stack([kinds, self.slots[[group for _, group, _ in steps]], np.arange(len(steps)), rows])
        events = np.array([(event.time, event.number) if event else (0, 0) for _, _, event in steps], np.int64).T
        numbered = Steps(written, (np.ascontiguousarray(events),) * 3)
        column = pa.array([event.value if event else None for _, _, event in steps], self._kind.type)
        self.aggregator.begin(int(answers.sum()), int(self.slots.max()) + 1)
        self.aggregator.push(numbered, self._values(column))
        return pa.table({"answer": self.aggregator.finish()})

    def _values(self, column: pa.Array) -> Words:
        return to_words(column, self.aggregator.texts)

    def take(self, groups: Ints) -> Ragged:
        return self.aggregator.take_groups(self.slots[groups])

    def sibling(self, slots: Ints) -> Machine:
        """An aggregator without groups, with the same dictionaries."""
        mine = self.aggregator
        other = type(mine)(mine.metric, mine.texts)
        other.restore(copied(mine.dump()))
        other.clear_groups()
        return Machine(other, slots, self._kind)


def copied(tables: Tables) -> Tables:
    return {name: np.array(getattr(table, "table", table)) for name, table in tables.items()}


def machine(function: str, kind: Kind, late: bool) -> Machine:
    text = f"SELECT {calls(function, 'x')[-1]} AS answer FROM events OVER sliding 1s"
    schema = pa.schema([("ts", pa.timestamp("us")), ("x", kind.type)])
    (metric,) = Definition(text, time="ts").plan(schema).stages[0].metrics
    aggregator = aggregator_of(metric.function, late)(metric, BytesIndex())
    return Machine(aggregator, np.arange(1, GROUPS + 1), kind)


def script_for(whole: Machine, kind: Kind, late: bool, seed: int) -> Script:
    any_order = late and type(whole.aggregator).late_mode == REWIND
    return Script(kind, late, any_order, random.Random(seed))


def other_slots(dice: random.Random) -> Ints:
    return np.array(dice.sample(range(1, 4 * GROUPS), GROUPS), np.int64)


def assert_equal(found: Ragged, expected: Ragged) -> None:
    assert found.lengths.tolist() == expected.lengths.tolist()
    assert found.words.tolist() == expected.words.tolist()


@pytest.mark.parametrize(("function", "kind", "late"), CASES)
def test_groups_move_and_go_on(function: str, kind: Kind, late: bool) -> None:
    for seed in range(4):
        here = machine(function, kind, late)
        script = script_for(here, kind, late, seed)
        dice = random.Random(seed)
        groups = list(range(GROUPS))
        here.push(script.steps(40, groups))
        for _ in range(3):
            groups = sorted(dice.sample(groups, max(2, len(groups) - 1)))
            moved = np.array(dice.sample(groups, len(groups)), np.int64)
            there = here.sibling(other_slots(dice))
            taken = here.take(moved)
            there.aggregator.put_groups(there.slots[moved], taken)
            assert_equal(there.take(moved), taken)
            more = script.steps(25, groups)
            assert_same_answers(there.push(more), here.push(more))
            assert_equal(there.take(moved), here.take(moved))
            here = there


@pytest.mark.parametrize(("function", "kind", "late"), CASES)
def test_words_depend_on_the_content_only(function: str, kind: Kind, late: bool) -> None:
    whole = machine(function, kind, late)
    script = script_for(whole, kind, late, seed=9)
    for _ in range(4):
        whole.push(script.steps(30, range(GROUPS)))
        direct = whole.sibling(other_slots(script.dice))
        events: list[Step] = [(ADD, group, event) for group in range(GROUPS) for event in script.windows[group]]
        direct.push([*events, (ANSWER, 0, None)])
        groups = np.arange(GROUPS)
        assert_equal(direct.take(groups), whole.take(groups))


@pytest.mark.parametrize(("function", "kind", "late"), CASES)
def test_emptied_groups_have_no_words(function: str, kind: Kind, late: bool) -> None:
    here = machine(function, kind, late)
    script = script_for(here, kind, late, seed=5)
    groups = np.arange(GROUPS)
    assert here.take(groups).lengths.sum() == 0
    here.push(script.steps(60, range(GROUPS)))
    full = here.take(groups)
    for group in (1, 4):
        here.push(script.empty(group))
    kept = np.array([0, 2, 3, 5, 6])
    assert here.take(np.array([1, 4])).lengths.tolist() == [0, 0]
    assert_equal(here.take(kept), full.pick(kept))
    there = here.sibling(here.slots)
    there.aggregator.put_groups(there.slots[groups], here.take(groups))
    more = script.steps(30, [0, 1, 4])
    assert_same_answers(there.push(more), here.push(more))


@pytest.mark.parametrize(("function", "kind", "late"), CASES)
def test_cleared_groups_leave_the_dictionaries(function: str, kind: Kind, late: bool) -> None:
    here = machine(function, kind, late)
    script = script_for(here, kind, late, seed=6)
    here.push(script.steps(60, range(GROUPS)))
    groups = np.arange(GROUPS)
    taken = here.take(groups)
    codes = copied(part_with_codes(here.aggregator.dump()))
    here.aggregator.clear_groups()
    assert {name: table.tolist() for name, table in copied(part_with_codes(here.aggregator.dump())).items()} == {
        name: table.tolist() for name, table in codes.items()
    }
    assert here.take(groups).lengths.sum() == 0
    here.aggregator.put_groups(here.slots[groups], taken)
    assert_equal(here.take(groups), taken)


def part_with_codes(tables: Tables) -> Tables:
    return {name: table for name, table in tables.items() if name.startswith("codes/")}


def test_a_sum_that_cancels_out_still_has_squares() -> None:
    here = machine("stdDev", DOUBLE, late=False)
    here.push([(ADD, 0, Event(1, 1, 1e300)), (ADD, 0, Event(2, 2, -1e300)), (ANSWER, 0, None)])
    there = here.sibling(here.slots)
    there.aggregator.put_groups(there.slots[:1], here.take(np.array([0])))
    more: list[Step] = [(ADD, 0, Event(3, 3, 1.0)), (ANSWER, 0, None)]
    assert_same_answers(there.push(more), here.push(more))


def test_dumps_are_views_of_what_is_in_use() -> None:
    here = machine("max", INT64, late=False)
    here.push([(ADD, 0, Event(1, 1, 5)), (ADD, 1, Event(1, 2, 7)), (ANSWER, 0, None)])
    dump = here.aggregator.dump()
    assert {name: table.shape for name, table in dump.items()} == {
        "values/nodes": (2, 6),
        "values/ends": (GROUPS + 1, 2),
        "values/free": (2,),
    }
    assert all(table.base is not None for table in dump.values())


# -------------------------------------------------------------- count windows


def count_leaf(leaf: Leaf, encoder: EventEncoder, texts: BytesIndex) -> CountLeaf:
    aggregators = [aggregator_of(metric.function, False)(metric, texts) for metric in leaf.metrics]
    return CountLeaf(leaf, aggregators, encoder)


def answers(leaf: CountLeaf, batch: Batch) -> pa.Table:
    leaf.push(batch)
    return pa.table({aggregator.metric.name: aggregator.finish() for aggregator in leaf.aggregators})


def renamed(batch: Batch, row: int, names: Ints) -> Batch:
    """The batch with other slots."""
    events = batch.events.copy()
    events[row] = names[events[row]]
    return replace(batch, events=events)


@pytest.mark.parametrize("size", [1, 4, 100])
def test_groups_of_count_windows_move_and_go_on(size: int) -> None:
    table = every_kind(90)
    definition = Definition(every_metric(f"sliding {size} events"), time="ts")
    (stage,) = definition.plan(table.schema).stages
    texts = BytesIndex()
    encoder = EventEncoder(stage, texts)
    events = encoder.encode(table.combine_chunks().to_batches()[0], np.arange(90), np.arange(90))
    batches = [
        Batch(np.ascontiguousarray(events[:, at : at + 30]), at, at + 29, np.zeros(0, np.int64)) for at in (0, 30, 60)
    ]
    (planned,) = stage.leaves
    row, slots = encoder.slot_row(planned.group_by), encoder.groupings[planned.group_by].slots
    here, there = count_leaf(planned, encoder, texts), count_leaf(planned, encoder, texts)
    names = np.concatenate([[0], np.random.default_rng(1).permutation(np.arange(1, slots))])
    here.push(batches[0])
    here.push(batches[1])
    restore_all(there.aggregators, copied(here.dump()))
    there.clear_groups()
    groups = np.arange(1, slots)
    taken = here.take_groups(groups)
    assert len(taken) == 1 + len(here.aggregators)
    there.put_groups(names[groups], taken)
    assert_same_answers(answers(there, renamed(batches[2], row, names)), answers(here, batches[2]))
    for found, expected in zip(there.take_groups(names[groups]), here.take_groups(groups), strict=True):
        assert_equal(found, expected)
    there.clear_groups()
    assert sum(found.lengths.sum() for found in there.take_groups(groups)) == 0
