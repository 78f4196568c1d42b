"""What makes parallel runs equal the sequential one: `check` accepts every program, and not what the paper prints."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.demo.programs import PROGRAMS, Outliers, PageViews
from headrace.demo.programs.outliers import Watch
from headrace.errors import ProgramInconsistent
from headrace.synchronize.check import check
from headrace.synchronize.codec import Codec
from headrace.synchronize.program import Program
from headrace.synchronize.sequential import run_sequentially

from .cases import EVENTS, NAMES, example_table, small


@pytest.mark.parametrize("name", NAMES)
def test_check_accepts_every_program(name: str) -> None:
    found = check(PROGRAMS[name].program(), seed=1)
    assert not found.notes
    assert min(found.tried.values()) > 0


@pytest.mark.parametrize("name", NAMES)
def test_check_accepts_every_program_on_its_data(name: str) -> None:
    check(PROGRAMS[name].program(), small(name, ties=True).slice(0, 300), seed=2)


def test_check_accepts_outliers_that_a_few_connections_make() -> None:
    """With the usual numbers, a run of check is too short to find one."""
    program = Outliers(support=2, times=1)
    _, found = run_sequentially(program, example_table("outliers"))
    assert found.num_rows > 0
    check(program, seed=3, rounds=400)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_forked_and_joined_at_every_event_changes_nothing(name: str) -> None:
    """Longer than what check tries: forks on the way, with tags on both sides, on one, and on none."""
    program, events = PROGRAMS[name].program(), small(name).slice(0, 600)
    rows = events.append_column("row", pa.array(range(events.num_rows)))
    tag: Any = getattr(program, "tag")  # noqa: B009
    names = [tag] if isinstance(tag, str) else list(tag)
    tags = list(zip(*(rows.column(each).to_pylist() for each in names), strict=True))
    tags = [each[0] if isinstance(tag, str) else each for each in tags]
    wanted, _ = run_sequentially(program, events)
    state = program.init()
    for number, own in enumerate(tags):
        left, right = program.fork(state, *_sides(program, own, tags[number - 3 : number], number))
        part = events.slice(number, 1)
        if number % 2:
            left, _ = run_sequentially(program, part, left)
        else:
            right, _ = run_sequentially(program, part, right)
        state = program.join(left, right)
    assert state == wanted


@pytest.mark.parametrize("name", NAMES)
def test_a_side_without_tags_changes_nothing(name: str) -> None:
    program, events = PROGRAMS[name].program(), example_table(name)
    wanted = state = program.init()
    for number in range(events.num_rows):
        part = events.slice(number, 1)
        wanted, rows = run_sequentially(program, part, wanted)
        sides = list(program.fork(state, lambda tag: False, lambda tag: True))
        if number % 3 == 0:
            sides = list(program.fork(state, lambda tag: True, lambda tag: False))
        side = 0 if number % 3 == 0 else 1
        sides[side], found = run_sequentially(program, part, sides[side])
        state = program.join(*sides)
        assert found.equals(rows)
        assert state == wanted


def _sides(program: Program, own: Any, others: list[Any], number: int) -> Any:
    """The side of an event has its tag, and the other side those of some others that are independent of it."""
    free = frozenset(other for other in others if not program.dependent(own, other))

    def one(tag: Any) -> bool:
        return bool(tag == own)

    def other(tag: Any) -> bool:
        return tag in free

    return (one, other) if number % 2 else (other, one)


@pytest.mark.parametrize("name", NAMES)
def test_states_survive_the_way_to_another_worker(name: str) -> None:
    program = PROGRAMS[name].program()
    state, _ = run_sequentially(program, small(name).slice(0, 1000))
    codec = Codec(program)
    assert codec.loads(codec.dumps(state)) == state


# -------------------------------------------------------------- what the paper prints


class PrintedPageViews(PageViews):
    """Its fork drops the pages of neither side."""

    def fork(self, state: Any, left: Any, right: Any) -> tuple[Any, Any]:
        ours, theirs = super().fork(state, left, right)
        return {page: info for page, info in ours.items() if left(("view", page)) or left(("update", page))}, theirs


class PrintedOutliers(Outliers):
    """Its fork copies what was seen, and its join adds the copies."""

    def fork(self, state: Watch, left: Any, right: Any) -> tuple[Watch, Watch]:
        return state, state


@pytest.mark.parametrize("program", [PrintedPageViews(), PrintedOutliers()])
def test_check_refuses_what_the_paper_prints(program: Program) -> None:
    with pytest.raises(ProgramInconsistent):
        check(program, seed=1)


def test_examples_have_all_columns() -> None:
    for name in NAMES:
        program: Any = PROGRAMS[name].program()
        assert {frozenset(row) for row in program.examples()} == {frozenset(EVENTS[name].names)}
        assert 20 <= len(program.examples()) <= 60
