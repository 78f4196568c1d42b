"""Which events count: late ones, repeated ones, and those that are older than what is remembered.

Decided row by row in the order of arrival, against the group of the stage's partitioner: so the answer does not depend
on how rows are cut into batches, nor on the number of tasks.

| status | the event | its metrics |
|---|---|---|
| ok | is the newest of its group | over its window |
| late | came after one with a later time | over its window: what has arrived |
| rewritten | came later than the closure delay; its time was moved up to that | over the window of the new time |
| duplicate | has an id, or an arrival, that was there before | null; it counts nowhere |
| discarded | is too late, or has no time | null; it counts nowhere |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.errors import DefinitionError
from headrace.measure.jit import Bytes, Ints, Word, grown, kernel
from headrace.measure.keys import BytesIndex, mix
from headrace.measure.residents import Residents
from headrace.measure.steps import NEVER
from headrace.measure.words import is_text, to_words
from headrace.model.ticks import DAY, MINUTE, Ticks, format_ticks
from headrace.state.ragged import Ragged, reach
from headrace.state.tables import Tables

# What a row is, from harmless to worst: of several stages the worst counts.
OK, LATE, REWRITTEN, REPEATED, BACKFILLED, TOO_LATE, TOO_OLD, NO_TIME, NO_ARRIVAL = range(9)
COUNTED_CODES: Final = REWRITTEN
"""Codes up to this one are of events that count."""

STATUSES: Final = (
    "ok",
    "late",
    "rewritten",
    "duplicate",
    "duplicate",
    "discarded",
    "discarded",
    "discarded",
    "discarded",
)

ACCEPT, REWRITE, DISCARD = 0, 1, 2
LATE_POLICIES: Final = ("accept", "rewrite", "discard")

# Columns of the table of ids.
_SLOT, _HASH, _HASH_2, _TIME, _USED = 0, 1, 2, 3, 4
_NO_LIMIT: Final = -1
_GROUP_WORDS: Final = 3
_TEN_MINUTES: Final = Ticks(10 * MINUTE)


@dataclass(frozen=True)
class Policy:
    """What is done with events that are late or repeated. Lengths of time are in the time of events.

    `late`     what to do with an event that is later than `closure` behind the newest of its group
    `closure`  how late an event may be and still be in time (for `rewrite` and `discard`)
    `keep`     how long events stay longer than the longest window needs them: an event that is later than this cannot
               be answered exactly and is discarded; None keeps them for ever
    `dedup`    how long an id is remembered: an event with the id of one of its group within this time is a duplicate;
               None does not look at ids
    """

    late: str = "accept"
    closure: Ticks = _TEN_MINUTES
    keep: Ticks | None = DAY
    dedup: Ticks | None = _TEN_MINUTES

    def __post_init__(self) -> None:
        if self.late not in LATE_POLICIES:
            raise DefinitionError(f"late= must be one of {', '.join(map(repr, LATE_POLICIES))}, not {self.late!r}")

    def reasons(self, time: str, arrival: str | None, id: str | None) -> tuple[str | None, ...]:
        """Why a row has its status, by code, for people."""
        keep = "" if self.keep is None else format_ticks(self.keep)
        return (
            None,
            "an event of its group with a later time came before it",
            f"more than {format_ticks(self.closure)} behind the newest event of its group: its time was moved up",
            f"an event of its group with this {id} came before it",
            f"its {arrival or time} is not past the backfill, which has it",
            f"more than {format_ticks(self.closure)} behind the newest event of its group",
            f"more than {keep} late: the events of its window may be gone",
            f"{time} is null or out of range",
            f"{arrival} is null",
        )


@kernel
def _home(table: Ints, slot: int, h: int, h2: int) -> Word:
    mask = len(table) - 1
    at = np.int64(mix(np.int64(mix(slot)) ^ h) & np.uint64(mask))
    while table[at, _USED] and (table[at, _SLOT] != slot or table[at, _HASH] != h or table[at, _HASH_2] != h2):
        at = (at + 1) & mask
    return at


@kernel
def _admit(
    slot: Ints, group: Ints, times: Ints, arrivals: Ints, ids: Ints, limits: Ints, newest: Ints, boundary: Ints,
    table: Ints, clock: Ints, codes: Ints,
) -> None:  # fmt: skip
    """`limits` is (late policy, closure, keep, dedup), -1 for none; `clock` is (newest time, ids in the table)."""
    policy, closure, keep, dedup = limits[0], limits[1], limits[2], limits[3]
    for i in range(len(slot)):
        if codes[i] != OK:
            continue
        s, t, place = slot[i], times[i], np.int64(-1)
        if len(arrivals) and boundary[s, 0] and arrivals[i] <= boundary[s, 1]:
            codes[i] = BACKFILLED
            continue
        if dedup != _NO_LIMIT and ids[i, 2]:
            place = _home(table, group[i], ids[i, 0], ids[i, 1])
            if table[place, _USED] and table[place, _TIME] > newest[s] - dedup:
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
            if not table[place, _USED]:
                clock[1] += 1
                table[place, _USED] = 1
                table[place, _SLOT] = group[i]
                table[place, _HASH] = ids[i, 0]
                table[place, _HASH_2] = ids[i, 1]
            table[place, _TIME] = t


@kernel
def _move_ids(old: Ints, new: Ints, newest: Ints, dedup: int, oldest: int) -> int:
    """Ids that can still be found again; gives how many. `newest` is of the group of each."""
    moved = 0
    for i in range(len(old)):
        if old[i, _TIME] > newest[i] - dedup and old[i, _TIME] >= oldest:
            at = _home(new, old[i, _SLOT], old[i, _HASH], old[i, _HASH_2])
            for j in range(5):
                new[at, j] = old[i, j]
            moved += 1
    return moved


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
        self._ids: Ints = np.zeros((256, 5), np.int64)
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

    def admit(self, slots: int, slot: Ints, times: Ints, codes: Ints, arrivals: Ints, ids: Ints) -> None:
        """Fill in the codes of rows that have none yet, and the times of rewritten ones; rows are in arrival order."""
        if self.looks_at_ids:
            self._reserve(len(slot))
        local = slot if self.residents is None else self.residents.local(slot)
        self._grow(slots if self.residents is None else self.residents.slots)
        _admit(
            local, slot, times, arrivals, ids, self._limits, self._newest, self._boundary, self._ids, self._clock, codes
        )
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
        if 2 * (int(self._clock[1]) + count) <= len(self._ids):
            return
        oldest = NEVER if self.earliest is None else self.earliest
        size = 1 << max(8, (4 * (int(self._clock[1]) + count) - 1).bit_length())
        bigger: Ints = np.zeros((size, 5), np.int64)
        used = self._ids[self._ids[:, _USED] == 1]
        self._clock[1] = _move_ids(used, bigger, self._newest_of(used[:, _SLOT]), self._dedup, oldest)
        self._ids = bigger

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
            tables["ids"] = self._ids
        return tables

    def restore(self, tables: Tables) -> None:
        self._newest, self._clock, self.counts = tables["newest"], tables["clock"], tables["counts"]
        self._boundary = tables.get("boundary", np.zeros((len(self._newest), 2), np.int64))
        if "ids" in tables:
            self._ids = tables["ids"]
        elif self.looks_at_ids:  # it is new that ids are looked at
            self._ids, self._clock[1] = np.zeros((256, 5), np.int64), 0


def id_words(column: pa.Array) -> Ints:
    """Two words for each id, and whether there is one: exact for numbers, a hash for texts."""
    words = np.zeros((len(column), 3), np.int64)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    words[:, 2] = np.asarray(column.is_valid().to_numpy(zero_copy_only=False)).astype(np.int64)
    if not is_text(column.type):
        found = to_words(column, BytesIndex())
        words[:, 0] = found.word
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
