"""Exact first and second moments per group: the state below stdDev.

With the sum S and the sum of squares Q as exact integers, n*Q - S*S is exact as well, so the variance is rounded
only at the very end: values that are close together and far from zero lose nothing.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from headrace.measure.exact import COUNTS, NUMBERS, counts_kept, put_counts, special, take_counts
from headrace.measure.limbs import (
    CARRY_LIMBS,
    DECIMAL_LIMBS,
    LIMB_BITS,
    MASK,
    LimbRange,
    carry,
    magnitude,
    put_runs,
    run_lengths,
    run_limbs,
    split_double,
    split_integer,
    take_runs,
    top_bits,
    widened,
)
from headrace.measure.steps import ANSWER, REMOVE, Steps
from headrace.measure.words import Words, is_float
from headrace.model.jit import Flags, Ints, grown, kernel
from headrace.state.ragged import Ragged, beside, reach
from headrace.state.tables import Tables


@kernel
def _add_square(squares: Ints, parts: Ints, size: int, at: int, sign: int) -> None:
    for i in range(size):
        for j in range(size):
            product = np.uint64(parts[i]) * np.uint64(parts[j])
            squares[2 * at + i + j] += sign * np.int64(product & np.uint64(MASK))
            squares[2 * at + i + j + 1] += sign * np.int64(product >> np.uint64(LIMB_BITS))


@kernel
def _variance_times(sums: Ints, squares: Ints, count: int, total: Ints, product: Ints) -> None:
    """product = count * squares - sums * sums, exactly; the sums are carried, and so is the result."""
    magnitude(sums, total)
    for k in range(len(squares)):
        product[k] = squares[k] * count
    carry(product)
    # The top limb of a total has few bits: CARRY_LIMBS above the largest value are there for it.
    for i in range(len(sums)):
        for j in range(len(sums)):
            part = np.uint64(total[i]) * np.uint64(total[j])
            if part:
                product[i + j] -= np.int64(part & np.uint64(MASK))
                product[i + j + 1] -= np.int64(part >> np.uint64(LIMB_BITS))
    carry(product)


@kernel
def _deviation(product: Ints, count: int, base: int) -> float:
    """sqrt(product * 2**(64 * base) / (count * (count - 1))), safe from overflow on the way."""
    bits, exponent = top_bits(product, len(product))
    if bits == 0:
        return 0.0
    if exponent % 2:
        bits, exponent = bits * 2, exponent - 1
    variance = float(bits) / (float(count) * float(count - 1))
    return math.ldexp(math.sqrt(variance), exponent // 2 + LIMB_BITS * base)


@kernel
def push_moments(
    kind: Ints, slot: Ints, row: Ints, word: Ints, high: Ints, valid: Flags,
    sums: Ints, squares: Ints, base: int, double: bool, counts: Ints, out: Ints, out_valid: Flags, scale: float,
) -> None:  # fmt: skip
    parts = np.zeros(4, np.int64)
    total = np.zeros(sums.shape[1], np.int64)
    product = np.zeros(squares.shape[1], np.int64)
    result = np.zeros(1, np.float64)
    for i in range(len(kind)):
        s = slot[i]
        if kind[i] != ANSWER:
            if not valid[i]:
                continue
            sign = -1 if kind[i] == REMOVE else 1
            what = special(word[i]) if double else NUMBERS
            counts[s, what] += sign
            if what != NUMBERS:
                continue
            if double:
                if word[i] << 1 == 0:
                    continue
                at, size = split_double(word[i], base, parts), 3
                negative = -1 if word[i] < 0 else 1
            else:
                at, size = 0, 4
                negative = split_integer(word[i], high[i] if len(high) else word[i] >> 63, parts)
            for j in range(size):
                sums[s, at + j] += sign * negative * parts[j]
            _add_square(squares[s], parts, size, at, sign)
            continue
        aside = counts[s, 0] + counts[s, 1] + counts[s, 2]
        n = aside + counts[s, NUMBERS]
        if n < 2:
            continue
        if aside:
            result[0] = np.nan
        else:
            carry(sums[s])
            carry(squares[s])
            _variance_times(sums[s], squares[s], n, total, product)
            result[0] = _deviation(product, n, base) / scale
        out[row[i]] = result.view(np.int64)[0]
        out_valid[row[i]] = 1


class ExactMoments:
    """The exact sum, sum of squares and count of every slot, for one argument type."""

    def __init__(self, type: pa.DataType):
        self._double = is_float(type)
        self._scale = float(10**type.scale) if pa.types.is_decimal(type) else 1.0
        self._size = 0 if self._double else DECIMAL_LIMBS + CARRY_LIMBS
        self._kept = counts_kept(type)
        self.clear_groups()

    def clear_groups(self) -> None:
        self._range = LimbRange()
        self._sums: Ints = np.zeros((0, self._size), np.int64)
        self._squares: Ints = np.zeros((0, 2 * self._size + 1), np.int64)
        self._counts: Ints = np.zeros((0, COUNTS), np.int64)
        self._slots = 0

    def grow(self, slots: int) -> None:
        self._sums, self._squares = grown(self._sums, slots), grown(self._squares, slots)
        self._counts, self._slots = grown(self._counts, slots), max(self._slots, slots)

    def dump(self) -> Tables:
        state = {"sums": self._sums, "squares": self._squares, "counts": self._counts}
        return {**{name: table[: self._slots] for name, table in state.items()}, **self._range.dump()}

    def restore(self, tables: Tables) -> None:
        self._sums, self._squares, self._counts = (tables["sums"], tables["squares"], tables["counts"])
        self._slots = len(self._counts)
        self._range.restore(tables)

    def take_groups(self, slots: Ints) -> Ragged:
        """The counts, then the sum and the sum of squares as runs of limbs."""
        self.grow(reach(slots))
        counts, some = take_counts(self._counts, slots, self._kept)
        base, present = self._range.base, slots[some]
        runs = take_runs(self._sums, base, present), take_runs(self._squares, 2 * base, present)
        return beside([counts, *(run.spread(some) for run in runs)])

    def put_groups(self, slots: Ints, groups: Ragged) -> None:
        self.grow(reach(slots))
        slots, runs = put_counts(self._counts, slots, self._kept, groups)
        sums, squares = runs.cut(run_lengths(runs.heads()))
        if self._double:
            # A square takes twice the limbs of its value, and sums of squares never cancel out: they are wide enough.
            low, high = run_limbs(squares.heads())
            self._widen(self._range.cover_limbs(low // 2, high // 2))
            self._widen(self._range.cover_limbs(*run_limbs(sums.heads())))
        put_runs(self._sums, self._range.base, slots, sums)
        put_runs(self._squares, 2 * self._range.base, slots, squares)

    def _widen(self, more: tuple[int, int] | None) -> None:
        if more:
            below, above = more
            self._sums = widened(self._sums, below, above)
            self._squares = widened(self._squares, 2 * below, 2 * above)

    def push(self, steps: Steps, values: Words, out: Ints, out_valid: Flags) -> None:
        if self._double:
            self._widen(self._range.cover(values.word, values.valid))
        push_moments(
            steps.kind, steps.slot, steps.row, values.word, values.high, values.valid,
            self._sums, self._squares, self._range.base, self._double, self._counts, out, out_valid, self._scale,
        )  # fmt: skip
