from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.demo.programs import EventWindows, Fraud, KeyCounters, SmartHome
from headrace.errors import ProgramError
from headrace.synchronize import tags
from headrace.synchronize.tags import (
    BUCKETS,
    OTHER,
    Bucket,
    ImplementationTag,
    bucket_of,
    codes_of,
    guessed_rates,
    said_rates,
    tag_space,
    tag_text,
)


@cache
def _buckets() -> tags.TagSpace:
    return tag_space(KeyCounters(), guessed_rates(KeyCounters(), 2), 4)


def _numbers(space: tags.TagSpace, rows: list[tuple[Any, ...]], spread: list[int] | None = None) -> list[int]:
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    places = np.array(spread if spread is not None else range(len(rows)), np.int64)
    return [int(number) for number in space.numbers_of(columns, None, places)]


# ----------------------------------------------------------------------- buckets


def test_a_bucket_is_of_the_key_alone() -> None:
    assert bucket_of(("reset", 17)) == bucket_of(("increment", 17)) == bucket_of(("reset", "17"))
    assert len({bucket_of(("reset", key)) for key in range(1000)}) == BUCKETS, "all are used"


def test_buckets_depend_on_each_other_where_their_kinds_do_and_their_keys_may_be_equal() -> None:
    space = tag_space(KeyCounters(), guessed_rates(KeyCounters(), 2), 4)
    place = {entry.tag: number for number, entry in enumerate(space.entries)}
    dependence = space.dependence
    assert dependence[place[Bucket("reset", 3)], place[Bucket("increment", 3)]]
    assert not dependence[place[Bucket("reset", 3)], place[Bucket("increment", 4)]]
    assert not dependence[place[Bucket("increment", 3)], place[Bucket("increment", 3)]]
    assert dependence[place[OTHER]].all()


@given(st.lists(st.tuples(st.sampled_from(["reset", "increment", "strange"]), st.integers(-5, 500)), min_size=1))
def test_events_that_depend_on_each_other_have_tags_that_do(rows: list[tuple[Any, ...]]) -> None:
    program, space = KeyCounters(), _buckets()
    numbers = _numbers(space, rows)
    for a, one in zip(rows, numbers, strict=True):
        for b, two in zip(rows, numbers, strict=True):
            assert not program.dependent(a, b) or space.dependence[one, two]


def test_a_tag_among_buckets_depends_on_its_bucket() -> None:
    number = bucket_of(("reset", 17))
    known = [(Bucket("reset", number), None, 1.0), (Bucket("reset", (number + 1) % BUCKETS), None, 1.0)]
    space = tag_space(KeyCounters(), [*known, (("increment", 17), None, 1.0)], 1)
    assert space.dependence[2].tolist() == [True, False, False]


# ------------------------------------------------------------------------- parts


def test_a_frequent_tag_that_is_independent_of_itself_is_cut_into_parts() -> None:
    space = tag_space(EventWindows(), [("value", None, 90.0), ("barrier", None, 10.0)], 4)
    assert [str(entry) for entry in space.entries] == ["value/0", "value/1", "value/2", "value/3", "barrier"]
    assert [entry.rate for entry in space.entries] == [22.5] * 4 + [10.0]
    assert _numbers(space, [("value",), ("value",), ("barrier",), ("value",)], [4, 7, 9, -1]) == [0, 3, 4, 3]


def test_nothing_is_cut_where_streams_are_named_or_there_is_one_leaf() -> None:
    rates = [("value", "a", 90.0), ("value", "b", 90.0), ("barrier", "c", 1.0)]
    assert len(tag_space(EventWindows(), rates, 8, is_cut=False).entries) == 3
    assert len(tag_space(EventWindows(), [("value", None, 1.0), ("barrier", None, 1.0)], 1).entries) == 2


def test_rates_that_are_all_zero() -> None:
    space = tag_space(EventWindows(), [("value", None, 0.0), ("barrier", None, 0.0)], 4)
    assert [entry.parts for entry in space.entries] == [1, 1]


def test_a_tag_of_a_stream() -> None:
    space = tag_space(EventWindows(), [("value", "a", 1.0), ("value", None, 1.0)], 1, is_cut=False)
    columns, streams = [pa.array(["value"] * 3)], pa.array(["a", "b", None])
    assert space.numbers_of(columns, streams, np.zeros(3, np.int64)).tolist() == [0, 1, 1]
    assert str(space.entries[0]) == "value@a"


# -------------------------------------------------------------------- predicates


def test_the_predicate_of_parts_of_a_tag() -> None:
    space = tag_space(EventWindows(), [("value", None, 90.0), ("barrier", None, 10.0)], 4)
    left, right = space.covers(frozenset({0, 1})), space.covers(frozenset({2, 3, 4}))
    assert (left("value"), right("value")) == (True, True), "a tag may be on both sides"
    assert (left("barrier"), right("barrier")) == (False, True)
    assert (left("strange"), right("strange")) == (False, False), "and on none"


def test_the_predicate_of_buckets_and_of_all_else() -> None:
    space = tag_space(KeyCounters(), guessed_rates(KeyCounters(), 2), 4)
    number = next(n for n, entry in enumerate(space.entries) if entry.tag == Bucket("reset", bucket_of(("reset", 17))))
    is_ours = space.covers(frozenset({number}))
    assert is_ours(("reset", 17))
    assert not is_ours(("increment", 17))
    assert not is_ours(("strange", 17))
    is_other = space.covers(frozenset({len(space.entries) - 1}))
    assert is_other(("strange", 17))
    assert not is_other(("reset", 17))


@given(st.lists(st.tuples(st.sampled_from(["reset", "increment", "x"]), st.integers(0, 300)), min_size=1, max_size=20))
def test_a_predicate_says_yes_to_all_that_comes(rows: list[tuple[Any, ...]]) -> None:
    space = _buckets()
    for row, number in zip(rows, _numbers(space, rows), strict=True):
        assert space.covers(frozenset({number}))(row)
        assert not space.covers(frozenset(range(len(space.entries))) - {number})(row)


def test_keys_without_end_are_not_all_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "_MOST_KNOWN", 200)
    space = tag_space(KeyCounters(), guessed_rates(KeyCounters(), 2), 4)
    before = _numbers(space, [("reset", key) for key in range(500)])
    assert len(space._index) <= 200
    assert _numbers(space, [("reset", key) for key in range(500)]) == before
    covers = space.covers(frozenset(range(0, len(space.entries), 2)))
    assert [covers(("reset", key)) for key in range(500)] == [covers(("reset", key)) for key in range(500)]


# ------------------------------------------------------------------ unknown tags


def test_an_unknown_tag_is_an_error_where_all_are_known() -> None:
    space = tag_space(EventWindows(), guessed_rates(EventWindows(), 1), 1)
    with pytest.raises(ProgramError, match="EventWindows: an event has the tag vaule, and there are only value, barr"):
        _numbers(space, [("value",), ("vaule",)])


def test_an_unknown_tag_is_other_where_they_are_not() -> None:
    space = tag_space(KeyCounters(), [(("reset", 1), None, 1.0), (OTHER, None, 0.0)], 2)
    assert _numbers(space, [("reset", 1), ("reset", 2), ("reset", None)]) == [0, 1, 1]
    assert str(space.entries[1]) == "other"


def test_no_tags_at_all() -> None:
    with pytest.raises(ProgramError, match="there are no tags; give it tags=, or rates="):
        tag_space(EventWindows(), [], 2)


# ------------------------------------------------------------------------- rates


def test_what_depends_on_itself_is_taken_to_be_rare() -> None:
    rates = {tag: rate for tag, _, rate in guessed_rates(Fraud(), 1)}
    assert rates["rule"] < rates["transaction"]


def test_kinds_of_a_table_are_known_and_others_may_come() -> None:
    class Open(EventWindows):
        tags = None  # type: ignore[assignment]

    assert [tag for tag, _, _ in guessed_rates(Open(), 1)] == ["barrier", "value", OTHER]
    assert len(guessed_rates(KeyCounters(), 2)) == 2 * BUCKETS + 1


def test_nothing_can_be_guessed_of_a_function() -> None:
    with pytest.raises(ProgramError, match=r"SmartHome: its tags are not known; list them \(tags = "):
        guessed_rates(SmartHome(), 2)


# ------------------------------------------------------------------------- codes


_CELL = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))


@given(st.lists(st.tuples(_CELL, st.one_of(st.none(), st.integers(0, 3)), _CELL), max_size=30), st.integers(1, 3))
def test_codes_tell_rows_apart(rows: list[tuple[Any, ...]], columns: int) -> None:
    types = (pa.string(), pa.int64(), pa.string())[:columns]
    arrays = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(types)]
    codes, values = codes_of(arrays)
    assert [values[code] for code in codes.tolist()] == [row[:columns] for row in rows]


def test_codes_of_columns_with_dictionaries() -> None:
    column = pa.array(["a", "b", None, "a"]).dictionary_encode()
    codes, values = codes_of([column, pa.array([1, 1, 1, 1])])
    assert [values[code] for code in codes.tolist()] == [("a", 1), ("b", 1), (None, 1), ("a", 1)]


@pytest.mark.parametrize(
    ("tag", "text"),
    [("value", "value"), (("reset", 17), "reset(17)"), (("a", 1, 2), "a(1, 2)"), (("a",), "a"), (None, "None")],
)
def test_tags_as_people_write_them(tag: Any, text: str) -> None:
    assert tag_text(tag) == text


def test_implementation_tags_as_people_write_them() -> None:
    assert str(ImplementationTag(("reset", 1), "E0", 2, 4)) == "reset(1)@E0/2"
    assert str(ImplementationTag(Bucket("reset", 7))) == "reset(bucket 7)"


# ------------------------------------------------------------------------- rates


class Listed(KeyCounters):
    tags = (("reset", 1), ("increment", 1))


def test_tags_that_have_no_rate_are_rare() -> None:
    assert said_rates(Listed(), 2, {("increment", 1): 9}) == [(("increment", 1), None, 9.0), (("reset", 1), None, 0.0)]
    assert said_rates(KeyCounters(), 2, {("increment", 1): 9})[1:] == [(OTHER, None, 0.0)]


@pytest.mark.parametrize(
    ("program", "columns", "rates", "message"),
    [
        (KeyCounters(), 2, {"reset": 9}, "rates= has 'reset'; a tag is a tuple, of the 2 columns of tag="),
        (KeyCounters(), 2, {("reset", 1, 2): 9}, r"rates= has \('reset', 1, 2\); a tag is a tuple, of the 2 columns"),
        (KeyCounters(), 1, {("reset",): 9}, r"rates= has \('reset',\); a tag is the value of the one column of tag="),
        (KeyCounters(), 2, [("reset", 1)], r"rates=\[\('reset', 1\)\]; use a dict of tags and how often they come"),
        (KeyCounters(), 1, {"reset": -1}, "rates= has -1 for reset; a rate is a number from 0 on"),
        (KeyCounters(), 1, {"reset": math.nan}, "rates= has nan for reset; a rate is a number from 0 on"),
        (KeyCounters(), 1, {"reset": math.inf}, "rates= has inf for reset; a rate is a number from 0 on"),
        (KeyCounters(), 1, {"reset": "often"}, "rates= has 'often' for reset; a rate is a number from 0 on"),
        (Listed(), 1, None, r"tags has \('reset', 1\); a tag is the value of the one column of tag="),
        (
            Listed(),
            2,
            {("reset", 2): 1},
            r"rates= has the tag reset\(2\), and its tags are reset\(1\), increment\(1\); add",
        ),
    ],
)
def test_rates_that_do_not_fit(program: Any, columns: int, rates: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=f"^program {program.name}: {message}"):
        said_rates(program, columns, rates)
