"""What substreams a flow has: which records belong to one, and who promises its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import FlowError, StageFailed
from headrace.flow.hashing import can_hash, hash_longs, hash_rows
from headrace.flow.labelling import Asked, Labels, is_flag
from headrace.flow.operators import empty
from headrace.track.labels import Meaning, is_nanoseconds
from headrace.track.terms import Mode
from headrace.track.tokens import Words

FLUSH_S: Final = 0.005
_MOST_SLACK: Final = 1 << 62
_LONGEST_S: Final = 1e12
_NANOSECONDS: Final = 1000


@dataclass(frozen=True)
class Ends:
    """How the end of a substream is promised."""

    mode: Mode = Mode.AT_THE_END
    closes: str | Labels | None = None
    slack: int = 0

    def __str__(self) -> str:
        if self.mode == Mode.RISING:
            return "ended by higher ones" + (f", {self.slack} behind" if self.slack else "")
        closes = _named(self.closes or "")
        return {
            Mode.AT_THE_END: "ended with the sources",
            Mode.MARKER: f"ended by a record with {closes}",
            Mode.EACH_MARKER: f"ended by a record with {closes} of each source task",
            Mode.WHENEVER: "ended, for now, when none is on the way",
        }[self.mode]


def marker(closes: str | Labels, *, each_source: bool = False) -> Ends:
    """A record closes its substream: one with True in a column, or for which a function of a batch gives True.

    It is the last one of its substream, on whichever task of a source it comes: as where all records of a substream
    come in one partition. With `each_source` every task of every source gives such a record.
    """
    if not (isinstance(closes, str) or callable(closes)):
        raise FlowError(f"hr.marker({closes!r}): name a column of True and False, or give a function over batches")
    return Ends(Mode.EACH_MARKER if each_source else Mode.MARKER, closes)


def rising(slack: int = 0) -> Ends:
    """Substreams are numbers or times that rise along each task of each source: a higher one ends those before it.

    `slack`: how far one may fall behind the highest, in units of the labels: whole numbers, days, or microseconds, as
    those of `hr.windows`.
    """
    if isinstance(slack, bool) or not isinstance(slack, int) or not 0 <= slack <= _MOST_SLACK:
        raise FlowError(f"hr.rising({slack!r}): give how far labels may fall back, a whole number from 0 to 2**62")
    return Ends(Mode.RISING, slack=slack)


def whenever() -> Ends:
    """Nobody promises anything: a substream has ended, for now, when none of it is on the way, and may begin again.

    For what can be had back, as a cache: between the notice and its arrival a record may have come.
    """
    return Ends(Mode.WHENEVER)


@dataclass(frozen=True)
class Tracked:
    """What `stream.tracked` asks for. `is_firm` and `starts` are a matter of who reads, all else is of the flow."""

    by: str | Labels
    ends: Ends = field(default_factory=Ends)
    consistent: bool = False
    agents: int = 1
    flush_s: float = FLUSH_S
    slack_s: float = 0.01
    is_firm: bool = False
    starts: bool = False

    label: pa.DataType | None = None
    """Of all labels of the flow, once it is known."""
    task: str = ""
    """Where records are looked at, for who reads an error."""

    @property
    def name(self) -> str:
        return _named(self.by)

    @property
    def in_words(self) -> str:
        """What must not change while its state lives; how far labels may fall back may."""
        by = repr(self.by) if isinstance(self.by, Windows) else self.name
        return f"by {by} ({self.label}), {replace(self.ends, slack=0)}"

    def problem(self, schema: pa.Schema | None) -> str | None:
        """Why records of these columns cannot be told apart, with the fix."""
        if schema is None:
            return None
        if isinstance(self.by, str) and self.by not in schema.names:
            return f"it has no column {self.by}, by which substreams are told apart; it has {', '.join(schema.names)}"
        try:
            type = self.type_in(schema)
        except StageFailed as error:
            return f"{self.name} cannot tell its substreams: it raised {error.problem} for a batch of no records"
        except FlowError as error:
            return str(error)
        if pa.types.is_null(type):
            return (
                f"{self.name} gives values of no type for a batch of no records, and all labels have the type of "
                f"those; give a pa.array(..., type), or name a column"
            )
        if not can_hash(type):
            return f"{self.name} is {type}; substreams are numbers, texts, dates, time stamps or decimals"
        if self.ends.mode == Mode.RISING and not (
            pa.types.is_integer(type) or pa.types.is_timestamp(type) or pa.types.is_date32(type)
        ):
            return f"{self.name} is {type}; substreams that rise are whole numbers, dates or time stamps"
        if self.label is not None and type != self.label:
            return (
                f"its {self.name} is {type}, and {self.label} where it is tracked: of another type it tells other "
                f"substreams; cast it before the first stage, or behind what is tracked"
            )
        return None

    def type_in(self, schema: pa.Schema) -> pa.DataType:
        """Of the labels of records of these columns. Raises FlowError, StageFailed."""
        if isinstance(self.by, str):
            return schema.field(self.by).type
        return self._by.labels(empty(schema), None).type

    def closes_problem(self, schema: pa.Schema) -> str | None:
        """Why it cannot be told from these columns that a record is the last of its substream."""
        closes = self.ends.closes
        if closes is None:
            return None
        if isinstance(closes, str):
            if closes not in schema.names:
                known = ", ".join(schema.names)
                return f"it has no column {closes}, by which a record closes its substream; it has {known}"
            type = schema.field(closes).type
            return None if is_flag(type) else f"its column {closes} is {type}; hr.marker needs one of True and False"
        try:
            self._closes.flags([empty(schema)])
        except StageFailed:
            return None  # it may look at the last record of a batch
        except FlowError as error:
            return str(error)
        return None

    def meaning(self) -> Meaning:
        ends = None if self.ends.closes is None else self._closes.flags
        unit = _NANOSECONDS if self.label is not None and is_nanoseconds(self.label) else 1
        slack = self.ends.slack * unit if self.ends.mode == Mode.RISING else None
        return Meaning(self._all_labels, ids_of, ends, slack, opens_anywhere=self.ends.mode == Mode.WHENEVER)

    def _all_labels(self, batches: Sequence[pa.RecordBatch]) -> pa.Array:
        if len(batches) == 1:
            return self.labels_of(batches[0])
        return pa.concat_arrays([self.labels_of(batch) for batch in batches])

    def labels_of(self, batch: pa.RecordBatch) -> pa.Array:
        return self._by.labels(batch, self.label)

    @cached_property
    def _by(self) -> Asked:
        return Asked(self.by, f"{self._at}tracked(by={self.name})")

    @cached_property
    def _closes(self) -> Asked:
        closes = self.ends.closes or ""
        return Asked(closes, f"{self._at}hr.marker({_named(closes)})")

    @property
    def _at(self) -> str:
        return f"{self.task}, " if self.task else ""


def _named(by: str | Labels) -> str:
    return by if isinstance(by, str) else str(getattr(by, "__name__", "a function"))


def ids_of(labels: pa.Array) -> Words:
    """0 for null."""
    if labels.type == pa.int64() and not labels.null_count:
        found: Words = hash_longs(labels.to_numpy())
    else:
        found = hash_rows(pa.record_batch([labels], names=["label"]), ["label"])
    if is_nanoseconds(labels.type):
        # Keys are hashed by microseconds, as metrics have them; each label is a substream of its own.
        rest = np.fmod(labels.view(pa.int64()).fill_null(0).to_numpy(), _NANOSECONDS)
        found = np.where(rest == 0, found, found ^ hash_longs(rest))
    found[found == 0] = 1
    if labels.null_count:
        found[np.asarray(labels.is_null())] = 0
    return found


@dataclass(frozen=True)
class Windows:
    """Tumbling windows of a time column, as labels: when each begins, in microseconds."""

    column: str
    size_us: int

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        if self.column not in batch.schema.names:
            raise FlowError(f"hr.windows: there is no column {self.column}; there are {', '.join(batch.schema.names)}")
        column, unit = batch.column(self.column), 1
        if not (pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type)):
            raise FlowError(
                f"hr.windows: column {self.column} is {column.type}; give time stamps, or whole numbers of microseconds"
            )
        if is_nanoseconds(column.type):
            column, unit = column.view(pa.int64()), _NANOSECONDS
        elif pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz), safe=False).view(pa.int64())
        times = np.asarray(column.cast(pa.int64()).fill_null(0))
        begins = times // (self.size_us * unit) * self.size_us
        return pa.array(begins, mask=np.asarray(column.is_null()) if column.null_count else None)

    @property
    def __name__(self) -> str:
        return f"windows of {self.column}"


def windows(column: str, seconds: float) -> Windows:
    """For `tracked(by=)`: substreams are tumbling windows of a time column, known by when they begin (microseconds)."""
    if not isinstance(column, str):
        raise FlowError(f"hr.windows({column!r}, {seconds!r}): name a column of times")
    if not _is_number(seconds) or not 1e-6 <= seconds <= _LONGEST_S:
        raise FlowError(f"hr.windows({column!r}, {seconds!r}): give a length above 0, in seconds")
    return Windows(column, round(seconds * 1e6))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def checked_tracking(node: str, tracked: Tracked) -> Tracked:
    """Raises FlowError that says what is wrong with it."""
    place = f"{node}.tracked"
    if not (isinstance(tracked.by, str) or callable(tracked.by)):
        raise FlowError(f"{place}(by={tracked.by!r}): name a column, or give a function of a batch that gives labels")
    if not isinstance(tracked.ends, Ends):
        raise FlowError(f"{place}(ends={tracked.ends!r}): use hr.marker, hr.rising or hr.whenever, or leave it out")
    if tracked.is_firm and tracked.ends.mode != Mode.RISING:
        raise FlowError(
            f'{place}(bound="firm"): what comes later is held back until a substream has ended, and substreams that '
            f'overlap would wait for each other; say ends=hr.rising() where they follow one another, or bound="soft"'
        )
    if tracked.is_firm and tracked.agents > 1:
        raise FlowError(f'{place}(bound="firm"): its ends are told in their order, which needs one agent')
    if tracked.consistent and (tracked.agents > 1 or tracked.ends.mode == Mode.WHENEVER):
        raise FlowError(f"{place}(consistent=True): one order needs one agent, and ends that are promised")
    if isinstance(tracked.agents, bool) or not isinstance(tracked.agents, int) or not 1 <= tracked.agents <= 1000:
        raise FlowError(f"{place}(agents={tracked.agents!r}): give a number from 1 to 1000")
    if not _is_number(tracked.flush_s) or not 0 <= tracked.flush_s <= 60:
        raise FlowError(f"{place}(flush_s={tracked.flush_s!r}): flush_s is from 0 to 60 seconds")
    if not _is_number(tracked.slack_s) or not 0 < tracked.slack_s <= 3600:
        raise FlowError(f"{place}(slack_s={tracked.slack_s!r}): slack_s is above 0, up to 3600 seconds")
    return tracked
