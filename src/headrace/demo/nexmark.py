"""NEXMark: people enter an auction site and open auctions. A pure function of event numbers, and the answer of query 8.

Proportions and sellers are those of the benchmark's generator, without bids. Of four events the first is a person, the
others are auctions. Three auctions of four are of a *hot* seller, the first of the newest hundred persons; the others
of any of the newest thousand, or of one of the ten who enter next: so an auction may come before its seller.

Query 8: the persons who entered and opened an auction in the same tumbling window of ten seconds.
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
from headrace.model.ticks import SECOND, Tick, Ticks

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_Words = npt.NDArray[np.uint64]

PERSON: Final = "person"
AUCTION: Final = "auction"
WINDOW: Final = Ticks(10 * SECOND)

_TIME: Final = pa.timestamp("us", "UTC")
SCHEMA: Final = pa.schema(
    [
        ("n", pa.int64()),
        ("kind", pa.string()),
        ("id", pa.int64()),
        ("name", pa.string()),  # of a person, or of what is for sale
        ("email", pa.string()),
        ("city", pa.string()),
        ("state", pa.string()),
        ("seller", pa.int64()),
        ("category", pa.int64()),
        ("initial_bid", pa.int64()),
        ("reserve", pa.int64()),
        ("expires", _TIME),
        ("ts", _TIME),
    ]
)

FIRST_ID: Final = 1000
AUCTIONS: Final = 3
"""To one person."""
ACTIVE: Final = 1000
LEAD: Final = 10
HOT_EVERY: Final = 100
_CATEGORIES: Final = 5
_LONGEST: Final = 20 * SECOND

_FIRST: Final = pa.array(
    ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
)
_LAST: Final = pa.array(["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"])
_TOWNS: Final = (
    ("Phoenix", "AZ"), ("Los Angeles", "CA"), ("San Francisco", "CA"), ("Boise", "ID"), ("Portland", "OR"),
    ("Bend", "OR"), ("Redmond", "WA"), ("Seattle", "WA"), ("Kent", "WA"), ("Cheyenne", "WY"),
)  # fmt: skip
_CITY: Final = pa.array([city for city, _ in _TOWNS])
_STATE: Final = pa.array([state for _, state in _TOWNS])
_THING: Final = pa.array(["lamp", "clock", "chair", "radio", "camera", "violin", "globe", "stamp", "map", "coin"])


@dataclass(frozen=True)
class Nexmark:
    """Event n happens n / per_second seconds after the start, and is the same always, whatever it is asked for with."""

    per_second: float = 1000.0
    seed: int = 0
    start: Tick = DAY_START

    def make(self, first: int, count: int) -> pa.RecordBatch:
        """Events `first`, `first + 1`, …: for `hr.generate`."""
        return self.events(np.arange(first, first + count, dtype=np.int64))

    def events(self, numbers: Ints) -> pa.RecordBatch:
        """The events of these numbers: for a stage behind `hr.rate`."""
        is_person = numbers % (AUCTIONS + 1) == 0
        ticks = self.ticks(numbers)
        people, words = numbers // (AUCTIONS + 1), [self._words(numbers, salt) for salt in range(4)]
        auctions = people * AUCTIONS + numbers % (AUCTIONS + 1) - 1
        initial = _price(words[2])
        persons = {
            "name": _joined(" ", _FIRST, words[0], _LAST, words[1]),
            "email": _joined("@", _FIRST, words[0], pa.array(["mail.com", "post.org", "web.net"]), words[2]),
            "city": _drawn(_CITY, words[3]),
            "state": _drawn(_STATE, words[3]),
        }
        auctioned = {
            "name": _drawn(_THING, words[3]),
            "seller": pa.array(FIRST_ID + _sellers(people, words[0], words[1])),
            "category": pa.array(10 + (words[3] >> np.uint64(32)).astype(np.int64) % _CATEGORIES),
            "initial_bid": pa.array(initial),
            "reserve": pa.array(initial + _price(words[3])),
            "expires": pa.array(ticks + 1 + (words[2] >> np.uint64(32)).astype(np.int64) % _LONGEST).cast(_TIME),
        }
        columns: dict[str, pa.Array] = {
            "n": pa.array(numbers),
            "kind": pa.array([AUCTION, PERSON]).take(pa.array(is_person.astype(np.int8))),
            "id": pa.array(FIRST_ID + np.where(is_person, people, auctions)),
            "ts": pa.array(ticks).cast(_TIME),
        }
        for field in SCHEMA:
            if field.name not in columns:
                empty = pa.nulls(len(numbers), field.type)
                own, other = persons.get(field.name, empty), auctioned.get(field.name, empty)
                columns[field.name] = pc.if_else(pa.array(is_person), own, other)
        return pa.RecordBatch.from_arrays([columns[field.name] for field in SCHEMA], schema=SCHEMA)

    def ticks(self, numbers: Ints) -> Ints:
        """When events happen."""
        found: Ints = self.start + (numbers * (SECOND / self.per_second)).astype(np.int64)
        return found

    def windows(self, numbers: Ints, window: Ticks = WINDOW) -> Ints:
        """The start of the window of each event."""
        found: Ints = self.ticks(numbers) // window * window
        return found

    def ends_window(self, numbers: Ints, step: int = 1, window: Ticks = WINDOW) -> Bools:
        """Which events are the last of their window, among every `step`-th: a task of `hr.rate` has those."""
        found: Bools = self.windows(numbers, window) != self.windows(numbers + step, window)
        return found

    def _words(self, numbers: Ints, salt: int) -> _Words:
        """Chance, the same for the same event."""
        salts = pa.array(np.full(len(numbers), (self.seed << 8) + salt, np.int64))
        return hash_rows(pa.record_batch([pa.array(numbers), salts], names=["n", "salt"]), ("n", "salt"))


def _sellers(newest: Ints, words: _Words, others: _Words) -> Ints:
    """Numbers of persons from 0 on, where `newest` is that of the last one so far."""
    hot = newest // HOT_EVERY * HOT_EVERY
    active = np.minimum(newest + 1, ACTIVE)
    any_of = newest + 1 - active + (others >> np.uint64(1)).astype(np.int64) % (active + LEAD)
    found: Ints = np.where(words % np.uint64(4) > 0, hot, any_of)
    return found


def _price(words: _Words) -> Ints:
    """Cents, from 1 to a million dollars, as many of each number of digits."""
    share = (words >> np.uint64(11)).astype(np.float64) / (1 << 53)
    found: Ints = np.rint(100 * 10.0 ** (6 * share)).astype(np.int64)
    return found


def _drawn(values: pa.Array, words: _Words) -> pa.Array:
    return values.take(pa.array((words % np.uint64(len(values))).astype(np.int64)))


def _joined(between: str, first: pa.Array, words: _Words, second: pa.Array, others: _Words) -> pa.Array:
    return pc.binary_join_element_wise(_drawn(first, words), _drawn(second, others), between)


# ----------------------------------------------------------------------- query 8


def query_8(events: pa.Table | pa.RecordBatch, window: Ticks = WINDOW) -> pa.Table:
    """The answer: `window` (its start), `id` and `name`, by window and id."""
    table = events if isinstance(events, pa.Table) else pa.Table.from_batches([events])
    ticks = table["ts"].cast(pa.int64()).to_numpy()
    table, kinds = table.append_column("window", pa.array(ticks // window * window).cast(_TIME)), table["kind"]
    persons = table.filter(pc.equal(kinds, PERSON)).select(["window", "id", "name"])
    auctions = table.filter(pc.equal(kinds, AUCTION)).select(["window", "seller"])
    found = persons.join(auctions, ["window", "id"], ["window", "seller"], join_type="left semi")
    return found.sort_by([("window", "ascending"), ("id", "ascending")])
