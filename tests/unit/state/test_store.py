from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import StateDamaged
from headrace.state.store import ShardStore
from headrace.state.tables import Tables, write_whole

NO_CHUNKS: dict[str, list[str]] = {"chunks": []}


def tables(value: int, rows: int = 1000) -> Tables:
    counts = np.zeros((rows, 3), np.int64)
    counts[:value] = value
    return {"counts": counts, "flags": np.arange(value, dtype=np.uint8)}


def filled(folder: Path, versions: int) -> ShardStore:
    store, before = ShardStore(folder), None
    for number in range(versions):
        before = store.commit(number, before, tables(number), NO_CHUNKS)
    return store


def assert_holds(store: ShardStore, number: int) -> None:
    found = store.load(number).tables
    for name, table in tables(number).items():
        assert found[name].dtype == table.dtype
        assert (found[name] == table).all()


def test_every_version_can_be_loaded(tmp_path: Path) -> None:
    store = filled(tmp_path, 60)
    for number in range(60):
        assert_holds(store, number)


def test_a_commit_writes_what_has_changed(tmp_path: Path) -> None:
    store = filled(tmp_path, 3)
    base, *deltas = sorted(file.stat().st_size for file in tmp_path.glob("*.arrow"))[::-1]
    assert base > 24_000
    assert deltas
    assert max(deltas) < 3_000
    version = store.load(2)
    assert store.commit(3, version, version.tables, NO_CHUNKS).files == version.files


def test_two_attempts_at_a_version_do_no_harm(tmp_path: Path) -> None:
    store = filled(tmp_path, 2)
    before = store.load(0)
    first, second = (store.commit(1, before, tables(1), NO_CHUNKS) for _ in range(2))
    assert first.identity != second.identity == store.identity(1)
    assert_holds(store, 1)


@pytest.mark.parametrize("damage", ["torn", "flipped", "missing"])
@pytest.mark.parametrize("pattern", ["*-base-*.arrow", "*-delta-*.arrow", "000000000002.manifest"])
def test_damage_is_named(tmp_path: Path, pattern: str, damage: str) -> None:
    store = filled(tmp_path, 3)
    path = sorted(tmp_path.glob(pattern))[-1]
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 4
        path.write_bytes(content)
    with pytest.raises(StateDamaged) as raised:
        store.load(2)
    assert path.name in str(raised.value)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    body = json.loads(store.manifest_path(0).read_bytes().partition(b"\n")[2]) | {"format": 99}
    text = json.dumps(body).encode()
    write_whole(store.manifest_path(0), f"{zlib.crc32(text):08x}\n".encode() + text)
    with pytest.raises(StateDamaged, match="it has format 99"):
        store.load(0)


def test_old_versions_and_orphans_are_collected(tmp_path: Path) -> None:
    store = filled(tmp_path, 50)
    orphan = tmp_path / "000000000007-delta-feed.arrow"
    orphan.write_bytes(b"left by an attempt that died")
    now = orphan.stat().st_mtime
    store.collect(40, now)
    assert orphan.exists()
    store.collect(40, now + 7200)
    assert not orphan.exists()
    assert sorted(int(path.stem) for path in tmp_path.glob("*.manifest")) == list(range(39, 50))
    for number in range(39, 50):
        assert_holds(store, number)
