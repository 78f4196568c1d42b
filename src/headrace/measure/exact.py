"""Exact totals per group: the state below sum and avg."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.measure.aggregator import Answers
from headrace.measure.limbs import (
    CARRY_LIMBS,
    DECIMAL_LIMBS,
    INTEGER_LIMBS,
    LIMB_BITS,
    MASK,
    LimbRange,
    carry,
    magnitude,
    put_runs,
    run_limbs,
    split_double,
    take_runs,
    to_double,
    widened,
)
from headrace.measure.steps import ANSWER, REMOVE, Steps
from headrace.measure.words import Words, is_float, is_wide
from headrace.model.jit import Flags, Ints, Word, grown, kernel
from headrace.state.ragged import Ragged, beside, reach
from headrace.state.tables import Tables

# What an answer is.
SUM, AVERAGE = 0, 1
# Values that are no numbers are counted aside, so that they leave with their event.
NAN, PLUS_INFINITY, MINUS_INFINITY, NUMBERS = 0, 1, 2, 3
COUNTS = 4


@kernel
def special(bits: int) -> int:
    """NAN, PLUS_INFINITY or MINUS_INFINITY for a double that is no number, NUMBERS for one that is."""
    if bits & 0x7FF0000000000000 != 0x7FF0000000000000:
        return NUMBERS
    if bits & 0xFFFFFFFFFFFFF:
        return NAN
    return MINUS_INFINITY if bits < 0 else PLUS_INFINITY


@kernel
def _add_double(limbs: Ints, bits: int, base: int, sign: int, parts: Ints) -> None:
    if bits << 1 == 0:
        return
    if bits < 0:
        sign = -sign
    at = split_double(bits, base, parts)
    limbs[at] += sign * parts[0]
    limbs[at + 1] += sign * parts[1]
    limbs[at + 2] += sign * parts[2]


@kernel
def _add_integer(limbs: Ints, low: int, high: int, wide: bool, sign: int) -> None:
    limbs[0] += sign * (low & MASK)
    if wide:
        limbs[1] += sign * ((low >> LIMB_BITS) & MASK)
        limbs[2] += sign * (high & MASK)
        limbs[3] += sign * (high >> LIMB_BITS)
    else:
        limbs[1] += sign * (low >> LIMB_BITS)


@kernel
def _special_sum(counts: Ints) -> float:
    """The sum of a group that holds NaN or infinities."""
    if counts[NAN] or (counts[PLUS_INFINITY] and counts[MINUS_INFINITY]):
        return np.nan
    return np.inf if counts[PLUS_INFINITY] else -np.inf


@kernel
def push_doubles(
    kind: Ints, slot: Ints, row: Ints, word: Ints, valid: Flags,
    limbs: Ints, base: int, counts: Ints, out: Ints, out_valid: Flags, answer: int,
) -> None:  # fmt: skip
    parts = np.zeros(4, np.int64)
    scratch = np.zeros(limbs.shape[1], np.int64)
    result = np.zeros(1, np.float64)
    for i in range(len(kind)):
        s = slot[i]
        if kind[i] != ANSWER:
            if valid[i]:
                sign = -1 if kind[i] == REMOVE else 1
                what = special(word[i])
                counts[s, what] += sign
                if what == NUMBERS:
                    _add_double(limbs[s], word[i], base, sign, parts)
            continue
        aside = counts[s, NAN] + counts[s, PLUS_INFINITY] + counts[s, MINUS_INFINITY]
        total = aside + counts[s, NUMBERS]
        if total == 0:
            continue
        if aside:
            value = _special_sum(counts[s])
        else:
            carry(limbs[s])
            value = to_double(limbs[s], base, scratch)
        result[0] = value / total if answer == AVERAGE else value
        out[row[i]] = result.view(np.int64)[0]
        out_valid[row[i]] = 1


@kernel
def divide_half_up(limbs: Ints, times: int, by: int) -> None:
    """|limbs| (carried, not negative) becomes limbs * times / by, rounded half up. Both factors below 2**31."""
    over = 0
    for i in range(len(limbs) - 1):
        value = limbs[i] * times + over
        limbs[i] = value & MASK
        over = value >> LIMB_BITS
    limbs[-1] = limbs[-1] * times + over
    rest = 0
    for i in range(len(limbs) - 1, -1, -1):
        value = (rest << LIMB_BITS) | limbs[i]
        limbs[i] = value // by
        rest = value - limbs[i] * by
    if 2 * rest >= by:
        limbs[0] += 1
        carry(limbs)


@kernel
def _fits(limbs: Ints, bound: Ints) -> Word:
    """Magnitude `limbs` (carried) is below `bound` (carried, of four limbs)."""
    for i in range(len(limbs) - 1, -1, -1):
        limit = bound[i] if i < len(bound) else 0
        if limbs[i] != limit:
            return limbs[i] < limit
    return False


@kernel
def push_integers(
    kind: Ints, slot: Ints, row: Ints, word: Ints, high: Ints, valid: Flags,
    limbs: Ints, counts: Ints, out: Ints, out_high: Ints, out_valid: Flags,
    answer: int, times: int, bounds: Ints,
) -> Word:  # fmt: skip
    """Gives the first row whose exact answer does not fit, or -1.

    SUM answers are integers of one or (decimals) two words; AVERAGE is a double if `times` is 0, else a decimal
    whose scale is larger: the total is multiplied by `times` before it is divided. `bounds` are the magnitudes that
    no longer fit, above and below zero.
    """
    wide = len(high) > 0
    size = limbs.shape[1]
    scratch = np.zeros(size, np.int64)
    result = np.zeros(1, np.float64)
    for i in range(len(kind)):
        s = slot[i]
        if kind[i] != ANSWER:
            if valid[i]:
                sign = -1 if kind[i] == REMOVE else 1
                counts[s, NUMBERS] += sign
                _add_integer(limbs[s], word[i], high[i] if wide else 0, wide, sign)
            continue
        total = counts[s, NUMBERS]
        if total == 0:
            continue
        r = row[i]
        out_valid[r] = 1
        carry(limbs[s])
        if answer == AVERAGE and times == 0:
            result[0] = to_double(limbs[s], 0, scratch) / total
            out[r] = result.view(np.int64)[0]
            continue
        sign = magnitude(limbs[s], scratch)
        if answer == AVERAGE:
            divide_half_up(scratch, times, total)
        if not _fits(scratch, bounds[0 if sign > 0 else 1]):
            return r
        low = scratch[0] | (scratch[1] << LIMB_BITS)
        top = (scratch[2] | (scratch[3] << LIMB_BITS)) if size > 3 else 0
        if sign < 0:
            low, top = ~low + 1, ~top
            if low == 0:
                top += 1
        out[r] = low
        if len(out_high):
            out_high[r] = top
    return -1


def counts_kept(type: pa.DataType) -> Ints:
    """The counts that a type needs: only doubles can be no number."""
    return np.arange(0 if is_float(type) else NUMBERS, COUNTS)


def take_counts(counts: Ints, slots: Ints, kept: Ints) -> tuple[Ragged, npt.NDArray[np.bool_]]:
    """The kept counts of these slots, and which of the slots are not empty."""
    rows = counts[slots[:, None], kept]
    some = np.asarray(rows.any(axis=1))
    return Ragged.of_rows(rows, np.where(some, len(kept), 0)), some


def put_counts(counts: Ints, slots: Ints, kept: Ints, groups: Ragged) -> tuple[Ints, Ragged]:
    """Set the counts; gives the slots that are not empty, and the words that follow the counts there."""
    some = np.flatnonzero(groups.lengths)
    slots = slots[some]
    head, rest = groups.pick(some).cut(np.full(len(some), len(kept), np.int64))
    counts[slots[:, None], kept] = head.words.reshape(-1, len(kept))
    return slots, rest


class ExactTotals:
    """The exact total and the count of every slot, for one argument type."""

    def __init__(self, type: pa.DataType):
        self._double = is_float(type)
        self._size = 0 if self._double else (DECIMAL_LIMBS if is_wide(type) else INTEGER_LIMBS) + CARRY_LIMBS
        self._kept = counts_kept(type)
        self.clear_groups()

    def clear_groups(self) -> None:
        self._range = LimbRange()
        self._limbs: Ints = np.zeros((0, self._size), np.int64)
        self._counts: Ints = np.zeros((0, COUNTS), np.int64)
        self._slots = 0

    def grow(self, slots: int) -> None:
        self._limbs, self._counts = grown(self._limbs, slots), grown(self._counts, slots)
        self._slots = max(self._slots, slots)

    def dump(self) -> Tables:
        return {"limbs": self._limbs[: self._slots], "counts": self._counts[: self._slots], **self._range.dump()}

    def restore(self, tables: Tables) -> None:
        self._limbs, self._counts, self._slots = tables["limbs"], tables["counts"], len(tables["counts"])
        self._range.restore(tables)

    def take_groups(self, slots: Ints) -> Ragged:
        """The counts, then the total as a run of limbs."""
        self.grow(reach(slots))
        counts, some = take_counts(self._counts, slots, self._kept)
        return beside([counts, take_runs(self._limbs, self._range.base, slots[some]).spread(some)])

    def put_groups(self, slots: Ints, groups: Ragged) -> None:
        self.grow(reach(slots))
        slots, runs = put_counts(self._counts, slots, self._kept, groups)
        if self._double:
            self._widen(self._range.cover_limbs(*run_limbs(runs.heads())))
        put_runs(self._limbs, self._range.base, slots, runs)

    def _widen(self, more: tuple[int, int] | None) -> None:
        if more:
            self._limbs = widened(self._limbs, *more)

    def push_doubles(self, steps: Steps, values: Words, out: Answers, answer: int) -> None:
        self._widen(self._range.cover(values.word, values.valid))
        push_doubles(
            steps.kind, steps.slot, steps.row, values.word, values.valid,
            self._limbs, self._range.base, self._counts, out.word, out.valid, answer,
        )  # fmt: skip

    def push_integers(self, steps: Steps, values: Words, out: Answers, answer: int, times: int, bounds: Ints) -> bool:
        """False if an answer does not fit. `times` and `bounds` as the kernel takes them."""
        bad = push_integers(
            steps.kind, steps.slot, steps.row, values.word, values.high, values.valid,
            self._limbs, self._counts, out.word, out.high, out.valid, answer, times, bounds,
        )  # fmt: skip
        return int(bad) < 0


def bounds_of(type: pa.DataType) -> Ints:
    """The smallest magnitudes that do not fit the type, above and below zero, in four limbs each."""
    if pa.types.is_decimal(type):
        return np.array([_limbs_of(10**type.precision)] * 2, np.int64)
    return np.array([_limbs_of(2**63), _limbs_of(2**63 + 1)], np.int64)


def _limbs_of(value: int) -> list[int]:
    return [(value >> (LIMB_BITS * i)) & MASK for i in range(4)]
