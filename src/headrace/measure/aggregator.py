"""The contract of an aggregator: one function (`sum`) over one argument, for all groups of one leaf of the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import MetricOverflow
from headrace.language import BoundMetric
from headrace.language.type_names import spark_name
from headrace.measure.keys import BytesIndex
from headrace.measure.steps import REWIND, Steps
from headrace.measure.words import Words, from_words, is_wide
from headrace.model.jit import Flags, Ints
from headrace.model.signature import Signature
from headrace.state.ragged import Ragged
from headrace.state.tables import Tables, part_of, under


class GroupState(Protocol):
    """What is kept for every group: the methods of an aggregator that have nothing to do with its function."""

    def grow(self, slots: int) -> None: ...

    def dump(self) -> Tables: ...

    def restore(self, tables: Tables) -> None: ...

    def take_groups(self, slots: Ints) -> Ragged: ...

    def put_groups(self, slots: Ints, groups: Ragged) -> None: ...

    def clear_groups(self) -> None: ...


class Aggregator(ABC):
    """State of one metric for every group, driven by steps.

    A slot is a group (slot 0 is nobody's). Steps come in the order of arrival; REMOVE always names the oldest event
    of its slot unless the aggregator says `late_mode = REWIND`, which promises that order does not matter to it.
    """

    state: GroupState
    """Made by `prepare`; whoever keeps more than one thing overrides the methods that pass on to it."""

    signature: ClassVar[Signature]
    late_mode: ClassVar[int] = REWIND
    late_keep: ClassVar[int] = 0
    """For REPLAY: how many of the newest (or, negative, oldest) events decide the answer; 0 is all of them."""

    def __init__(self, metric: BoundMetric, texts: BytesIndex):
        self.metric = metric
        self.type = metric.type
        self.texts = texts
        self._is_wide = is_wide(metric.type)
        self.answers = Answers(0, self._is_wide)
        self.prepare()

    @classmethod
    def when_late(cls) -> type[Aggregator]:
        """The aggregator to use where events may be late."""
        return cls

    @abstractmethod
    def prepare(self) -> None:
        """Make the empty state."""

    def grow(self, slots: int) -> None:
        """Have state for slots 0 … slots - 1."""
        self.state.grow(slots)

    @abstractmethod
    def push(self, steps: Steps, values: Words) -> None:
        """Replay the steps; `values` holds the argument of the event that each step is about."""

    def dump(self) -> Tables:
        """The state of all groups: views of what is in use, so they hold until the next change of state."""
        return self.state.dump()

    def restore(self, tables: Tables) -> None:
        """Take the state of all groups from a dump; the tables are this one's from now on."""
        self.state.restore(tables)

    def take_groups(self, slots: Ints) -> Ragged:
        """The whole state of these groups; the aggregator keeps it too.

        Equal content gives equal words, whatever was there before and wherever it lies in memory. A group without
        content has no words. Codes of strings and of wide decimals stay codes: they need the dictionaries of this
        aggregator, or of one that was restored from its dump.
        """
        return self.state.take_groups(slots)

    def put_groups(self, slots: Ints, groups: Ragged) -> None:
        """Set the state of these slots, which are empty, each there once; it grows to have them."""
        self.state.put_groups(slots, groups)

    def clear_groups(self) -> None:
        """Forget all groups and let go of their memory; dictionaries stay, and are all that a dump then holds."""
        self.state.clear_groups()

    def begin(self, rows: int, slots: int) -> None:
        """Start a batch: space for its answers and for its groups."""
        self.grow(slots)
        self.answers = Answers(rows, self._is_wide)

    def finish(self) -> pa.Array:
        """The answers of the batch, one a row."""
        return from_words(self.answers.words(), self.type, self.texts)

    def overflow(self) -> MetricOverflow:
        return MetricOverflow(self.metric.name, spark_name(self.type))


class Answers:
    """Where kernels write: a word (two for wide decimals) and a valid flag a row."""

    def __init__(self, rows: int, is_wide: bool):
        self.word: Ints = np.zeros(rows, np.int64)
        self.high: Ints = np.zeros(rows if is_wide else 0, np.int64)
        self.valid: Flags = np.zeros(rows, np.uint8)

    def words(self) -> Words:
        return Words(self.word, self.valid, self.high)


def is_number(type: pa.DataType | None) -> bool:
    return type is not None and bool(
        pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)
    )


def needs_number(name: str, type: pa.DataType) -> str:
    return f"{name} needs a number, not {spark_name(type)}"


def same_type(type: pa.DataType | None) -> pa.DataType | str:
    return type if type is not None else "an argument is needed"


def dump_all(aggregators: Sequence[Aggregator]) -> Tables:
    """The states of aggregators beside each other, by the names of their metrics."""
    parts = [under(aggregator.metric.name, aggregator.dump()) for aggregator in aggregators]
    return {name: table for part in parts for name, table in part.items()}


def restore_all(aggregators: Sequence[Aggregator], tables: Tables) -> None:
    for aggregator in aggregators:
        aggregator.restore(part_of(aggregator.metric.name, tables))


def take_all(aggregators: Sequence[Aggregator], slots: Ints) -> list[Ragged]:
    return [aggregator.take_groups(slots) for aggregator in aggregators]


def put_all(aggregators: Sequence[Aggregator], slots: Ints, groups: Sequence[Ragged]) -> None:
    for aggregator, words in zip(aggregators, groups, strict=True):
        aggregator.put_groups(slots, words)


def clear_all(aggregators: Sequence[Aggregator]) -> None:
    for aggregator in aggregators:
        aggregator.clear_groups()
