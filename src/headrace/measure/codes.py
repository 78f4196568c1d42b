"""Values as codes that compare: what ordered aggregators (min, median, countDistinct, …) work on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.measure.keys import BytesIndex
from headrace.measure.words import Words, is_float, is_text, is_wide, order_codes, order_codes_back
from headrace.model.jit import Bytes, Flags, Ints
from headrace.state.tables import Tables

_SIGN = np.int64(-(2**63))


class OrderedCodes:
    """Turns the words of one type into codes: equal values have equal codes, and `compare_codes` orders them.

    Where `by_bytes`, a code names a byte string in `texts`; else it is a number in the order of the values.
    """

    def __init__(self, type: pa.DataType, texts: BytesIndex):
        self._float = is_float(type)
        self._wide = is_wide(type)
        self.by_bytes = is_text(type) or self._wide
        self._texts = BytesIndex() if self._wide else texts

    @property
    def offsets(self) -> Ints:
        return self._texts.offsets

    @property
    def arena(self) -> Bytes:
        return self._texts.arena

    def dump(self) -> Tables:
        """Strings are kept by the task; the dictionary of wide decimals is this one's own."""
        return self._texts.dump() if self._wide else {}

    def restore(self, tables: Tables) -> None:
        if self._wide:
            self._texts.restore(tables)

    def encode(self, words: Words) -> Ints:
        if self._float:
            return order_codes(words.word)
        if self._wide:
            return self._intern_wide(words)
        return words.word

    def _intern_wide(self, words: Words) -> Ints:
        """Two's complement in big-endian bytes with the sign flipped: bytes compare as the numbers do."""
        both = np.empty((len(words.word), 2), ">i8")
        both[:, 0] = words.high ^ _SIGN
        both[:, 1] = words.word
        starts = np.arange(len(both), dtype=np.int64) * 16
        return self._texts.intern(starts, starts + 16, both.view(np.uint8).reshape(-1))

    def decode(self, codes: Ints, valid: Flags) -> Words:
        """The words of codes; where not valid, zero."""
        if self._float:
            return Words(order_codes_back(codes), valid)
        if not self._wide:
            return Words(codes, valid)
        count = max(1, len(self._texts))
        both = self._texts.arena[: 16 * count].copy().view(">i8").reshape(count, 2)
        picked = both[np.where(valid != 0, codes, 0)].astype(np.int64)
        return Words(picked[:, 1], valid, picked[:, 0] ^ _SIGN)
