"""What happens at the customers of a provider of software, and control events that say what is to be watched.

Pure functions of numbers, for `headrace.demo.monitoring`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.demo.payments import DAY_START
from headrace.flow.hashing import hash_rows
from headrace.model.ticks import SECOND, Tick

Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_TIME: Final = pa.timestamp("us", "UTC")
EVENTS: Final = pa.schema(
    [
        ("n", pa.int64()),
        ("ts", _TIME),
        ("customer", pa.int64()),
        ("kind", pa.string()),
        ("user", pa.int64()),
        ("app", pa.string()),
        ("size", pa.int64()),
    ]
)
CONTROLS: Final = pa.schema(
    [
        ("n", pa.int64()),
        ("ts", _TIME),
        ("customer", pa.int64()),
        ("action", pa.string()),
        ("rule", pa.int64()),  # the slot, from 0 on
        ("policy", pa.string()),
        ("kind", pa.string()),
        ("threshold", pa.int64()),  # a size, or how many events
        ("window_ms", pa.int64()),
        ("notify", pa.int64()),  # how many people
    ]
)

WATCHED: Final = ("login", "mail", "download", "share", "grant")
"""Kinds that a rule may be for."""
_KINDS: Final = pa.array([*WATCHED, "view", "sync"])
_KIND_SHARES: Final = np.cumsum([15, 15, 10, 6, 4, 30, 20])
"""So many of a hundred events are of each kind, or of one before it."""
_APPS: Final = pa.array(["mail", "drive", "chat", "crm"])
POLICIES: Final = ("size", "often")
ACTIONS: Final = ("add", "change", "remove")
_ACTION_SHARES: Final = np.cumsum([40, 40, 20])
SLOTS: Final = 4
MOST_EVENTS: Final = 8
"""A rule may ask for so many of them within its window."""
MOST_CUSTOMERS: Final = 1 << 16
MOST_NOTIFIED: Final = 3
_USERS: Final = 40
_WRONG_EVERY: Final = 20
"""One control event of so many is malformed."""


@dataclass(frozen=True)
class Saas:
    """Event n is the same always, whatever it is asked for with, and happens n / rate seconds after the start."""

    per_second: float = 1000.0
    controls_per_second: float = 5.0
    customers: int = 250
    seed: int = 0
    start: Tick = DAY_START

    def customer_events(self, first: int, count: int) -> pa.RecordBatch:
        """Events `first`, `first + 1`, …: for `hr.generate`."""
        return self.events_at(self._numbered(first, count, self.per_second))

    def control_events(self, first: int, count: int) -> pa.RecordBatch:
        """Control events `first`, `first + 1`, …: for `hr.generate`."""
        return self.controls_at(self._numbered(first, count, self.controls_per_second))

    def events_at(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The events of these `n`, which happen at these `ts`: for a stage behind `hr.rate`, one for each."""
        words = [self._words(batch, salt) for salt in range(4)]
        kinds = np.searchsorted(_KIND_SHARES, _below(words[1], 100), "right")
        sizes = np.rint(10.0 ** (6 * _share(words[2]))).astype(np.int64)
        users = _below(words[3], _USERS)
        columns = [pa.array(_below(words[0], self.customers)), _KINDS.take(pa.array(kinds)), pa.array(users)]
        columns += [_APPS.take(pa.array(users % len(_APPS))), pa.array(sizes)]
        return pa.RecordBatch.from_arrays([batch.column("n"), batch.column("ts"), *columns], schema=EVENTS)

    def controls_at(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The control events of these `n`, which happen at these `ts`: for a stage behind `hr.rate`, one for each."""
        words = [self._words(batch, salt) for salt in range(4, 13)]
        wrong = np.where(_below(words[7], _WRONG_EVERY) == 0, _below(words[8], 5), -1)
        is_often = _below(words[3], 2)
        sizes = np.rint(10.0 ** (1 + 5 * _share(words[4]))).astype(np.int64)
        threshold = np.where(is_often == 1, 2 + sizes % (MOST_EVENTS - 1), sizes)
        kinds = pa.array(np.where(wrong == 3, -1, _below(words[2], len(WATCHED))))
        actions = np.searchsorted(_ACTION_SHARES, _below(words[1], 100), "right")
        values = {
            "customer": pa.array(_below(words[0], self.customers)),
            "action": pa.array([*ACTIONS, "pause"]).take(pa.array(np.where(wrong == 0, 3, actions))),
            "rule": pa.array(np.where(wrong == 1, SLOTS, (words[1] >> np.uint64(32)).astype(np.int64) % SLOTS)),
            "policy": pa.array([*POLICIES, "colour"]).take(pa.array(np.where(wrong == 2, 2, is_often))),
            "kind": pc.if_else(pc.less(kinds, 0), None, _KINDS.take(pc.abs(kinds))),
            "threshold": pa.array(np.where(wrong == 4, 0, threshold)),
            "window_ms": pa.array(500 + _below(words[5], 9500)),
            "notify": pa.array(_below(words[6], MOST_NOTIFIED + 1)),
        }
        columns = [values[name] for name in CONTROLS.names[2:]]
        return pa.RecordBatch.from_arrays([batch.column("n"), batch.column("ts"), *columns], schema=CONTROLS)

    def _numbered(self, first: int, count: int, per_second: float) -> pa.RecordBatch:
        numbers = np.arange(first, first + count, dtype=np.int64)
        ticks = self.start + (numbers * (SECOND / per_second)).astype(np.int64)
        return pa.record_batch({"n": pa.array(numbers), "ts": pa.array(ticks).cast(_TIME)})

    def _words(self, batch: pa.RecordBatch, salt: int) -> _Words:
        """Chance, the same for the same event."""
        salts = pa.array(np.full(batch.num_rows, (self.seed << 8) + salt, np.int64))
        return hash_rows(pa.record_batch([batch.column("n"), salts], names=["n", "salt"]), ("n", "salt"))


def _below(words: _Words, end: int) -> Ints:
    found: Ints = (words % np.uint64(end)).astype(np.int64)
    return found


def _share(words: _Words) -> npt.NDArray[np.float64]:
    """From 0 to 1."""
    return (words >> np.uint64(11)).astype(np.float64) / (1 << 53)
