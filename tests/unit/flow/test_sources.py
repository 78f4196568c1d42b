"""Sources: all records once, the same again from any position."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import FlowError, HeadraceError, InputError
from headrace.flow.io import Feed, Opening, Source

_NUMBERS = pa.schema([("n", pa.int64())])


def _made_of_records(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"n": n} for n in range(first, first + count)])


def _make(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(first, first + count), pa.int64())], schema=_NUMBERS)


def _opening(split: int = 0, splits: int = 1, began_us: int = 0, clock: Callable[[], float] = lambda: 0.0) -> Opening:
    return Opening("f", f"s.{split}", split, splits, began_us, clock)


def _read(source: Source, opening: Opening, position: Any = None, most: Callable[[], int] = lambda: 1000) -> list[Feed]:
    """All feeds to the end; the positions as they are after a restart."""
    reader = source.open(opening, position)
    feeds: list[Feed] = []
    while not (feeds and feeds[-1].ended):
        feed = reader.poll(most())
        assert feed is not None
        feeds.append(Feed(feed.batch, json.loads(json.dumps(feed.position)), feed.ended))
    reader.close()
    return feeds


def _records(feeds: list[Feed]) -> list[Any]:
    return [record for feed in feeds if feed.batch is not None for record in feed.batch.to_pylist()]


# -------------------------------------------------------------------- generate


@given(records=st.integers(0, 5000), splits=st.integers(1, 5), most=st.integers(1, 2000))
@settings(max_examples=40)
def test_splits_cover_all_numbers_once(records: int, splits: int, most: int) -> None:
    source = hr.generate(_make, records)
    found = [_records(_read(source, _opening(split, splits), most=lambda: max(most, 50))) for split in range(splits)]
    assert sorted(record["n"] for part in found for record in part) == list(range(records))
    for part in found:
        assert [record["n"] for record in part] == sorted(record["n"] for record in part)


@given(records=st.integers(0, 3000), splits=st.integers(1, 3), data=st.data())
@settings(max_examples=40)
def test_a_generator_goes_on_from_any_position(records: int, splits: int, data: st.DataObject) -> None:
    source = hr.generate(_make, records)
    opening = _opening(data.draw(st.integers(0, splits - 1)), splits)
    feeds = _read(
        source, opening, most=lambda: data.draw(st.sampled_from([1, 7, 500, 1024, 5000])) if records < 50 else 700
    )
    at = data.draw(st.integers(0, len(feeds) - 1))
    again = _read(source, opening, feeds[at].position, lambda: 333)
    assert _records(feeds[: at + 1]) + _records(again) == _records(feeds)


def test_a_generator_without_an_end() -> None:
    reader = hr.generate(_make).open(_opening(1, 2), None)
    feeds = [reader.poll(1500) for _ in range(3)]
    assert [feed.batch.column("n")[0].as_py() for feed in feeds if feed and feed.batch] == [1024, 3072, 5120]


@pytest.mark.parametrize("wrong", [None, [], _make(0, 3)], ids=["none", "list", "other"])
def test_a_function_that_gives_something_else_is_told_of(wrong: Any) -> None:
    source = hr.generate(lambda first, count: wrong, 10, schema=_NUMBERS)
    with pytest.raises(FlowError, match=r"the function of hr\.generate was asked for 5 records from 0 on, and gave"):
        source.open(_opening(), None).poll(5)


def test_a_function_that_gives_other_columns_is_told_of() -> None:
    source = hr.generate(lambda first, count: pa.record_batch([["x"] * count], names=["t"]), 10, schema=_NUMBERS)
    with pytest.raises(FlowError, match="t string"):
        source.open(_opening(), None).poll(5)


def test_columns_are_asked_for_unless_they_are_said() -> None:
    assert hr.generate(_make).schema == _NUMBERS
    assert hr.generate(lambda first, count: 1 / 0, schema=_NUMBERS).schema == _NUMBERS


# ------------------------------------------------------------------------ rate


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_as_many_as_are_due() -> None:
    clock = _Clock()
    opening = _opening(began_us=1_000_000_000, clock=clock)
    reader = hr.rate(10, 25).open(opening, None)
    assert reader.poll(100) is None
    assert reader.due_s() == pytest.approx(0.1)
    clock.now += 1.05
    feed = reader.poll(100)
    assert feed is not None
    assert feed.batch is not None
    assert feed.batch.column("n").to_pylist() == list(range(10))
    assert feed.batch.column("ts").cast(pa.int64()).to_pylist() == [1_000_000_000 + n * 100_000 for n in range(10)]
    assert reader.poll(100) is None
    assert reader.due_s() == pytest.approx(0.05)
    clock.now -= 5
    assert reader.poll(100) is None, "a clock that goes back"
    clock.now += 500
    found = [reader.poll(10), reader.poll(10), reader.poll(10)]
    assert [feed.batch.num_rows if feed and feed.batch else feed and feed.ended for feed in found] == [10, 5, True]


@given(
    rate=st.sampled_from([0.5, 3.0, 7.7, 1000.0]), records=st.integers(0, 60), splits=st.integers(1, 3), data=st.data()
)
@settings(max_examples=60)
def test_whenever_it_is_read_the_records_are_the_same(
    rate: float, records: int, splits: int, data: st.DataObject
) -> None:
    """One reader asks often, another one asks late and starts again in between."""
    source = hr.rate(rate, records)
    found = []
    for split in range(splits):
        clock = _Clock()
        opening = _opening(split, splits, 1_000_000_000, clock)
        runs: list[list[Feed]] = [[], []]
        for run in runs:
            clock.now = 1000.0
            reader = source.open(opening, None)
            while not (run and run[-1].ended):
                feed = reader.poll(data.draw(st.integers(1, 20)))
                run += [feed] if feed is not None else []
                clock.now += data.draw(st.sampled_from([0.0, 0.3, 5.0, 100.0])) + max(
                    0.0, reader.due_s() if feed is None else 0.0
                )
                if run is runs[1] and run and data.draw(st.booleans()):
                    reader = source.open(opening, run[-1].position)
        assert _records(runs[0]) == _records(runs[1])
        found += _records(runs[0])
    assert sorted(record["n"] for record in found) == list(range(records))


@pytest.mark.parametrize("per_second", [0, -1, float("nan")])
def test_a_rate_is_above_zero(per_second: float) -> None:
    with pytest.raises(FlowError, match=r"hr\.rate: .* records a second; give a number above 0"):
        hr.rate(per_second)


def test_a_rate_is_finite() -> None:
    with pytest.raises(FlowError, match="rate"):
        hr.rate(float("inf"))


def test_what_is_generated_has_nulls_only_where_they_are_allowed() -> None:
    never = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    nulls = hr.generate(lambda first, count: pa.record_batch([pa.nulls(count, pa.int64())], schema=never), 5)
    with pytest.raises(FlowError, match="gave null in n for records 0 to 4, which its columns do not allow"):
        _read(nulls, _opening())


def test_where_no_records_have_no_columns_they_are_to_be_named() -> None:
    with pytest.raises(FlowError, match=r"make\(0, 0\), to see the columns, and it gave none; name them, .*schema="):
        hr.generate(_made_of_records, 5)
    with pytest.raises(FlowError, match="it gave a NoneType"):
        hr.generate(lambda first, count: None, 5)
    named = hr.generate(_made_of_records, 5, schema=_NUMBERS)
    assert _records(_read(named, _opening())) == [{"n": n} for n in range(5)]


# --------------------------------------------------------------------- parquet


def _write(path: Path, numbers: range, group: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path, row_group_size=group)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, numbers in {
        "b": range(10, 15),
        "a": range(10),
        "empty": range(0),
        "d": range(15, 31),
        "z-empty": range(0),
    }.items():
        _write(tmp_path / "in" / f"{name}.parquet", numbers)
    (tmp_path / "in" / "notes.txt").write_text("not one of them")
    return tmp_path / "in"


def _numbers(feeds: list[Feed]) -> list[int]:
    return [record["n"] for record in _records(feeds)]


@pytest.mark.parametrize("most", [1, 2, 4, 1000])
def test_files_are_read_in_the_order_of_their_names(folder: Path, most: int) -> None:
    source = hr.parquet_files(str(folder))
    assert source.schema == _NUMBERS
    feeds = _read(source, _opening(), most=lambda: most)
    assert _numbers(feeds) == list(range(31))
    assert all(feed.batch is None or 0 < feed.batch.num_rows <= most for feed in feeds)


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_files_are_read_on_from_any_position(folder: Path, most: int) -> None:
    source = hr.parquet_files(f"{folder}/*.parquet")
    feeds = _read(source, _opening(), most=lambda: most)
    for at, feed in enumerate(feeds[:-1]):
        assert _numbers(feeds[: at + 1]) + _numbers(_read(source, _opening(), feed.position, lambda: 2)) == list(
            range(31)
        )


def test_nothing_comes_after_the_end(tmp_path: Path) -> None:
    _write(tmp_path / "a.parquet", range(4))
    source = hr.parquet_files(str(tmp_path))
    last = _read(source, _opening())[-1]
    assert last.ended
    assert _numbers(_read(source, _opening(), last.position)) == []


@pytest.mark.parametrize("splits", [1, 2, 3, 9])
def test_each_file_is_in_one_split(folder: Path, splits: int) -> None:
    source = hr.parquet_files(str(folder))
    found = [_numbers(_read(source, _opening(split, splits))) for split in range(splits)]
    assert sorted(number for part in found for number in part) == list(range(31))
    for split in range(splits):
        feeds = _read(source, _opening(split, splits), most=lambda: 2)
        for at, feed in enumerate(feeds[:-1]):
            assert (
                _numbers(feeds[: at + 1]) + _numbers(_read(source, _opening(split, splits), feed.position))
                == found[split]
            )


def test_one_file(folder: Path) -> None:
    assert _numbers(_read(hr.parquet_files(str(folder / "b.parquet")), _opening())) == list(range(10, 15))


@pytest.mark.parametrize("path", ["nowhere", "in/*.csv", "in/none.parquet"])
def test_no_files_are_told_of(folder: Path, path: str) -> None:
    with pytest.raises(InputError, match="there are no Parquet files; name a folder, a file or a pattern"):
        hr.parquet_files(str(folder.parent / path))


def test_files_of_one_name_in_two_folders(tmp_path: Path) -> None:
    for at, day in enumerate(("day=1", "day=2", "day=3")):
        _write(tmp_path / day / "part-0.parquet", range(at * 10, at * 10 + 10))
    source = hr.parquet_files(f"{tmp_path}/*/*.parquet")
    feeds = _read(source, _opening(), most=lambda: 4)
    assert _numbers(feeds) == list(range(30))
    for at, feed in enumerate(feeds[:-1]):
        assert _numbers(feeds[: at + 1]) + _numbers(_read(source, _opening(), feed.position)) == list(range(30))


def test_columns_in_another_order_are_put_in_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": [20], "a": [10], "more": [5]}), tmp_path / "2.parquet")
    assert _records(_read(hr.parquet_files(str(tmp_path)), _opening())) == [{"a": 1, "b": 2}, {"a": 10, "b": 20}]


@pytest.mark.parametrize("wrong", [pa.table({"b": [1]}), pa.table({"n": ["x"]}), None], ids=["name", "type", "torn"])
def test_a_file_that_does_not_fit_is_named(tmp_path: Path, wrong: pa.Table | None) -> None:
    _write(tmp_path / "1.parquet", range(2))
    if wrong is None:
        (tmp_path / "2.parquet").write_bytes(b"PAR1 and then nothing")
    else:
        pq.write_table(wrong, tmp_path / "2.parquet")
    with pytest.raises(HeadraceError, match=r"2\.parquet"):
        _read(hr.parquet_files(str(tmp_path)), _opening())


def test_a_place_may_be_a_path_and_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "x[1]"
    folder.mkdir()
    _write(folder / "a[2].parquet", range(4))
    assert _numbers(_read(hr.parquet_files(folder), _opening())) == list(range(4))
    assert _numbers(_read(hr.parquet_files(folder / "a[2].parquet"), _opening())) == list(range(4))


def test_a_first_file_that_is_no_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "0.parquet").touch()
    _write(tmp_path / "1.parquet", range(4))
    with pytest.raises(InputError, match=r"0\.parquet cannot be read .*put it back from a copy, or move it away"):
        hr.parquet_files(tmp_path)


def test_categories_are_read_as_their_values(tmp_path: Path) -> None:
    plain = pa.table({"c": ["b", None, "a", "b"]})
    coded = pa.table({"c": plain["c"].dictionary_encode()})
    pq.write_table(coded, tmp_path / "1.parquet")
    pq.write_table(plain, tmp_path / "2.parquet")
    source = hr.parquet_files(tmp_path)
    assert source.schema == pa.schema([("c", pa.string())])
    assert _records(_read(source, _opening(), most=lambda: 3)) == plain.to_pylist() * 2
