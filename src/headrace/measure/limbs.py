"""Exact sums of anything: a sum is an integer in limbs of 32 bits, so adding and removing never round.

A double is an integer times a power of two; an integer or an unscaled decimal is one already. A sum is kept as
`limbs[0] + limbs[1] * 2**32 + …`, in units of `2**(32 * base)`, each limb in a signed word with room for carries.
What was added can be taken out again without a trace, in any order, and the total is rounded only when it is read.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from headrace.model.jit import Flags, Ints, Word, kernel
from headrace.state.ragged import Ragged
from headrace.state.tables import Tables

MASK = 0xFFFFFFFF
LIMB_BITS = 32
CARRY_LIMBS = 2
"""Limbs kept free above the largest value: 2**62 values may be added before a sum could overflow."""

INTEGER_LIMBS = 2
DECIMAL_LIMBS = 4


@kernel
def split_double(bits: int, base: int, parts: Ints) -> int:
    """Write the magnitude of a finite double into parts[0:3]; give the limb they start at (sign is not included)."""
    exponent = (bits >> 52) & 0x7FF
    mantissa = bits & 0xFFFFFFFFFFFFF
    if exponent == 0:
        exponent = 1
    else:
        mantissa |= 1 << 52
    place = exponent - 1075 - LIMB_BITS * base
    at = place // LIMB_BITS
    shift = place - at * LIMB_BITS
    low = (mantissa & MASK) << shift
    high = (mantissa >> LIMB_BITS) << shift
    parts[0] = low & MASK
    middle = (low >> LIMB_BITS) + (high & MASK)
    parts[1] = middle & MASK
    parts[2] = (high >> LIMB_BITS) + (middle >> LIMB_BITS)
    return at


@kernel
def split_integer(low: int, high: int, parts: Ints) -> int:
    """Write the magnitude of a 128-bit integer into parts[0:4]; give its sign."""
    sign = 1
    if high < 0:
        sign = -1
        low, high = ~low + 1, ~high
        if low == 0:
            high += 1
    parts[0] = low & MASK
    parts[1] = (low >> LIMB_BITS) & MASK
    parts[2] = high & MASK
    parts[3] = (high >> LIMB_BITS) & MASK
    return sign


@kernel
def carry(limbs: Ints) -> None:
    """Bring every limb but the top one into 0 … 2**32 - 1; the top one keeps the sign."""
    over = 0
    for i in range(len(limbs) - 1):
        value = limbs[i] + over
        limbs[i] = value & MASK
        over = value >> LIMB_BITS
    limbs[-1] += over


@kernel
def magnitude(limbs: Ints, out: Ints) -> int:
    """Write |limbs| (carried) into `out`, every limb within 32 bits but the top one; give the sign."""
    if limbs[-1] >= 0:
        for i in range(len(limbs)):
            out[i] = limbs[i]
        return 1
    for i in range(len(limbs)):
        out[i] = -limbs[i]
    carry(out[: len(limbs)])
    return -1


@kernel
def top_bits(limbs: Ints, size: int) -> tuple[Word, int]:
    """A magnitude, rounded half to even, as (m, e) with value m * 2**e and m below 2**53 (or equal)."""
    top = size - 1
    while top >= 0 and limbs[top] == 0:
        top -= 1
    if top < 0:
        return 0, 0
    # The top limb may hold more than 32 bits; take bits from the top until 54 are there, the rest is sticky.
    value = np.uint64(limbs[top])
    width = 0
    probe = value
    while probe:
        width += 1
        probe >>= np.uint64(1)
    exponent = LIMB_BITS * top
    sticky = False
    i = top - 1
    while i >= 0 and width + LIMB_BITS <= 63:
        value = (value << np.uint64(LIMB_BITS)) | np.uint64(limbs[i])
        width += LIMB_BITS
        exponent -= LIMB_BITS
        i -= 1
    if i >= 0 and width < 55:
        take = 55 - width
        value = (value << np.uint64(take)) | (np.uint64(limbs[i]) >> np.uint64(LIMB_BITS - take))
        sticky = (limbs[i] & ((1 << (LIMB_BITS - take)) - 1)) != 0
        width += take
        exponent -= take
        i -= 1
    while i >= 0 and not sticky:
        sticky = limbs[i] != 0
        i -= 1
    if width <= 53:
        return np.int64(value), exponent
    drop = width - 53
    rest = value & ((np.uint64(1) << np.uint64(drop)) - np.uint64(1))
    half = np.uint64(1) << np.uint64(drop - 1)
    value >>= np.uint64(drop)
    if rest > half or (rest == half and (sticky or (value & np.uint64(1)))):
        value += np.uint64(1)
    return np.int64(value), exponent + drop


@kernel
def to_double(limbs: Ints, base: int, scratch: Ints) -> float:
    """The carried sum, rounded once."""
    sign = magnitude(limbs, scratch)
    bits, exponent = top_bits(scratch, len(limbs))
    return sign * math.ldexp(float(bits), exponent + LIMB_BITS * base)


@kernel
def wide_to_double(low: Ints, high: Ints) -> npt.NDArray[np.float64]:
    """128-bit integers, each rounded once."""
    parts = np.zeros(DECIMAL_LIMBS, np.int64)
    out = np.zeros(len(low), np.float64)
    for i in range(len(low)):
        sign = split_integer(low[i], high[i], parts)
        bits, exponent = top_bits(parts, DECIMAL_LIMBS)
        out[i] = sign * math.ldexp(float(bits), exponent)
    return out


@kernel
def double_limb_range(words: Ints, valid: Flags) -> tuple[int, int]:
    """The lowest and the highest limb (in absolute terms, limb 0 is the units') that the finite doubles touch."""
    low, high = 0x7FF, -1
    for i in range(len(words)):
        if valid[i]:
            exponent = (words[i] >> 52) & 0x7FF
            if exponent != 0x7FF and (words[i] << 1) != 0:
                low = min(low, exponent)
                high = max(high, exponent)
    if high < 0:
        return 0, -1
    low_limb = (max(low, 1) - 1075) // LIMB_BITS
    high_limb = (max(high, 1) - 1075 + 52) // LIMB_BITS
    return low_limb, high_limb


class LimbRange:
    """Which limbs a column's sums need: found from the values, widened when values of other magnitudes come."""

    def __init__(self) -> None:
        self.base = 0
        self.size = 0

    def dump(self) -> Tables:
        return {"range": np.array([self.base, self.size], np.int64)}

    def restore(self, tables: Tables) -> None:
        self.base, self.size = (int(value) for value in tables["range"])

    def cover(self, words: Ints, valid: Flags) -> tuple[int, int] | None:
        """Widen for these doubles; None if nothing changed, else how many limbs come (below, above)."""
        return self.cover_limbs(*double_limb_range(words, valid))

    def cover_limbs(self, low: int, high: int) -> tuple[int, int] | None:
        """Widen for numbers that touch the limbs low … high (none if high is less), as `cover` does."""
        if high < low:
            low = high = self.base
        top = high + 1 + CARRY_LIMBS
        if not self.size:
            self.base, self.size = low, top - low
            return 0, self.size
        below, above = max(0, self.base - low), max(0, top - (self.base + self.size))
        if not below and not above:
            return None
        self.base -= below
        self.size += below + above
        return below, above


def widened(limbs: Ints, below: int, above: int) -> Ints:
    """The same sums with more limbs on either side."""
    wide = np.zeros((len(limbs), limbs.shape[1] + below + above), np.int64)
    wide[:, below : below + limbs.shape[1]] = limbs
    return wide


# ------------------------------------------------------------------ limb runs
# A sum as words of its own: where it starts and how many limbs follow, in one word, then those limbs, the first and
# the last of which are not zero; all of them have the sign of the sum. So a sum is the same words in every range.

_COUNT_BITS = 16


@kernel
def _measure_runs(limbs: Ints, base: int, slots: Ints, heads: Ints) -> None:
    """Carry the sums, and write the head of each."""
    scratch = np.zeros(limbs.shape[1], np.int64)
    for i in range(len(slots)):
        carry(limbs[slots[i]])
        magnitude(limbs[slots[i]], scratch)
        first, end = 0, len(scratch)
        while end > 0 and scratch[end - 1] == 0:
            end -= 1
        while first < end and scratch[first] == 0:
            first += 1
        heads[i] = (((base + first) << _COUNT_BITS) | (end - first)) if end > first else 0


@kernel
def _take_runs(limbs: Ints, base: int, slots: Ints, heads: Ints, words: Ints) -> None:
    scratch = np.zeros(limbs.shape[1], np.int64)
    at = 0
    for i in range(len(slots)):
        words[at] = heads[i]
        at += 1
        count = heads[i] & ((1 << _COUNT_BITS) - 1)
        if count:
            first = (heads[i] >> _COUNT_BITS) - base
            sign = magnitude(limbs[slots[i]], scratch)
            for j in range(count):
                words[at] = sign * scratch[first + j]
                at += 1


@kernel
def _put_runs(limbs: Ints, base: int, slots: Ints, words: Ints) -> None:
    at = 0
    for i in range(len(slots)):
        first, count = (words[at] >> _COUNT_BITS) - base, words[at] & ((1 << _COUNT_BITS) - 1)
        at += 1
        for j in range(count):
            limbs[slots[i], first + j] = words[at]
            at += 1


def take_runs(limbs: Ints, base: int, slots: Ints) -> Ragged:
    """The sums of these slots as runs. The sums are carried on the way."""
    heads = np.zeros(len(slots), np.int64)
    if limbs.shape[1]:
        _measure_runs(limbs, base, slots, heads)
    lengths = run_lengths(heads)
    words = np.empty(int(lengths.sum()), np.int64)
    _take_runs(limbs, base, slots, heads, words)
    return Ragged(lengths, words)


def put_runs(limbs: Ints, base: int, slots: Ints, runs: Ragged) -> None:
    """Set the sums of these slots, which are zero; every one has a run, and the limbs reach far enough."""
    _put_runs(limbs, base, slots, runs.words)


def run_lengths(heads: Ints) -> Ints:
    """How many words runs have, by the first word of each."""
    return 1 + (heads & ((1 << _COUNT_BITS) - 1))


def run_limbs(heads: Ints) -> tuple[int, int]:
    """The lowest and the highest limb of runs, by the first word of each; (0, -1) if all sums are zero."""
    heads = heads[heads != 0]
    if not len(heads):
        return 0, -1
    first = heads >> _COUNT_BITS
    return int(first.min()), int((first + run_lengths(heads) - 2).max())
