"""Which columns of the events say when they were, what they are, and where they came from."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import ProgramError
from headrace.synchronize.program import Program
from headrace.synchronize.tags import Ints


@dataclass(frozen=True)
class Inputs:
    """`time` orders events; those of one time by `arrival`, or else by stream, tag and all that they have."""

    program: str
    time: str
    tag: tuple[str, ...]
    stream: str | None = None
    arrival: str | None = None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.time, *self.tag, self.stream, self.arrival) if name is not None]

    def check(self, names: Sequence[str]) -> None:
        """Raises ProgramError where a column is not among those of the events."""
        said = [("time", self.time), *(("tag", each) for each in self.tag)]
        said += [("stream", self.stream)] if self.stream is not None else []
        said += [("arrival", self.arrival)] if self.arrival is not None else []
        for what, name in said:
            if name not in names:
                known = ", ".join(names)
                raise ProgramError(self.program, f"{what}={name!r}: the events have no such column; they have {known}")


def inputs_of(
    given: Any, time: str | None, tag: str | Sequence[str] | None, stream: str | None, arrival: str | None
) -> Inputs:
    """What was said, or else what the program says in attributes of these names."""
    if not isinstance(given, Program):
        hint = "; make one: synchronize(MyProgram())" if isinstance(given, type) else ""
        raise ProgramError(getattr(given, "__name__", repr(given)), f"it is no hr.Program{hint}")
    program: Program = given
    found_time = time if time is not None else getattr(program, "time", None)
    found_tag = tag if tag is not None else getattr(program, "tag", None)
    if found_time is None or found_tag is None:
        missing = "time" if found_time is None else "tag"
        raise ProgramError(program.name, f"say {missing}=, the column with the {missing} of events")
    columns = names_of_tag(program, found_tag)
    for name, is_there in (("outputs", isinstance(getattr(program, "outputs", None), pa.Schema)),
                           ("depends", hasattr(program, "depends"))):  # fmt: skip
        if not is_there:
            raise ProgramError(program.name, f"it has no {name}; see hr.Program")
    check_outputs(program)
    return Inputs(program.name, found_time, columns, stream, arrival)


def names_of_tag(program: Program, tag: Any) -> tuple[str, ...]:
    """The columns of a tag. Raises ProgramError for what names none."""
    names = (tag,) if isinstance(tag, str) else tuple(tag) if isinstance(tag, Iterable) else (tag,)
    strange = next((name for name in names if not isinstance(name, str)), None)
    if not names or strange is not None:
        problem = "is empty" if not names else f"has {strange!r}, which is no name"
        raise ProgramError(program.name, f"tag= {problem}; say the column with the tag of events, or several")
    return names


def check_outputs(program: Program) -> None:
    """Raises ProgramError for a column that is there twice."""
    names = program.outputs.names
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise ProgramError(program.name, f"its outputs have the column {twice} twice; give one of them another name")


def time_text(ticks: int, type: pa.DataType) -> str:
    """A time for people, as its column has it."""
    try:
        if pa.types.is_date(type):
            return str(dt.date(1970, 1, 1) + dt.timedelta(days=ticks))
        if pa.types.is_timestamp(type):
            return f"{dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=ticks):%Y-%m-%d %H:%M:%S.%f}"
    except OverflowError:
        pass  # none that a calendar has
    return str(ticks)


def ticks_of(column: pa.Array, program: str, name: str) -> Ints:
    """Times as numbers: of a number as it is, of a time stamp its microseconds. Raises ProgramError for nulls."""
    if column.null_count:
        raise ProgramError(program, f"an event has no {name}: a null cannot be ordered; leave such events out before")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif not pa.types.is_integer(column.type):
        raise ProgramError(program, f"{name} is {column.type}; a time is a number, a date or a time stamp")
    found: Any = column.to_numpy(zero_copy_only=False)
    if found.dtype == np.uint64 and len(found) and int(found.max()) >= 1 << 63:
        raise ProgramError(program, f"{name} is {int(found.max())}; a time must fit into 64 bits with a sign")
    ticks: Ints = found.astype(np.int64, copy=False)
    return ticks
