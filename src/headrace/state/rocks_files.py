"""A RocksDB as files of a state: what is new in a checkpoint is published, and a shard opens its own copy of them."""

from __future__ import annotations

import io
import itertools
import os
import platform
import shutil
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from headrace.state.rocks import RocksGroups
from headrace.state.store import StageStore, StoredPart

_SUFFIX: Final = ".sst"
_PREFIX: Final = "headrace-rocks-"


class ShardDatabase:
    """The database of one shard: open in a scratch folder, which goes away with this object."""

    def __init__(self, store: StageStore, found: Mapping[str, Any] | None, memory_bytes: int):
        """`found` is what `publish` gave for the version to start from; None for an empty one."""
        root = store.place.scratch()
        _sweep(root)
        scratch = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{platform.node()}-{os.getpid()}-", dir=root))
        self._scratch = scratch
        weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        self._published: dict[str, StoredPart] = {}
        self._numbers = itertools.count()
        if found is None:
            self.groups = RocksGroups(scratch / "db", memory_bytes)
            return
        self._published = {name: StoredPart(**part) for name, part in found["tables"].items()}
        files = {name: store.place.local_path(part.file) for name, part in self._published.items()}
        rest = scratch / "rest"
        with zipfile.ZipFile(io.BytesIO(store.read_part(StoredPart(**found["rest"])))) as packed:
            packed.extractall(rest)
        files |= {path.name: path for path in rest.iterdir()}
        self.groups = RocksGroups.opened_from(scratch / "db", files, memory_bytes)

    def publish(self, store: StageStore, batch: int) -> tuple[dict[str, Any], list[StoredPart]]:
        """Make a checkpoint, and put what is new of it where all can reach it: what to remember, and all its files."""
        folder = self._scratch / f"checkpoint-{next(self._numbers)}"
        files = self.groups.checkpoint(folder)
        tables = [path for path in files if path.suffix == _SUFFIX]
        known = self._published
        self._published = {path.name: known.get(path.name) or _adopted(store, batch, path) for path in tables}
        rest = store.write_file(batch, "rocks", _packed([path for path in files if path.suffix != _SUFFIX]))
        shutil.rmtree(folder)
        found = {"tables": {name: asdict(part) for name, part in self._published.items()}, "rest": asdict(rest)}
        return found, [*self._published.values(), rest]


def _sweep(root: Path) -> None:
    """Scratch folders of processes of this machine that have died, which had no time to clean up."""
    for folder in root.glob(f"{_PREFIX}{platform.node()}-*"):
        pid = folder.name.removeprefix(f"{_PREFIX}{platform.node()}-").partition("-")[0]
        if pid.isdigit() and not _lives(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _adopted(store: StageStore, batch: int, path: Path) -> StoredPart:
    name = store.new_name(batch, "sst")
    store.place.adopt(path, name)
    return StoredPart(name, 0, path.stat().st_size, zlib.crc32(path.read_bytes()))


def _packed(files: list[Path]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as packed:
        for path in files:
            packed.write(path, path.name)
    return sink.getvalue()
