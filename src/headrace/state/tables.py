"""Named arrays as files, and the difference between two versions of them.

State is a set of tables: arrays of numbers whose first axis grows. A *delta* holds the rows that changed since the
version before, so a commit costs what has changed. Files are Arrow IPC, written once and checked by CRC when read.
"""

from __future__ import annotations

import os
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import StateDamaged

Table: TypeAlias = npt.NDArray[Any]
Tables: TypeAlias = dict[str, Table]

_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int64())),
        ("rows", pa.large_binary()),
        ("data", pa.large_binary()),
    ]
)


@dataclass(frozen=True)
class Delta:
    """New values of some rows of a table (`rows` is None for all of them), and the shape it has afterwards."""

    dtype: str
    shape: tuple[int, ...]
    rows: npt.NDArray[np.int64] | None
    data: Table

    def apply(self, old: Table | None) -> Table:
        if self.rows is None:
            return self.data.reshape(self.shape).copy()
        assert old is not None
        new = np.zeros(self.shape, np.dtype(self.dtype))
        kept = min(len(old), len(new))
        new[:kept] = old[:kept]
        new[self.rows] = self.data.reshape(-1, *self.shape[1:])
        return new


def under(prefix: str, tables: Tables) -> Tables:
    """The tables of a part, under names of their own."""
    return {f"{prefix}/{name}": table for name, table in tables.items()}


def part_of(prefix: str, tables: Tables) -> Tables:
    """The inverse of `under`."""
    start = f"{prefix}/"
    return {name.removeprefix(start): table for name, table in tables.items() if name.startswith(start)}


def difference(old: Table | None, new: Table) -> Delta | None:
    """What turns `old` into `new`; None if they are the same."""
    dtype, shape = new.dtype.str, new.shape
    if old is None or old.dtype != new.dtype or old.shape[1:] != new.shape[1:]:
        return Delta(dtype, shape, None, new)
    both = min(len(old), len(new))
    unequal = old[:both] != new[:both]
    changed = np.flatnonzero(unequal.reshape(both, -1).any(axis=1)) if both else np.zeros(0, np.int64)
    if not len(changed) and old.shape == new.shape:
        return None
    rows = np.concatenate([changed, np.arange(both, len(new))]).astype(np.int64)
    if 2 * len(rows) > len(new):
        return Delta(dtype, shape, None, new)
    return Delta(dtype, shape, rows, new[rows])


def differences(old: Mapping[str, Table], new: Mapping[str, Table]) -> dict[str, Delta]:
    found = {name: difference(old.get(name), table) for name, table in new.items()}
    return {name: delta for name, delta in found.items() if delta is not None}


@dataclass(frozen=True)
class StateFile:
    """A file that never changes, by its name in a folder."""

    name: str
    size_bytes: int
    crc: int


def write_new(folder: Path, stem: str, content: Any) -> StateFile:
    """Write a file under a name of its own: two attempts at the same thing never meet."""
    name = f"{stem}-{uuid.uuid4().hex[:16]}.arrow"
    write_whole(folder / name, content)
    return StateFile(name, len(content), zlib.crc32(content))


def write_deltas(folder: Path, stem: str, deltas: Mapping[str, Delta]) -> StateFile:
    rows = [
        {
            "name": name,
            "dtype": delta.dtype,
            "shape": list(delta.shape),
            "rows": None if delta.rows is None else delta.rows.tobytes(),
            "data": np.ascontiguousarray(delta.data).tobytes(),
        }
        for name, delta in deltas.items()
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA) as writer:
        writer.write_table(pa.Table.from_pylist(rows, _SCHEMA))
    return write_new(folder, stem, sink.getvalue())


def read_deltas(path: Path, crc: int) -> dict[str, Delta]:
    """Raises StateDamaged where the file is missing or is not what was written."""
    content = read_checked(path, crc)
    table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
    found: dict[str, Delta] = {}
    for row in table.to_pylist():
        indices = None if row["rows"] is None else np.frombuffer(row["rows"], np.int64)
        data = np.frombuffer(row["data"], np.dtype(row["dtype"]))
        found[row["name"]] = Delta(row["dtype"], tuple(row["shape"]), indices, data)
    return found


def read_checked(path: Path, crc: int) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StateDamaged(str(path), f"it cannot be read ({error.strerror})") from None
    if zlib.crc32(content) != crc:
        raise StateDamaged(str(path), "its checksum is not the one it was written with")
    return content


def write_whole(path: Path, content: Any) -> None:
    """Either the whole file is there under its name, or none."""
    # A name that no other process on any machine has: the folder may be shared by many.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
