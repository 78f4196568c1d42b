"""What a record carries of the order of its source, in columns beside its own.

| column | what |
|---|---|
| sequence | the number of the record at its source |
| part | which child of that record it is, where a stage has made several of one |
| path | which data path of the task it came along, where there are several |
| tick, source | what it is ordered by before its sequence, where there are several sources |
| token | not of the order: what it is tracked by, through stages that give one record for each |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import FlowError

SEQUENCE: Final = "__headrace_sequence"
PART: Final = "__headrace_part"
PATH: Final = "__headrace_path"
TICK: Final = "__headrace_tick"
SOURCE: Final = "__headrace_source"
TOKEN: Final = "__headrace_token"
Ints = npt.NDArray[np.int64]
HIDDEN: Final = (TICK, SOURCE, SEQUENCE, PART, PATH, TOKEN)
_PART_BITS: Final = 62
AFTER_ALL: Final = (1 << 63) - (1 << 20)
"""From here on are the ticks of what stages give when all input has come and gone, each a tick of its own."""


@dataclass(frozen=True)
class Keys:
    """Which of the columns records have, but for the path, which changes on the way."""

    by_tick: bool = False
    has_parts: bool = False
    has_copies: bool = False
    """May a path have copies of one record: of a broadcast, or of branches that meet?"""
    is_relaxed: bool = False
    """May what comes late leave late? Then it gets another tick, and so needs one."""

    @property
    def names(self) -> tuple[str, ...]:
        """From the most to the least significant."""
        ticks = (TICK, SOURCE) if self.by_tick else (TICK,) if self.is_relaxed else ()
        return (*ticks, SEQUENCE, *((PART,) if self.has_parts else ()))

    @property
    def is_strict(self) -> bool:
        """Is there but one record of a tick on a path?"""
        return not (self.by_tick or self.has_parts or self.has_copies or self.is_relaxed)

    @property
    def tick(self) -> str:
        return TICK if self.by_tick or self.is_relaxed else SEQUENCE

    def fields(self, with_path: bool) -> list[pa.Field]:
        return [pa.field(name, pa.int64()) for name in (*self.names, *((PATH,) if with_path else ()))]


def hidden_in(batch: pa.RecordBatch) -> list[str]:
    return [name for name in batch.schema.names if name in HIDDEN]


def without(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The record's own columns."""
    names = hidden_in(batch)
    return batch.drop_columns(names) if names else batch


def only(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select(hidden_in(batch))


def joined(batch: pa.RecordBatch, hidden: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with what they carry."""
    fields = [*batch.schema, *hidden.schema]
    return pa.RecordBatch.from_arrays([*batch.columns, *hidden.columns], schema=pa.schema(fields))


def moved_last(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What a record carries after its own columns, in one order."""
    names = [name for name in batch.schema.names if name not in HIDDEN]
    return batch.select([*names, *(name for name in HIDDEN if name in batch.schema.names)])


def numbers(batch: pa.RecordBatch, name: str) -> Ints:
    found: Ints = batch.column(name).to_numpy(zero_copy_only=False)
    return found


def with_numbers(batch: pa.RecordBatch, name: str, values: Ints) -> pa.RecordBatch:
    """With these in a column that is there, or is a new one."""
    column = pa.array(values, pa.int64())
    if name in batch.schema.names:
        return batch.set_column(batch.schema.names.index(name), pa.field(name, pa.int64()), column)
    return moved_last(batch.append_column(pa.field(name, pa.int64()), column))


def part_width(stages: int) -> int:
    """How many bits of a part each of the stages has that may make several records of one."""
    return _PART_BITS // max(1, stages)


@dataclass
class Children:
    """Numbers the children of a record, over the batches that a stage gives for one batch."""

    keys: Keys
    shift: int
    width: int
    stage: str
    _last: tuple[pa.RecordBatch, int] | None = None
    """The batch before, and which child its last row is."""

    def numbered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows next to each other that carry the same are children of one record: in their order, 0, 1, 2, …"""
        count = batch.num_rows
        if not count:
            return batch
        sequence = numbers(batch, SEQUENCE)
        same = np.empty(count, np.bool_)
        same[0] = False
        np.equal(sequence[1:], sequence[:-1], out=same[1:])
        before = self._last
        if before is None and not same.any():
            self._last = batch, 0
            return batch
        for name in (*self.keys.names, PATH) if same.any() else ():
            if name != SEQUENCE and name in batch.schema.names:
                values = numbers(batch, name)
                same[1:] &= values[1:] == values[:-1]
        starts = np.flatnonzero(~same)
        ordinal = np.arange(count) - np.repeat(starts, np.diff(np.append(starts, count)))
        if before is not None and self._carried(before[0], -1) == self._carried(batch, 0):
            ordinal[: count if len(starts) == 1 else int(starts[1])] += before[1] + 1
        self._last = batch, int(ordinal[-1])
        return self._with_ordinals(batch, ordinal)

    def _carried(self, batch: pa.RecordBatch, row: int) -> list[int]:
        return [int(numbers(batch, name)[row]) for name in (*self.keys.names, PATH) if name in batch.schema.names]

    def _with_ordinals(self, batch: pa.RecordBatch, ordinal: Ints) -> pa.RecordBatch:
        most = int(ordinal.max())
        if most >> self.width:
            raise FlowError(
                f"stage {self.stage} made {most + 1:,} records of one; in this ordered stretch, with its stages that "
                f"may make several, {1 << self.width:,} are the most: split the work over fewer stages, or order before"
            )
        return batch if not most else with_numbers(batch, PART, numbers(batch, PART) + (ordinal << self.shift))
