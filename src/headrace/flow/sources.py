"""Sources that need no server: functions of numbers, steady rates, Parquet files."""

from __future__ import annotations

import glob
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import FlowError, InputError
from headrace.flow.io import Feed, Opening, Source, SplitReader
from headrace.flow.operators import listed
from headrace.model.failures import problem_of

_BLOCK: Final = 1024
_MICROS: Final = 1_000_000


@dataclass(frozen=True)
class Generate(Source):
    """Record n is `make(n, 1)`: a pure function. With several tasks each takes blocks of 1024 numbers in turn."""

    make: Callable[[int, int], pa.RecordBatch]
    schema: pa.Schema
    records: int | None

    def open(self, opening: Opening, position: Any) -> SplitReader:
        return _GenerateReader(self, opening, position or 0)


class _GenerateReader(SplitReader):
    def __init__(self, source: Generate, opening: Opening, taken: int):
        self._source, self._opening, self._taken = source, opening, taken

    def poll(self, most_records: int) -> Feed | None:
        first, count = self._next(most_records)
        if count <= 0:
            return Feed(None, self._taken, ended=True)
        batch = self._source.make(first, count)
        if not isinstance(batch, pa.RecordBatch) or batch.num_rows != count:
            raise FlowError(
                f"the function of hr.generate was asked for {count} records from {first} on, and gave "
                f"{getattr(batch, 'num_rows', batch)!r}; it must give a record batch of just these"
            )
        if batch.schema != self._source.schema:
            raise FlowError(
                f"the function of hr.generate gave the columns {listed(batch.schema)} for records {first} to "
                f"{first + count - 1}, and {listed(self._source.schema)} before; they must always be the same"
            )
        for entry in batch.schema:
            if not entry.nullable and batch.column(entry.name).null_count:
                raise FlowError(
                    f"the function of hr.generate gave null in {entry.name} for records {first} to "
                    f"{first + count - 1}, which its columns do not allow; give values, or declare it nullable=True"
                )
        self._taken += count
        return Feed(batch, self._taken)

    def _next(self, most: int) -> tuple[int, int]:
        """The number of the next record of this split, and how many follow it without a gap."""
        if self._opening.splits == 1:
            first, count = self._taken, most
        else:
            block, within = divmod(self._taken, _BLOCK)
            first = (block * self._opening.splits + self._opening.split) * _BLOCK + within
            count = min(most, _BLOCK - within)
        if self._source.records is not None:
            count = min(count, self._source.records - first)
        return first, count


def generate(
    make: Callable[[int, int], pa.RecordBatch], records: int | None = None, *, schema: pa.Schema | None = None
) -> Generate:
    """`make(first, count)` gives records `first`, `first + 1`, …, always the same ones; `records` of them in all.

    Without `records` it never ends. The columns are those of `make(0, 0)`, or `schema`.
    """
    if schema is None:
        found = make(0, 0)
        if not isinstance(found, pa.RecordBatch) or not found.schema.names:
            what = "none" if isinstance(found, pa.RecordBatch) else f"a {type(found).__name__}"
            raise FlowError(
                f"hr.generate asked its function for no records, make(0, 0), to see the columns, and it gave {what}; "
                f"name them, hr.generate(make, schema=...), or let it give an empty record batch that has them"
            )
        schema = found.schema
    return Generate(make, schema, records)


@dataclass(frozen=True)
class Rate(Source):
    """So many records a second, as the clock has it: `n`, and `ts`, the moment at which it was due."""

    per_second: float
    records: int | None

    schema = pa.schema([("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])

    def open(self, opening: Opening, position: Any) -> SplitReader:
        return _RateReader(self, opening, position or 0)


class _RateReader(SplitReader):
    def __init__(self, source: Rate, opening: Opening, taken: int):
        self._source, self._opening, self._taken = source, opening, taken

    def poll(self, most_records: int) -> Feed | None:
        due = int((self._opening.clock() - self._opening.began_us / _MICROS) * self._source.per_second)
        if self._source.records is not None:
            due = min(due, self._source.records)
        splits, split = self._opening.splits, self._opening.split
        mine = max(0, (due - split + splits - 1) // splits)
        count = min(most_records, mine - self._taken)
        ended = due == self._source.records and count <= 0
        if count <= 0:
            return Feed(None, self._taken, ended=True) if ended else None
        numbers = (np.arange(self._taken, self._taken + count, dtype=np.int64)) * splits + split
        # The moment is part of the record: the same again, whenever it is read again.
        moments = self._opening.began_us + (numbers * _MICROS / self._source.per_second).astype(np.int64)
        self._taken += count
        columns = [pa.array(numbers), pa.array(moments).cast(Rate.schema.types[1])]
        return Feed(pa.record_batch(columns, schema=Rate.schema), self._taken)

    def due_s(self) -> float:
        number = self._taken * self._opening.splits + self._opening.split + 1
        due = self._opening.began_us / _MICROS + number / self._source.per_second
        return max(0.0, due - self._opening.clock())


def rate(per_second: float, records: int | None = None) -> Rate:
    """Records `n` and `ts` at a steady rate, for trials and load tests; without `records` it never ends."""
    if not 0 < per_second < 1e12:
        raise FlowError(f"hr.rate: {per_second} records a second; give a number above 0, and below 10^12")
    return Rate(float(per_second), records)


@dataclass(frozen=True)
class ParquetFiles(Source):
    """The files that are there when the flow starts, in the order of their names."""

    path: str
    schema: pa.Schema

    def open(self, opening: Opening, position: Any) -> SplitReader:
        return _ParquetReader(self, opening, position)

    def check(self) -> None:
        _files(self.path)


class _ParquetReader(SplitReader):
    """A position is the path of a file and how many of its records were taken."""

    def __init__(self, source: ParquetFiles, opening: Opening, position: Any):
        self._schema = source.schema
        mine = [file for file in _files(source.path) if zlib.crc32(file.encode()) % opening.splits == opening.split]
        self._name: str = position[0] if position else ""
        self._row: int = position[1] if position else 0
        self._files = [file for file in mine if file >= self._name]
        if self._files and self._files[0] != self._name:
            self._row = 0
        self._batches: Any = None
        self._left: pa.RecordBatch | None = None

    def poll(self, most_records: int) -> Feed | None:
        while self._left is None or not self._left.num_rows:
            if self._batches is None:
                if not self._files:
                    return Feed(None, [self._name, self._row], ended=True)
                self._open_next()
            self._left = next(self._batches, None)
            if self._left is None:
                self._files.pop(0)
                self._batches = None
                self._row = self._row if not self._files else 0
        batch = self._left.slice(0, most_records)
        self._left = self._left.slice(most_records)
        self._row += batch.num_rows
        return Feed(batch, [self._name, self._row])

    def _open_next(self) -> None:
        self._name = self._files[0]
        self._batches = self._skipped(self._name, self._row)

    def _skipped(self, path: str, rows: int) -> Iterator[pa.RecordBatch]:
        try:
            file = pq.ParquetFile(path)
            found = {entry.name: _decoded(entry.type) for entry in file.schema_arrow}
            if any(found.get(entry.name) != entry.type for entry in self._schema):
                columns = listed(file.schema_arrow)
                raise InputError(f"{path} has the columns {columns}, not {listed(self._schema)}; move it away")
            for batch in file.iter_batches(columns=self._schema.names):
                skip = min(rows, batch.num_rows)
                rows -= skip
                columns = batch.select(self._schema.names).slice(skip).columns
                yield pa.RecordBatch.from_arrays([_plain(each) for each in columns], schema=self._schema)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(path, error) from None


def _decoded(type: pa.DataType) -> pa.DataType:
    """As frames and state have it: values, not numbers of values."""
    return type.value_type if pa.types.is_dictionary(type) else type


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


def _unreadable(path: str, error: Exception) -> InputError:
    return InputError(f"{path} cannot be read ({problem_of(error)}); put it back from a copy, or move it away")


def _files(path: str) -> list[str]:
    # What there is under just this name is no pattern.
    pattern = f"{glob.escape(path)}/*.parquet" if Path(path).is_dir() else path
    found = [path] if Path(path).is_file() else sorted(glob.glob(pattern))
    if not found:
        raise InputError(
            f"{path}: there are no Parquet files; name a folder, a file or a pattern such as data/*.parquet"
        )
    return found


def parquet_files(path: str | os.PathLike[str]) -> ParquetFiles:
    """The records of Parquet files: a file, a folder or a pattern, in the order of names. Workers read the path."""
    place = os.fspath(path)
    first = _files(place)[0]
    try:
        schema = pq.read_schema(first)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(first, error) from None
    return ParquetFiles(place, pa.schema([pa.field(entry.name, _decoded(entry.type)) for entry in schema]))
