"""State of groups on disk: a RocksDB of one attempt at a batch, for state larger than memory.

    1 table slot          the words of a group in a table (one table for each leaf, or for each aggregator)
    2 grouping key        the slot of a key
    3 grouping slot       the key of a slot
    4 grouping            how many slots were ever given, and how many of them are free again
    5 grouping page       free slots, a page of them each: a stack, so that no scan walks over what was deleted

Numbers in keys are big-endian, so a scan comes in their order; those in values are as memory has them.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final

import numpy as np

from headrace.errors import EnvironmentProblem, StateDamaged, StateError
from headrace.state.ragged import Ints, Ragged

MEMORY_BYTES: Final = 64 << 20

_STATE, _SLOT_OF, _KEY_OF, _COUNTS, _FREE = 1, 2, 3, 4, 5
_FREE_PAGE: Final = 4096
_WORD_BYTES: Final = 8
_NUMBERED = np.dtype([("kind", "u1"), ("table", ">u4"), ("slot", ">u8")])
# Bytes as they are, with zeros at the end and all.
_KEY, _WORD = np.dtype(f"V{_NUMBERED.itemsize}"), np.dtype(f"V{_WORD_BYTES}")


class RocksGroups:
    """Groups by (table, slot), and slots by (grouping, key).

    It is open for one process and one attempt: never open it before a fork, at import or in a daemon (the children
    hang), and never twice in one folder (the second fails). Nothing is safe before `checkpoint`: there is no log, and
    an attempt that dies starts again from the checkpoint it was opened from.
    """

    def __init__(self, folder: Path, memory_bytes: int = MEMORY_BYTES):
        """Open the database in a local folder, or make one there. `memory_bytes` is for cache and write buffers."""
        self._library = _library()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.inherited: dict[str, int] = {path.name: path.stat().st_size for path in folder.glob("*.sst")}
        """The table files that were here when it was opened, with their sizes: no other file ever gets their names."""
        with self._explained():
            self._db = self._library.Rdict(str(folder), _options(self._library, memory_bytes))
        self._unlogged = self._library.WriteOptions()
        self._unlogged.disable_wal = True

    @classmethod
    def opened_from(cls, folder: Path, files: Mapping[str, Path], memory_bytes: int = MEMORY_BYTES) -> RocksGroups:
        """Open a new folder with the files of a checkpoint, by the names they had there.

        Table files are linked where the file system can (they are never written to), the small others are copied.
        """
        folder.mkdir(parents=True)
        for name, path in files.items():
            _place(path, folder / name)
        return cls(folder, memory_bytes)

    def __enter__(self) -> RocksGroups:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    # ------------------------------------------------------------------ state

    def fetch(self, table: int, slots: Ints) -> Ragged:
        """The groups of these slots; no words where there is nothing."""
        # In the order of their keys: neighbours come out of the same block.
        order = np.argsort(slots, kind="stable")
        found = self._get(_numbered(_STATE, table, slots[order]), b"")
        lengths = np.fromiter(map(len, found), np.int64, len(found)) // _WORD_BYTES
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return Ragged(lengths, _words(found)).pick(back)

    def store(self, table: int, slots: Ints, groups: Ragged) -> None:
        """Set the groups of these slots; those without words are deleted."""
        there = groups.lengths > 0
        content = groups.words.tobytes()
        ends = (np.cumsum(groups.lengths[there]) * _WORD_BYTES).tolist()
        values = map(content.__getitem__, map(slice, [0, *ends[:-1]], ends))
        batch = self._batch()
        _each(batch.put, _numbered(_STATE, table, slots[there]), values)
        _each(batch.delete, _numbered(_STATE, table, slots[~there]))
        self._write(batch)

    # ------------------------------------------------------------------ slots

    def slots_of(self, grouping: int, keys: list[bytes]) -> Ints:
        """The slot of each key. A key that is new gets one: a free one, or the next number; the first is 1."""
        prefix = _prefix(_SLOT_OF, grouping)
        found = self._get([prefix + key for key in keys], b"")
        if b"" in found:
            new = list(dict.fromkeys(key for key, slot in zip(keys, found, strict=True) if not slot))
            named = self._name(grouping, new)
            found = [slot or named[key] for key, slot in zip(keys, found, strict=True)]
        return _words(found)

    def _name(self, grouping: int, keys: list[bytes]) -> dict[bytes, bytes]:
        """Slots for new keys, as they are written."""
        batch = self._batch()
        given, free = self._counts(grouping)
        reused = min(len(keys), free)
        more = np.arange(given + 1, given + 1 + len(keys) - reused)
        slots = np.concatenate([self._pop_free(batch, grouping, free, reused), more])
        named = dict(zip(keys, slots.view(_WORD).tolist(), strict=True))
        prefix = _prefix(_SLOT_OF, grouping)
        _each(batch.put, [prefix + key for key in keys], named.values())
        _each(batch.put, _numbered(_KEY_OF, grouping, slots), keys)
        batch.put(_prefix(_COUNTS, grouping), _bytes([given + len(more), free - reused]))
        self._write(batch)
        return named

    def keys_of(self, grouping: int, slots: Ints) -> list[bytes]:
        """The key of each slot, all of which are in use."""
        found = self._get(_numbered(_KEY_OF, grouping, slots), None)
        if None in found:
            slot = slots[found.index(None)]
            raise StateDamaged(str(self.folder), f"slot {slot} of grouping {grouping} has no key")
        return found

    def forget(self, grouping: int, slots: Ints) -> None:
        """Delete the keys of these slots, each there once; their groups must be empty in every table.

        The slots go to keys that come later.
        """
        batch = self._batch()
        prefix = _prefix(_SLOT_OF, grouping)
        _each(batch.delete, [prefix + key for key in self.keys_of(grouping, slots)])
        _each(batch.delete, _numbered(_KEY_OF, grouping, slots))
        given, free = self._counts(grouping)
        self._push_free(batch, grouping, free, slots)
        batch.put(_prefix(_COUNTS, grouping), _bytes([given, free + len(slots)]))
        self._write(batch)

    def count(self, grouping: int) -> int:
        """How many keys have a slot."""
        given, free = self._counts(grouping)
        return given - free

    def _counts(self, grouping: int) -> tuple[int, int]:
        """How many slots were ever given, and how many are free."""
        found = self._get([_prefix(_COUNTS, grouping)], bytes(2 * _WORD_BYTES))
        given, free = _words(found).tolist()
        return given, free

    def _push_free(self, batch: Any, grouping: int, free: int, slots: Ints) -> None:
        """Onto a stack of `free` slots."""
        top = free // _FREE_PAGE
        slots = np.concatenate([self._free_pages(grouping, top, free), slots])
        pages = [slots[at : at + _FREE_PAGE].tobytes() for at in range(0, len(slots), _FREE_PAGE)]
        _each(batch.put, _numbered(_FREE, grouping, top + np.arange(len(pages))), pages)

    def _pop_free(self, batch: Any, grouping: int, free: int, count: int) -> Ints:
        """From a stack of `free` slots, the newest of them."""
        if not count:
            return np.zeros(0, np.int64)
        left = free - count
        top = left // _FREE_PAGE
        slots = self._free_pages(grouping, top, free)
        cut = left - top * _FREE_PAGE
        emptied = np.arange(top, -(-free // _FREE_PAGE))
        _each(batch.delete, _numbered(_FREE, grouping, emptied))
        if cut:
            batch.put(*_numbered(_FREE, grouping, emptied[:1]), slots[:cut].tobytes())
        return slots[cut:]

    def _free_pages(self, grouping: int, first: int, free: int) -> Ints:
        """What is on the stack from a page on."""
        return _words(self._get(_numbered(_FREE, grouping, np.arange(first, -(-free // _FREE_PAGE))), b""))

    # ------------------------------------------------------------- checkpoint

    def checkpoint(self, folder: Path) -> list[Path]:
        """Write all there is into files, and give them in a folder that is not there yet: linked if on the same disk.

        Table files (`.sst`) never change, and a database never uses a name twice: those with a name in `inherited`, or
        in an earlier checkpoint of this one, are the same files. Another attempt has other files under the same names.
        The others are small, and new in every checkpoint.
        """
        folder.parent.mkdir(parents=True, exist_ok=True)
        with self._explained():
            self._library.Checkpoint(self._db).create_checkpoint(str(folder))
        return sorted(folder.iterdir())

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Everything there is, in the order of its keys: for tests and for looking at it."""
        with self._explained():
            yield from self._db.items()

    @property
    def size_bytes(self) -> int:
        """Of the table files and of what is not in them yet."""
        return self._figure("live-sst-files-size") + self._figure("cur-size-all-mem-tables")

    @property
    def entries(self) -> int:
        """About how many there are, of all kinds: a group in a table is one, a key is two."""
        return self._figure("estimate-num-keys")

    def _figure(self, name: str) -> int:
        with self._explained():
            return int(self._db.property_int_value(f"rocksdb.{name}") or 0)

    # ---------------------------------------------------------------- library

    def _get(self, keys: list[bytes], missing: Any) -> list[Any]:
        if not keys:
            return []
        with self._explained():
            found: list[Any] = self._db.get(keys, missing)
            return found

    def _batch(self) -> Any:
        return self._library.WriteBatch(raw_mode=True)

    def _write(self, batch: Any) -> None:
        with self._explained():
            self._db.write(batch, self._unlogged)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What RocksDB says, with the folder it is about. Its exceptions differ in their text only."""
        try:
            yield
        except Exception as error:
            if str(error).startswith("Corruption"):
                raise StateDamaged(str(self.folder), f"RocksDB cannot read it ({error})") from error
            raise StateError(f"the state database in {self.folder}: {error}") from error


def _library() -> ModuleType:
    try:
        import rocksdict
    except ImportError:
        raise EnvironmentProblem(
            'state in RocksDB needs rocksdict, which is not installed: pip install "headrace[rocksdb]"'
        ) from None
    return rocksdict


def _options(library: ModuleType, memory_bytes: int) -> Any:
    """Small memory, which counts cache, indices, filters and write buffers alike; no log."""
    cache = library.Cache(memory_bytes)
    table = library.BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(4096)
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = library.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    buffers = memory_bytes // 4
    options.set_write_buffer_size(buffers // 2)
    options.set_write_buffer_manager(
        library.WriteBufferManager.new_write_buffer_manager_with_cache(buffers, False, cache)
    )
    options.set_compression_type(library.DBCompressionType.lz4())
    options.set_target_file_size_base(8 << 20)
    options.set_max_bytes_for_level_base(64 << 20)
    options.set_max_background_jobs(2)
    options.set_max_open_files(256)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    return options


def _place(path: Path, target: Path) -> None:
    try:
        if target.suffix == ".sst" and _linked(path, target):
            return
        shutil.copyfile(path, target)
    except FileNotFoundError:
        raise StateDamaged(str(path), "it is missing") from None


def _linked(path: Path, target: Path) -> bool:
    """False on another disk, and on a file system without links."""
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def _prefix(kind: int, table: int) -> bytes:
    return struct.pack(">BI", kind, table)


def _numbered(kind: int, table: int, slots: Ints) -> list[bytes]:
    """The keys (kind, table, slot)."""
    keys = np.empty(len(slots), _NUMBERED)
    keys["kind"], keys["table"], keys["slot"] = kind, table, slots
    found: list[bytes] = keys.view(_KEY).tolist()
    return found


def _words(values: list[bytes]) -> Ints:
    """All values one after the other, in memory that can be written to."""
    return np.frombuffer(bytearray().join(values), np.int64)


def _bytes(numbers: list[int]) -> bytes:
    return np.array(numbers, np.int64).tobytes()


def _each(call: Callable[..., Any], *arguments: Iterable[Any]) -> None:
    """A loop without Python in it."""
    deque(map(call, *arguments), maxlen=0)
