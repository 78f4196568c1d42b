"""Dense codes for keys: the first key seen is 0, the next new one 1, and so on.

Open addressing in Numba over arrays. Two kinds share one idea: rows of int64 words, and byte strings.
Equal keys get equal codes forever; the key of a code can be read back.
"""

from __future__ import annotations

import numpy as np

from headrace.measure.jit import Bytes, Ints, Word, grown, kernel
from headrace.state.tables import AppendOnly, Tables

_EMPTY = -1


@kernel
def mix(value: Word) -> Word:
    """Spread the bits of a word (the finalizer of splitmix64)."""
    z = np.uint64(value)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def _intern_rows(rows: Ints, codes: Ints, table: Ints, keys: Ints, used: int) -> int:
    mask = np.uint64(len(table) - 1)
    width = rows.shape[1]
    for i in range(len(rows)):
        h = np.uint64(0x9E3779B97F4A7C15)
        for j in range(width):
            h = mix(np.int64(h) ^ rows[i, j]) + np.uint64(0x9E3779B97F4A7C15)
        at = h & mask
        while True:
            code = table[at]
            if code < 0:
                for j in range(width):
                    keys[used, j] = rows[i, j]
                table[at] = used
                codes[i] = used
                used += 1
                break
            same = True
            for j in range(width):
                if keys[code, j] != rows[i, j]:
                    same = False
                    break
            if same:
                codes[i] = code
                break
            at = (at + np.uint64(1)) & mask
    return used


class RowIndex:
    """Codes for rows of `width` words."""

    def __init__(self, width: int):
        self._keys: Ints = np.zeros((64, width), np.int64)
        self._table: Ints = np.full(256, _EMPTY, np.int64)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    @property
    def keys(self) -> Ints:
        """The key of every code, one row each."""
        return self._keys[: self._used]

    def intern(self, rows: Ints) -> Ints:
        """The code of every row; rows not seen before get new codes in the order they come."""
        codes = np.empty(len(rows), np.int64)
        self._reserve(self._used + len(rows))
        self._used = int(_intern_rows(rows, codes, self._table, self._keys, self._used))
        return codes

    def dump(self) -> Tables:
        return {"keys": self.keys}

    def restore(self, tables: Tables) -> None:
        self._keys = tables["keys"]
        self._used = len(self._keys)
        self._table = np.full(256, _EMPTY, np.int64)
        self._rehash(self._used)

    def _reserve(self, count: int) -> None:
        self._keys = grown(self._keys, count)
        if 2 * count > len(self._table):
            self._rehash(count)

    def _rehash(self, count: int) -> None:
        self._table = np.full(_power_of_two(max(64, 4 * count)), _EMPTY, np.int64)
        rows = self.keys.copy()
        _intern_rows(rows, np.empty(len(rows), np.int64), self._table, self._keys, 0)


def _power_of_two(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


@kernel
def _intern_bytes(
    starts: Ints,
    ends: Ints,
    data: Bytes,
    codes: Ints,
    table: Ints,
    hashes: Ints,
    offsets: Ints,
    arena: Bytes,
    used: int,
) -> int:
    mask = np.uint64(len(table) - 1)
    for i in range(len(starts)):
        start, length = starts[i], ends[i] - starts[i]
        h = np.uint64(0xCBF29CE484222325)
        for j in range(length):
            h = (h ^ np.uint64(data[start + j])) * np.uint64(0x100000001B3)
        h = mix(np.int64(h))
        at = h & mask
        while True:
            code = table[at]
            if code < 0:
                base = offsets[used]
                for j in range(length):
                    arena[base + j] = data[start + j]
                offsets[used + 1] = base + length
                hashes[used] = np.int64(h)
                table[at] = used
                codes[i] = used
                used += 1
                break
            if hashes[code] == np.int64(h) and offsets[code + 1] - offsets[code] == length:
                base = offsets[code]
                same = True
                for j in range(length):
                    if arena[base + j] != data[start + j]:
                        same = False
                        break
                if same:
                    codes[i] = code
                    break
            at = (at + np.uint64(1)) & mask
    return used


@kernel
def _rehash(hashes: Ints, used: int, table: Ints) -> None:
    mask = np.uint64(len(table) - 1)
    for code in range(used):
        at = np.uint64(hashes[code]) & mask
        while table[at] >= 0:
            at = (at + np.uint64(1)) & mask
        table[at] = code


class BytesIndex:
    """Codes for byte strings; `offsets` and `arena` hold the string of every code."""

    def __init__(self) -> None:
        self.offsets: Ints = np.zeros(65, np.int64)
        self.arena: Bytes = np.zeros(1024, np.uint8)
        self._hashes: Ints = np.zeros(64, np.int64)
        self._table: Ints = np.full(256, _EMPTY, np.int64)
        self._used = 0

    def __len__(self) -> int:
        return self._used

    def intern(self, starts: Ints, ends: Ints, data: Bytes) -> Ints:
        """The code of every string data[start:end]."""
        codes = np.empty(len(starts), np.int64)
        if len(starts) == 0:
            return codes
        self._reserve(self._used + len(starts), int((ends - starts).sum()))
        self._used = int(
            _intern_bytes(starts, ends, data, codes, self._table, self._hashes, self.offsets, self.arena, self._used)
        )
        return codes

    def dump(self) -> Tables:
        offsets = self.offsets[: self._used + 1]
        return {"offsets": AppendOnly(offsets), "arena": AppendOnly(self.arena[: offsets[-1]])}

    def restore(self, tables: Tables) -> None:
        self.__init__()  # type: ignore[misc]
        self.intern(tables["offsets"][:-1], tables["offsets"][1:], tables["arena"])

    def _reserve(self, count: int, size_bytes: int) -> None:
        self.offsets = grown(self.offsets, count + 1)
        self._hashes = grown(self._hashes, count)
        self.arena = grown(self.arena, int(self.offsets[self._used]) + size_bytes)
        if 2 * count > len(self._table):
            self._table = np.full(_power_of_two(4 * count), _EMPTY, np.int64)
            _rehash(self._hashes, self._used, self._table)


@kernel
def compare_codes(a: int, b: int, by_bytes: bool, offsets: Ints, arena: Bytes) -> int:
    """-1, 0 or 1: codes as numbers, or, `by_bytes`, the strings behind them (the order of Spark's binary collation)."""
    if a == b:
        return 0
    if not by_bytes:
        return -1 if a < b else 1
    start_a, start_b = offsets[a], offsets[b]
    length_a, length_b = offsets[a + 1] - start_a, offsets[b + 1] - start_b
    for i in range(min(length_a, length_b)):
        x, y = arena[start_a + i], arena[start_b + i]
        if x != y:
            return -1 if x < y else 1
    return -1 if length_a < length_b else 1
