"""Many plain values of one shape as columns: numbers as arrays of bytes, tuples and records by their parts.

States are often dicts of thousands of numbers. As columns they take a fraction of the time of one value after the
other, and of the bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MANY: Final = 32
"""From here on it is worth it."""
NUMBERS: Final = "biufcMm"
"""Kinds of numbers of NumPy, whose bytes are all that there is to them."""
_BYTES: Final = 8

Write = Callable[[Any], Any]
"""One value, as JSON has it; or back."""
Fields = Callable[[type], Sequence[str] | None]
"""Of a record of a type that is known: what to ask each for, and None for another type."""


def column(values: Sequence[Any], write: Write, fields: Fields) -> Any | None:
    """None where values, one or more, have no shape in common; what a column has within may have none."""
    kinds = set(map(type, values))
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    if kind is int:
        return _integers(values)
    if kind is float:
        return ["floats", len(values), _planes(np.array(values, np.float64), _BYTES)]
    if kind is tuple:
        return _tuples(values, write, fields)
    if issubclass(kind, np.generic):
        return _numbers(values)
    names = fields(kind)
    if not names:
        return None
    check_fields(kind, names, values)
    parts = [[getattr(each, name) for each in values] for name in names]
    return ["records", kind.__name__, [_part(part, write, fields) for part in parts]]


def check_fields(kind: type, names: Sequence[str], values: Sequence[Any]) -> None:
    """Raises TypeError for a record that has more than its fields: it would come back without."""
    for each in values:
        own = getattr(each, "__dict__", ())
        if len(own) <= len(names):
            continue
        # What a cached property keeps is made again.
        more = [n for n in own if n not in names and not isinstance(getattr(kind, n, None), cached_property)]
        if more:
            raise TypeError(f"a {kind.__name__} has {more[0]}, which is none of its fields and would be lost")


def _numbers(values: Sequence[np.generic]) -> Any | None:
    """Of NumPy, and of one type: times of two units, for example, are of two."""
    kinds = {each.dtype for each in values}
    if len(kinds) > 1 or values[0].dtype.kind not in NUMBERS:
        return None
    return ["numbers", values[0].dtype.str, base64.b64encode(np.array(values).tobytes()).decode()]


def number_of(dtype: str, text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), np.dtype(dtype))[0]


def _tuples(values: Sequence[tuple[Any, ...]], write: Write, fields: Fields) -> Any | None:
    width, *others = set(map(len, values))
    if others or not width:
        return None
    return ["tuples", [_part(list(map(itemgetter(at), values)), write, fields) for at in range(width)]]


def _part(values: Sequence[Any], write: Write, fields: Fields) -> Any:
    return column(values, write, fields) or any_column(values, write)


def any_column(values: Sequence[Any], write: Write) -> Any:
    """One value after the other."""
    return ["values", [write(each) for each in values]]


def values_of(written: Any, read: Write, make: Callable[[str, list[Any]], Any]) -> list[Any]:
    """`make` a record of the name of its type and the values of its fields."""
    kind, *content = written
    if kind == "values":
        return [read(each) for each in content[0]]
    if kind == "integers":
        count, low, width, text = content
        return list(_from_low(_from_planes(text, count, width), low).tolist())
    if kind == "floats":
        return list(_from_planes(content[1], content[0], _BYTES).view(np.float64).tolist())
    if kind == "numbers":
        return list(np.frombuffer(base64.b64decode(content[1]), np.dtype(content[0])))
    parts = [values_of(part, read, make) for part in content[-1]]
    if kind == "tuples":
        return list(zip(*parts, strict=True))
    return [make(content[0], list(each)) for each in zip(*parts, strict=True)]


def _integers(values: Sequence[int]) -> Any | None:
    """How far each is above the lowest, in as many bytes as that takes."""
    try:
        found = np.array(values, np.int64)
    except OverflowError:
        return None
    low = int(found.min())
    above = found.view(np.uint64) - np.int64(low).view(np.uint64)
    width = (int(above.max()).bit_length() + 7) // 8
    return ["integers", len(values), low, width, _planes(above, width)]


def _from_low(above: npt.NDArray[np.uint64], low: int) -> npt.NDArray[np.int64]:
    return (above + np.int64(low).view(np.uint64)).view(np.int64)


def _planes(values: npt.NDArray[Any], width: int) -> str:
    """The lowest byte of all, then the next one of all: high ones are much the same, and pack well."""
    planes = (
        values.astype(values.dtype.newbyteorder("<"), copy=False)
        .view(np.uint8)
        .reshape(len(values), _BYTES)[:, :width]
        .T
    )
    return base64.b64encode(planes.tobytes()).decode()


def _from_planes(text: str, count: int, width: int) -> npt.NDArray[np.uint64]:
    found = np.zeros((count, _BYTES), np.uint8)
    found[:, :width] = np.frombuffer(base64.b64decode(text), np.uint8).reshape(width, count).T
    return found.view("<u8").ravel().astype(np.uint64)
