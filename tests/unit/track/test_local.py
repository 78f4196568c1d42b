"""The table of a task, against reckoning one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.flow.substreams import Tracked, ids_of, marker, rising, whenever
from headrace.track import local
from headrace.track.local import Broken, LocalTable, Note
from headrace.track.tokens import tokens_from

MEANING = Tracked("x", marker("last")).meaning()
GROUPS = 2


def batch(labels: list[int | None], last: list[int] = []) -> pa.RecordBatch:  # noqa: B006
    return pa.record_batch(
        {"x": pa.array(labels, pa.int64()), "last": pa.array([at in last for at in range(len(labels))])}
    )


def word(label: int) -> int:
    return int(ids_of(pa.array([label]))[0])


def values(table: LocalTable) -> dict[int, list[int]]:
    """All that it would say, by substream."""
    table.restore([table.content()])
    said = table.said()
    return dict(zip(said.ids.tolist(), said.words[:, 5:].view(np.uint64).tolist(), strict=True))


LABELS = st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1, max_size=8)
STEPS = st.lists(st.tuples(LABELS, st.integers(0, GROUPS - 1), st.booleans()), max_size=12)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.lists(st.integers(0, 12), max_size=3))
def test_words_are_those_reckoned_one_by_one(steps: list[Any], folds: list[int]) -> None:
    table, expected = LocalTable(MEANING, GROUPS), dict[int, list[int]]()
    numbers = {3: 0, 4: 0}
    for number, (labels, group, sends) in enumerate(steps):
        start, count = table.steps, len(labels)
        table.steps += count
        for channel, kind in ((3, Note.RECEIVED), *(((4, Note.SENT),) if sends else ())):
            table.note(kind, batch(labels), channel, numbers[channel], group, start)
            tokens = tokens_from(channel, numbers[channel], count)
            for label, token in zip(labels, tokens.tolist(), strict=True):
                if label is not None:
                    expected.setdefault(word(label), [0] * GROUPS)[group] ^= token
            numbers[channel] += count
        if number in folds:
            table.fold()
    table.fold()
    assert values(table) == expected


@settings(max_examples=40, deadline=None)
@given(STEPS, st.integers(0, 12))
def test_a_table_from_its_files_is_the_same(steps: list[Any], cut: int) -> None:
    table, parts = LocalTable(MEANING, GROUPS), list[bytes]()
    for number, (labels, group, _) in enumerate(steps):
        table.steps += len(labels)
        table.note(Note.RECEIVED, batch(labels), 3, number * 10, group, table.steps - len(labels))
        if number == cut:
            table.fold()
            table.drop(ids_of(pa.array([0])))
            parts.append(table.content())
        elif number > cut and number % 2:
            table.fold()
            parts += [changes] if (changes := table.changes()) is not None else []
    table.fold()
    if parts:
        parts += [changes] if (changes := table.changes()) is not None else []
        other = LocalTable(MEANING, GROUPS)
        other.restore(parts)
        assert values(other) == values(table)


def test_tokens_differ_and_are_never_zero() -> None:
    tokens = np.concatenate([tokens_from(channel, 0, 20_000) for channel in range(20)])
    assert len(np.unique(tokens)) == len(tokens)
    assert tokens.all()


def test_what_is_made_of_nothing_is_broken() -> None:
    table = LocalTable(MEANING, 1)
    table.steps = 2
    table.note(Note.RECEIVED, batch([1, 2]), 3, 0, 0, 0)
    table.note(Note.SENT, batch([3]), 4, 0, 0, 0)
    with pytest.raises(Broken) as caught:
        table.fold()
    assert (caught.value.kind, caught.value.label) == (local.NOT_OF_MEMBERS, 3)


def test_what_is_held_when_it_has_come_changed_no_earlier() -> None:
    table = LocalTable(MEANING, 1, 0)
    table.steps = 9
    table.note(Note.RECEIVED, batch([1, 2, 2, 3]), 3, 0, 0, 5)
    table.hold(np.array([word(2)], np.uint64), 5)
    said = table.said()
    found = dict(zip(said.ids.tolist(), said.words[:, 1:3].tolist(), strict=True))
    assert found == {word(1): [6, 5], word(2): [9, 7], word(3): [9, 8]}


def test_what_came_in_an_earlier_run_cannot_be_sent_unless_it_is_held() -> None:
    table = LocalTable(MEANING, 1, hold_group=0)
    table.steps = 1
    table.note(Note.RECEIVED, batch([1]), 3, 0, 0, 0)
    table.hold(ids_of(pa.array([1])), 0)
    table.steps = 2
    table.note(Note.SENT, batch([1]), 4, 0, 0, 1)
    table.fold()
    table.release(ids_of(pa.array([1])), 1)
    assert values(table) == {word(1): [int(tokens_from(3, 0, 1)[0] ^ tokens_from(4, 0, 1)[0])]}
    table.steps = 3
    table.note(Note.SENT, batch([1]), 4, 1, 0, 2)
    with pytest.raises(Broken):
        table.fold()


def test_what_is_sent_while_it_is_held_is_news() -> None:
    """It may be sent because of another record: a report that has it is newer than the last one."""
    table = LocalTable(MEANING, 1, hold_group=0)
    table.steps = 1
    table.note(Note.RECEIVED, batch([1]), 3, 0, 0, 0)
    table.hold(ids_of(pa.array([1])), 0)
    assert table.said().words[:, 1].tolist() == [1]
    table.steps = 5
    table.note(Note.RECEIVED, batch([2, 2, 2, 2]), 3, 1, 0, 1)
    table.note(Note.SENT, batch([1]), 4, 0, 0, 1)
    table.fold()
    said = table.said()
    assert dict(zip(said.ids.tolist(), said.words[:, 1].tolist(), strict=True))[word(1)] == 5


def test_where_any_record_may_begin_a_substream_what_is_sent_is_news() -> None:
    """Of w comes a v: in a run with both it must not look as old as the v that came."""
    table = LocalTable(Tracked("x", whenever()).meaning(), 1)
    table.steps = 2
    table.note(Note.RECEIVED, batch([1, 2]), 7, 0, 0, 0)
    table.note(Note.SENT, batch([1]), 9, 0, 0, 0)
    table.fold()
    said = table.said()
    assert dict(zip(said.ids.tolist(), said.words[:, 1].tolist(), strict=True)) == {word(1): 2, word(2): 2}


def test_releasing_more_often_than_holding_is_broken() -> None:
    table = LocalTable(MEANING, 1, hold_group=0)
    table.note(Note.RECEIVED, batch([1]), 5, 0, 0, 0)
    table.hold(ids_of(pa.array([1])), 0)
    table.release(ids_of(pa.array([1])), 0)
    with pytest.raises(Broken) as caught:
        table.release(ids_of(pa.array([1])), 0)
    assert caught.value.kind == local.NOT_HELD


def test_only_a_source_holds_what_has_not_come() -> None:
    source = LocalTable(MEANING, 1, hold_group=0, forgets=True)
    source.hold(ids_of(pa.array([1])), 0, pa.array([1]))
    table = LocalTable(MEANING, 1, hold_group=0)
    with pytest.raises(Broken) as caught:
        table.hold(ids_of(pa.array([1])), 0, pa.array([1]))
    assert (caught.value.kind, caught.value.note, caught.value.label) == (local.NOT_OF_MEMBERS, Note.HELD, 1)


def test_a_source_that_goes_on_after_its_marker_is_broken() -> None:
    table = LocalTable(MEANING, 1)
    table.steps = 3
    table.note(Note.OPENED, batch([1, 1, 2], last=[1]), 0, 0, 0, 0)
    table.fold()
    assert table.said().words[:, 4].sum() == 1
    table.steps = 4
    table.note(Note.OPENED, batch([1]), 0, 0, 0, 3)
    with pytest.raises(Broken) as caught:
        table.fold()
    assert (caught.value.kind, caught.value.label) == (local.AFTER_ITS_END, 1)


@pytest.mark.parametrize("is_rising", [True, False])
def test_a_source_forgets_what_it_has_promised(monkeypatch: pytest.MonkeyPatch, is_rising: bool) -> None:
    monkeypatch.setattr(local, "_KEPT_PROMISES", 100)
    table = LocalTable(Tracked("x", rising() if is_rising else marker("last")).meaning(), 1, forgets=True)
    for first in range(0, 1000, 10):
        table.steps += 10
        labels: list[int | None] = list(range(first, first + 10))
        table.note(Note.OPENED, batch(labels, last=list(range(10))), 0, 0, 0, table.steps - 10)
        table.fold()
        assert len(table.said().ids) == 10
    assert len(table) < 120


def test_a_source_that_started_again_forgets_what_it_had_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_KEPT_PROMISES", 10)
    meaning = Tracked("x", rising(2)).meaning()
    table, again = (LocalTable(meaning, 1, forgets=True) for _ in range(2))
    table.steps = 9
    table.note(Note.OPENED, batch(list(range(9))), 0, 0, 0, 0)
    table.fold()
    table.said()
    again.set_values(table.values())
    again.restore([table.content()])
    for label in range(9, 30):
        again.steps += 1
        again.note(Note.OPENED, batch([label]), 0, 0, 0, again.steps - 1)
        again.fold()
        again.said()
    assert len(again) < 12


def test_rising_labels_may_fall_back_by_the_slack() -> None:
    table = LocalTable(Tracked("x", rising(2)).meaning(), 1)
    table.steps = 4
    table.note(Note.OPENED, batch([1, 5, 3, None]), 0, 0, 0, 0)
    table.fold()
    assert table.below == 3
    table.note(Note.OPENED, batch([2]), 0, 0, 0, 0)
    with pytest.raises(Broken) as caught:
        table.fold()
    assert (caught.value.kind, caught.value.label) == (local.WENT_BACK, 2)


@pytest.mark.parametrize("slack", [0, 7, 1 << 62])
def test_labels_as_low_and_as_high_as_numbers_go(slack: int) -> None:
    """The highest is a label like others: that it has come does not promise that nothing more of it will."""
    table = LocalTable(Tracked("x", rising(slack)).meaning(), 1)
    low, high = -(1 << 63), (1 << 63) - 1
    runs: list[list[int | None]] = [[low], [low, low + 1, None, low + 7], [-1, 0], [high - 7, high, high], [high]]
    for labels in runs:
        table.note(Note.OPENED, batch(labels), 0, 0, 0, table.steps)
        table.steps += len(labels)
        table.fold()
        assert table.below < local.ALL
    assert table.below == max(low, min(high - 1, high - slack))
    if slack < 8:
        table.note(Note.OPENED, batch([low]), 0, 0, 0, table.steps)
        with pytest.raises(Broken) as caught:
            table.fold()
        assert (caught.value.kind, caught.value.label) == (local.WENT_BACK, low)


def told_by_place(table: LocalTable, parts: list[tuple[int, list[int | None]]]) -> None:
    """One run of a source that does not tell substreams apart itself: what others gave, as (place, labels)."""
    start = table.steps
    table.steps += sum(len(labels) for _, labels in parts)
    for place, labels in parts:
        table.note(Note.OPENED_LATER, batch(labels), place, 0, 0, start)


@pytest.mark.parametrize("folds", [True, False])
def test_rising_labels_of_a_run_are_told_by_place(folds: bool) -> None:
    table = LocalTable(Tracked("x", rising()).meaning(), 1)
    for first in (0, 4, 8):
        told_by_place(table, [(7, [first, first + 2, None]), (8, [first + 1, first + 3])])
        if folds:
            table.fold()
    table.fold()
    assert table.below == 11
    assert len(table.said().names) == 12


def test_a_run_may_be_told_in_several_parts() -> None:
    table = LocalTable(Tracked("x", rising()).meaning(), 1, hold_group=0)
    told_by_place(table, [(7, [1, 3])])
    table.hold(ids_of(pa.array([3])), 0)
    assert table.below == 3
    table.note(Note.OPENED_LATER, batch([1, 2]), 8, 0, 0, 0)
    table.fold()
    table.note(Note.OPENED_LATER, batch([2]), 7, 2, 0, 0)
    with pytest.raises(Broken):
        table.fold()


@pytest.mark.parametrize("folds", [True, False])
@pytest.mark.parametrize(
    ("second", "label"), [([(7, [4]), (8, [2])], 2), ([(8, [6, 4])], 4), ([(7, [5]), (8, [6]), (8, [5])], 5)]
)
def test_what_goes_back_behind_a_run_or_along_a_consumer_is_broken(
    second: list[tuple[int, list[int | None]]], label: int, folds: bool
) -> None:
    table = LocalTable(Tracked("x", rising()).meaning(), 1)
    told_by_place(table, [(7, [3]), (8, [1, 4])])
    if folds:
        table.fold()
    told_by_place(table, second)
    with pytest.raises(Broken) as caught:
        table.fold()
    assert (caught.value.kind, caught.value.label) == (local.WENT_BACK, label)


def test_rising_goes_on_where_a_table_had_come_to() -> None:
    table = LocalTable(Tracked("x", rising(1)).meaning(), 1)
    told_by_place(table, [(7, [3, 5]), (8, [4])])
    table.fold()
    other = LocalTable(Tracked("x", rising(1)).meaning(), 1)
    other.set_values(table.values())
    assert (other.below, other.steps) == (4, 3)
    told_by_place(other, [(7, [6]), (8, [4])])
    other.fold()
    told_by_place(other, [(8, [4])])
    with pytest.raises(Broken):
        other.fold()


def test_a_source_does_not_forget_what_a_stage_beside_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it promise what is above, also where higher ones came in the same run."""
    monkeypatch.setattr(local, "_KEPT_PROMISES", 2)
    table = LocalTable(Tracked("x", rising()).meaning(), 1, hold_group=0, forgets=True)
    table.steps = 4
    table.note(Note.OPENED, batch([1, 2, 3, 4]), 0, 0, 0, 0)
    table.hold(np.array([word(2)], np.uint64), 0, pa.array([2]))
    table.said()
    assert (table.below, len(table)) == (2, 3)
    table.steps = 5
    table.release(np.array([word(2)], np.uint64), 4, pa.array([2]))
    table.note(Note.SENT, batch([2]), 0, 0, 0, 4)
    table.fold()
    assert len(table.said().ids) == 1
    assert (table.below, len(table)) == (4, 1)


def test_what_is_held_again_after_a_restart_is_forgotten_when_it_is_let_go() -> None:
    """To forget it was told for what was said in an earlier life."""
    table, one = LocalTable(MEANING, 1, hold_group=0), np.array([word(1)], np.uint64)
    table.steps = 1
    table.note(Note.RECEIVED, batch([1]), 3, 0, 0, 0)
    table.hold(one, 0)
    table.drop(one)
    assert len(table) == 1
    table.steps = 2
    table.release(one, 1)
    table.note(Note.SENT, batch([1]), 4, 0, 0, 1)
    table.drop(np.zeros(0, np.uint64))
    assert len(table) == 0


def test_what_is_held_above_all_that_was_given_is_not_forgotten_before_it_is_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stage beside a source gives a label to what it keeps. Of those that a restart lost, this one is the highest."""
    monkeypatch.setattr(local, "_KEPT_PROMISES", 1)
    meaning = Tracked("x", rising(10)).meaning()
    table, again = (LocalTable(meaning, 1, hold_group=0, forgets=True) for _ in range(2))
    table.steps = 2
    table.note(Note.OPENED_LATER, batch([10]), 0, 0, 0, 0)
    table.hold(np.array([word(20)], np.uint64), 0, pa.array([20]))
    table.said()
    again.set_values(table.values())
    again.restore([table.content()])
    for label in (25, 26):
        again.steps += 1
        again.note(Note.OPENED_LATER, batch([label]), 0, 0, 0, again.steps - 1)
        again.fold()
        again.said()
    again.steps += 1
    again.release(np.array([word(20)], np.uint64), again.steps - 1, pa.array([20]))
    for kind in (Note.OPENED_LATER, Note.SENT):
        again.note(kind, batch([20]), 4, 0, 0, again.steps - 1)
    again.fold()
    said = again.said().ids.tolist()
    assert again.below == 16, "20 may come again"
    assert said == [word(20)]
    again.steps += 1
    again.note(Note.OPENED_LATER, batch([20]), 0, 0, 0, again.steps - 1)
    again.fold()
    assert again.said().words[:, 5].view(np.uint64).tolist() == tokens_from(4, 0, 1).tolist(), "of all that was sent"
