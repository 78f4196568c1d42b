"""Sinks that need no server: Parquet files, and functions."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import FlowError, HeadraceError
from headrace.flow.io import Opening, Sink, SinkWriter
from headrace.model.failures import shown, stage_failed
from headrace.model.folders import make_folder, sync_folder

_DIGITS: Final = 15
"""Of the number in the name of a file."""


@dataclass(frozen=True)
class ParquetSink(Sink):
    """A file for each commit of each task, named by the number of its first record: whole, and exactly once.

    Where the columns change within a commit, one for each set of columns.
    """

    folder: str

    keeps_first = True

    def open(self, opening: Opening, committed: Any) -> SinkWriter:
        return _ParquetWriter(Path(self.folder), opening)

    def check(self) -> None:
        try:
            make_folder(Path(self.folder))
        except OSError as error:
            raise FlowError(f"sink folder {self.folder}: {error.strerror}; name a folder that can be written") from None


class _ParquetWriter(SinkWriter):
    """Each file goes on where the one before ends.

    Another copy of the task writes the same records: whoever names a file first has written it, and the other one goes
    on behind it.
    """

    def __init__(self, folder: Path, opening: Opening):
        # A flow that was begun anew has numbers of its own, and so has each sink.
        self._prefix = f"{opening.flow}-{opening.began_us:x}-{opening.node}-{opening.split}"
        self._folder = folder
        self._covered = -1
        self._first = 0
        self._batches: list[pa.RecordBatch] = []

    def write(self, first: int, batch: pa.RecordBatch) -> None:
        if not self._batches:
            self._first = first
        self._batches.append(batch)

    def cut(self) -> Callable[[], Any]:
        first, batches = self._first, self._batches
        self._batches = []
        return lambda: self._publish(first, batches)

    def _publish(self, first: int, batches: list[pa.RecordBatch]) -> None:
        # Metrics may be added and removed in mid-commit: a file has records of the same columns.
        for _, same in groupby(batches, key=lambda batch: batch.schema):
            table = pa.Table.from_batches(list(same))
            self._put(first, table)
            first += table.num_rows

    def _put(self, first: int, table: pa.Table) -> None:
        while True:
            self._look()
            had = max(0, self._covered - first)
            if had >= table.num_rows:
                break
            self._covered = max(self._covered, first)
            if self._named(table.slice(had), self._path(self._covered)):
                self._covered += table.num_rows - had
                break
        # Also where another copy has named it: what is committed next counts on it.
        with self._explained(f"cannot keep {self._path(first).name}"):
            sync_folder(self._folder)

    def _look(self) -> None:
        """How far the files of this task go."""
        if self._covered < 0:
            # The sink out-1 is not task 1 of the sink out.
            there = sorted(self._folder.glob(f"{self._prefix}-{'[0-9]' * _DIGITS}.parquet"))
            self._covered = int(there[-1].stem.rpartition("-")[2]) if there else 0
        while (path := self._path(self._covered)).exists():
            self._covered += _rows(path)

    def _path(self, first: int) -> Path:
        return self._folder / f"{self._prefix}-{first:0{_DIGITS}d}.parquet"

    def _named(self, table: pa.Table, path: Path) -> bool:
        """False where there is a file of this name by now."""
        temporary = self._folder / f".{path.name}.{uuid.uuid4().hex}"
        try:
            with self._explained(f"cannot write {path.name}"):
                with open(temporary, "wb") as file:
                    pq.write_table(table, file)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            raise FlowError(
                f"sink folder {self._folder}: {what} ({error.strerror}); see that there is space, and that it may be "
                f"written"
            ) from error


def _rows(path: Path) -> int:
    try:
        rows = int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise FlowError(
            f"{path} is no whole Parquet file ({error}); put it back from a copy, or move it away"
        ) from None
    if not rows:
        raise FlowError(f"{path} has no records, which no flow wrote; move it away")
    return rows


def parquet(folder: str) -> ParquetSink:
    """Parquet files, each record in them exactly once, in a folder of a mounted file system that all workers reach."""
    return ParquetSink(str(folder))


@dataclass(frozen=True)
class Callback(Sink):
    """A function of each batch, called in the worker as soon as it is there: at least once after a crash."""

    function: Callable[[pa.RecordBatch], Any]

    shows_at_commit = False

    def open(self, opening: Opening, committed: Any) -> SinkWriter:
        return _CallbackWriter(self.function, opening.node or opening.task)


class _CallbackWriter(SinkWriter):
    def __init__(self, function: Callable[[pa.RecordBatch], Any], sink: str):
        self._function, self._sink = function, sink

    def write(self, first: int, batch: pa.RecordBatch) -> None:
        """Raises StageFailed."""
        try:
            self._function(batch)
        except HeadraceError:
            raise
        except Exception as error:
            record = shown(batch.slice(0, 1).to_pylist()[0]) if batch.num_rows else "none"
            raise stage_failed(self._sink, error, f"one of {batch.num_rows} from {record}") from error

    def cut(self) -> Callable[[], Any]:
        return lambda: None


def callback(function: Callable[[pa.RecordBatch], Any]) -> Callback:
    """Call a function with each batch. After a crash it may get some records again: if it must not, use hr.parquet."""
    return Callback(function)
