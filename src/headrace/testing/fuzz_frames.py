"""Hostile frames: random changes to good ones, with both checksums made right again, so that Arrow itself meets them.

    python -m headrace.testing.fuzz_frames --count 1000000 --seed 1

Each must be refused with FrameDamaged or give a batch that is valid, and that can be walked through; a crash, another
error, or memory far beyond the length of the frame is a finding. It runs in child processes, and a finding is reported
with its seed and number: `--seed S --only N` shows it again.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import decimal
import mmap
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from headrace.errors import FrameDamaged
from headrace.model import frames

_HEADER: Final = struct.Struct("<4sB3xIIQqIIIq")
_INTERESTING: Final = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
_CHUNK: Final = 50_000
_MOST_ALLOCATED: Final = 64 << 20
"""More than any frame here could need: they are a few kilobytes long."""
_ADDRESS_SPACE: Final = 8 << 30


def sample_batches() -> list[pa.RecordBatch]:
    """Batches of every family of types, with nulls, empty ones and slices."""
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5, 6)
    entries = [{"a": 1, "b": "x"}, None, {"a": None, "b": "ü"}]
    columns: dict[str, pa.Array] = {
        "int": pa.array([1, None, -3], pa.int64()),
        "tiny": pa.array([1, None, -3], pa.int8()),
        "real": pa.array([1.5, None, float("nan")]),
        "flag": pa.array([True, None, False]),
        "text": pa.array(["a", None, "größer"]),
        "large_text": pa.array(["a", None, "b"], pa.large_string()),
        "text_view": pa.array(["a", None, "longer than twelve bytes"], pa.string_view()),
        "bytes": pa.array([b"a", None, b""], pa.binary()),
        "fixed": pa.array([b"abcd", None, b"efgh"], pa.binary(4)),
        "decimal": pa.array([decimal.Decimal("1.23"), None, decimal.Decimal("-9.99")], pa.decimal128(20, 2)),
        "wide": pa.array([decimal.Decimal("1.23"), None, None], pa.decimal256(50, 2)),
        "moment": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
        "date": pa.array([datetime.date(2024, 1, 2), None, None]),
        "time": pa.array([datetime.time(1, 2, 3), None, None]),
        "list": pa.array([[1, 2], None, []], pa.list_(pa.int32())),
        "large_list": pa.array([["a"], None, []], pa.large_list(pa.string())),
        "fixed_list": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)),
        "list_view": pa.array([[1, 2], None, []], pa.list_view(pa.int32())),
        "struct": pa.array(entries),
        "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "deep": pa.array([[[{"a": [1]}]], None, []]),
        "empty_texts": pa.array([[], None, []], pa.list_(pa.string())),
        "empty_lists": pa.array([[], None, [[]]], pa.list_(pa.list_(pa.int64()))),
        "none": pa.nulls(3),
        "run_end": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", None])),
        "union": pa.UnionArray.from_dense(
            pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32()), [pa.array([1, 2]), pa.array(["x"])]
        ),
    }
    one_by_one = [pa.record_batch({name: column}) for name, column in columns.items()]
    everything = pa.record_batch(columns)
    long = pa.record_batch({"n": pa.array(range(200)), "s": pa.array([str(n) for n in range(200)])})
    return [*one_by_one, everything, everything.slice(1, 1), everything.slice(3), long, long.slice(17, 50)]


@cache
def sample_frames() -> list[bytes]:
    """Encoded, of every kind."""
    encoded = []
    for batch in sample_batches():
        with contextlib.suppress(pa.ArrowException):
            encoded.append(frames.encode(frames.data(1, 5, batch, progress=9)))
    message = {"a": [1, 2, {"b": None}], "c": "text"}
    others = (frames.control(1, 5, message), frames.heartbeat(1, 5, 9), frames.end(1, 5))
    return encoded + [frames.encode(other) for other in others]


# --------------------------------------------------------------------- changes


def _flip(rng: random.Random, content: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, content: bytearray) -> None:
    size = rng.choice((1, 2, 4, 4, 4, 8))
    at = rng.randrange(max(1, len(content) - size)) // size * size
    value = rng.choice((*_INTERESTING, rng.getrandbits(32), len(content), rng.randrange(256)))
    content[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")


def _cut(rng: random.Random, content: bytearray) -> None:
    at = rng.randrange(len(content))
    del content[at : at + rng.choice((1, 4, 8, 64, len(content)))]


def _insert(rng: random.Random, content: bytearray) -> None:
    content[rng.randrange(len(content)) : 0] = rng.randbytes(rng.choice((1, 4, 8, 64)))


def _splice(rng: random.Random, content: bytearray) -> None:
    other = rng.choice(sample_frames())[frames.HEADER_BYTES :] or b"\0"
    start, length = rng.randrange(len(other)), rng.choice((4, 8, 16, 64, 512))
    at = rng.randrange(len(content))
    content[at : at + length] = other[start : start + length]


_CHANGES: Final[tuple[Callable[[random.Random, bytearray], None], ...]] = (
    _flip,
    _flip,
    _overwrite,
    _overwrite,
    _overwrite,
    _cut,
    _insert,
    _splice,
)


def changed(rng: random.Random, content: bytes) -> bytes:
    """Random changes, checksums and lengths left as they were."""
    result = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if result:
            rng.choice(_CHANGES)(rng, result)
    return bytes(result)


def hostile(rng: random.Random) -> bytes:
    """A changed frame whose header, lengths and checksums are right."""
    content = rng.choice(sample_frames())
    magic, kind, channel, count, first, progress, schema_length, _, _, stamp = _HEADER.unpack_from(content)
    rest = content[frames.HEADER_BYTES :]
    schema, body = rest[:schema_length], rest[schema_length:]
    which = rng.randrange(10)
    if which < 4 or not body:
        schema = changed(rng, schema)
    if which >= 3:
        body = changed(rng, body)
    if which == 9:
        count = rng.choice((0, 1, 2, 3, 4, count + 1, 1 << 24, 0xFFFFFFFF))
        kind = rng.randrange(5)
    crc = zlib.crc32(body, zlib.crc32(schema))
    header = _HEADER.pack(magic, kind, channel, count, first, progress, len(schema), len(body), crc, stamp)
    return header + struct.pack("<I", zlib.crc32(header)) + schema + body


def hostile_frame(seed: int, number: int) -> bytes:
    return hostile(random.Random(seed << 40 | number))


def try_frame(content: bytes) -> bool:
    """Was it taken? Whatever is taken must be fit for use. Raises whatever decoding raises besides FrameDamaged."""
    try:
        frame = frames.decode(content)
    except FrameDamaged:
        return False
    if frame.batch is not None:
        # Years, decimals and time zones that Python does not know are fine values. (`nbytes` of a slice is not asked
        # for: pyarrow 26 crashes there for a sound batch.)
        with contextlib.suppress(ValueError, ArithmeticError, LookupError):
            frame.batch.to_pylist()
        frame.batch.equals(frame.batch)
        again = frames.decode(frames.encode(frame))
        assert again.batch is not None
        assert again.batch.schema.equals(frame.batch.schema)
    return True


# --------------------------------------------------------------------- workers


def _work(seed: int, first: int, count: int, place: str) -> None:
    """Tries frames, and leaves the number of the one it is at in a file for whoever finds it dead."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pool, taken = pa.default_memory_pool(), 0
    with Path(place).open("r+b") as file, mmap.mmap(file.fileno(), 16) as shared:
        for number in range(first, first + count):
            shared[:8] = number.to_bytes(8, "little")
            taken += try_frame(hostile_frame(seed, number))
            if pool.max_memory() > _MOST_ALLOCATED:
                raise MemoryError(f"Arrow allocated {pool.max_memory()} bytes")
        shared[8:] = taken.to_bytes(8, "little")


def _run_child(seed: int, first: int, count: int, place: Path) -> tuple[int, int, str]:
    """How many were tried, how many taken, and what went wrong with the last one."""
    place.write_bytes(bytes(16))
    arguments = ["--seed", str(seed), "--first", str(first), "--count", str(count), "--worker", str(place)]
    command = [sys.executable, "-m", "headrace.testing.fuzz_frames", *arguments]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        problem = "" if child.returncode == 0 else f"exit {child.returncode}: {child.stderr.strip()[-400:]}"
    except subprocess.TimeoutExpired:
        problem = "no end in 600 s"
    number, taken = struct.unpack("<QQ", place.read_bytes())
    return number - first + 1, taken, problem


def fuzz(seed: int, count: int, report: Callable[[str], Any], first: int = 0) -> int:
    """How many findings there are in so many frames."""
    findings, taken, done = 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        while done < count:
            start = first + done
            tried, some, problem = _run_child(seed, start, min(_CHUNK, count - done), Path(folder) / "number")
            done, taken = done + tried, taken + some
            if problem:
                findings += 1
                report(f"FOUND seed {seed} number {start + tried - 1}: {problem}")
    report(f"{done} frames from seed {seed}: {taken} taken, {findings} findings")
    return findings


def _main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, help="one number, in this process")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        _work(given.seed, given.first, given.count, given.worker)
        return 0
    if given.only is not None:
        taken = try_frame(hostile_frame(given.seed, given.only))
        sys.stdout.write("taken\n" if taken else "refused\n")
        return 0

    def report(line: str) -> None:
        sys.stdout.write(line + os.linesep)
        sys.stdout.flush()

    return 1 if fuzz(given.seed, given.count, report, given.first) else 0


if __name__ == "__main__":
    sys.exit(_main())
