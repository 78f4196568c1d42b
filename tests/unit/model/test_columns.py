"""Many values of one shape are written as columns, and come back as they were."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.columns import MANY
from headrace.model.plain_json import dumps, loads


@dataclass(frozen=True)
class Load:
    total: int
    mean: float


class Place(NamedTuple):
    house: int
    name: str | None


@dataclass(frozen=True)
class Nothing:
    pass


_TYPES = {"Load": Load, "Place": Place, "Nothing": Nothing}
_INTS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 3), st.just(7), st.integers(10**6, 10**6 + 300)
)
_FLOATS = st.floats(allow_nan=False)
_LEAVES = st.sampled_from(
    [
        _INTS,
        _FLOATS,
        st.text(max_size=3) | st.just("$"),
        st.booleans(),
        st.none() | st.integers(0, 3),
        st.integers(-(10**30), 10**30),
        st.one_of(st.integers(0, 3), st.just(1.0), st.just(True)),
        st.builds(Load, _INTS, _FLOATS),
        st.builds(Place, _INTS, st.none() | st.text(max_size=2)),
        st.builds(Nothing),
        st.just(()),
        st.lists(_INTS, max_size=2).map(tuple),
    ]
)
_SHAPES = st.recursive(_LEAVES, lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda x: st.tuples(*x)))


@st.composite
def _many(draw: st.DrawFn) -> Any:
    """Values of a shape, now and then with one of another; as a list, a tuple, a set or a dict."""
    shape = draw(_SHAPES)
    size = draw(st.sampled_from([MANY - 1, MANY, MANY + 5]))
    values = draw(st.lists(shape, min_size=size, max_size=size))
    if draw(st.integers(0, 3)) == 0:
        values[draw(st.integers(0, size - 1))] = draw(draw(_SHAPES))
    kind = draw(st.sampled_from(["list", "tuple", "set", "keys", "values", "within"]))
    if kind == "keys":
        return dict.fromkeys(values, 1)
    if kind == "values":
        return dict(enumerate(values))
    if kind == "within":
        return [{number: values} for number in range(MANY)]
    return {"list": list, "tuple": tuple, "set": frozenset}[kind](values)


def _ordered(value: Any) -> Any:
    """With a set as a list: its repr says types and values, -0.0 and True as well."""
    return repr(sorted(value, key=repr) if isinstance(value, frozenset) else value)


@given(_many())
def test_what_goes_in_comes_back(value: Any) -> None:
    content = dumps(value, "it", _TYPES)
    again = loads(content, _TYPES)
    assert type(again) is type(value)
    assert _ordered(again) == _ordered(value)
    assert dumps(again, "it", _TYPES) == content
    json.loads(content)


def test_not_a_number_among_many() -> None:
    again = loads(dumps([math.nan] * MANY, "it"))
    assert all(map(math.isnan, again))


@pytest.mark.parametrize("far", [(-(1 << 63), (1 << 63) - 1), (0, (1 << 63) - 1), (-(1 << 63), 0), (-1, 0)], ids=str)
def test_numbers_that_are_far_apart(far: tuple[int, int]) -> None:
    value = list(far) * MANY
    assert loads(dumps(value, "it")) == value


def test_sums_by_key_take_a_few_bytes_each() -> None:
    """As one value after the other they took 50."""
    value = {(house, plug): (1_000_000 + 997 * house, plug) for house in range(100) for plug in range(100)}
    assert len(dumps(value, "it")) < 12 * len(value)


def test_a_record_of_a_type_that_is_gone() -> None:
    content = dumps([Load(number, 0.5) for number in range(MANY)], "it", _TYPES)
    with pytest.raises(KeyError):
        loads(content)


def test_what_is_written_can_be_changed_when_read() -> None:
    again = loads(dumps(list(range(MANY)), "it"))
    again.append("more")
    assert again[-1] == "more"
