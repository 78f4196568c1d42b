"""Columns as 64-bit words: the one form in which values meet the kernels.

| Arrow type | word | high |
|---|---|---|
| bool, integers, date, timestamp | the number (dates in days, timestamps in microseconds) | |
| float, double | the bits of the double | |
| decimal(p ≤ 18) | the unscaled number | |
| decimal(p > 18) | the low half of the unscaled number | the high half |
| string, binary | the code of the string in a `BytesIndex` | |

A null has valid = 0 and word = 0.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.measure.keys import BytesIndex
from headrace.model.jit import Bytes, Flags, Ints, kernel
from headrace.model.ticks import DAY, MILLISECOND, SECOND

_NO_WORDS: Ints = np.zeros(0, np.int64)
_SMALL_DECIMAL = 18
_AS_THEY_ARE: Final = {pa.int64().id, pa.float64().id, pa.timestamp("us").id}
"""Types whose values are words already, where timestamps are in microseconds."""
_TIMESTAMP_ID: Final = pa.timestamp("us").id
_TEXTS: Final = {pa.string().id, pa.large_string().id, pa.binary().id, pa.large_binary().id}
_LARGE_TEXTS: Final = {pa.large_string().id, pa.large_binary().id}
_WORD_BYTES: Final = 8
_COARSE: Final = {"s": SECOND, "ms": MILLISECOND}


class Words(NamedTuple):
    """A column: `word` and `valid` always, `high` for wide decimals (else empty)."""

    word: Ints
    valid: Flags
    high: Ints = _NO_WORDS

    def spread(self, places: npt.NDArray[np.bool_]) -> Words:
        """The words at the places that are true, nulls at the others."""
        word, valid = np.zeros(len(places), np.int64), np.zeros(len(places), np.uint8)
        word[places], valid[places] = self.word, self.valid
        if not len(self.high):
            return Words(word, valid)
        high = np.zeros(len(places), np.int64)
        high[places] = self.high
        return Words(word, valid, high)


def is_text(type: pa.DataType) -> bool:
    return type.id in _TEXTS


def is_wide(type: pa.DataType) -> bool:
    """True for decimals that need two words."""
    return bool(pa.types.is_decimal(type)) and type.precision > _SMALL_DECIMAL


def is_float(type: pa.DataType) -> bool:
    return bool(pa.types.is_floating(type))


def is_ordered_word(type: pa.DataType) -> bool:
    """True where words compare as the values do: integers, dates, timestamps."""
    return bool(pa.types.is_integer(type) or pa.types.is_date(type) or pa.types.is_timestamp(type))


_NAMED: dict[str, pa.DataType] = {
    str(type): type
    for type in (
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.date32()),
    )
}
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]")


def is_wide_name(name: str) -> bool:
    """`is_wide`, of a type by its `str`."""
    decimal = _DECIMAL.fullmatch(name)
    return decimal is not None and int(decimal[1]) > _SMALL_DECIMAL


def type_named(name: str) -> pa.DataType:
    """The type whose `str` this is, for every type that `to_words` takes."""
    if decimal := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if timestamp := _TIMESTAMP.fullmatch(name):
        return pa.timestamp(timestamp[1], timestamp[2])
    return _NAMED[name]


def to_words(column: pa.Array, texts: BytesIndex) -> Words:
    """The column as words; strings are interned in `texts`."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    type = column.type
    if _is_as_it_is(type) and not column.null_count:
        values = np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * _WORD_BYTES)
        return Words(values.copy(), all_valid(len(values)))
    valid = _validity(column)
    if pa.types.is_dictionary(type):
        column = column.cast(type.value_type)
        type = column.type
    if is_text(type):
        return Words(_text_codes(column, texts), valid)
    if pa.types.is_decimal(type):
        return _decimal_words(column, valid)
    return Words(_plain_words(column), valid)


def time_words(column: pa.Array, texts: BytesIndex) -> tuple[Words, int]:
    """A column of times, and how many microseconds one of its words is: in microseconds not all of them fit a word."""
    if pa.types.is_date(column.type):
        return to_words(column, texts), DAY
    if column.type.unit in _COARSE:
        return to_words(column.view(pa.int64()), texts), _COARSE[column.type.unit]
    return to_words(column, texts), 1


@kernel
def reckon_ticks(word: Ints, valid: Flags, unit: int, farthest: int, codes: Ints, known: int, unknown: int) -> None:
    """Words become microseconds, but for nulls and what is so far off that a window's edge would leave 64 bits."""
    for i in range(len(word)):
        if valid[i] and -farthest // unit <= word[i] <= farthest // unit:
            word[i] *= unit
            codes[i] = known
        else:
            codes[i] = unknown


def _is_as_it_is(type: pa.DataType) -> bool:
    return type.id in _AS_THEY_ARE and (type.id != _TIMESTAMP_ID or type.unit == "us")


def all_valid(count: int) -> Flags:
    valid: Flags = np.empty(count, np.uint8)
    valid.fill(1)
    return valid


def _validity(column: pa.Array) -> Flags:
    if column.null_count == 0:
        return all_valid(len(column))
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False)).astype(np.uint8)


def _plain_words(column: pa.Array) -> Ints:
    type = column.type
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(0, pa.int64()).cast(_number_type(type)).cast(type))
    if is_float(type):
        doubles = np.asarray(column.to_numpy(zero_copy_only=False), np.float64).copy()
        return doubles.view(np.int64)
    if pa.types.is_boolean(type):
        return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.int64)
    if pa.types.is_timestamp(type):
        column = column if type.unit == "us" else column.cast(pa.timestamp("us", type.tz), safe=False)
        column = column.view(pa.int64())
    elif pa.types.is_date(type):
        column = column.cast(pa.date32()).view(pa.int32())
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.int64)


def _number_type(type: pa.DataType) -> pa.DataType:
    """A number type that casts to `type`: a zero of any type goes through it."""
    if pa.types.is_date32(type):
        return pa.int32()
    return pa.int64()


def _decimal_words(column: pa.Array, valid: Flags) -> Words:
    column = column.cast(pa.decimal128(column.type.precision, column.type.scale))
    raw = column.buffers()[1]
    halves = np.frombuffer(raw, np.int64)[2 * column.offset : 2 * (column.offset + len(column))]
    keep = valid.astype(bool)
    low = np.where(keep, halves[0::2], 0)
    if not is_wide(column.type):
        return Words(low, valid)
    return Words(low, valid, np.where(keep, halves[1::2], 0))


def _text_codes(column: pa.Array, texts: BytesIndex) -> Ints:
    _, offsets_buffer, data_buffer = column.buffers()
    if len(column) == 0 or offsets_buffer is None:
        return np.zeros(len(column), np.int64)
    word = np.dtype(np.int64 if column.type.id in _LARGE_TEXTS else np.int32)
    raw = np.frombuffer(offsets_buffer, word, len(column) + 1, column.offset * word.itemsize)
    offsets: Ints = raw.astype(np.int64)
    data: Bytes = np.frombuffer(data_buffer if data_buffer is not None else b"", np.uint8)
    if column.null_count:
        keep = column.is_valid().to_numpy(zero_copy_only=False)
        codes = np.zeros(len(column), np.int64)
        codes[keep] = texts.intern(offsets[:-1][keep], offsets[1:][keep], data)
        return codes
    return texts.intern(offsets[:-1], offsets[1:], data)


def from_words(words: Words, type: pa.DataType, texts: BytesIndex) -> pa.Array:
    """The inverse of `to_words`, for every type it takes."""
    nulls = None if words.valid.all() else words.valid == 0
    if nulls is None and _is_as_it_is(type):
        return pa.Array.from_buffers(type, len(words.word), [None, pa.py_buffer(np.ascontiguousarray(words.word))])
    if is_text(type):
        return _texts_of(words, type, texts)
    if pa.types.is_decimal(type):
        return _decimals_of(words, type)
    if is_float(type):
        return _as(pa.array(words.word.view(np.float64), mask=nulls), type)
    if pa.types.is_boolean(type):
        return pa.array(words.word != 0, mask=nulls)
    numbers = pa.array(words.word, pa.int64(), mask=nulls)
    if pa.types.is_timestamp(type):
        return _as(numbers.view(pa.timestamp("us", type.tz)), type)
    if pa.types.is_date(type):
        return numbers.cast(pa.int32()).view(pa.date32()).cast(type)
    return _as(numbers, type)


def _as(column: pa.Array, type: pa.DataType) -> pa.Array:
    """To cast to its own type costs as much as to cast to another one, which shows where there is one row."""
    return column if column.type == type else column.cast(type)


def _texts_of(words: Words, type: pa.DataType, texts: BytesIndex) -> pa.Array:
    """Only the strings that occur are copied out of the arena."""
    codes = np.where(words.valid != 0, words.word, -1)
    present, position = np.unique(codes, return_inverse=True)
    strings = [bytes(texts.arena[texts.offsets[c] : texts.offsets[c + 1]]) if c >= 0 else None for c in present]
    values = pa.array(strings, pa.binary()).cast(type)
    return values.take(pa.array(position.reshape(-1)))


def _decimals_of(words: Words, type: pa.DataType) -> pa.Array:
    halves = np.empty((len(words.word), 2), np.int64)
    halves[:, 0] = words.word
    halves[:, 1] = words.high if len(words.high) else words.word >> 63
    bitmap = pa.array(words.valid != 0).buffers()[1]
    return pa.Array.from_buffers(type, len(words.word), [bitmap, pa.py_buffer(halves)])


_TOP = np.int64(0x7FFFFFFFFFFFFFFF)
_NAN_CODE = np.int64(0x7FF8000000000000)


def order_codes(bits: Ints) -> Ints:
    """Bits of doubles as integers in the same order: -0.0 equals 0.0, NaN equals NaN and is largest (as in Spark)."""
    doubles = bits.view(np.float64)
    clean = np.where(np.isnan(doubles), _NAN_CODE, np.where(doubles == 0.0, 0, bits))
    flipped: Ints = clean ^ ((clean >> 63) & _TOP)
    return flipped


def order_codes_back(codes: Ints) -> Ints:
    """The inverse of `order_codes`."""
    return codes ^ ((codes >> 63) & _TOP)
