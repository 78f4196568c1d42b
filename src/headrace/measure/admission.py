"""Which events count: late ones, repeated ones, and those that are older than what is remembered.

Decided row by row in the order of arrival, against the group of the stage's partitioner: so the answer does not depend
on how rows are cut into batches, nor on the number of tasks. `policy.py` has the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.measure.keys import BytesIndex, mix
from headrace.measure.policy import (
    ACCEPT,
    BACKFILLED,
    DISCARD,
    LATE,
    LATE_POLICIES,
    OK,
    REPEATED,
    REWRITTEN,
    STATUSES,
    TOO_LATE,
    TOO_OLD,
    Policy,
)
from headrace.measure.residents import Residents
from headrace.measure.steps import NEVER
from headrace.measure.words import is_float, is_text, order_codes, to_words
from headrace.model.jit import Bytes, Ints, Word, grown, kernel
from headrace.state.ragged import Ragged, reach
from headrace.state.tables import AppendOnly, Tables

# Columns of the log of ids.
_SLOT, _HASH, _HASH_2, _TIME = 0, 1, 2, 3
_ID_WORDS: Final = 4
_NO_LIMIT: Final = -1
_GROUP_WORDS: Final = 3


@kernel
def _home(index: Ints, log: Ints, slot: int, h: int, h2: int) -> Word:
    """Where in the index this id is, or would be. A later entry of the log takes the place of an earlier one."""
    mask = len(index) - 1
    at = np.int64(mix(np.int64(mix(slot)) ^ h) & np.uint64(mask))
    while index[at] >= 0:
        entry = index[at]
        if log[entry, _SLOT] == slot and log[entry, _HASH] == h and log[entry, _HASH_2] == h2:
            break
        at = (at + 1) & mask
    return at


@kernel
def _forgotten(newest: int, t: int, limits: Ints, clock: Ints) -> Word:
    """Ids up to this time are not found by an event at t. It only rises: what is thrown away is not missed."""
    keep, dedup = limits[2], limits[3]
    edge = max(newest, t) - dedup
    if keep != _NO_LIMIT and clock[0] != NEVER:
        # An event that is not too old is later than this by `dedup`.
        edge = max(edge, clock[0] - keep - dedup)
    return edge


@kernel
def _admit(
    slot: Ints, group: Ints, times: Ints, arrivals: Ints, ids: Ints, limits: Ints, newest: Ints, boundary: Ints,
    index: Ints, log: Ints, clock: Ints, codes: Ints,
) -> None:  # fmt: skip
    """`limits` is (late policy, closure, keep, dedup), -1 for none; `clock` is (newest time, ids in the log)."""
    policy, closure, keep, dedup = limits[0], limits[1], limits[2], limits[3]
    for i in range(len(slot)):
        if codes[i] != OK:
            continue
        s, t, place = slot[i], times[i], np.int64(-1)
        if len(arrivals) and boundary[s, 0] and arrivals[i] <= boundary[s, 1]:
            codes[i] = BACKFILLED
            continue
        if dedup != _NO_LIMIT and ids[i, 2]:
            place = _home(index, log, group[i], ids[i, 0], ids[i, 1])
            if index[place] >= 0 and log[index[place], _TIME] > _forgotten(newest[s], t, limits, clock):
                codes[i] = REPEATED
                continue
        if keep != _NO_LIMIT and clock[0] != NEVER and t < clock[0] - keep:
            codes[i] = TOO_OLD
            continue
        if t >= newest[s]:
            newest[s] = t
        elif policy == ACCEPT or t >= newest[s] - closure:
            codes[i] = LATE
        elif policy == DISCARD:
            codes[i] = TOO_LATE
            continue
        else:
            t = newest[s] - closure
            times[i] = t
            codes[i] = REWRITTEN
        clock[0] = max(clock[0], t)
        if place >= 0:
            entry = clock[1]
            index[place] = entry
            log[entry, _SLOT] = group[i]
            log[entry, _HASH] = ids[i, 0]
            log[entry, _HASH_2] = ids[i, 1]
            log[entry, _TIME] = t
            clock[1] += 1


@kernel
def _index_ids(log: Ints, used: int, index: Ints) -> None:
    for entry in range(used):
        index[_home(index, log, log[entry, _SLOT], log[entry, _HASH], log[entry, _HASH_2])] = entry


@kernel
def _hash_texts(offsets: Ints, data: Bytes, out: Ints) -> None:
    """128 bits for each string: two of a trillion ids look alike once in 10^14 streams."""
    for i in range(len(offsets) - 1):
        a, b = np.uint64(0xCBF29CE484222325), np.uint64(0x9E3779B97F4A7C15)
        for j in range(offsets[i], offsets[i + 1]):
            a = (a ^ np.uint64(data[j])) * np.uint64(0x100000001B3)
            b = (b + np.uint64(data[j]) + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93)
            b = b ^ (b >> np.uint64(31))
        out[i, 0] = np.int64(mix(np.int64(a)))
        out[i, 1] = np.int64(mix(np.int64(b)))


class Admission:
    """The policy at work for one shard."""

    def __init__(self, policy: Policy, has_id: bool):
        dedup = policy.dedup if has_id and policy.dedup is not None else _NO_LIMIT
        keep = _NO_LIMIT if policy.keep is None else policy.keep
        self._limits = np.array([LATE_POLICIES.index(policy.late), policy.closure, keep, dedup], np.int64)
        self._dedup = int(dedup)
        self._keep = int(keep)
        self._newest: Ints = np.zeros(0, np.int64)
        self._boundary: Ints = np.zeros((0, 2), np.int64)
        self._ids: Ints = np.zeros((0, _ID_WORDS), np.int64)
        self._index: Ints = np.full(256, -1, np.int64)
        self._generation = 0
        self._clock = np.array([NEVER, 0], np.int64)
        self.counts: Ints = np.zeros(len(STATUSES), np.int64)
        self.residents: Residents | None = None
        """Where not all groups are in memory: those that are."""

    @property
    def looks_at_ids(self) -> bool:
        return self._dedup != _NO_LIMIT

    @property
    def earliest(self) -> int | None:
        """The earliest time that an event may still have; None where it may have any."""
        if self._keep == _NO_LIMIT or self._clock[0] == NEVER:
            return None
        return int(self._clock[0]) - self._keep

    @property
    def forgotten(self) -> int | None:
        """Ids up to this time are not found again, whatever their group; None where that cannot be said."""
        if not self.looks_at_ids:
            return self.earliest
        return None if self.earliest is None else self.earliest - self._dedup

    def admit(self, slots: int, slot: Ints, times: Ints, codes: Ints, arrivals: Ints, ids: Ints) -> None:
        """Fill in the codes of rows that have none yet, and the times of rewritten ones; rows are in arrival order."""
        if self.looks_at_ids:
            self._reserve(len(slot))
        local = slot if self.residents is None else self.residents.local(slot)
        self._grow(slots if self.residents is None else self.residents.slots)
        _admit(
            local, slot, times, arrivals, ids, self._limits, self._newest, self._boundary,
            self._index, self._ids, self._clock, codes,
        )  # fmt: skip
        self.counts += np.bincount(codes, minlength=len(STATUSES))

    def set_boundary(self, slot: Ints, arrivals: Ints) -> None:
        """What has arrived up to here came from a backfill: the stream may bring it again."""
        slot = slot if self.residents is None else self.residents.local(slot)
        self._grow(reach(slot))
        known = self._boundary[slot, 0] == 1
        self._boundary[slot[~known], 1] = np.iinfo(np.int64).min
        self._boundary[slot, 0] = 1
        np.maximum.at(self._boundary[:, 1], slot, arrivals)

    def _reserve(self, count: int) -> None:
        """Have room for `count` more ids. Those that cannot be found again go, when there may be many of them."""
        used = int(self._clock[1])
        if used + count > len(self._ids):
            log = self._ids[:used]
            forgotten = NEVER if self.forgotten is None else self.forgotten
            alive = log[:, _TIME] > np.maximum(self._newest_of(log[:, _SLOT]) - self._dedup, forgotten)
            if 2 * int(alive.sum()) < used:
                log, self._generation = log[alive], self._generation + 1
            self._clock[1] = len(log)
            self._ids = np.zeros((max(256, 2 * (len(log) + count)), _ID_WORDS), np.int64)
            self._ids[: len(log)] = log
            self._index = self._index[:0]
        if len(self._index) < 2 * len(self._ids):
            self._make_index()

    def _make_index(self) -> None:
        self._index = np.full(1 << (2 * len(self._ids) - 1).bit_length(), -1, np.int64)
        _index_ids(self._ids, int(self._clock[1]), self._index)

    def forget(self, slots: Ints) -> None:
        """These groups are gone, and others get their slots."""
        self._newest[slots] = NEVER
        self._boundary[slots] = 0
        log = self._ids[: self._clock[1]]
        left = log[~np.isin(log[:, _SLOT], slots)]
        if len(left) < len(log):
            self._ids, self._clock[1] = left, len(left)
            self._generation, self._index = self._generation + 1, self._index[:0]

    def _newest_of(self, slots: Ints) -> Ints:
        if self.residents is None:
            return self._newest[slots]
        self.residents.go_back()
        groups, place = np.unique(slots, return_inverse=True)
        newest: Ints = self.residents.fetched(groups).to_rows(_GROUP_WORDS)[place, 0]
        return newest

    # ----------------------------------------------------------------- groups

    def _grow(self, slots: int) -> None:
        self._newest = grown(self._newest, slots, fill=NEVER)
        self._boundary = grown(self._boundary, slots)

    def take_groups(self, slots: Ints) -> list[Ragged]:
        self._grow(reach(slots))
        rows = np.column_stack([self._newest[slots], self._boundary[slots]])
        seen = (rows[:, 0] != NEVER) | (rows[:, 1] != 0)
        return [Ragged.of_rows(rows, np.where(seen, _GROUP_WORDS, 0))]

    def put_groups(self, slots: Ints, groups: Sequence[Ragged]) -> None:
        [words] = groups
        self._grow(reach(slots))
        rows = words.to_rows(_GROUP_WORDS)
        self._newest[slots] = np.where(words.lengths > 0, rows[:, 0], NEVER)
        self._boundary[slots] = rows[:, 1:]

    def clear_groups(self) -> None:
        self._newest, self._boundary = np.zeros(0, np.int64), np.zeros((0, 2), np.int64)

    # ------------------------------------------------------------------ state

    def dump(self, slots: int) -> Tables:
        slots = slots if self.residents is None else 0
        self._grow(slots)
        tables: Tables = {"newest": self._newest[:slots], "clock": self._clock, "counts": self.counts}
        if self._boundary.any():
            tables["boundary"] = self._boundary[:slots]
        if self.looks_at_ids:
            tables[f"ids.{self._generation}"] = AppendOnly(self._ids[: self._clock[1]])
        return tables

    def restore(self, tables: Tables) -> None:
        self._newest, self._clock, self.counts = tables["newest"], tables["clock"], tables["counts"]
        self._boundary = tables.get("boundary", np.zeros((len(self._newest), 2), np.int64))
        found = [name for name in tables if name.startswith("ids.")]
        self._ids, self._clock[1] = np.zeros((0, _ID_WORDS), np.int64), 0
        if found and self.looks_at_ids:
            [name] = found
            self._generation = int(name.removeprefix("ids."))
            self._ids, self._clock[1] = tables[name], len(tables[name])
        self._index = self._index[:0]


def id_words(column: pa.Array) -> Ints:
    """Two words for each id, and whether there is one: exact for numbers, a hash for texts."""
    words = np.zeros((len(column), 3), np.int64)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    words[:, 2] = np.asarray(column.is_valid().to_numpy(zero_copy_only=False)).astype(np.int64)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())  # whatever its unit, without loss
    if not is_text(column.type):
        found = to_words(column, BytesIndex())
        words[:, 0] = order_codes(found.word) if is_float(column.type) else found.word
        if len(found.high):
            words[:, 1] = found.high
        return words
    column = column.cast(pa.large_binary())
    _, offsets, data = column.buffers()
    if len(column):
        bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1].copy()
        text: Bytes = np.frombuffer(data, np.uint8).copy() if data is not None else np.zeros(0, np.uint8)
        _hash_texts(bounds, text, words)
    return words
