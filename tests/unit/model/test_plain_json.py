"""State as JSON: what goes in comes back the same, or is refused."""

from __future__ import annotations

import datetime as dt
import enum
import math
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import FlowError
from headrace.model.plain_json import dumps, loads

_ZONES = st.none() | st.sampled_from(
    [dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30)), dt.timezone(-dt.timedelta(seconds=4))]
)
_HASHABLE = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(allow_nan=False),
        st.text(max_size=8) | st.just("$"),
        st.binary(max_size=8),
        st.datetimes(timezones=_ZONES, allow_imaginary=False).map(lambda x: x.replace(fold=0)),
        st.dates(),
        st.times(timezones=_ZONES).map(lambda x: x.replace(fold=0)),
        st.timedeltas(),
        st.decimals(allow_nan=False),
    ),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
_VALUES = st.recursive(
    _HASHABLE | st.sets(_HASHABLE, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$", "v"]), inner, max_size=4)
        | st.dictionaries(_HASHABLE, inner, max_size=4)
    ),
    max_leaves=12,
)


def _typed(value: Any) -> Any:
    """With the types of everything: 1, 1.0 and True are equal, and must not become one another."""
    if isinstance(value, list | tuple):
        return type(value).__name__, [_typed(each) for each in value]
    if isinstance(value, dict):
        return "dict", [(_typed(key), _typed(each)) for key, each in value.items()]
    if isinstance(value, set):
        return "set", sorted((_typed(each) for each in value), key=repr)
    return type(value).__name__, repr(value)


@given(_VALUES)
def test_what_goes_in_comes_back(value: Any) -> None:
    content = dumps(value, "it")
    again = loads(content)
    assert again == value
    assert _typed(again) == _typed(value)
    assert dumps(again, "it") == content


@given(st.sets(_HASHABLE, max_size=6))
def test_a_set_is_written_in_one_way(value: set[Any]) -> None:
    other: set[Any] = set()
    for each in sorted(value, key=lambda x: repr(x)[::-1]):
        other.add(each)
    assert dumps(other, "it") == dumps(value, "it")


@pytest.mark.parametrize(
    "value",
    [float("inf"), -float("inf"), -0.0, 5e-324, 1 << 100, "\ud800", "\x00", "€", Decimal("NaN"), Decimal("1E+5")],
    ids=repr,
)
def test_odd_values(value: Any) -> None:
    assert repr(loads(dumps([value], "it"))[0]) == repr(value)


def test_not_a_number() -> None:
    assert math.isnan(loads(dumps({"a": math.nan}, "it"))["a"])


@pytest.mark.parametrize(
    "value",
    [
        {"$": 1},
        {"$": "tuple", "v": [1]},
        {"$": {"$": "dict", "v": []}},
        {1: "a", "1": "b", None: "c", (1, 2): "d", 2.5: "e", dt.date(2020, 1, 1): {b"x": {1}}},
        {"v": (), "": set()},
        [[[]], {}, ()],
    ],
    ids=repr,
)
def test_dicts_that_look_like_ours(value: Any) -> None:
    assert _typed(loads(dumps(value, "it"))) == _typed(value)


@pytest.mark.parametrize(
    "value",
    [
        *(kind(5) for kind in (np.int8, np.uint8, np.int16, np.uint32, np.int64, np.float16, np.float32, np.float64)),
        np.uint64(2**64 - 1),
        np.float32(0.1),
        np.float64("-inf"),
        np.longdouble("0.1"),
        np.complex128(1 - 2j),
        np.bool_(True),
        np.str_("a"),
        np.str_(""),
        np.bytes_(b"a\x00"),
        np.datetime64("2020-01-01T01:02:03.000004", "us"),
        np.datetime64("2020-01-01", "D"),
        np.datetime64("2262-01-01", "ns"),
        np.timedelta64(5, "us"),
    ],
    ids=lambda value: f"{type(value).__name__}({value})",
)
def test_numbers_of_numpy_come_back_as_they_are(value: Any) -> None:
    """Where a number of Python goes on, one of NumPy may overflow, or round."""
    for wrapped in (value, [value], {"a": value}, {value: 1}, [value] * 40, {(at, value): value for at in range(40)}):
        again = loads(dumps(wrapped, "it"))
        assert again == wrapped
        assert _typed(again) == _typed(wrapped)
    mixed = [value, np.int8(1), 1, np.datetime64("2020", "Y")] * 10
    assert _typed(loads(dumps(mixed, "it"))) == _typed(mixed)


def test_what_is_no_time_is_none_of_those_of_numpy() -> None:
    assert np.isnat(loads(dumps(np.datetime64("NaT", "ns"), "it")))


@pytest.mark.parametrize(
    "value",
    [
        pd.Timestamp("3000-01-01").as_unit("s"),
        pd.Timestamp("2024-10-27 00:30", tz="UTC").tz_convert("Europe/Berlin"),
        pd.Timestamp("2024-10-27 01:30:00.000000001", tz="UTC").tz_convert("Europe/Berlin"),
        pd.Timedelta(np.timedelta64(10**12, "s")),
        pd.Timedelta(5, unit="ns"),
    ],
    ids=str,
)
def test_times_of_pandas(value: Any) -> None:
    again = loads(dumps(value, "it"))
    assert again == value
    assert (again.unit, repr(again)) == (value.unit, repr(value))


class _Own:
    pass


@pytest.mark.parametrize(
    "value",
    [
        object(),
        _Own(),
        1j,
        bytearray(b"a"),
        range(3),
        dt.UTC,
        len,
        iter([]),
        np.void(b"a"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_other_values_are_refused(value: Any) -> None:
    for wrapped in (value, [value], {"a": {"b": (value,)}}):
        with pytest.raises(
            FlowError, match=r"stage x: its state cannot be kept: a \w+ is not a plain value; use numbers, texts"
        ):
            dumps(wrapped, "stage x: its state")


_Pair = namedtuple("_Pair", "a b")


class _Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [Counter(a=1), defaultdict(int, a=1), OrderedDict(a=1), _Pair(1, 2), _Colour.RED],
    ids=lambda v: type(v).__name__,
)
def test_what_would_come_back_as_something_else_is_refused(value: Any) -> None:
    try:
        content = dumps(value, "it")
    except FlowError:
        return
    assert type(loads(content)) is type(value)


def test_nanoseconds_are_kept_or_refused() -> None:
    pandas = pytest.importorskip("pandas")
    value = pandas.Timestamp("2020-01-01T00:00:00.000000001")
    try:
        content = dumps(value, "it")
    except FlowError:
        return
    assert loads(content) == value


@pytest.mark.parametrize("value", [np.datetime64("2020-01-01", "ns"), np.timedelta64(5, "ns")], ids=repr)
def test_nanoseconds_of_numpy_are_kept_or_refused(value: Any) -> None:
    try:
        content = dumps(value, "it")
    except FlowError:
        return
    assert not isinstance(loads(content), int)


def test_a_time_of_day_in_a_named_zone_is_kept_or_refused() -> None:
    value = dt.time(12, tzinfo=ZoneInfo("Europe/Berlin"))
    try:
        content = dumps(value, "it")
    except FlowError:
        return
    assert loads(content).tzinfo is not None


def test_the_second_of_two_equal_times_of_a_night_is_kept_or_refused() -> None:
    value = dt.datetime(2020, 10, 25, 2, 30, fold=1)
    try:
        content = dumps(value, "it")
    except FlowError:
        return
    assert loads(content).fold == 1


def test_a_moment_in_a_named_zone_is_the_same_moment() -> None:
    value = dt.datetime(2020, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    assert loads(dumps(value, "it")) == value


@pytest.mark.parametrize("kind", ["circular", "deep", "long"])
def test_what_json_cannot_hold_is_refused(kind: str) -> None:
    value: Any = []
    if kind == "circular":
        value.append(value)
    elif kind == "deep":
        for _ in range(5000):
            value = [value]
    else:
        value = 10**5000
    with pytest.raises(FlowError, match="it cannot be kept"):
        dumps(value, "it")


@dataclass(frozen=True)
class Sums:
    total: int
    by_key: dict[str, float]


class Point(NamedTuple):
    x: int
    y: tuple[int, ...]


_TYPES = {"Sums": Sums, "Point": Point}


@pytest.mark.parametrize(
    "value",
    [Sums(1, {"a": 0.5}), Point(1, (2, 3)), [Sums(2, {}), {"p": Point(0, ())}], {Point(1, ()): frozenset({1, 2})}],
    ids=repr,
)
def test_types_that_the_reader_knows(value: Any) -> None:
    again = loads(dumps(value, "it", _TYPES), _TYPES)
    assert again == value
    assert repr(again) == repr(value)


@dataclass(frozen=True)
class Doubled:
    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * self.n)


@dataclass
class Cached:
    n: int

    @cached_property
    def twice(self) -> int:
        return 2 * self.n


@pytest.mark.parametrize("many", [1, 40])
def test_what_a_record_has_besides_its_fields_is_not_lost_in_silence(many: int) -> None:
    with pytest.raises(FlowError, match="a Doubled has twice, which is none of its fields and would be lost"):
        dumps([Doubled(3)] * many, "it", {"Doubled": Doubled})
    made = Cached(3)
    assert made.twice == 6
    again = loads(dumps([made] * many, "it", {"Cached": Cached}), {"Cached": Cached})
    assert [each.twice for each in again] == [6] * many


def test_a_type_that_the_reader_does_not_know() -> None:
    with pytest.raises(FlowError, match="a Sums is not a plain value"):
        dumps(Sums(1, {}), "it")
    with pytest.raises(KeyError):
        loads(dumps(Sums(1, {}), "it", _TYPES))


@pytest.mark.parametrize("kind", ["int64", "float32", "bool", "datetime64[s]", "complex128"])
def test_arrays(kind: str) -> None:
    value = np.arange(6).astype(kind).reshape(2, 3)
    again = loads(dumps({"a": value}, "it"))["a"]
    assert again.dtype == value.dtype
    assert np.array_equal(again, value)
    again[0] = value[1]  # it can be changed
