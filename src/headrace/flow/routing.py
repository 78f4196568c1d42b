"""Routing: which consumer task a record goes to. A pure function of the record, and of how many went before it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.hashing import can_hash, hash_numbers, hash_rows
from headrace.order import columns

Targets = npt.NDArray[np.int64]
_WORD: Final = (1 << 64) - 1


@dataclass(frozen=True)
class Place:
    """A producer task among its likes, and how many consumers there are."""

    producer: int
    producers: int
    consumers: int


class Route(ABC):
    """How records get from the tasks of one stage to those of the next."""

    @abstractmethod
    def targets(self, batch: pa.RecordBatch, before: int, place: Place) -> Targets | None:
        """The consumer of each record, where `before` records went this way already; None for all of them."""

    def reaches(self, place: Place) -> list[int]:
        """The consumers that a producer may send to."""
        return list(range(place.consumers))

    def problem(self, producers: int, consumers: int, schema: pa.Schema | None) -> str | None:
        """Why this cannot be, with the fix."""
        return None

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Forward(Route):
    """Task i to task i."""

    def targets(self, batch: pa.RecordBatch, before: int, place: Place) -> Targets:
        return np.full(batch.num_rows, place.producer, np.int64)

    def reaches(self, place: Place) -> list[int]:
        return [place.producer]

    def problem(self, producers: int, consumers: int, schema: pa.Schema | None) -> str | None:
        if producers == consumers:
            return None
        return f"forward needs equal parallelism, not {producers} and {consumers}; use route=hr.rebalance()"

    def __str__(self) -> str:
        return "forward"


@dataclass(frozen=True)
class Rebalance(Route):
    """In turn, record by record."""

    def targets(self, batch: pa.RecordBatch, before: int, place: Place) -> Targets:
        turns: Targets = np.arange(before + place.producer, before + place.producer + batch.num_rows, dtype=np.int64)
        return turns % place.consumers

    def __str__(self) -> str:
        return "rebalance"


@dataclass(frozen=True)
class Shuffle(Route):
    """At random, as the seed has it: the same again for the same records."""

    seed: int = 0

    def targets(self, batch: pa.RecordBatch, before: int, place: Place) -> Targets:
        words = hash_numbers(before, batch.num_rows, (self.seed * place.producers + place.producer + 1) & _WORD)
        return (words % np.uint64(place.consumers)).astype(np.int64)

    def __str__(self) -> str:
        return f"shuffle, seed {self.seed}"


@dataclass(frozen=True)
class Rescale(Route):
    """In turn among the consumers that are a producer's own: fewer channels than rebalance."""

    def targets(self, batch: pa.RecordBatch, before: int, place: Place) -> Targets:
        own = np.array(self.reaches(place), np.int64)
        turns: Targets = own[np.arange(before, before + batch.num_rows) % len(own)]
        return turns

    def reaches(self, place: Place) -> list[int]:
        if place.producers >= place.consumers:
            return [place.producer * place.consumers // place.producers]
        # The consumer j has the producer j * producers // consumers.
        return [j for j in range(place.consumers) if j * place.producers // place.consumers == place.producer]

    def __str__(self) -> str:
        return "rescale"


@dataclass(frozen=True)
class Key(Route):
    """All records with the same values in these columns to the same task."""

    columns: tuple[str, ...]

    def targets(self, batch: pa.RecordBatch, before: int, place: Place) -> Targets:
        return (hash_rows(batch, self.columns) % np.uint64(place.consumers)).astype(np.int64)

    def problem(self, producers: int, consumers: int, schema: pa.Schema | None) -> str | None:
        if schema is None:
            return None
        if not self.columns:
            return 'a key needs at least one column; use hr.key("column")'
        for name in self.columns:
            if name not in schema.names:
                return f"key column {name} is not in the data; it has {', '.join(schema.names)}"
            if not can_hash(schema.field(name).type):
                return (
                    f"key column {name} is {schema.field(name).type}; a key is a number, a text, a date, a time stamp "
                    f"or a decimal: let a stage before it make one"
                )
        return None

    def __str__(self) -> str:
        return f"key {', '.join(self.columns)}"


@dataclass(frozen=True)
class Broadcast(Route):
    """Every record to every task."""

    def targets(self, batch: pa.RecordBatch, before: int, place: Place) -> None:
        return None

    def __str__(self) -> str:
        return "broadcast"


@dataclass(frozen=True)
class Custom(Route):
    """As a function says: `choose(batch, consumers)` gives the number of a task for each record."""

    choose: Callable[[pa.RecordBatch, int], Any]

    def targets(self, batch: pa.RecordBatch, before: int, place: Place) -> Targets:
        given = np.asarray(self.choose(columns.without(batch), place.consumers))
        chosen: Targets = given.astype(np.int64) if given.dtype.kind in "iub" or not len(given) else np.full(1, -1)
        if chosen.shape != (batch.num_rows,) or (
            len(chosen) and not 0 <= chosen.min() <= chosen.max() < place.consumers
        ):
            raise FlowError(
                f"the routing function must give one number from 0 to {place.consumers - 1} for each of the "
                f"{batch.num_rows} records, not {given!r}"
            )
        return chosen

    def __str__(self) -> str:
        return f"custom {getattr(self.choose, '__name__', 'function')}"


def forward() -> Route:
    """Task i to task i. Where nothing else stands between two stages they run as one, with no queue between."""
    return Forward()


def rebalance() -> Route:
    """In turn, record by record."""
    return Rebalance()


def shuffle(seed: int = 0) -> Route:
    """At random, the same again for the same records."""
    return Shuffle(seed)


def rescale() -> Route:
    """In turn among the consumers that are a producer's own."""
    return Rescale()


def key(*columns: str) -> Route:
    """All records with the same values in these columns to the same task."""
    return Key(columns)


def broadcast() -> Route:
    """Every record to every task."""
    return Broadcast()


def custom(choose: Callable[[pa.RecordBatch, int], Any]) -> Route:
    """As a function says: `choose(batch, consumers)` gives the number of a task for each record."""
    return Custom(choose)


def split(route: Route, batch: pa.RecordBatch, before: int, place: Place) -> list[tuple[int, pa.RecordBatch]]:
    """The records for each consumer, in their order."""
    if batch.num_rows == 0:
        return []
    targets = route.targets(batch, before, place)
    if targets is None:
        return [(consumer, batch) for consumer in range(place.consumers)]
    lowest = int(targets[0])
    if (targets == lowest).all():
        return [(lowest, batch)]
    order = np.argsort(targets, kind="stable")
    counts = np.bincount(targets, minlength=place.consumers)
    sorted_batch, found, start = batch.take(pa.array(order)), [], 0
    for consumer in np.flatnonzero(counts):
        found.append((int(consumer), sorted_batch.slice(start, int(counts[consumer]))))
        start += int(counts[consumer])
    return found
