"""Versions of the state of a stage, in a place that all its tasks share.

    batches/000000000007/0-of-2.manifest   by task 0 of 2 at the end of batch 7: what the state of its shards is
    files/000000000007-1f….state           rows of tables that changed in batch 7, of all shards of one task
    files/000000000007-2c….events          chunks of events of one shard

A manifest names immutable files and the small values that must agree with them. Commit = write new files, then the
manifest, each whole or not at all. Two attempts at a batch write files of their own and manifests that say the same;
the last one stands, and either is right. Batch b starts from the manifests of batch b - 1, and from nothing else.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from headrace.errors import StateDamaged, StateMismatch
from headrace.state.places import Place
from headrace.state.sealed import seal_record, unseal_record
from headrace.state.tables import Fingerprints, Tables, decode, encode, whole

FORMAT: Final = 2
KEPT_BATCHES: Final = 10
"""How many batches back a query can be started from."""

_MOST_PARTS: Final = 20
_COLLECT_EVERY: Final = 8


@dataclass(frozen=True)
class StoredPart:
    """A stretch of a file that never changes. The name is below the root of the place."""

    file: str
    offset: int
    size_bytes: int
    crc: int


@dataclass(frozen=True)
class ShardVersion:
    """The state of a shard as a manifest has it: a base and deltas, files of events, and small values."""

    identity: str
    parts: tuple[StoredPart, ...]
    tables: tuple[str, ...]
    files: tuple[StoredPart, ...]
    values: Mapping[str, Any] = field(compare=False)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ShardVersion:
        return cls(
            found["identity"],
            tuple(StoredPart(**part) for part in found["parts"]),
            tuple(found["tables"]),
            tuple(StoredPart(**file) for file in found["files"]),
            found["values"],
        )


@dataclass
class ShardChange:
    """What a batch did to a shard: its version before, the rows that changed, its tables and values now."""

    before: ShardVersion | None
    prints: Fingerprints
    tables: Tables
    files: tuple[StoredPart, ...]
    values: Mapping[str, Any]


def parts_of(file: str, contents: Sequence[bytes]) -> list[StoredPart]:
    """Where in a file that holds them one after the other each of these is."""
    parts, offset = [], 0
    for content in contents:
        parts.append(StoredPart(file, offset, len(content), zlib.crc32(content)))
        offset += len(content)
    return parts


class StageStore:
    """The versions of all shards of one stage, in a folder of a place."""

    def __init__(self, place: Place, folder: str):
        self.place = place
        self.folder = folder

    # ------------------------------------------------------------------- read

    def versions(self, batch: int, task: int, tasks: int) -> dict[int, ShardVersion]:
        """What a batch left of the shards of this task, and perhaps of others."""
        folder = self.batch_folder(batch)
        mine = f"{task}-of-{tasks}.manifest"
        names = self.place.files(folder)
        # The same task of the batch before has all that is wanted; after a rescale it takes all of some attempt.
        wanted = [mine] if mine in names else complete_set(names)
        if not wanted:
            raise StateDamaged(self.place.path_of(folder), f"the manifests of batch {batch} are missing")
        found: dict[int, ShardVersion] = {}
        for name in wanted:
            found.update(self.versions_in(f"{folder}/{name}"))
        return found

    def versions_in(self, manifest: str) -> dict[int, ShardVersion]:
        shards = self.manifest(manifest)["shards"]
        return {int(shard): ShardVersion.from_json(version) for shard, version in shards.items()}

    def all_shards(self, batch: int) -> dict[int, ShardVersion]:
        """What a batch left, of all tasks."""
        folder, found = self.batch_folder(batch), dict[int, ShardVersion]()
        for name in complete_set(self.place.files(folder)):
            found.update(self.versions_in(f"{folder}/{name}"))
        return found

    def has_batch(self, batch: int) -> bool:
        return bool(complete_set(self.place.files(self.batch_folder(batch))))

    def batches(self) -> list[int]:
        """The batches of which there is something, oldest first."""
        return [int(name) for name in self.place.folders(f"{self.folder}/batches")]

    def manifest(self, name: str) -> dict[str, Any]:
        manifest: dict[str, Any] = unseal_record(self.place.read(name), self.place.path_of(name))
        check_format(manifest["format"], self.place.path_of(name))
        return manifest

    def load(self, version: ShardVersion) -> Tables:
        """Raises StateDamaged, naming the file, where anything is missing or is not what was written."""
        tables: Tables = {}
        for part in version.parts:
            for name, delta in decode(self.read_part(part)).items():
                tables[name] = delta.apply(tables.get(name))
        return {name: tables[name] for name in version.tables}

    def read_part(self, part: StoredPart) -> bytes:
        content = self.place.read(part.file, part.offset, part.size_bytes)
        if zlib.crc32(content) != part.crc:
            raise StateDamaged(self.place.path_of(part.file), "its checksum is not the one it was written with")
        return content

    # ------------------------------------------------------------------ write

    def write_file(self, batch: int, kind: str, content: bytes) -> StoredPart:
        """A new file under a name of its own: two attempts at the same thing never meet."""
        name = self.new_name(batch, kind)
        self.place.write(name, content)
        return StoredPart(name, 0, len(content), zlib.crc32(content))

    def new_name(self, batch: int, kind: str) -> str:
        """A name that no other file has."""
        return f"{self.folder}/files/{batch:012d}-{uuid.uuid4().hex[:16]}.{kind}"

    def commit(
        self,
        batch: int,
        task: int,
        tasks: int,
        untouched: Mapping[int, ShardVersion],
        changed: Mapping[int, ShardChange],
    ) -> dict[int, ShardVersion]:
        """Write a batch's version of all shards of a task: those that changed, and those that stay as they were."""
        written = self._write_parts(batch, {shard: _part_of(change) for shard, change in changed.items()})
        versions = dict(untouched)
        for shard, change in changed.items():
            versions[shard] = _version(change, written.get(shard))
        manifest = {
            "format": FORMAT,
            "batch": batch,
            "shards": {str(shard): asdict(version) for shard, version in sorted(versions.items())},
        }
        name = f"{self.batch_folder(batch)}/{task}-of-{tasks}.manifest"
        self.place.write(name, seal_record(manifest))
        return versions

    def _write_parts(self, batch: int, parts: Mapping[int, bytes | None]) -> dict[int, StoredPart]:
        """The parts of all shards in one file: one write, whatever the number of shards."""
        contents = {shard: content for shard, content in parts.items() if content is not None}
        if not contents:
            return {}
        file = self.write_file(batch, "state", b"".join(contents.values()))
        return dict(zip(contents, parts_of(file.file, list(contents.values())), strict=True))

    def batch_folder(self, batch: int) -> str:
        return f"{self.folder}/batches/{batch:012d}"

    # ---------------------------------------------------------------- collect

    def collect(self, batch: int, kept: int = KEPT_BATCHES) -> None:
        """Now and then: delete what a query that goes on from any of the last batches does not need."""
        if batch % _COLLECT_EVERY == _COLLECT_EVERY - 1:
            self.collect_now(batch, kept)

    def collect_now(self, batch: int, kept: int = KEPT_BATCHES, *, dry: bool = False) -> list[str]:
        """Delete (unless `dry`), and say what. What an old batch left and no manifest names now, none will name again.

        What an attempt at a newer batch is about to name stays.
        """
        oldest = batch - kept
        old = [b for b in self.batches() if b < oldest]
        named = self.named_files(oldest)
        loose = [
            f"{self.folder}/files/{name}"
            for name in self.place.files(f"{self.folder}/files")
            if not name.startswith(".") and int(name.partition("-")[0]) < oldest
        ]
        loose = [path for path in loose if path not in named]
        for b in old if not dry else ():
            self.place.delete_folder(self.batch_folder(b))
        for path in loose if not dry else ():
            self.place.delete(path)
        for folder in ("files", "definitions") if not dry else ():
            self.place.sweep(f"{self.folder}/{folder}")
        return [*(self.batch_folder(b) for b in old), *loose]

    def named_files(self, oldest: int = 0) -> set[str]:
        """The files that any manifest of any attempt names, from a batch on."""
        named: set[str] = set()
        for batch in self.batches():
            folder = self.batch_folder(batch)
            names = self.place.files(folder) if batch >= oldest else ()
            for name in names:
                if name.endswith(".manifest"):
                    for version in self.versions_in(f"{folder}/{name}").values():
                        named.update(part.file for part in (*version.parts, *version.files))
        return named


def complete_set(names: Iterable[str]) -> list[str]:
    """The manifests of all tasks of one attempt. Attempts may have had different numbers of tasks: any will do."""
    found: dict[int, list[str]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        if path.suffix == ".manifest":
            found.setdefault(int(path.stem.partition("-of-")[2]), []).append(name)
    return next((each for tasks, each in found.items() if len(each) == tasks), [])


def check_format(found: int, path: str) -> None:
    if found > FORMAT:
        raise StateMismatch(
            f"the state at {path} has format {found}, and this Headrace knows formats up to {FORMAT}; "
            f"upgrade Headrace, or start the query anew with a checkpoint and a state location of its own"
        )


def _part_of(change: ShardChange) -> bytes | None:
    """A delta, or, where the deltas have become larger than the base or many, a new base."""
    deltas = change.prints.changes(change.tables)
    before = change.before
    if before is not None and before.parts:
        if not deltas:
            return None
        size = sum(delta.data.nbytes for delta in deltas.values())
        since = sum(part.size_bytes for part in before.parts[1:]) + size
        if since < before.parts[0].size_bytes and len(before.parts) <= _MOST_PARTS:
            return encode(deltas)
    change.before = None
    return encode({name: whole(table) for name, table in change.tables.items()})


def _version(change: ShardChange, part: StoredPart | None) -> ShardVersion:
    parts = (*(change.before.parts if change.before else ()), *([part] if part else []))
    return ShardVersion(uuid.uuid4().hex, parts, tuple(change.tables), change.files, change.values)
