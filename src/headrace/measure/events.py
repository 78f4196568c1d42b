"""Incoming rows as an event matrix: everything a stage must remember of an event, in 64-bit words.

Rows of the matrix: time, arrival number, flags (one bit for each filter passed and each argument that is not null),
a slot for each grouping, a word (or two) for each argument. Columns of the input that no metric uses never get here.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.language import evaluate
from headrace.language.nodes import Column, Expr
from headrace.measure.jit import Flags, Ints
from headrace.measure.keys import BytesIndex, RowIndex
from headrace.measure.plan import Stage, unique
from headrace.measure.steps import gather
from headrace.measure.words import Words, is_float, is_wide, order_codes, to_words
from headrace.state.tables import Tables, part_of, under

TIME_ROW, NUMBER_ROW, FLAG_ROW = 0, 1, 2
_FLAGS_A_ROW = 62
_FIRST_GROUP_SLOT = 1


class Grouping:
    """Slots for the groups of one GROUP BY; null is a group of its own. Slot 0 is nobody's."""

    def __init__(self, columns: tuple[str, ...]):
        self.columns = columns
        self._index: RowIndex | None = None

    @property
    def slots(self) -> int:
        """How many slots are in use, with slot 0."""
        return _FIRST_GROUP_SLOT + (1 if self._index is None else len(self._index))

    def dump(self) -> Tables:
        return {} if self._index is None else self._index.dump()

    def restore(self, tables: Tables) -> None:
        if tables:
            self._index = RowIndex(tables["keys"].shape[1])
            self._index.restore(tables)

    def slot_of(self, batch: pa.RecordBatch, texts: BytesIndex) -> Ints:
        if not self.columns:
            return np.full(batch.num_rows, _FIRST_GROUP_SLOT, np.int64)
        parts: list[Ints] = []
        nulls = np.zeros(batch.num_rows, np.int64)
        for i, name in enumerate(self.columns):
            column = batch.column(name)
            words = to_words(column, texts)
            parts.append(order_codes(words.word) if is_float(column.type) else words.word)
            if len(words.high):
                parts.append(words.high)
            nulls |= (1 - words.valid.astype(np.int64)) << i
        parts.append(nulls)
        if self._index is None:
            self._index = RowIndex(len(parts))
        return self._index.intern(np.ascontiguousarray(np.stack(parts, axis=1))) + _FIRST_GROUP_SLOT


class EventEncoder:
    """Knows where in the matrix everything is."""

    def __init__(self, stage: Stage, texts: BytesIndex):
        self._texts = texts
        self._filters: list[Expr] = unique(leaf.where for leaf in stage.leaves if leaf.where is not None)
        arguments = unique((m.argument, m.argument_type) for m in stage.metrics if m.argument is not None)
        self._arguments: list[Expr] = [argument for argument, _ in arguments]
        self._guards = [_guards(stage, argument) for argument in self._arguments]
        self.groupings = {g: Grouping(g) for g in unique(leaf.group_by for leaf in stage.leaves)}
        self._flag_rows = -(-(len(self._filters) + len(arguments)) // _FLAGS_A_ROW)
        self._first_slot_row = FLAG_ROW + self._flag_rows
        row = self._first_slot_row + len(self.groupings)
        self._word_rows: list[tuple[int, bool]] = []
        for _, type in arguments:
            self._word_rows.append((row, is_wide(type)))
            row += 2 if is_wide(type) else 1
        self.rows = row

    def dump(self) -> Tables:
        parts = [under(str(i), grouping.dump()) for i, grouping in enumerate(self.groupings.values())]
        return {name: table for part in parts for name, table in part.items()}

    def restore(self, tables: Tables) -> None:
        for i, grouping in enumerate(self.groupings.values()):
            grouping.restore(part_of(str(i), tables))

    def encode(self, batch: pa.RecordBatch, times: Ints, first_number: int) -> Ints:
        """The matrix of these rows, in their order."""
        count = batch.num_rows
        matrix = np.zeros((self.rows, count), np.int64)
        matrix[TIME_ROW] = times
        matrix[NUMBER_ROW] = np.arange(first_number, first_number + count)
        for i, condition in enumerate(self._filters):
            passed = pc.fill_null(evaluate(condition, batch).cast(pa.bool_()), False)
            self._set_flag(matrix, i, np.asarray(passed.to_numpy(zero_copy_only=False)).astype(np.int64))
        for i, grouping in enumerate(self.groupings.values()):
            matrix[self._first_slot_row + i] = grouping.slot_of(batch, self._texts)
        for i in range(len(self._arguments)):
            words = self._argument(i, batch, matrix)
            self._set_flag(matrix, len(self._filters) + i, words.valid.astype(np.int64))
            row, wide = self._word_rows[i]
            matrix[row] = words.word
            if wide:
                matrix[row + 1] = words.high
        return matrix

    def _argument(self, index: int, batch: pa.RecordBatch, matrix: Ints) -> Words:
        """The argument where an event counts: WHERE guards what it computes (a * a may overflow elsewhere)."""
        argument, guards = self._arguments[index], self._guards[index]
        if guards is None or isinstance(argument, Column):
            return to_words(evaluate(argument, batch), self._texts)
        counts = np.zeros(batch.num_rows, np.bool_)
        for where in guards:
            counts |= self.counted(matrix, where) != 0
        if not counts.any():
            nothing = np.zeros(batch.num_rows, np.int64)
            return Words(nothing, nothing.astype(np.uint8), nothing)
        if counts.all():
            return to_words(evaluate(argument, batch), self._texts)
        return to_words(evaluate(argument, batch.filter(pa.array(counts))), self._texts).spread(counts)

    @staticmethod
    def _set_flag(matrix: Ints, flag: int, values: Ints) -> None:
        matrix[FLAG_ROW + flag // _FLAGS_A_ROW] |= values << (flag % _FLAGS_A_ROW)

    @staticmethod
    def _flag(words: Ints, flag: int) -> Ints:
        return (words >> (flag % _FLAGS_A_ROW)) & 1

    def slot_row(self, group_by: tuple[str, ...]) -> int:
        return self._first_slot_row + list(self.groupings).index(group_by)

    def counted(self, matrix: Ints, where: Expr | None) -> Ints:
        """1 where the event passes the filter, else 0."""
        if where is None:
            return np.ones(matrix.shape[1], np.int64)
        flag = self._filters.index(where)
        return self._flag(matrix[FLAG_ROW + flag // _FLAGS_A_ROW], flag)

    def values(self, argument: Expr | None, source: Ints, parts: tuple[Ints, Ints, Ints]) -> Words:
        """The argument of the events that the steps are about."""
        if argument is None:
            return Words(source, np.ones(len(source), np.uint8))
        index = self._arguments.index(argument)
        flag = len(self._filters) + index
        flags = gather(FLAG_ROW + flag // _FLAGS_A_ROW, source, *parts)
        valid: Flags = self._flag(flags, flag).astype(np.uint8)
        row, wide = self._word_rows[index]
        word = gather(row, source, *parts)
        return Words(word, valid, gather(row + 1, source, *parts)) if wide else Words(word, valid)


def _guards(stage: Stage, argument: Expr) -> list[Expr] | None:
    """The filters of all leaves that use the argument; None if one of them has none."""
    filters = [leaf.where for leaf in stage.leaves if any(metric.argument == argument for metric in leaf.metrics)]
    return None if None in filters else [where for where in filters if where is not None]
