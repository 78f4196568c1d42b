"""Groups in RocksDB: what goes in comes out, attempts do not meet, and what is wrong is said."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.errors import EnvironmentProblem, StateDamaged, StateError
from headrace.state import rocks
from headrace.state.ragged import Ints, Ragged
from headrace.state.rocks import RocksGroups


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[RocksGroups]:
    with RocksGroups(tmp_path / "groups") as opened:
        yield opened


def ints(*numbers: int) -> Ints:
    return np.array(numbers, np.int64)


def ragged(*runs: list[int]) -> Ragged:
    return Ragged(ints(*map(len, runs)), ints(*(word for run in runs for word in run)))


def runs(found: Ragged) -> list[list[int]]:
    return [found.pick(ints(i)).words.tolist() for i in range(len(found))]


def by_name(files: list[Path]) -> dict[str, Path]:
    return {path.name: path for path in files}


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


# ---------------------------------------------------------------------- state


def test_groups_come_back_in_the_order_asked_for(groups: RocksGroups) -> None:
    groups.store(3, ints(1, 256, 2**40), ragged([5], [-1, 2**62], [0, 0, 0]))
    groups.store(4, ints(1), ragged([7, 8]))
    assert runs(groups.fetch(3, ints(2**40, 2, 1, 256))) == [[0, 0, 0], [], [5], [-1, 2**62]]
    assert runs(groups.fetch(4, ints(1, 256))) == [[7, 8], []]
    assert runs(groups.fetch(5, ints(1))) == [[]]
    assert runs(groups.fetch(3, ints())) == []


def test_a_group_without_words_is_deleted(groups: RocksGroups) -> None:
    groups.store(1, ints(1, 2, 3), ragged([1], [2], [3]))
    groups.store(1, ints(3, 2, 1), ragged([], [4, 5], []))
    assert runs(groups.fetch(1, ints(1, 2, 3))) == [[], [4, 5], []]
    groups.store(1, ints(), ragged())
    groups.store(1, ints(2), ragged([]))
    assert groups.fetch(1, ints(1, 2, 3)).lengths.tolist() == [0, 0, 0]


def test_what_is_fetched_can_be_written_to(groups: RocksGroups) -> None:
    """Kernels are compiled for such arrays; read-only ones would be compiled for once more."""
    groups.store(1, ints(1), ragged([1, 2]))
    for slots in (ints(1), ints(9), ints()):
        found = groups.fetch(1, slots)
        assert found.words.flags.writeable
        assert found.words.flags.c_contiguous
        assert found.words.dtype == found.lengths.dtype == np.int64
    for _ in range(2):
        assert groups.slots_of(0, [b"a"]).flags.writeable


def test_it_is_a_dictionary_whatever_is_done_to_it(tmp_path: Path) -> None:
    dice = random.Random(3)
    known: dict[tuple[int, int], list[int]] = {}
    opened = RocksGroups(tmp_path / "0", memory_bytes=1 << 20)
    for step in range(1, 60):
        table, slots = dice.randrange(3), dice.sample(range(1, 400), dice.randrange(200))
        new = [[dice.randrange(-(2**63), 2**63) for _ in range(dice.choice((0, 1, 1, 5, 60)))] for _ in slots]
        opened.store(table, ints(*slots), ragged(*new))
        known.update({(table, slot): words for slot, words in zip(slots, new, strict=True)})
        if step % 7 == 0:
            files = opened.checkpoint(tmp_path / f"checkpoint-{step}")
            opened.close()
            opened = RocksGroups.opened_from(tmp_path / str(step), by_name(files), memory_bytes=1 << 20)
        asked = dice.sample(range(1, 400), 100)
        assert runs(opened.fetch(table, ints(*asked))) == [known.get((table, slot), []) for slot in asked]
    opened.close()


# ---------------------------------------------------------------------- slots


def test_keys_get_slots_in_the_order_they_come(groups: RocksGroups) -> None:
    assert groups.slots_of(0, [b"b", b"a", b"b", b""]).tolist() == [1, 2, 1, 3]
    assert groups.slots_of(0, [b"c", b"a\0", b"a", b"c"]).tolist() == [4, 5, 2, 4]
    assert groups.slots_of(1, [b"c"]).tolist() == [1]
    assert groups.slots_of(0, []).tolist() == []
    assert groups.keys_of(0, ints(3, 5, 1)) == [b"", b"a\0", b"b"]
    assert groups.keys_of(1, ints(1)) == [b"c"]
    with pytest.raises(StateDamaged, match="slot 2 of grouping 1 has no key"):
        groups.keys_of(1, ints(1, 2))


def test_slots_of_forgotten_keys_are_given_again(groups: RocksGroups) -> None:
    groups.slots_of(0, [b"a", b"b", b"c", b"d"])
    groups.forget(0, ints(2, 4))
    with pytest.raises(StateDamaged, match="slot 4"):
        groups.keys_of(0, ints(1, 4))
    assert groups.slots_of(0, [b"a", b"c"]).tolist() == [1, 3]
    assert sorted(groups.slots_of(0, [b"b", b"e"]).tolist()) == [2, 4]
    assert groups.slots_of(0, [b"f"]).tolist() == [5]
    groups.forget(0, ints())
    assert groups.slots_of(0, [b"g"]).tolist() == [6]


def test_no_slot_is_ever_given_to_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks, "_FREE_PAGE", 4)
    dice = random.Random(1)
    known: dict[bytes, int] = {}
    opened, most = RocksGroups(tmp_path / "0"), 0
    for step in range(1, 120):
        keys = [b"%d" % dice.randrange(60) for _ in range(dice.choice((0, 1, 3, 25)))]
        found = opened.slots_of(7, keys).tolist()
        for key, slot in zip(keys, found, strict=True):
            assert known.setdefault(key, slot) == slot
        assert len(set(known.values())) == len(known)
        most = max(most, len(known))
        assert all(1 <= slot <= most for slot in known.values())
        gone = dice.sample(sorted(known), dice.randrange(len(known) + 1) if dice.random() < 0.5 else 0)
        opened.forget(7, ints(*(known.pop(key) for key in gone)))
        assert opened.keys_of(7, ints(*known.values())) == list(known)
        if step % 20 == 0:
            files = opened.checkpoint(tmp_path / f"checkpoint-{step}")
            opened.close()
            opened = RocksGroups.opened_from(tmp_path / str(step), by_name(files))
    opened.close()


# ----------------------------------------------------------------- checkpoint


def test_two_attempts_from_one_checkpoint_do_not_meet(tmp_path: Path) -> None:
    with RocksGroups(tmp_path / "origin") as origin:
        origin.slots_of(0, [b"a", b"b"])
        origin.store(1, ints(1, 2), ragged([1], [2]))
        start = by_name(origin.checkpoint(tmp_path / "start"))
    before = digests(tmp_path / "start")
    attempts = [RocksGroups.opened_from(tmp_path / f"attempt-{i}", start) for i in (0, 1)]
    ends = []
    for i, attempt in enumerate(attempts):
        assert runs(attempt.fetch(1, ints(1, 2))) == [[1], [2]]
        assert attempt.slots_of(0, [b"a", f"new {i}".encode()]).tolist() == [1, 3]
        attempt.store(1, ints(1, 3), ragged([10 + i], [20 + i]))
        attempt.store(1, ints(2), ragged([] if i else [2, 2]))
        ends.append(by_name(attempt.checkpoint(tmp_path / f"end-{i}")))
        # Everything is merged into new files, and the old ones are deleted here.
        attempt._db.compact_range(None, None)
    for attempt in attempts:
        attempt.close()
    assert digests(tmp_path / "start") == before
    for i, end in enumerate(ends):
        with RocksGroups.opened_from(tmp_path / f"again-{i}", end) as again:
            assert runs(again.fetch(1, ints(1, 2, 3))) == [[10 + i], [] if i else [2, 2], [20 + i]]
            assert again.keys_of(0, ints(3)) == [f"new {i}".encode()]
    with RocksGroups.opened_from(tmp_path / "origin-again", start) as again:
        assert runs(again.fetch(1, ints(1, 2, 3))) == [[1], [2], []]


def test_a_checkpoint_shares_the_files_that_are_not_new(tmp_path: Path) -> None:
    with RocksGroups(tmp_path / "a") as first:
        assert first.inherited == {}
        first.store(1, np.arange(1, 5001), ragged(*([i] for i in range(5000))))
        start = by_name(first.checkpoint(tmp_path / "start"))
    tables = {name: path.stat().st_size for name, path in start.items() if name.endswith(".sst")}
    with RocksGroups.opened_from(tmp_path / "b", start) as second:
        assert second.inherited == tables
        second.store(1, ints(1), ragged([7]))
        end = by_name(second.checkpoint(tmp_path / "end"))
    for name in tables:
        assert end[name].samefile(start[name])
    (new,) = [path for name, path in end.items() if name.endswith(".sst") and name not in second.inherited]
    assert new.stat().st_size < min(tables.values())


def test_what_is_not_in_a_checkpoint_is_not_in_it(tmp_path: Path, groups: RocksGroups) -> None:
    groups.store(1, ints(1), ragged([1]))
    files = by_name(groups.checkpoint(tmp_path / "c"))
    groups.store(1, ints(1), ragged([2]))
    with RocksGroups.opened_from(tmp_path / "other", files) as other:
        assert runs(other.fetch(1, ints(1))) == [[1]]


def test_it_says_how_large_it_is(groups: RocksGroups) -> None:
    groups.store(1, np.arange(1, 1001), ragged(*([i] * 20 for i in range(1000))))
    assert groups.entries == 1000
    assert groups.size_bytes > 1000


# --------------------------------------------------------------------- errors


def test_without_the_library_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(EnvironmentProblem, match=r'pip install "headrace\[rocksdb\]"'):
        RocksGroups(tmp_path / "groups")
    assert not (tmp_path / "groups").exists()


def checkpoint_of_one(tmp_path: Path) -> dict[str, Path]:
    with RocksGroups(tmp_path / "whole") as whole:
        whole.store(1, np.arange(1, 2001), ragged(*([i, i] for i in range(2000))))
        return by_name(whole.checkpoint(tmp_path / "checkpoint"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    files = checkpoint_of_one(tmp_path)
    (table,) = [path for name, path in files.items() if name.endswith(".sst")]
    table.unlink()
    with pytest.raises(StateDamaged, match="it is missing") as raised:
        RocksGroups.opened_from(tmp_path / "again", files)
    assert raised.value.path == str(table)


@pytest.mark.parametrize("end", [".sst", "CURRENT"])
def test_a_torn_database_is_damaged(tmp_path: Path, end: str) -> None:
    files = checkpoint_of_one(tmp_path)
    (torn,) = [path for name, path in files.items() if name.endswith(end)]
    whole = torn.read_bytes()
    torn.unlink()
    torn.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StateDamaged, match="again"):
        RocksGroups.opened_from(tmp_path / "again", files)


def test_a_changed_block_is_damaged(tmp_path: Path) -> None:
    files = checkpoint_of_one(tmp_path)
    (table,) = [path for name, path in files.items() if name.endswith(".sst")]
    content = bytearray(table.read_bytes())
    content[100] ^= 1
    table.unlink()
    table.write_bytes(content)
    with RocksGroups.opened_from(tmp_path / "again", files) as opened, pytest.raises(StateDamaged, match="again"):
        opened.fetch(1, np.arange(1, 2001))


def test_a_folder_is_open_once_and_a_checkpoint_is_written_once(tmp_path: Path, groups: RocksGroups) -> None:
    with pytest.raises(StateError, match="lock"):
        RocksGroups(groups.folder)
    groups.checkpoint(tmp_path / "c")
    with pytest.raises(StateError, match="exists"):
        groups.checkpoint(tmp_path / "c")
