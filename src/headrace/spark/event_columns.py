"""The columns of events by their places: names may have dots or backticks, or differ in their case alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from headrace.errors import ProgramError
from headrace.model.failures import problem_of
from headrace.spark.schema import arrow_type
from headrace.synchronize.inputs import Inputs
from headrace.synchronize.tags import BUCKETS

PREFIX: Final = "__headrace"
_LARGE_CONF: Final = "execution.arrow.useLargeVarTypes"
_MISFITS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)


@dataclass(frozen=True)
class EventColumns:
    """A DataFrame of events whose columns are called by their places; `events_in` makes it."""

    inputs: Inputs
    df: DataFrame
    names: tuple[str, ...]

    def __getitem__(self, name: str) -> Column:
        return F.col(_placed_name(self.names.index(name)))

    def type(self, name: str) -> T.DataType:
        return self.df.schema.fields[self.names.index(name)].dataType

    @property
    def given(self) -> pa.Schema:
        """As Spark gives them to Python."""
        conf = self.df.sparkSession.conf
        zone, large = (conf.get(f"spark.sql.{name}") for name in ("session.timeZone", _LARGE_CONF))
        found = to_arrow_schema(self.df.schema, timezone=zone, prefers_large_types=large == "true")
        return pa.schema([field.with_name(name) for field, name in zip(found, self.names, strict=True)])

    @property
    def all(self) -> list[Column]:
        return [F.col(_placed_name(at)) for at in range(len(self.names))]

    @property
    def tag(self) -> list[Column]:
        return [self[name] for name in self.inputs.tag]

    @property
    def ties(self) -> list[Column]:
        """By which events of one time and one rank are sorted: their tag, and all else that has an order."""
        names = dict.fromkeys([*self.inputs.tag, *self.names])
        return [self[name] for name in names if name != self.inputs.time and _is_sortable(self.type(name))]

    def without_heartbeats(self) -> EventColumns:
        return EventColumns(self.inputs, self.df.where(self.tag[0].isNotNull()), self.names)

    def bucket(self) -> Column:
        """As `bucket_of` has it: of keys as texts."""
        for name in self.inputs.tag[1:]:
            if not isinstance(self.type(name), T.IntegralType | T.StringType):
                problem = f"key {name} is {self.type(name).simpleString()}; a key is a number or a text"
                raise ProgramError(self.inputs.program, problem)
        texts = [F.coalesce(key.cast("string"), F.lit("None")) for key in self.tag[1:]]
        return F.pmod(F.crc32(F.concat_ws("\x00", *texts).cast("binary")), F.lit(BUCKETS)).cast("int")

    def arrival(self) -> Column:
        """As whole numbers. Raises ProgramError for what has another order as such."""
        name = str(self.inputs.arrival)
        column, type = self[name], self.type(name)
        if isinstance(type, T.IntegralType):
            return column.cast("long")
        if isinstance(type, T.DateType):
            return F.unix_date(column).cast("long")
        if isinstance(type, T.TimestampType):
            return F.unix_micros(column)
        if isinstance(type, T.TimestampNTZType):
            # As a moment of UTC, whatever the zone of the session: in that some hours may be twice, or not at all.
            return F.unix_micros(F.concat(column.cast("string"), F.lit("Z")).cast("timestamp"))
        raise ProgramError(
            self.inputs.program,
            f"arrival={name!r} is {type.simpleString()}, which would lose its order as a whole number; give it whole "
            f"numbers, dates or time stamps, such as row_number() over the order you want",
        )


def events_in(df: DataFrame, inputs: Inputs) -> EventColumns:
    """Raises ProgramError where a column is missing, is there twice, or cannot be what it is to be."""
    names = tuple(df.columns)
    inputs.check(names)
    for name in names:
        if names.count(name) > 1:
            raise ProgramError(
                inputs.program, f"the events have the column {name} twice; give one of them another name"
            )
        if name.startswith(PREFIX):
            problem = f"the events have the column {name}; names with {PREFIX} are for its own use, give it another"
            raise ProgramError(inputs.program, problem)
    found = EventColumns(inputs, df.toDF(*map(_placed_name, range(len(names)))), names)
    _check_time(found)
    _check_zone(found)
    for name in inputs.tag:
        type = found.type(name)
        if not isinstance(type, T.AtomicType | T.NullType):
            problem = f"tag {name} is {type.simpleString()}; a tag is a plain value: make columns of its parts"
            raise ProgramError(inputs.program, problem)
        if isinstance(type, T.StringType) and type.collation != "UTF8_BINARY":
            problem = f"tag {name} is {type.simpleString()}: texts that it takes for equal are several tags to depends"
            raise ProgramError(inputs.program, f'{problem}; cast it, F.lower("{name}").cast("string")')
    return found


def _check_time(events: EventColumns) -> None:
    name = events.inputs.time
    type = events.type(name)
    if not isinstance(type, T.IntegralType | T.DateType | T.TimestampType | T.TimestampNTZType):
        problem = f"time={name!r} is {type.simpleString()}; a time is a whole number, a date or a time stamp"
        raise ProgramError(events.inputs.program, problem)


def _check_zone(events: EventColumns) -> None:
    """Spark gives time stamps to Python with the zone of its session, of which Python may not have heard."""
    if not any(isinstance(field.dataType, T.TimestampType) for field in events.df.schema.fields):
        return
    zone = events.df.sparkSession.conf.get("spark.sql.session.timeZone")
    try:
        pa.scalar(0, pa.timestamp("us", zone)).as_py()
    except Exception:  # of pytz, zoneinfo or Arrow
        raise ProgramError(
            events.inputs.program,
            f"the time zone of the session is {zone!r}, which Python does not know; set spark.sql.session.timeZone to "
            f"a name such as 'Europe/Berlin', or to '+02:00'",
        ) from None


def lookup_array(values: Sequence[Any], type: T.DataType, program: str, name: str) -> pa.Array:
    """Values of tags as the column has them. Raises ProgramError for one that it cannot have."""
    if isinstance(type, T.TimestampType):
        local = next((value for value in values if getattr(value, "tzinfo", type) is None), None)
        if local is not None:
            problem = f"the tag {local} has no time zone, and {name} is {type.simpleString()}; give it a tzinfo"
            raise ProgramError(program, problem)
    try:
        return pa.array(values, arrow_type(type))
    except _MISFITS as error:
        raise ProgramError(
            program, f"a tag does not fit {name}, which is {type.simpleString()} ({problem_of(error)})"
        ) from None


def _placed_name(at: int) -> str:
    return f"{PREFIX}_column_{at}"


def _is_sortable(type: T.DataType) -> bool:
    """Spark orders all but maps and variants, and what has one of these in it."""
    if isinstance(type, T.ArrayType):
        return _is_sortable(type.elementType)
    if isinstance(type, T.StructType):
        return all(_is_sortable(field.dataType) for field in type.fields)
    return isinstance(type, T.AtomicType) and not isinstance(type, T.VariantType | T.SpatialType)
