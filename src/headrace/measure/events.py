"""Incoming rows as an event matrix: everything a stage must remember of an event, in 64-bit words.

Rows of the matrix: time, arrival number, flags (one bit for each filter passed and each argument that is not null),
a slot for each grouping, a word (or two) for each argument. Columns of the input that no metric uses never get here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.language import evaluate, format_expr
from headrace.language.nodes import Column, Expr
from headrace.measure.keys import BytesIndex, RowIndex
from headrace.measure.plan import Stage, unique
from headrace.measure.residents import StoredGrouping
from headrace.measure.steps import NEVER, Steps
from headrace.measure.words import (
    Words,
    all_valid,
    from_words,
    is_float,
    is_text,
    is_wide,
    is_wide_name,
    order_codes,
    order_codes_back,
    to_words,
    type_named,
)
from headrace.model.jit import Flags, Ints, grown, kernel
from headrace.state.rocks import RocksGroups
from headrace.state.tables import Tables, part_of, under

TIME_ROW, NUMBER_ROW, FLAG_ROW = 0, 1, 2
_FLAGS_A_ROW = 62
_FEW_GROUPS = 1024
_TEXT_NAMES = ("string", "large_string", "binary", "large_binary")
_NO_SLOTS: Ints = np.zeros(0, np.int64)
_FIRST_GROUP_SLOT = 1


@kernel
def _raise_to(newest: Ints, slots: Ints, times: Ints) -> None:
    for i in range(len(slots)):
        newest[slots[i]] = max(newest[slots[i]], times[i])


@kernel
def _raise_flag(row: Ints, values: Flags, flag: int) -> None:
    for i in range(len(row)):
        if values[i]:
            row[i] |= 1 << flag


class Grouping:
    """Slots for the groups of one GROUP BY; null is a group of its own. Slot 0 is nobody's."""

    def __init__(self, columns: tuple[str, ...], types: Mapping[str, pa.DataType] | None = None):
        """Types are needed to get values of columns back (`column`) only."""
        self.columns = columns
        self._types = types or {}
        self._index: RowIndex | None = None
        self._newest: Ints = np.zeros(0, np.int64)

    @property
    def slots(self) -> int:
        """How many slots are in use, with slot 0."""
        return _FIRST_GROUP_SLOT + (1 if self._index is None else len(self._index))

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return 1 if self._index is None else self._index.in_use

    def dump(self) -> Tables:
        if self._index is None:
            return {}
        self._newest = grown(self._newest, self.slots, fill=NEVER)
        return {**self._index.dump(), "newest": self._newest[: self.slots]}

    def restore(self, tables: Tables) -> None:
        if tables:
            self._index = RowIndex(tables["keys"].shape[1])
            self._index.restore(tables)
            self._newest = tables["newest"]

    def touch(self, slots: Ints, times: Ints) -> None:
        """Groups had events at these times."""
        self._newest = grown(self._newest, self.slots, fill=NEVER)
        _raise_to(self._newest, slots, times)

    def release_before(self, time: int) -> Ints:
        """Forget groups all of whose events are before this time, if those are many; their slots, which others get."""
        if self._index is None:
            return _NO_SLOTS
        gone = np.flatnonzero((self._newest < time) & (self._newest != NEVER))
        if len(gone) < max(_FEW_GROUPS, self._index.in_use // 4):
            return _NO_SLOTS
        self._newest[gone] = NEVER
        self._index.release(gone - _FIRST_GROUP_SLOT)
        return gone

    def texts_at(self) -> list[int]:
        """Which words of a key stand for strings."""
        found, at = [], 0
        for column in self.columns:
            if is_text(self._types[column]):
                found.append(at)
            at += 1 + is_wide(self._types[column])
        return found

    def text_codes(self) -> Ints:
        """The strings of all keys in use."""
        if self._index is None:
            return _NO_SLOTS
        return np.unique(self._index.keys[self._index.live != 0][:, self.texts_at()])

    def rename_texts(self, new: Ints) -> None:
        """The strings have other codes from now on."""
        if self._index is not None:
            keys = self._index.keys.copy()
            for at in self.texts_at():
                keys[:, at] = new[keys[:, at]]
            self._index.replace(keys)

    def column(self, name: str, slots: Ints, texts: BytesIndex) -> pa.Array:
        """The values of one of the columns for these slots."""
        if not len(slots):
            return pa.nulls(0, self._types[name])  # there may have been no event yet
        assert self._index is not None
        at, rows = 0, self._index.keys[slots - _FIRST_GROUP_SLOT]
        for i, column in enumerate(self.columns):
            type = self._types[column]
            if column == name:
                valid: Flags = (1 - ((rows[:, -1] >> i) & 1)).astype(np.uint8)
                word = order_codes_back(rows[:, at]) if is_float(type) else rows[:, at].copy()
                high = rows[:, at + 1].copy() if is_wide(type) else np.zeros(0, np.int64)
                return from_words(Words(word, valid, high), type, texts)
            at += 1 + is_wide(type)
        raise KeyError(name)

    def slot_of(self, batch: pa.RecordBatch, texts: BytesIndex) -> Ints:
        if not self.columns:
            return np.full(batch.num_rows, _FIRST_GROUP_SLOT, np.int64)
        parts: list[Ints] = []
        nulls: Ints | None = None
        for i, name in enumerate(self.columns):
            column = batch.column(name)
            words = to_words(column, texts)
            parts.append(order_codes(words.word) if is_float(column.type) else words.word)
            if len(words.high):
                parts.append(words.high)
            if column.null_count:
                own = (1 - words.valid.astype(np.int64)) << i
                nulls = own if nulls is None else nulls | own
        if self._index is None:
            self._index = RowIndex(len(parts) + 1)
        keys = np.zeros((batch.num_rows, len(parts) + 1), np.int64)
        for i, part in enumerate(parts):
            keys[:, i] = part
        if nulls is not None:
            keys[:, -1] = nulls
        return self._index.intern(keys) + _FIRST_GROUP_SLOT


@dataclass(frozen=True)
class EventLayout:
    """What the rows of a matrix of events are; kept with chunks, so that later metrics can read them."""

    filters: tuple[str, ...]
    arguments: tuple[tuple[str, str], ...]
    """Expressions and their types, in the order of their rows."""
    groupings: tuple[tuple[str, ...], ...]
    guards: tuple[tuple[str, ...] | None, ...]
    """For each argument the filters one of which an event passed, or it was not computed; None: it always was."""
    keys: tuple[tuple[str, str], ...] = ()
    """The columns of groupings and their types."""

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> EventLayout:
        return cls(
            tuple(found["filters"]),
            tuple((argument, type) for argument, type in found["arguments"]),
            tuple(tuple(columns) for columns in found["groupings"]),
            tuple(None if guards is None else tuple(guards) for guards in found.get("guards", ())),
            tuple((column, type) for column, type in found.get("keys", ())),
        )

    @property
    def key_types(self) -> dict[str, pa.DataType]:
        return {column: type_named(type) for column, type in self.keys}

    @property
    def flag_rows(self) -> int:
        return -(-(len(self.filters) + len(self.arguments)) // _FLAGS_A_ROW)

    @property
    def word_rows(self) -> list[tuple[int, bool]]:
        """Where each argument is, and whether it takes two rows."""
        row, found = FLAG_ROW + self.flag_rows + len(self.groupings), []
        for _, type in self.arguments:
            wide = is_wide_name(type)
            found.append((row, wide))
            row += 1 + wide
        return found

    @property
    def rows(self) -> int:
        wide = sum(1 + wide for _, wide in self.word_rows)
        return FLAG_ROW + self.flag_rows + len(self.groupings) + wide

    @property
    def has_texts(self) -> bool:
        """Do the events themselves have codes of strings?"""
        return any(type in _TEXT_NAMES for _, type in self.arguments)

    def slot_row(self, group_by: tuple[str, ...]) -> int:
        return FLAG_ROW + self.flag_rows + self.groupings.index(group_by)

    def argument(self, index: int, matrix: Ints) -> Words:
        """The words of an argument of events."""
        flag = len(self.filters) + index
        valid: Flags = flag_of(matrix[FLAG_ROW + flag // _FLAGS_A_ROW], flag).astype(np.uint8)
        row, wide = self.word_rows[index]
        return Words(matrix[row], valid, matrix[row + 1]) if wide else Words(matrix[row], valid)


def flag_of(words: Ints, flag: int) -> Ints:
    return (words >> (flag % _FLAGS_A_ROW)) & 1


class EventEncoder:
    """Knows where in the matrix everything is."""

    def __init__(
        self,
        stage: Stage,
        texts: BytesIndex,
        columns: Mapping[str, pa.DataType] | None = None,
        database: RocksGroups | None = None,
    ):
        """`columns`, with their types, are remembered as they came, for metrics that do not exist yet.

        `database`: where the keys of groups are, if not in memory.
        """
        self.texts = texts
        self.columns = {name: _of_values(type) for name, type in (columns or {}).items()}
        self._filters: list[Expr] = unique(leaf.where for leaf in stage.leaves if leaf.where is not None)
        arguments = unique((m.argument, m.argument_type) for m in stage.metrics if m.argument is not None)
        self.groupings: dict[tuple[str, ...], Grouping | StoredGrouping] = {}
        for number, group_by in enumerate(unique(leaf.group_by for leaf in stage.leaves)):
            self.groupings[group_by] = (
                Grouping(group_by, self.columns) if database is None else StoredGrouping(group_by, number, database)
            )
        self.former: dict[tuple[str, ...], Grouping] = {}
        """Groupings of metrics that are gone, as long as events that are remembered have slots of theirs."""
        known = {argument.name for argument, _ in arguments if isinstance(argument, Column)}
        known.update(name for columns in self.groupings for name in columns)
        arguments += [(Column(name), type) for name, type in self.columns.items() if name not in known]
        self._arguments: list[Expr] = [argument for argument, _ in arguments]
        self._guards = [_guards(stage, argument) for argument in self._arguments]
        self.layout = EventLayout(
            tuple(format_expr(where) for where in self._filters),
            tuple((format_expr(argument), str(type)) for argument, type in arguments),
            tuple(self.groupings),
            tuple(None if guards is None else tuple(map(format_expr, guards)) for guards in self._guards),
            tuple((name, str(type)) for name, type in self.columns.items() if any(name in by for by in self.groupings)),
        )
        self._word_rows = self.layout.word_rows
        self._slot_rows = {columns: self.layout.slot_row(columns) for columns in self.groupings}
        self.rows = self.layout.rows

    def dump(self) -> Tables:
        groupings = {**self.former, **self.groupings}
        parts = [under(_group_name(columns), grouping.dump()) for columns, grouping in groupings.items()]
        return {name: table for part in parts for name, table in part.items()}

    def restore(self, tables: Tables, layouts: Sequence[EventLayout]) -> None:
        """`layouts` are those of the events that are remembered."""
        for layout in layouts:
            gone = [columns for columns in layout.groupings if columns not in self.groupings]
            types = {**self.columns, **layout.key_types}
            self.former.update({columns: Grouping(columns, types) for columns in gone})
        for columns, grouping in {**self.former, **self.groupings}.items():
            grouping.restore(part_of(_group_name(columns), tables))

    def keep_former(self, layouts: Sequence[EventLayout]) -> None:
        """Events have these layouts only."""
        used = {columns for layout in layouts for columns in layout.groupings}
        self.former = {columns: grouping for columns, grouping in self.former.items() if columns in used}

    def slots(self, batch: pa.RecordBatch) -> dict[tuple[str, ...], Ints]:
        """The groups of these rows, for each grouping."""
        return {columns: grouping.slot_of(batch, self.texts) for columns, grouping in self.groupings.items()}

    def encode(
        self, batch: pa.RecordBatch, times: Ints, numbers: Ints, slots: Mapping[tuple[str, ...], Ints] | None = None
    ) -> Ints:
        """The matrix of these rows, in their order."""
        matrix = np.zeros((self.rows, batch.num_rows), np.int64)
        matrix[TIME_ROW] = times
        matrix[NUMBER_ROW] = numbers
        for i, condition in enumerate(self._filters):
            passed = pc.fill_null(evaluate(condition, batch).cast(pa.bool_()), False)
            self._set_flag(matrix, i, np.asarray(passed.to_numpy(zero_copy_only=False)))
        for columns, slot in (slots if slots is not None else self.slots(batch)).items():
            matrix[self._slot_rows[columns]] = slot
        for i in range(len(self._arguments)):
            words = self._argument(i, batch, matrix)
            self._set_flag(matrix, len(self._filters) + i, words.valid)
            row, wide = self._word_rows[i]
            matrix[row] = words.word
            if wide:
                matrix[row + 1] = words.high
        return matrix

    def _argument(self, index: int, batch: pa.RecordBatch, matrix: Ints) -> Words:
        """The argument where an event counts: WHERE guards what it computes (a * a may overflow elsewhere)."""
        argument, guards = self._arguments[index], self._guards[index]
        if guards is None:
            return to_words(evaluate(argument, batch), self.texts)
        counts = np.zeros(batch.num_rows, np.bool_)
        for where in guards:
            counts |= self.counted(matrix, where) != 0
        if not counts.any():
            nothing = np.zeros(batch.num_rows, np.int64)
            return Words(nothing, nothing.astype(np.uint8), nothing)
        if counts.all():
            return to_words(evaluate(argument, batch), self.texts)
        return to_words(evaluate(argument, batch.filter(pa.array(counts))), self.texts).spread(counts)

    @staticmethod
    def _set_flag(matrix: Ints, flag: int, values: npt.NDArray[np.uint8] | npt.NDArray[np.bool_]) -> None:
        _raise_flag(matrix[FLAG_ROW + flag // _FLAGS_A_ROW], values.view(np.uint8), flag % _FLAGS_A_ROW)

    def slot_row(self, group_by: tuple[str, ...]) -> int:
        return self._slot_rows[group_by]

    def counted(self, matrix: Ints, where: Expr | None) -> Ints:
        """1 where the event passes the filter, else 0."""
        if where is None:
            return np.ones(matrix.shape[1], np.int64)
        flag = self._filters.index(where)
        return flag_of(matrix[FLAG_ROW + flag // _FLAGS_A_ROW], flag)

    def values(self, argument: Expr | None, steps: Steps) -> Words:
        """The argument of the events that the steps are about."""
        if argument is None:
            return Words(steps.source, all_valid(len(steps)))
        index = self._arguments.index(argument)
        flag = len(self._filters) + index
        row, wide = self._word_rows[index]
        word, valid = steps.argument(row, FLAG_ROW + flag // _FLAGS_A_ROW, flag % _FLAGS_A_ROW)
        return Words(word, valid, steps.gathered(row + 1)) if wide else Words(word, valid)


def _of_values(type: pa.DataType) -> pa.DataType:
    return type.value_type if pa.types.is_dictionary(type) else type


def _group_name(columns: tuple[str, ...]) -> str:
    return json.dumps(columns).replace("/", "\\u002f")  # a slash parts the names of tables


def _guards(stage: Stage, argument: Expr) -> list[Expr] | None:
    """The filters of all leaves that use the argument; None if one of them has none, or nothing is computed."""
    if isinstance(argument, Column):
        return None
    filters = [leaf.where for leaf in stage.leaves if any(metric.argument == argument for metric in leaf.metrics)]
    return None if None in filters else [where for where in filters if where is not None]
