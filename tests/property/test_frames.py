"""Frames: what goes in comes out, and what was changed on the way does not."""

from __future__ import annotations

import random
import struct
import zlib
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import FrameDamaged
from headrace.model import frames
from headrace.testing.fuzz_files import fuzz_manifests, fuzz_segments
from headrace.testing.fuzz_frames import changed, fuzz, hostile, sample_batches, sample_frames

_LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint16(), st.integers(0, 65_535)),
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.uint64(), st.integers(0, (1 << 64) - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=20)),
    (pa.large_string(), st.text(max_size=20)),
    (pa.string_view(), st.text(max_size=20)),
    (pa.binary(), st.binary(max_size=20)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(20, 3), st.decimals(-(10**12), 10**12, places=3)),
    (pa.decimal256(60, 0), st.decimals(-(10**20), 10**20, places=0)),
    (pa.timestamp("us", "UTC"), st.integers(-(1 << 60), 1 << 60)),
    (pa.duration("ns"), st.integers(-(1 << 60), 1 << 60)),
    (pa.date32(), st.integers(-(1 << 20), 1 << 20)),
    (pa.time64("us"), st.integers(0, 86_399_999_999)),
    (pa.null(), st.none()),
]
Typed = tuple[pa.DataType, st.SearchStrategy[Any]]


def _deeper(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.none() | values

    def listed(typed: Typed, make: Any, size: int | None) -> Typed:
        values = st.lists(optional(typed[1]), min_size=size or 0, max_size=size if size is not None else 4)
        return make(typed[0]), values

    return st.one_of(
        inner.map(lambda typed: listed(typed, pa.list_, None)),
        inner.map(lambda typed: listed(typed, pa.large_list, None)),
        inner.map(lambda typed: listed(typed, lambda of: pa.list_(of, 2), 2)),
        st.tuples(inner, inner).map(
            lambda two: (
                pa.struct([("a", two[0][0]), ("b", two[1][0])]),
                st.fixed_dictionaries({"a": optional(two[0][1]), "b": optional(two[1][1])}),
            )
        ),
        inner.map(
            lambda typed: (
                pa.map_(pa.string(), typed[0]),
                st.lists(st.tuples(st.text(max_size=3), optional(typed[1])), max_size=3),
            )
        ),
    )


_TYPED: st.SearchStrategy[Typed] = st.recursive(st.sampled_from(_LEAVES), _deeper, max_leaves=4)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """A batch of some columns of any types, perhaps a slice of a longer one, perhaps empty."""
    rows = draw(st.integers(0, 12))
    columns = {}
    for index, (of, values) in enumerate(draw(st.lists(_TYPED, min_size=1, max_size=4))):
        drawn = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[f"c{index}"] = pa.array(drawn, of)
    batch = pa.record_batch(columns)
    start = draw(st.integers(0, rows))
    return batch.slice(start, draw(st.integers(0, rows - start)))


_NUMBERS = st.integers(0, (1 << 62) - 1)
_CHANNELS = st.integers(0, (1 << 32) - 1)
_TICKS = st.integers(-(1 << 63), (1 << 63) - 1)
_MESSAGES = st.dictionaries(
    st.text(max_size=5),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda of: st.lists(of, max_size=3)),
    max_size=4,
)


def same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """NaN equals NaN here, which is why the printed values count as well; a sliced union prints more than it has."""
    return one.schema.equals(other.schema, check_metadata=True) and (
        one.equals(other) or _values(one) == _values(other)
    )


def _values(batch: pa.RecordBatch) -> list[str]:
    return [column.to_string(window=100, container_window=100) for column in batch.columns]


@given(batches(), _CHANNELS, _NUMBERS, _TICKS)
@settings(max_examples=250)
def test_data_round_trip(batch: pa.RecordBatch, channel: int, first: int, progress: int) -> None:
    encoded = frames.encode(frames.data(channel, first, batch, progress))
    assert frames.size_of(encoded[: frames.HEADER_BYTES]) == len(encoded)
    for content in (encoded, memoryview(b"xyz" + encoded)[3:]):
        frame = frames.decode(content)
        assert (frame.kind, frame.channel, frame.first) == (frames.Kind.DATA, channel, first)
        assert (frame.count, frame.progress) == (batch.num_rows, progress)
        assert frame.batch is not None
        assert same(frame.batch, batch)


@given(_CHANNELS, _NUMBERS, _TICKS, _MESSAGES)
def test_other_kinds_round_trip(channel: int, first: int, progress: int, message: dict[str, Any]) -> None:
    some = (
        frames.control(channel, first, message),
        frames.heartbeat(channel, first, progress),
        frames.end(channel, first),
    )
    for frame in some:
        assert frames.decode(frames.encode(frame)) == frame


@given(batches(), st.integers(0, 12))
def test_since_gives_the_records_from_a_number_on(batch: pa.RecordBatch, skipped: int) -> None:
    frame = frames.data(1, 100, batch)
    rest = frame.since(min(100 + skipped, frame.end))
    assert (rest.end, rest.count) == (frame.end, max(0, batch.num_rows - skipped))
    decoded = frames.decode(frames.encode(rest)).batch
    assert decoded is not None
    assert same(decoded, batch.slice(skipped))


@pytest.mark.parametrize("index", range(len(sample_batches())))
def test_every_family_of_types_is_in_the_samples(index: int) -> None:
    batch = sample_batches()[index]
    decoded = frames.decode(frames.encode(frames.data(1, 5, batch))).batch
    assert decoded is not None
    assert same(decoded, batch)


def test_a_changed_frame_is_refused() -> None:
    rng = random.Random(11)
    for _ in range(5000):
        content = rng.choice(sample_frames())
        other = changed(rng, content)
        if other != content:
            with pytest.raises(FrameDamaged):
                frames.decode(other)


def test_every_single_bit_counts() -> None:
    content = frames.encode(frames.control(3, 4, {"a": 1}))
    for bit in range(8 * len(content)):
        other = bytearray(content)
        other[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameDamaged):
            frames.decode(bytes(other))


def test_hostile_frames_are_refused_or_valid() -> None:
    """In a child process, as a crash would take this one along."""
    lines: list[str] = []
    assert fuzz(seed=3, count=4000, report=lines.append) == 0, lines


def test_an_empty_array_that_begins_past_its_values_is_refused() -> None:
    """Arrow finds such a batch valid, and ends the process when it writes it again."""
    batch = pa.record_batch({"x": pa.array([[[7] * 93], [], []], pa.list_(pa.list_(pa.int64())))})
    content = frames.encode(frames.data(1, 0, batch))
    frames.decode(content)
    for good, bad in (
        (struct.pack("<4i", 0, 1, 1, 1), bytes(16)),  # no list has an inner list,
        (struct.pack("<4q", 1, 0, 93, 0), struct.pack("<4q", 0, 0, 93, 0)),  # there are no inner lists,
        (struct.pack("<2i", 0, 93), struct.pack("<2i", 1000, 93)),  # and those begin at 1000
    ):
        at = content.rindex(good)
        content = content[:at] + bad + content[at + len(bad) :]
    header = content[:40] + struct.pack("<I", zlib.crc32(content[frames.HEADER_BYTES :])) + content[44:52]
    with pytest.raises(FrameDamaged, match="begins past its values"):
        frames.decode(header + struct.pack("<I", zlib.crc32(header)) + content[frames.HEADER_BYTES :])


def test_hostile_frames_have_right_checksums() -> None:
    """Otherwise the test above would show nothing."""
    for number in range(300):
        content = hostile(random.Random(number))
        assert frames.size_of(content) == len(content)
        (crc,) = struct.unpack_from("<I", content, 40)
        assert crc == zlib.crc32(content[frames.HEADER_BYTES :])


def test_segments_and_manifests_that_have_gone_bad_are_not_believed() -> None:
    assert fuzz_segments(seed=1, count=500) == 500
    assert fuzz_manifests(seed=1, count=5000) == 5000
