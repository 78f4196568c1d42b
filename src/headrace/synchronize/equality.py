"""Are two states, or two lists of rows, equal? And if not: where, and is it more than rounding?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np

from headrace.model.failures import shown

DRIFT: Final = 1e-9
"""Floats that differ by less, relative to their size, differ by rounding."""
_MOST: Final = 200


@dataclass(frozen=True)
class Difference:
    """Where two values are not equal. `at` is empty for the values themselves."""

    at: str
    one: str
    other: str
    is_drift: bool = False

    def __str__(self) -> str:
        return f"at {self.at}: {self.one} and {self.other}" if self.at else f"{self.one} and {self.other}"


def differences(one: Any, other: Any, tolerance: float = 0.0, at: str = "") -> Iterator[Difference]:
    """Lazily, all there are. NaN equals NaN; numbers are equal by value, whatever their types.

    `tolerance` is how much floats may differ, relative to the larger of the two, or to 1 where both are below it.
    """
    if one is other or (type(one) is type(other) and _equal(one, other)):
        return
    if _is_number(one) and _is_number(other):
        yield from _numbers(one, other, tolerance, at)
    elif isinstance(one, Mapping) and isinstance(other, Mapping):
        yield from _mappings(one, other, tolerance, at)
    elif isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape == other.shape and one.dtype == other.dtype:
            yield from differences(one.tolist(), other.tolist(), tolerance, at)
        else:
            yield _plain(one, other, at)
    elif _are_sequences(one, other):
        yield from _sequences(one, other, tolerance, at)
    elif dataclasses.is_dataclass(one) and type(one) is type(other):
        for field in dataclasses.fields(one):
            if field.compare:
                values = getattr(one, field.name), getattr(other, field.name)
                yield from differences(*values, tolerance, f"{at}.{field.name}")
    elif not (_equal(one, other) or (_is_nan(one) and _is_nan(other))):
        yield _plain(one, other, at)


def row_differences(one: Sequence[Any], other: Sequence[Any], tolerance: float = 0.0) -> Iterator[Difference]:
    """Of two lists of rows, whatever their order: the rows that the other does not have."""
    lacking, spare = _unmatched(one, other, tolerance)
    if not (lacking or spare):
        return
    is_drift = len(lacking) == len(spare) and not any(_unmatched(lacking, spare, max(tolerance, DRIFT)))
    one_row, other_row = (_short(rows[0]) if rows else "no such row" for rows in (lacking, spare))
    yield Difference("the outputs", one_row, other_row, is_drift)


def has_floats(value: Any) -> bool:
    """Is there a float anywhere in it?"""
    if isinstance(value, float | np.floating):
        return True
    if isinstance(value, Mapping):
        return any(map(has_floats, value.values()))
    if isinstance(value, np.ndarray):
        return bool(value.dtype.kind == "f")
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(has_floats, value))
    if dataclasses.is_dataclass(value):
        return any(has_floats(getattr(value, field.name)) for field in dataclasses.fields(value))
    return False


def _unmatched(one: Sequence[Any], other: Sequence[Any], tolerance: float) -> tuple[list[Any], list[Any]]:
    lacking, spare = [], list(other)
    for row in one:
        for number, candidate in enumerate(spare):
            if next(differences(row, candidate, tolerance), None) is None:
                del spare[number]
                break
        else:
            lacking.append(row)
    return lacking, spare


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)


def _is_nan(value: Any) -> bool:
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return isinstance(value, float | np.floating) and math.isnan(value)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # an __eq__ of the user, or one that gives an array
        return False


def _numbers(one: Any, other: Any, tolerance: float, at: str) -> Iterator[Difference]:
    if one == other or (_is_nan(one) and _is_nan(other)):
        return
    if not (isinstance(one, float | np.floating) or isinstance(other, float | np.floating)):
        yield _plain(one, other, at)
        return
    try:
        a, b = float(one), float(other)
    except OverflowError:
        a, b = math.inf, -math.inf
    finite = math.isfinite(a) and math.isfinite(b)
    share = abs(a - b) / max(1.0, abs(a), abs(b)) if finite else math.inf
    if share > tolerance:
        yield Difference(at, repr(one), repr(other), share <= DRIFT)


def _mappings(one: Mapping[Any, Any], other: Mapping[Any, Any], tolerance: float, at: str) -> Iterator[Difference]:
    if type(one) is not type(other):
        yield _plain(type(one).__name__, type(other).__name__, at)
    for key in one:
        if key not in other:
            yield Difference(f"{at}[{key!r}]", _short(one[key]), "nothing")
        else:
            yield from differences(one[key], other[key], tolerance, f"{at}[{key!r}]")
    for key in other:
        if key not in one:
            yield Difference(f"{at}[{key!r}]", "nothing", _short(other[key]))


def _are_sequences(one: Any, other: Any) -> bool:
    return any(isinstance(one, kind) and isinstance(other, kind) for kind in (list, tuple))


def _sequences(one: Any, other: Any, tolerance: float, at: str) -> Iterator[Difference]:
    if len(one) != len(other):
        yield Difference(at, f"{len(one)} values, {_short(one)}", f"{len(other)}, {_short(other)}")
        return
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        yield from differences(a, b, tolerance, f"{at}[{number}]")


def _plain(one: Any, other: Any, at: str) -> Difference:
    return Difference(at, _short(one), _short(other))


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}…"
