"""Chunks of events as bytes, and where closed ones are kept: in files of many, or in a scratch folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import uuid
import weakref
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from headrace.measure.events import NUMBER_ROW, TIME_ROW
from headrace.model.jit import Ints
from headrace.state.places import LocalPlace
from headrace.state.store import StageStore, StoredPart, parts_of

T = TypeVar("T")

_THREADS: Final = 4
_RISING: Final = (TIME_ROW, NUMBER_ROW)
_pools: dict[int, ThreadPoolExecutor] = {}
_pools_lock: Final = threading.Lock()


def in_background(action: Callable[..., T], *arguments: Any) -> Future[T]:
    """Run it on one of a few threads of this process (Spark forks its workers: a pool does not survive that)."""
    with _pools_lock:
        pool = _pools.get(os.getpid())
        if pool is None:
            _pools.clear()
            pool = _pools[os.getpid()] = ThreadPoolExecutor(_THREADS, "headrace-chunks")
    return pool.submit(action, *arguments)


def chunk_bytes(matrix: Ints) -> bytes:
    """The rows of the matrix as the columns of an Arrow stream, compressed; times and numbers as differences."""
    rows = [np.diff(row, prepend=0) if i in _RISING else row for i, row in enumerate(matrix)]
    table = pa.table([pa.array(row) for row in rows], [str(i) for i in range(len(rows))])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def chunk_of(content: bytes) -> Ints:
    columns = pa.ipc.open_stream(pa.BufferReader(content)).read_all().columns
    matrix = np.stack([column.to_numpy() for column in columns])
    for i in _RISING:
        np.cumsum(matrix[i], out=matrix[i])
    return matrix


class ChunkFiles(Protocol):
    """Where closed chunks are."""

    def write(self, contents: Sequence[bytes]) -> tuple[StoredPart, list[StoredPart]]:
        """Keep these chunks together in one file: the file, and where in it each of them is."""

    def read(self, part: StoredPart) -> bytes:
        """Raises StateDamaged where it is not what was written."""


class ScratchFiles:
    """Files that live as long as this object."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="headrace-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder = folder
        self._place = LocalPlace(folder)

    def write(self, contents: Sequence[bytes]) -> tuple[StoredPart, list[StoredPart]]:
        [content] = contents  # one a file, so that it can be forgotten
        name = uuid.uuid4().hex
        with open(f"{self.folder}/{name}", "wb") as file:  # nobody looks for it after a crash: no fsync
            file.write(content)
        part = StoredPart(name, 0, len(content), zlib.crc32(content))
        return part, [part]

    def read(self, part: StoredPart) -> bytes:
        return StageStore(self._place, "").read_part(part)

    def forget(self, part: StoredPart) -> None:
        """Nobody will read it again."""
        self._place.delete(part.file)


class StageFiles:
    """Files of a stage's state: written under names of their own, collected when no manifest names them."""

    def __init__(self, store: StageStore, batch: int):
        self._store = store
        self._batch = batch

    def write(self, contents: Sequence[bytes]) -> tuple[StoredPart, list[StoredPart]]:
        file = self._store.write_file(self._batch, "events", b"".join(contents))
        return file, parts_of(file.file, contents)

    def read(self, part: StoredPart) -> bytes:
        return self._store.read_part(part)
