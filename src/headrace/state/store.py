"""Versions of the state of one shard.

A version is a manifest: a small JSON file that names immutable files (a base and the deltas since, chunks of events)
and the small values that must agree with them. Commit = write new files, then the manifest, each by atomic rename.
Two attempts at the same version write files of their own and equal manifests; the last one stands, and either is right.
"""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import StateDamaged
from headrace.state.tables import StateFile, Tables, differences, read_deltas, write_deltas, write_whole

FORMAT = 1
_MOST_DELTAS = 20
_ORPHAN_SECONDS = 3600


@dataclass(frozen=True)
class Version:
    """A state as it was committed."""

    number: int
    identity: str
    files: tuple[StateFile, ...]
    values: Mapping[str, Any]
    tables: Tables = field(compare=False)


class ShardStore:
    """The versions of one shard, in a folder of their own."""

    def __init__(self, folder: Path):
        self.folder = folder

    def manifest_path(self, number: int) -> Path:
        return self.folder / f"{number:012d}.manifest"

    def identity(self, number: int) -> str | None:
        """Which commit of a version stands, without reading its files; None if there is none."""
        try:
            return str(self._manifest(number)["identity"])
        except FileNotFoundError:
            return None

    def load(self, number: int) -> Version:
        """Raises StateDamaged, naming the file, where anything is missing or is not what was written."""
        try:
            manifest = self._manifest(number)
        except FileNotFoundError:
            raise StateDamaged(str(self.manifest_path(number)), "it is missing") from None
        files = tuple(StateFile(**file) for file in manifest["files"])
        tables: Tables = {}
        for file in files:
            for name, delta in read_deltas(self.folder / file.name, file.crc).items():
                tables[name] = delta.apply(tables.get(name))
        tables = {name: tables[name] for name in manifest["tables"]}
        return Version(number, manifest["identity"], files, manifest["values"], tables)

    def commit(self, number: int, before: Version | None, tables: Tables, values: Mapping[str, Any]) -> Version:
        """Write a version on top of the one before it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files = self._write_files(number, before, tables)
        identity = uuid.uuid4().hex
        manifest = {
            "format": FORMAT,
            "identity": identity,
            "files": [vars(file) for file in files],
            "tables": list(tables),
            "values": values,
        }
        body = json.dumps(manifest)
        write_whole(self.manifest_path(number), f"{zlib.crc32(body.encode()):08x}\n{body}".encode())
        return Version(number, identity, files, values, tables)

    def collect(self, oldest: int, now: float) -> None:
        """Delete what no version from `oldest` on needs: the newest version before it stays, as what they start from.

        A file that no manifest names may be one that another attempt is about to name: it has an hour.
        """
        numbers = sorted(int(path.stem) for path in self.folder.glob("*.manifest"))
        before = [number for number in numbers if number < oldest]
        for number in before[:-1]:
            self.manifest_path(number).unlink(missing_ok=True)
        named = {name for number in numbers if number not in before[:-1] for name in self._names(number)}
        for path in self.folder.glob("*.arrow"):
            if path.name not in named and path.stat().st_mtime < now - _ORPHAN_SECONDS:
                path.unlink(missing_ok=True)

    def _names(self, number: int) -> list[str]:
        manifest = self._manifest(number)
        return [file["name"] for file in (*manifest["files"], *manifest["values"]["chunks"])]

    def _write_files(self, number: int, before: Version | None, tables: Tables) -> tuple[StateFile, ...]:
        """A delta, or, where the deltas have become larger than the base or many, a new base."""
        if before is not None:
            deltas = differences(before.tables, tables)
            if not deltas:
                return before.files
            size = sum(delta.data.nbytes for delta in deltas.values())
            since = sum(file.size_bytes for file in before.files[1:]) + size
            if since < before.files[0].size_bytes and len(before.files) <= _MOST_DELTAS:
                return (*before.files, write_deltas(self.folder, f"{number:012d}-delta", deltas))
        return (write_deltas(self.folder, f"{number:012d}-base", differences({}, tables)),)

    def _manifest(self, number: int) -> dict[str, Any]:
        path = self.manifest_path(number)
        content = path.read_bytes()
        crc, _, body = content.partition(b"\n")
        if crc != f"{zlib.crc32(body):08x}".encode():
            raise StateDamaged(str(path), "its checksum is not the one it was written with")
        manifest: dict[str, Any] = json.loads(body)
        if manifest["format"] > FORMAT:
            raise StateDamaged(str(path), f"it has format {manifest['format']}, and this Headrace knows up to {FORMAT}")
        return manifest
