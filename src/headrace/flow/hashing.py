"""One hash for keys, the same on every machine and in every version: which task a record belongs to is state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.measure.keys import BytesIndex
from headrace.measure.words import is_text, to_words

Hashes = npt.NDArray[np.uint64]
_NO_TEXTS = BytesIndex()
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def hash_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> Hashes:
    """A word for each row, of the values in these columns. Equal values have equal words; nulls are equal."""
    found = np.full(batch.num_rows, _GOLDEN, np.uint64)
    for name in columns:
        column = batch.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        words = _text_words(column) if is_text(column.type) else _plain_words(column)
        found = _mix(found ^ words) + _GOLDEN
    return found


@numba.njit(cache=True, nogil=True)
def hash_longs(values: Any) -> Any:
    """`hash_rows` of one column of whole numbers of 64 bits without nulls: for a few of them it takes a tenth."""
    found = np.empty(len(values), np.uint64)
    for i in range(len(values)):
        z = _GOLDEN ^ np.uint64(values[i]) ^ np.uint64(0x8000000000000000)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found[i] = (z ^ (z >> np.uint64(31))) + _GOLDEN
    return found


def can_hash(type: pa.DataType) -> bool:
    """Is it a type of which equal values have equal words?"""
    return bool(
        pa.types.is_boolean(type)
        or pa.types.is_integer(type)
        or pa.types.is_floating(type)
        or pa.types.is_date(type)
        or pa.types.is_timestamp(type)
        or pa.types.is_decimal128(type)
        or is_text(type)
    )


def _plain_words(column: pa.Array) -> Hashes:
    if pa.types.is_timestamp(column.type):
        if column.type.unit == "ns":
            # Metrics have groups by microseconds: what is of one group must meet in one task.
            column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
        column = column.cast(pa.int64())  # whatever its unit, without loss
    if pa.types.is_floating(column.type):
        # The two zeros are equal, and so are all that are not a number.
        plain = pc.add(column.cast(pa.float64()), 0.0)
        column = pc.if_else(pc.is_nan(plain), float("nan"), plain)
    words = to_words(column, _NO_TEXTS)
    found = words.word.view(np.uint64) ^ (words.valid.astype(np.uint64) << np.uint64(63))
    return found ^ _mix(words.high.view(np.uint64)) if len(words.high) else found


def _text_words(column: pa.Array) -> Hashes:
    large = column.cast(pa.large_binary())
    _, offsets, content = large.buffers()
    starts = np.frombuffer(offsets, np.int64)[large.offset : large.offset + len(large) + 1]
    found: Hashes = _hash_texts(starts, np.frombuffer(content or b"", np.uint8))
    if large.null_count:
        found[np.asarray(large.is_null())] = _GOLDEN
    return found


@numba.njit(cache=True, nogil=True)
def _hash_texts(starts: Any, content: Any) -> Any:
    found = np.empty(len(starts) - 1, np.uint64)
    for i in range(len(found)):
        h = np.uint64(0xCBF29CE484222325)
        for at in range(starts[i], starts[i + 1]):
            h = (h ^ np.uint64(content[at])) * np.uint64(0x100000001B3)
        found[i] = h
    return found


def _mix(values: Hashes) -> Hashes:
    """The finalizer of splitmix64."""
    z = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_numbers(first: int, count: int, salt: int) -> Hashes:
    """A word for each of the numbers from `first` on."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return _mix(numbers * _GOLDEN + np.uint64(salt))
