"""Groups that are in memory for a while, where the state of all others is in a database on disk.

The database has the state of every group under a slot that stays; in memory a group has a slot for as long as it is
there. Groups come when rows or leaving events touch them, and go back together.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.measure.keys import BytesIndex, RowIndex
from headrace.measure.words import is_float, is_text, order_codes, to_words
from headrace.model.jit import Ints
from headrace.state.ragged import Ragged, joined, split
from headrace.state.rocks import RocksGroups
from headrace.state.tables import Tables

_FIRST_SLOT = 1  # slot 0 is nobody's
_NO_TEXT = -1


class HasGroups(Protocol):
    """Whatever keeps state by slots and can give it away."""

    def take_groups(self, slots: Ints) -> list[Ragged]: ...

    def put_groups(self, slots: Ints, groups: Sequence[Ragged]) -> None: ...

    def clear_groups(self) -> None: ...


class Residents:
    """The groups of one owner that are in memory."""

    def __init__(self, database: RocksGroups, table: int, parts: int, owner: HasGroups):
        """`parts`: how many runs of words the owner gives for each group."""
        self.database = database
        self._table = table
        self._parts = parts
        self._owner = owner
        self._index = RowIndex(1)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def slots(self) -> int:
        """How many slots are in use in memory, with slot 0."""
        return _FIRST_SLOT + len(self._index)

    def local(self, slots: Ints) -> Ints:
        """Where these groups are in memory; those that are not yet there come."""
        before = len(self._index)
        found = self._index.intern(np.ascontiguousarray(slots.reshape(-1, 1))) + _FIRST_SLOT
        if len(self._index) > before:
            new = self._index.keys[before:, 0].copy()
            places = np.arange(before, len(self._index)) + _FIRST_SLOT
            self._owner.put_groups(places, split(self.database.fetch(self._table, new), self._parts))
        return found

    def fetched(self, slots: Ints) -> Ragged:
        """What the database has of groups, without making them residents."""
        return self.database.fetch(self._table, slots)

    def go_back(self) -> None:
        """All groups to the database; empty ones are deleted there."""
        if len(self._index):
            slots = self._index.keys[:, 0].copy()
            groups = self._owner.take_groups(np.arange(len(slots)) + _FIRST_SLOT)
            self.database.store(self._table, slots, joined(groups))
        self._owner.clear_groups()
        self._index = RowIndex(1)


class StoredGrouping:
    """Slots for the groups of one GROUP BY, by keys in the database."""

    def __init__(self, columns: tuple[str, ...], number: int, database: RocksGroups):
        self.columns = columns
        self._number = number
        self.database = database

    @property
    def slots(self) -> int:
        """How many slots are in use, with slot 0."""
        return _FIRST_SLOT + (self.database.count(self._number) if self.columns else 1)

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return self.slots - _FIRST_SLOT

    def dump(self) -> Tables:
        return {}

    def restore(self, tables: Tables) -> None:
        pass

    def slot_of(self, batch: pa.RecordBatch, texts: BytesIndex) -> Ints:
        if not self.columns:
            return np.full(batch.num_rows, _FIRST_SLOT, np.int64)
        # Codes of this batch only: the strings themselves are in the database.
        strings, nulls = BytesIndex(), np.zeros(batch.num_rows, np.int64)
        words: list[Ints] = []
        texts_at: list[int] = []
        for i, name in enumerate(self.columns):
            column = batch.column(name)
            found = to_words(column, strings)
            word = order_codes(found.word) if is_float(column.type) else found.word
            if is_text(column.type):
                texts_at.append(len(words))
                word = np.where(found.valid != 0, word, _NO_TEXT)
            words.append(word)
            if len(found.high):
                words.append(found.high)
            nulls |= (1 - found.valid.astype(np.int64)) << i
        index = RowIndex(len(words) + 1)
        codes = index.intern(np.ascontiguousarray(np.stack([*words, nulls], axis=1)))
        return self.database.slots_of(self._number, _key_bytes(index.keys, texts_at, strings))[codes]


def _key_bytes(rows: Ints, texts_at: Sequence[int], strings: BytesIndex) -> list[bytes]:
    """A text for each key: equal keys have equal ones, in every batch."""
    if not texts_at:
        width = 8 * rows.shape[1]
        content = np.ascontiguousarray(rows).tobytes()
        return [content[at : at + width] for at in range(0, len(content), width)]
    plain = np.ascontiguousarray(np.delete(rows, texts_at, axis=1))
    width, content = 8 * plain.shape[1], plain.tobytes()
    arena, offsets = strings.arena.tobytes(), strings.offsets.tolist()
    keys = []
    for i, codes in enumerate(rows[:, list(texts_at)].tolist()):
        parts = [arena[offsets[code] : offsets[code + 1]] if code != _NO_TEXT else b"" for code in codes]
        lengths = struct.pack(f"<{len(parts)}i", *map(len, parts))
        keys.append(content[i * width : (i + 1) * width] + lengths + b"".join(parts))
    return keys
