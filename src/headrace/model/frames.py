"""Frames: everything that moves between tasks. A record batch, and a header that says which records of which channel.

A *channel* is one (producer task, consumer task) pair. What travels on it is numbered from 0 without gaps: each record,
and each control or end frame, takes one number; a heartbeat and a report take none. The numbers are what makes a
resume exact: a producer that goes on from its last commit sends some records again, perhaps cut into other frames, and
the receiver slices off what it has had.

On the wire, little-endian, the lengths and both checksums covered by the first one:

    magic "HRF1" | kind | 3 zero bytes | channel u32 | count u32 | first u64 | progress i64
    | schema length u32 | body length u32 | crc32 of schema and body | stamp i64 | crc32 of the header so far

then the schema and the body: for data and reports both as Arrow IPC messages, for a control frame JSON and no schema.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from headrace.errors import FrameDamaged

_MAGIC: Final = b"HRF1"
_HEADER: Final = struct.Struct("<4sB3xIIQqIIIq")
_STAMP: Final = struct.Struct("<q")
_STAMP_AT: Final = _HEADER.size - _STAMP.size
_CRC: Final = struct.Struct("<I")
_CHECKSUM_AT: Final = _STAMP_AT - _CRC.size
HEADER_BYTES: Final = _HEADER.size + _CRC.size
MOST_BYTES: Final = 64 << 20
"""No frame is longer: what claims to be is damaged."""
MOST_RECORDS: Final = 1 << 24
NO_PROGRESS: Final = -(1 << 63)


class Kind(IntEnum):
    """What a frame is."""

    DATA = 0
    HEARTBEAT = 1
    END = 2
    CONTROL = 3
    REPORT = 4
    """What tasks say to a tracker. It may come again, and says so itself."""


@dataclass(frozen=True)
class Frame:
    """`count` numbers from `first` on are taken. `progress` is a tick below which nothing more comes on the channel.

    `stamp` is when a queue took it, by a clock of the queue's; 0 where it has none.
    """

    kind: Kind
    channel: int
    first: int
    count: int
    batch: pa.RecordBatch | None = None
    message: dict[str, Any] | None = None
    progress: int = NO_PROGRESS
    stamp: int = 0

    @property
    def end(self) -> int:
        """The number after the last."""
        return self.first + self.count

    def since(self, number: int) -> Frame:
        """Without the records before a number."""
        if number <= self.first or self.batch is None:
            return self
        skipped = number - self.first
        return replace(self, first=number, count=self.count - skipped, batch=self.batch.slice(skipped))


def data(channel: int, first: int, batch: pa.RecordBatch, progress: int = NO_PROGRESS) -> Frame:
    return Frame(Kind.DATA, channel, first, batch.num_rows, batch, None, progress)


def end(channel: int, first: int) -> Frame:
    return Frame(Kind.END, channel, first, 1)


def heartbeat(channel: int, first: int, progress: int) -> Frame:
    return Frame(Kind.HEARTBEAT, channel, first, 0, None, None, progress)


def report(batch: pa.RecordBatch) -> Frame:
    return Frame(Kind.REPORT, 0, 0, batch.num_rows, batch)


def control(channel: int, first: int, message: dict[str, Any]) -> Frame:
    return Frame(Kind.CONTROL, channel, first, 1, None, message)


# ----------------------------------------------------------------------- bytes


def encode(frame: Frame) -> bytes:
    schema, body = b"", b""
    if frame.batch is not None:
        schema = _schema_bytes(frame.batch.schema)
        body = memoryview(frame.batch.serialize())  # type: ignore[assignment]
    elif frame.message is not None:
        body = json.dumps(frame.message, separators=(",", ":")).encode()
    size = HEADER_BYTES + len(schema) + len(body)
    if size > MOST_BYTES or frame.count > MOST_RECORDS:
        raise ValueError(f"a frame of {frame.count} records and {size} bytes is too large: cut it")
    crc = zlib.crc32(body, zlib.crc32(schema))
    lengths = len(schema), len(body)
    header = _HEADER.pack(
        _MAGIC, frame.kind, frame.channel, frame.count, frame.first, frame.progress, *lengths, crc, frame.stamp
    )
    return b"".join((header, _CRC.pack(zlib.crc32(header)), schema, body))


def stamped(content: bytes, stamp: int) -> bytes:
    """The same frame with another stamp."""
    header = content[:_STAMP_AT] + _STAMP.pack(stamp)
    return b"".join((header, _CRC.pack(zlib.crc32(header)), memoryview(content)[HEADER_BYTES:]))


def size_of(header: bytes | memoryview) -> int:
    """The length of the whole frame, from its first bytes. Raises FrameDamaged where they are not those of a frame."""
    if len(header) < HEADER_BYTES:
        raise FrameDamaged("it is shorter than a header")
    (crc,) = _CRC.unpack_from(header, _HEADER.size)
    if bytes(header[:4]) != _MAGIC:
        raise FrameDamaged("it does not begin as a frame of a version that this Headrace knows")
    if zlib.crc32(header[: _HEADER.size]) != crc:
        raise FrameDamaged("the checksum of its header is wrong")
    schema_length, body_length = struct.unpack_from("<II", header, 32)
    size = HEADER_BYTES + schema_length + body_length
    if size > MOST_BYTES:
        raise FrameDamaged(f"it claims to be {size} bytes long")
    return int(size)


def numbers_of(content: bytes | memoryview) -> tuple[Kind, int, int]:
    """Of a frame of our own: its kind, its channel, and the number after its last."""
    _, kind, channel, count, first, *_ = _HEADER.unpack_from(content)
    return Kind(kind), channel, first + count


def checksum_of(content: bytes | memoryview) -> int:
    """Of what is in a frame of our own, whatever its header."""
    (found,) = _CRC.unpack_from(content, _CHECKSUM_AT)
    return int(found)


def decode(content: bytes | memoryview) -> Frame:
    """The inverse of `encode`. Raises FrameDamaged for anything else, whoever made it: nothing in it is trusted."""
    if size_of(content) != len(content):
        raise FrameDamaged("its length is not the one in its header")
    _, kind, channel, count, first, progress, schema_length, _, crc, stamp = _HEADER.unpack_from(content)
    rest = memoryview(content)[HEADER_BYTES:]
    if zlib.crc32(rest) != crc:
        raise FrameDamaged("its checksum is wrong")
    if count > MOST_RECORDS or first >> 62:
        raise FrameDamaged(f"it claims records {first} to {first + count}")
    schema, body = rest[:schema_length], rest[schema_length:]
    batch, message = None, None
    if kind in (Kind.DATA, Kind.REPORT):
        batch = checked_batch(bytes(schema), body)
        if batch.num_rows != count:
            raise FrameDamaged(f"its header says {count} records and its batch has {batch.num_rows}")
    elif kind == Kind.CONTROL:
        message = _message(body)
    elif kind not in (Kind.HEARTBEAT, Kind.END) or len(rest):
        raise FrameDamaged(f"there is no such kind of frame ({kind}, {len(rest)} bytes)")
    if kind not in (Kind.DATA, Kind.REPORT) and count != (kind != Kind.HEARTBEAT):
        raise FrameDamaged(f"a frame of its kind does not take {count} numbers")
    return Frame(Kind(kind), channel, first, count, batch, message, progress, stamp)


def checked_batch(schema: bytes, body: memoryview) -> pa.RecordBatch:
    """A record batch from two IPC messages that anybody may have made. Raises FrameDamaged."""
    try:
        if _is_compressed(body):
            raise FrameDamaged("its record batch is compressed, and so of unknown length")
        batch = pa.ipc.read_record_batch(pa.py_buffer(body), _schema(schema))
        batch.validate(full=True)
        for index in _nested(schema) if batch.num_rows else range(batch.num_columns):
            _check_empty_arrays(batch.column(index))
    except (pa.ArrowException, struct.error, OSError, EOFError, MemoryError, UnicodeDecodeError) as error:
        raise FrameDamaged(f"its record batch cannot be read ({_first_line(error)})") from None
    return batch


def _message(body: memoryview) -> dict[str, Any]:
    try:
        message = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise FrameDamaged(f"its message cannot be read ({_first_line(error)})") from None
    if not isinstance(message, dict):
        raise FrameDamaged("its message is not an object")
    return message


@lru_cache(maxsize=256)
def _schema_bytes(schema: pa.Schema) -> bytes:
    return schema.serialize().to_pybytes()  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def _schema(content: bytes) -> pa.Schema:
    schema = pa.ipc.read_schema(pa.py_buffer(content))
    _ = schema.names  # raises where one is not UTF-8, which Arrow does not look at
    return schema


@lru_cache(maxsize=256)
def _nested(content: bytes) -> tuple[int, ...]:
    """The columns that have arrays inside."""
    types = [_storage(field.type) for field in _schema(content)]
    return tuple(index for index, of in enumerate(types) if of.num_fields)


def _storage(of: pa.DataType) -> pa.DataType:
    return of.storage_type if isinstance(of, pa.BaseExtensionType) else of


def _check_empty_arrays(array: pa.Array) -> None:
    """Arrow validates no offset of an array without elements, and ends the process when it slices by one."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    of = array.type
    is_list = isinstance(array, (pa.ListArray, pa.LargeListArray))  # a map is a list, too
    if len(array) == 0 and (is_list or _is_variable(of)):
        _, offsets, *contents = array.buffers()
        length = len(array.values) if is_list else contents[0].size if contents[0] is not None else 0
        code = "<q" if pa.types.is_large_list(of) or _is_large(of) else "<i"
        if offsets is not None and offsets.size and not 0 <= struct.unpack_from(code, offsets)[0] <= length:
            raise FrameDamaged("an empty array in its record batch begins past its values")
    for inner in _inside(array):
        _check_empty_arrays(inner)


def _is_large(of: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(of) or pa.types.is_large_binary(of))


def _is_variable(of: pa.DataType) -> bool:
    return bool(pa.types.is_string(of) or pa.types.is_binary(of) or _is_large(of))


def _inside(array: pa.Array) -> list[pa.Array]:
    if isinstance(array, (pa.StructArray, pa.UnionArray)):
        return [array.field(index) for index in range(array.type.num_fields)]
    return [array.values] if hasattr(array, "values") else []


def _is_compressed(message: memoryview) -> bool:
    """From the Flatbuffers table of an IPC message: has its header, a RecordBatch, the field `compression`?

    Arrow would make room for as many bytes as a compressed buffer claims to have.
    """
    (mark,) = struct.unpack_from("<I", message, 0)
    start = 8 if mark == 0xFFFFFFFF else 4
    (root,) = struct.unpack_from("<I", message, start)
    header = _field(message, start + root, 2)
    return header is not None and _field(message, header + struct.unpack_from("<I", message, header)[0], 3) is not None


def _field(message: memoryview, table: int, number: int) -> int | None:
    """Where a field of a table is."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    if vtable < 0:
        raise struct.error("a table before the start")
    (size,) = struct.unpack_from("<H", message, vtable)
    slot = 4 + 2 * number
    if slot + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", message, vtable + slot)
    return table + offset if offset else None


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
