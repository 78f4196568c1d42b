"""Exact quantiles of a moving window: the state below median and percentile."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from headrace.measure.aggregator import Aggregator, is_number, needs_number
from headrace.measure.codes import OrderedCodes
from headrace.measure.limbs import wide_to_double
from headrace.measure.queue import NONE
from headrace.measure.steps import ANSWER, INSERT, REMOVE, Steps
from headrace.measure.treap import COPIES, MAJOR, WEIGHT, Treaps, erase, insert, kth
from headrace.measure.words import Words, is_float, is_wide, order_codes
from headrace.model.jit import Bytes, Flags, Ints, Word, kernel

_TOP = 0x7FFFFFFFFFFFFFFF


@kernel
def _value(code: int, double: bool, scale: float, cell: Ints) -> Word:
    if not double:
        return code / scale
    cell[0] = code ^ ((code >> 63) & _TOP)
    return cell.view(np.float64)[0]


@kernel
def push_quantiles(
    kind: Ints, slot: Ints, row: Ints, code: Ints, valid: Flags, nodes: Ints, roots: Ints, free: Ints, path: Ints,
    out: Ints, out_valid: Flags, fraction: float, double: bool, scale: float, no_offsets: Ints, no_arena: Bytes,
) -> None:  # fmt: skip
    cell = np.zeros(1, np.int64)
    result = np.zeros(1, np.float64)
    for i in range(len(kind)):
        s = slot[i]
        if kind[i] == ANSWER:
            if roots[s] == NONE:
                continue
            place = fraction * (nodes[roots[s], WEIGHT] - 1)
            low, high = math.floor(place), math.ceil(place)
            low_code = nodes[kth(nodes, roots[s], low), MAJOR]
            high_code = low_code if low == high else nodes[kth(nodes, roots[s], high), MAJOR]
            result[0] = _value(low_code, double, scale, cell)
            if high_code != low_code:
                result[0] = (high - place) * result[0] + (place - low) * _value(high_code, double, scale, cell)
            out[row[i]] = result.view(np.int64)[0]
            out_valid[row[i]] = 1
        elif not valid[i]:
            continue
        elif kind[i] == REMOVE:
            erase(nodes, roots, free, s, code[i], 0, False, no_offsets, no_arena)
        else:
            insert(nodes, roots, free, path, s, code[i], 0, False, no_offsets, no_arena)


def quantile_type(name: str, type: pa.DataType | None) -> pa.DataType | str:
    return pa.float64() if is_number(type) else needs_number(name, type)


class Quantile(Aggregator):
    """What median and percentile share: linear interpolation between the two values around the place."""

    @property
    def fraction(self) -> float:
        return float(self.metric.parameters[0])

    def prepare(self) -> None:
        type = self.metric.argument_type
        assert type is not None
        # Decimals of two words are taken as doubles: the answer is one anyway, and rounding keeps the order.
        self._wide_scale = type.scale if is_wide(type) else None
        self._double = is_float(type) or is_wide(type)
        self._scale = float(10**type.scale) if pa.types.is_decimal(type) and not is_wide(type) else 1.0
        self._codes = OrderedCodes(pa.float64() if is_wide(type) else type, self.texts)
        self.state = self._treaps = Treaps((MAJOR, COPIES))

    def _encode(self, values: Words) -> Ints:
        if self._wide_scale is None:
            return self._codes.encode(values)
        doubles = wide_to_double(values.word, values.high) / 10.0**self._wide_scale
        return order_codes(doubles.view(np.int64))

    def push(self, steps: Steps, values: Words) -> None:
        self._treaps.reserve(int((steps.kind <= INSERT).sum()))
        treaps, out = self._treaps, self.answers
        push_quantiles(
            steps.kind, steps.slot, steps.row, self._encode(values), values.valid,
            treaps.nodes, treaps.roots, treaps.free, treaps.path, out.word, out.valid,
            self.fraction, self._double, self._scale, self._codes.offsets, self._codes.arena,
        )  # fmt: skip
