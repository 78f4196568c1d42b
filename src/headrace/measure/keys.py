"""Dense codes for keys: the first key seen is 0, the next new one 1, and so on.

Open addressing in Numba over arrays. Two kinds share one idea: rows of int64 words, and byte strings.
Equal keys get equal codes forever; the key of a code can be read back.
"""

from __future__ import annotations

import numpy as np

from headrace.model.jit import Bytes, Flags, Ints, Word, grown, kernel
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
def _intern_rows(rows: Ints, codes: Ints, table: Ints, keys: Ints, used: int, free: Ints) -> int:
    """`free` has how many codes follow it that may be given again."""
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
                new = np.int64(used)
                if free[0] > 0:
                    new = free[free[0]]
                    free[0] -= 1
                else:
                    used += 1
                for j in range(width):
                    keys[new, j] = rows[i, j]
                table[at] = new
                codes[i] = new
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


@kernel
def _place_rows(keys: Ints, live: Flags, table: Ints) -> None:
    """The places of keys that are in use, in an empty table."""
    mask = np.uint64(len(table) - 1)
    for code in range(len(live)):
        if live[code]:
            h = np.uint64(0x9E3779B97F4A7C15)
            for j in range(keys.shape[1]):
                h = mix(np.int64(h) ^ keys[code, j]) + np.uint64(0x9E3779B97F4A7C15)
            at = h & mask
            while table[at] >= 0:
                at = (at + np.uint64(1)) & mask
            table[at] = code


class RowIndex:
    """Codes for rows of `width` words."""

    def __init__(self, width: int):
        self._keys: Ints = np.zeros((64, width), np.int64)
        self._table: Ints = np.full(256, _EMPTY, np.int64)
        self._free: Ints = np.zeros(1, np.int64)
        self._used = 0

    def __len__(self) -> int:
        """How many codes were ever given."""
        return self._used

    @property
    def in_use(self) -> int:
        return self._used - int(self._free[0])

    @property
    def live(self) -> Flags:
        """1 for each code that is in use."""
        flags: Flags = np.ones(self._used, np.uint8)
        flags[self._free[1 : 1 + self._free[0]]] = 0
        return flags

    @property
    def keys(self) -> Ints:
        """The key of every code, one row each."""
        return self._keys[: self._used]

    def intern(self, rows: Ints) -> Ints:
        """The code of every row; rows not seen before get new codes in the order they come."""
        codes = np.empty(len(rows), np.int64)
        self._reserve(self._used + len(rows))
        self._used = int(_intern_rows(rows, codes, self._table, self._keys, self._used, self._free))
        return codes

    def release(self, codes: Ints) -> None:
        """Forget these keys; their codes go to keys that come later."""
        have = int(self._free[0])
        self._free = grown(self._free, have + 1 + len(codes))
        self._free[have + 1 : have + 1 + len(codes)] = codes
        self._free[0] = have + len(codes)
        self._keys[codes] = 0
        self._rehash(self._used)

    def replace(self, keys: Ints) -> None:
        """Other keys for the same codes."""
        self._keys = keys
        self._rehash(self._used)

    def dump(self) -> Tables:
        return {"keys": self.keys, "free": self._free[: 1 + self._free[0]]}

    def restore(self, tables: Tables) -> None:
        self._keys, self._free = tables["keys"], tables["free"]
        self._used = len(self._keys)
        self._rehash(self._used)

    def _reserve(self, count: int) -> None:
        self._keys = grown(self._keys, count)
        if 2 * count > len(self._table):
            self._rehash(count)

    def _rehash(self, count: int) -> None:
        self._table = np.full(_power_of_two(max(64, 4 * count)), _EMPTY, np.int64)
        _place_rows(self._keys, self.live, self._table)


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

    def __init__(self, generation: int = 0) -> None:
        """`generation`: how often strings were forgotten."""
        self._generation = generation
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
        size_bytes = int(ends[0] - starts[0]) if len(starts) == 1 else int((ends - starts).sum())
        self._reserve(self._used + len(starts), size_bytes)
        self._used = int(
            _intern_bytes(starts, ends, data, codes, self._table, self._hashes, self.offsets, self.arena, self._used)
        )
        return codes

    def keep(self, codes: Ints) -> Ints:
        """Forget all strings but these; gives their new codes, by the old ones (0 for those that are gone)."""
        renamed = np.zeros(self._used, np.int64)
        starts, ends, arena = self.offsets[codes], self.offsets[codes + 1], self.arena
        self.__init__(self._generation + 1)  # type: ignore[misc]
        renamed[codes] = self.intern(starts, ends, arena)
        return renamed

    def dump(self) -> Tables:
        offsets, name = self.offsets[: self._used + 1], self._generation
        return {f"offsets.{name}": AppendOnly(offsets), f"arena.{name}": AppendOnly(self.arena[: offsets[-1]])}

    def restore(self, tables: Tables) -> None:
        [name] = [name for name in tables if name.startswith("offsets.")]
        generation = int(name.removeprefix("offsets."))
        self.__init__(generation)  # type: ignore[misc]
        offsets = tables[name]
        self.intern(offsets[:-1], offsets[1:], tables[f"arena.{generation}"])

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
