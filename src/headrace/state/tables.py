"""Named arrays as bytes, and what has changed in them since the version before.

State is a set of tables: arrays of numbers whose first axis grows. A *delta* holds the rows that changed since the
version before, so a commit costs what has changed. Rows are compared by fingerprint: no second copy of the state is
kept in memory. (A row of one word is its own fingerprint; of longer ones two in 2^64 look alike.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numba
import numpy as np
import numpy.typing as npt

Table: TypeAlias = npt.NDArray[Any]
Tables: TypeAlias = dict[str, Any]
"""Arrays by name; in a dump some may be `AppendOnly`."""

_WORD: Final = 8
"""Arrays begin at multiples of it."""


@dataclass(frozen=True)
class AppendOnly:
    """A table whose rows never change once they are there, as long as it keeps its name."""

    table: Table

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True)
class Delta:
    """New values of some rows of a table (`rows` is None for all of them), and the shape it has afterwards."""

    dtype: str
    shape: tuple[int, ...]
    rows: npt.NDArray[np.int64] | None
    data: Table

    def apply(self, old: Table | None) -> Table:
        if self.rows is None:
            return self.data.reshape(self.shape).copy()
        assert old is not None
        new = old
        if len(old) != self.shape[0]:
            new = np.zeros(self.shape, np.dtype(self.dtype))
            kept = min(len(old), len(new))
            new[:kept] = old[:kept]
        new[self.rows] = self.data.reshape(-1, *self.shape[1:])
        return new


def whole(table: Any) -> Delta:
    """All rows of a table."""
    array = table.table if isinstance(table, AppendOnly) else table
    return Delta(array.dtype.str, array.shape, None, array)


class Fingerprints:
    """What the rows of all tables were at the last commit."""

    def __init__(self) -> None:
        self._rows: dict[str, npt.NDArray[np.int64]] = {}
        self._shapes: dict[str, tuple[str, tuple[int, ...]]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._shapes)

    def changes(self, tables: Tables) -> dict[str, Delta]:
        """What turns the tables of the last call into these; they are the ones to compare with from now on."""
        found = {}
        for name, table in tables.items():
            delta = self._append(name, table.table) if isinstance(table, AppendOnly) else self._compare(name, table)
            if delta is not None:
                found[name] = delta
        for name in self._shapes.keys() - tables.keys():
            del self._shapes[name]
            self._rows.pop(name, None)
        return found

    def _append(self, name: str, table: Table) -> Delta | None:
        dtype, shape = table.dtype.str, table.shape
        had_dtype, had = self._shapes.get(name, ("", (0,)))
        self._shapes[name] = (dtype, shape)
        if had_dtype != dtype or had[1:] != shape[1:]:
            return Delta(dtype, shape, None, table)
        if had[0] == shape[0]:
            return None
        return Delta(dtype, shape, np.arange(had[0], shape[0]), table[had[0] :])

    def _compare(self, name: str, table: Table) -> Delta | None:
        dtype, shape = table.dtype.str, table.shape
        prints = fingerprints(table)
        had_shape, had = self._shapes.get(name), self._rows.get(name)
        self._shapes[name], self._rows[name] = (dtype, shape), prints
        if had is None or had_shape is None or had_shape[0] != dtype or had_shape[1][1:] != shape[1:]:
            return Delta(dtype, shape, None, table)
        both = min(len(had), len(prints))
        changed = np.flatnonzero(had[:both] != prints[:both])
        if not len(changed) and len(had) == len(prints):
            return None
        rows = np.concatenate([changed, np.arange(both, len(prints))])
        if 2 * len(rows) > len(prints):
            return Delta(dtype, shape, None, table)
        return Delta(dtype, shape, rows, table[rows])


def fingerprints(table: Table) -> npt.NDArray[np.int64]:
    """One word for each row."""
    if table.size == 0:
        return np.zeros(len(table), np.int64)
    rows = table.reshape(len(table), -1)
    words = rows.view(np.int64) if rows.dtype.itemsize == 8 else rows.astype(np.int64)
    if words.shape[1] == 1:
        return words[:, 0].copy()
    made: npt.NDArray[np.int64] = _fingerprints(np.ascontiguousarray(words))
    return made


@numba.njit(cache=True, nogil=True)
def _fingerprints(words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    made = np.empty(len(words), np.int64)
    for i in range(len(words)):
        h = np.uint64(0x9E3779B97F4A7C15)
        for j in range(words.shape[1]):
            h = (h ^ np.uint64(words[i, j])) * np.uint64(0xFF51AFD7ED558CCD)
            h = (h ^ (h >> np.uint64(32))) * np.uint64(0xC4CEB9FE1A85EC53)
            h = h ^ (h >> np.uint64(29))
        made[i] = np.int64(h)
    return made


def under(prefix: str, tables: Tables) -> Tables:
    """The tables of a part, under names of their own."""
    return {f"{prefix}/{name}": table for name, table in tables.items()}


def part_of(prefix: str, tables: Tables) -> Tables:
    """The inverse of `under`."""
    start = f"{prefix}/"
    return {name.removeprefix(start): table for name, table in tables.items() if name.startswith(start)}


def size_of(prefix: str, tables: Tables) -> int:
    """Bytes of the tables of a part."""
    arrays = [table.table if isinstance(table, AppendOnly) else table for table in part_of(prefix, tables).values()]
    return sum(int(array.nbytes) for array in arrays)


def plain(tables: Tables) -> dict[str, Table]:
    """Copies of the arrays, to restore from."""
    return {
        name: np.array(table.table if isinstance(table, AppendOnly) else table, order="C")
        for name, table in tables.items()
    }


# ---------------------------------------------------------------------- bytes


def encode(deltas: Mapping[str, Delta]) -> bytes:
    return b"".join(pieces(deltas))


def pieces(deltas: Mapping[str, Delta]) -> list[Any]:
    """What `encode` joins: an index, and all arrays behind it, as they are in memory."""
    index, arrays = list[list[Any]](), list[Any]()
    for name, delta in deltas.items():
        rows = None if delta.rows is None else _runs(delta.rows)
        index.append([name, delta.dtype, list(delta.shape), None if rows is None else rows.nbytes, delta.data.nbytes])
        for array in (rows, delta.data):
            if array is not None and array.size:
                arrays += [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, bytes(-array.nbytes % _WORD)]
    head = json.dumps(index).encode()
    head += b" " * (-len(head) % _WORD)
    return [len(head).to_bytes(_WORD, "little"), head, *arrays]


def decode(content: bytes) -> dict[str, Delta]:
    found: dict[str, Delta] = {}
    place = _WORD + int.from_bytes(content[:_WORD], "little")
    for name, dtype, shape, rows_size, size in json.loads(content[_WORD:place]):
        rows = None
        if rows_size is not None:
            rows = _unrolled(np.frombuffer(content, np.int64, rows_size // 8, place))
            place += rows_size
        of = np.dtype(dtype)
        found[name] = Delta(dtype, tuple(shape), rows, np.frombuffer(content, of, size // of.itemsize, place))
        place += size + -size % _WORD
    return found


def _runs(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Rising row numbers as (first, count) pairs: what is appended is one run."""
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    return np.stack([rows[starts], np.diff(starts, append=len(rows))], axis=1)


def _unrolled(runs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    first, count = runs.reshape(-1, 2).T
    ends = np.cumsum(count)
    return np.repeat(first - (ends - count), count) + np.arange(ends[-1] if len(ends) else 0)
