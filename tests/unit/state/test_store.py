from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import StateDamaged, StateMismatch
from headrace.state.places import LocalPlace
from headrace.state.store import ShardChange, ShardVersion, StageStore, complete_set
from headrace.state.tables import AppendOnly, Fingerprints, Tables

SHARDS = (0, 2)


def tables(value: int, rows: int = 1000) -> Tables:
    counts = np.zeros((rows, 3), np.int64)
    counts[:value] = value
    return {"counts": counts, "flags": np.arange(value, dtype=np.uint8), "log": AppendOnly(np.arange(10 * value))}


class Writer:
    """Commits one version after the other."""

    def __init__(self, folder: Path):
        self.store = StageStore(LocalPlace(str(folder)), "query/by-card")
        self.before: dict[int, ShardVersion] = {}
        self.prints = {shard: Fingerprints() for shard in SHARDS}

    def commit(self, number: int, value: int | None = None) -> None:
        now = tables(number if value is None else value)
        changed = {shard: ShardChange(self.before.get(shard), self.prints[shard], now, (), {}) for shard in SHARDS}
        self.before = self.store.commit(number, 0, 1, {}, changed)


def filled(folder: Path, versions: int) -> Writer:
    writer = Writer(folder)
    for number in range(versions):
        writer.commit(number)
    return writer


def assert_holds(store: StageStore, number: int) -> None:
    for version in store.versions(number, 0, 1).values():
        found = store.load(version)
        for name, table in tables(number).items():
            array = table.table if isinstance(table, AppendOnly) else table
            assert found[name].dtype == array.dtype
            assert (found[name] == array).all()


def state_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.state"))


def test_every_version_can_be_loaded(tmp_path: Path) -> None:
    store = filled(tmp_path, 60).store
    for number in range(60):
        assert_holds(store, number)


def test_a_commit_writes_what_has_changed_in_one_file(tmp_path: Path) -> None:
    writer = filled(tmp_path, 3)
    base, *deltas = [file.stat().st_size for file in state_files(tmp_path)]
    assert len(deltas) == 2
    assert base > 48_000
    assert max(deltas) < 6_000
    writer.commit(3, value=2)
    assert len(state_files(tmp_path)) == 3
    assert writer.before[0].parts == writer.store.versions(2, 0, 1)[0].parts


def test_shards_that_had_no_rows_stay_what_they_were(tmp_path: Path) -> None:
    writer = filled(tmp_path, 2)
    before = writer.before
    writer.store.commit(2, 0, 1, before, {})
    assert writer.store.versions(2, 0, 1) == before


def test_two_attempts_at_a_version_do_no_harm(tmp_path: Path) -> None:
    writer = filled(tmp_path, 2)
    before = writer.store.versions(0, 0, 1)
    found = []
    for _ in range(2):
        prints = {shard: Fingerprints() for shard in SHARDS}
        for each in prints.values():
            each.changes(tables(0))
        changed = {shard: ShardChange(before[shard], prints[shard], tables(1), (), {}) for shard in SHARDS}
        found.append(writer.store.commit(1, 0, 1, {}, changed))
    assert found[0][0].identity != found[1][0].identity == writer.store.versions(1, 0, 1)[0].identity
    assert_holds(writer.store, 1)


def test_a_rescaled_stage_reads_any_complete_attempt() -> None:
    names = ["0-of-2.manifest", "0-of-5.manifest", "2-of-5.manifest", "1-of-2.manifest", ".part-77"]
    assert complete_set(names) == ["0-of-2.manifest", "1-of-2.manifest"]
    assert complete_set(names[1:3]) == []


def damaged(path: Path, damage: str) -> None:
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 4
        path.write_bytes(content)


@pytest.mark.parametrize("damage", ["torn", "flipped", "missing"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_damage_to_a_file_is_named(tmp_path: Path, which: int, damage: str) -> None:
    store = filled(tmp_path, 3).store
    path = state_files(tmp_path)[which]
    damaged(path, damage)
    version = store.versions(2, 0, 1)[2]
    with pytest.raises(StateDamaged) as raised:
        store.load(version)
    assert path.name in str(raised.value)


@pytest.mark.parametrize("damage", ["torn", "flipped", "missing"])
def test_damage_to_a_manifest_is_named(tmp_path: Path, damage: str) -> None:
    store = filled(tmp_path, 3).store
    [path] = tmp_path.rglob("000000000002/*.manifest")
    damaged(path, damage)
    with pytest.raises(StateDamaged) as raised:
        store.versions(2, 0, 1)
    assert "000000000002" in str(raised.value)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, 1).store
    [path] = tmp_path.rglob("*.manifest")
    text = json.dumps(json.loads(path.read_bytes().partition(b"\n")[2]) | {"format": 99}).encode()
    path.write_bytes(f"{zlib.crc32(text):08x}\n".encode() + text)
    with pytest.raises(StateMismatch, match="has format 99, and this Headrace knows formats up to 2; upgrade Headrace"):
        store.versions(0, 0, 1)


def test_old_versions_and_orphans_are_collected(tmp_path: Path) -> None:
    store = filled(tmp_path, 50).store
    files = tmp_path / "query/by-card/files"
    old, recent = files / "000000000007-feed.state", files / "000000000048-feed.state"
    for orphan in (old, recent):
        orphan.write_bytes(b"left by an attempt that died")
    deleted = store.collect_now(49, kept=10)
    assert "query/by-card/files/000000000007-feed.state" in deleted
    assert not old.exists()
    assert recent.exists()
    assert store.batches() == list(range(39, 50))
    for number in range(39, 50):
        assert_holds(store, number)
    named = {Path(name).name for name in store.named_files()}
    assert {path.name for path in files.iterdir()} == named | {recent.name}
