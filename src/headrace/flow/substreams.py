"""What substreams a flow has: which records belong to one, and who promises its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import FlowError
from headrace.flow.hashing import can_hash, hash_longs, hash_rows
from headrace.model.failures import problem_of
from headrace.track.labels import Meaning
from headrace.track.terms import Mode
from headrace.track.tokens import Words

Labels = Callable[[pa.RecordBatch], Any]
FLUSH_S: Final = 0.005


@dataclass(frozen=True)
class Ends:
    """How the end of a substream is promised."""

    mode: Mode = Mode.AT_THE_END
    closes: str | Labels | None = None
    slack: int = 0

    def __str__(self) -> str:
        if self.mode == Mode.RISING:
            return "ended by higher ones" + (f", {self.slack} behind" if self.slack else "")
        closes = self.closes if isinstance(self.closes, str) else getattr(self.closes, "__name__", "a function")
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

    `slack`: how far one may fall behind the highest, in whole numbers, days or microseconds.
    """
    if isinstance(slack, bool) or not isinstance(slack, int) or slack < 0:
        raise FlowError(f"hr.rising({slack!r}): give how far labels may fall back, a whole number from 0 on")
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

    @property
    def name(self) -> str:
        return self.by if isinstance(self.by, str) else str(getattr(self.by, "__name__", "a function"))

    def problem(self, schema: pa.Schema | None) -> str | None:
        """Why records of these columns cannot be told apart, with the fix."""
        if schema is None:
            return None
        if isinstance(self.by, str) and self.by not in schema.names:
            return f"it has no column {self.by}, by which substreams are told apart; it has {', '.join(schema.names)}"
        try:
            type = self.type_in(schema)
        except Exception as error:
            return f"{self.name} cannot tell its substreams: it raised {problem_of(error)} for a batch of no records"
        if not can_hash(type):
            return f"{self.name} is {type}; substreams are numbers, texts, dates, time stamps or decimals"
        if self.ends.mode == Mode.RISING and not (
            pa.types.is_integer(type) or pa.types.is_timestamp(type) or pa.types.is_date32(type)
        ):
            return f"{self.name} is {type}; substreams that rise are whole numbers, dates or time stamps"
        return None

    def type_in(self, schema: pa.Schema) -> pa.DataType:
        if isinstance(self.by, str):
            return schema.field(self.by).type
        nothing = pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)
        return _labels(self.by, nothing).type

    def closes_in(self, schema: pa.Schema) -> bool:
        """Can it be told from these columns that a record is the last of its substream?"""
        return not isinstance(self.ends.closes, str) or self.ends.closes in schema.names

    def meaning(self) -> Meaning:
        closes = self.ends.closes
        ends = None if closes is None else lambda batches: _closing(closes, batches)
        slack = self.ends.slack if self.ends.mode == Mode.RISING else None
        return Meaning(self._all_labels, ids_of, ends, slack, opens_anywhere=self.ends.mode == Mode.WHENEVER)

    def _all_labels(self, batches: Sequence[pa.RecordBatch]) -> pa.Array:
        if len(batches) == 1:
            return self.labels_of(batches[0])
        return pa.concat_arrays([self.labels_of(batch) for batch in batches])

    def labels_of(self, batch: pa.RecordBatch) -> pa.Array:
        return batch.column(self.by) if isinstance(self.by, str) else _labels(self.by, batch)


def _labels(by: Labels, batch: pa.RecordBatch) -> pa.Array:
    found = by(batch)
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if not isinstance(found, pa.Array):
        found = pa.array(found)
    if len(found) != batch.num_rows:
        raise FlowError(f"{by!r} gave {len(found)} labels for {batch.num_rows} records")
    if pa.types.is_boolean(found.type):
        # A predicate: what does not fulfil it belongs to no substream.
        return pc.if_else(found, found, pa.scalar(None, pa.bool_()))
    return found


def _closing(closes: str | Labels, batches: Sequence[pa.RecordBatch]) -> npt.NDArray[np.bool_]:
    if isinstance(closes, str):
        columns = [batch.column(closes) for batch in batches]
        found = columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
        found = found if pa.types.is_boolean(found.type) else found.cast(pa.bool_())
    else:
        parts = [closes(batch) for batch in batches]
        found = pa.chunked_array([pa.array(part, pa.bool_()) for part in parts], pa.bool_()).combine_chunks()
    flags: npt.NDArray[np.bool_] = np.asarray(found.fill_null(False) if found.null_count else found).astype(np.bool_)
    return flags


def ids_of(labels: pa.Array) -> Words:
    """0 for null."""
    if labels.type == pa.int64() and not labels.null_count:
        found: Words = hash_longs(labels.to_numpy())
    else:
        found = hash_rows(pa.record_batch([labels], names=["label"]), ["label"])
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
        column = batch.column(self.column)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz), safe=False).view(pa.int64())
        times = column.cast(pa.int64())
        return (
            pc.multiply(pc.floor_divide(times, self.size_us), self.size_us)
            if hasattr(pc, "floor_divide")
            else (
                pa.array(
                    np.asarray(times.fill_null(0)) // self.size_us * self.size_us, mask=np.asarray(times.is_null())
                )
            )
        )

    @property
    def __name__(self) -> str:
        return f"windows of {self.column}"


def windows(column: str, seconds: float) -> Windows:
    """For `tracked(by=)`: substreams are tumbling windows of a time column, known by when they begin (microseconds)."""
    size = round(seconds * 1e6)
    if size < 1:
        raise FlowError(f"hr.windows({column!r}, {seconds!r}): give a length above 0, in seconds")
    return Windows(column, size)


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
    if not 0 <= tracked.flush_s <= 60 or not 0 < tracked.slack_s <= 3600:
        raise FlowError(f"{place}: flush_s is from 0 to 60 seconds, slack_s above 0")
    return tracked
