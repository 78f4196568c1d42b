"""Sinks that need no server: Parquet files, and functions."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import FlowError
from headrace.flow.io import Opening, Sink, SinkWriter


@dataclass(frozen=True)
class ParquetSink(Sink):
    """A file for each commit of each task, named by the number of its first record: whole, and exactly once."""

    folder: str

    def open(self, opening: Opening, committed: Any) -> SinkWriter:
        return _ParquetWriter(Path(self.folder), opening.task)

    def check(self) -> None:
        try:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FlowError(f"sink folder {self.folder}: {error.strerror}; name a folder that can be written") from None


class _ParquetWriter(SinkWriter):
    def __init__(self, folder: Path, task: str):
        self._folder, self._task = folder, task
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
        """Whoever writes a number first has written it: another copy of this task writes the same records there."""
        if not batches:
            return
        table = pa.Table.from_batches(batches)
        while table.num_rows:
            path = self._folder / f"{self._task}-{first:015d}.parquet"
            if not path.exists() and self._published(table, path):
                return
            there = pq.read_metadata(path).num_rows
            table, first = table.slice(there), first + there

    def _published(self, table: pa.Table, path: Path) -> bool:
        temporary = self._folder / f".{path.name}.{uuid.uuid4().hex}"
        try:
            with open(temporary, "wb") as file:
                pq.write_table(table, file)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            raise FlowError(f"sink folder {self._folder}: cannot write {path.name} ({error.strerror})") from error
        finally:
            temporary.unlink(missing_ok=True)
        return True


def parquet(folder: str) -> ParquetSink:
    """Parquet files, each record in them exactly once."""
    return ParquetSink(str(folder))


@dataclass(frozen=True)
class Callback(Sink):
    """A function of each batch, called in the worker as soon as it is there: at least once after a crash."""

    function: Callable[[pa.RecordBatch], Any]

    def open(self, opening: Opening, committed: Any) -> SinkWriter:
        return _CallbackWriter(self.function)


class _CallbackWriter(SinkWriter):
    def __init__(self, function: Callable[[pa.RecordBatch], Any]):
        self._function = function

    def write(self, first: int, batch: pa.RecordBatch) -> None:
        self._function(batch)

    def cut(self) -> Callable[[], Any]:
        return lambda: None


def callback(function: Callable[[pa.RecordBatch], Any]) -> Callback:
    """Call a function with each batch. After a crash it may see some records again: use hr.parquet if not."""
    return Callback(function)
