"""Tables of answers, compared: to the bit, and with a message that says which event to look at.

```python
assert_same_answers(actual, expected)                        # every column, bit for bit
assert_same_answers(actual, expected, ulps={"spread": 4})    # doubles of this column within 4 units in the last place
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Ulps = int | Mapping[str, int]
Inputs = Callable[[str, int], Sequence[object]]

_SHOWN_INPUTS = 40


def assert_same_answers(
    actual: pa.Table,
    expected: pa.Table,
    *,
    ulps: Ulps = 0,
    columns: Sequence[str] | None = None,
    inputs: Inputs | None = None,
) -> None:
    """Raise AssertionError unless both tables hold the same values, row by row, in columns of the same types.

    Doubles count as the same when they are equal (0.0 equals -0.0), both NaN, or within `ulps` (one number, or one for
    each column; 0 where not given). `columns` names the columns to compare; without it both tables must have the same
    columns. `inputs` (for instance `Oracle.inputs`) tells the events in a row's window, for the message.
    """
    if columns is None:
        columns = expected.column_names
        assert actual.column_names == expected.column_names, f"columns {actual.column_names}, not {columns}"
    assert actual.num_rows == expected.num_rows, f"{actual.num_rows} rows, not {expected.num_rows}"
    for name in columns:
        allowed = ulps if isinstance(ulps, int) else ulps.get(name, 0)
        was, wanted = actual.column(name), expected.column(name)
        assert was.type == wanted.type, f"column {name}: type {was.type}, not {wanted.type}"
        row = first_difference(was, wanted, allowed)
        if row is not None:
            raise AssertionError(_message(name, row, actual, expected, inputs))


def first_difference(actual: pa.ChunkedArray, expected: pa.ChunkedArray, ulps: int = 0) -> int | None:
    """The first row where two columns of one type differ, or None."""
    if pa.types.is_floating(expected.type):
        return _first(_different_doubles(actual, expected, ulps))
    if pa.types.is_nested(expected.type):
        if actual.equals(expected):
            return None
        pairs = zip(actual.to_pylist(), expected.to_pylist(), strict=True)
        return next((row for row, (was, wanted) in enumerate(pairs) if not same_value(was, wanted)), None)
    same = pc.fill_null(pc.equal(actual, expected), False)
    both_null = pc.and_(pc.is_null(actual), pc.is_null(expected))
    return _first(~np.asarray(pc.or_(same, both_null)))


def same_value(was: Any, wanted: Any) -> bool:
    """Equality of Python values in which NaN equals NaN, also inside lists and structs."""
    if isinstance(was, float) and isinstance(wanted, float):
        return was == wanted or (math.isnan(was) and math.isnan(wanted))
    if isinstance(was, dict) and isinstance(wanted, dict):
        return list(was) == list(wanted) and all(same_value(was[key], wanted[key]) for key in was)
    if isinstance(was, list | tuple) and isinstance(wanted, list | tuple):
        return len(was) == len(wanted) and all(same_value(a, b) for a, b in zip(was, wanted, strict=True))
    return type(was) is type(wanted) and bool(was == wanted)


def _different_doubles(actual: pa.ChunkedArray, expected: pa.ChunkedArray, ulps: int) -> Any:
    was_null, wanted_null = np.asarray(pc.is_null(actual)), np.asarray(pc.is_null(expected))
    was, wanted = (np.asarray(pc.fill_null(column, 0.0)) for column in (actual, expected))
    with np.errstate(invalid="ignore", over="ignore"):
        same = (was == wanted) | (np.isnan(was) & np.isnan(wanted))
        if ulps:
            unit = np.spacing(np.maximum(np.abs(was), np.abs(wanted)))
            same |= np.isfinite(unit) & (np.abs(was - wanted) <= ulps * unit)
    return np.where(was_null | wanted_null, was_null != wanted_null, ~same)


def _first(different: Any) -> int | None:
    return int(np.argmax(different)) if different.any() else None


def _message(name: str, row: int, actual: pa.Table, expected: pa.Table, inputs: Inputs | None) -> str:
    was, wanted = actual.column(name)[row].as_py(), expected.column(name)[row].as_py()
    event = {key: expected.column(key)[row].as_py() for key in expected.column_names}
    lines = [f"column {name}, row {row}: {was!r}, expected {wanted!r}", f"  event: {event!r}"]
    if inputs is not None:
        window = list(inputs(name, row))
        more = f", … {len(window) - _SHOWN_INPUTS} more" if len(window) > _SHOWN_INPUTS else ""
        shown = ", ".join(repr(item) for item in window[:_SHOWN_INPUTS])
        lines.append(f"  window (time, value): [{shown}{more}]")
    return "\n".join(lines)
