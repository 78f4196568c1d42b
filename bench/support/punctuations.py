"""Punctuations, the baseline of the tracker, as stages of a flow.

A punctuation is a row among the records: it says that its substream has ended. The stage in the task of the source puts
one for each task of the first step behind the last record of a substream. Every task sends a punctuation on, to all
tasks of the next step, once it has come from all tasks that send to it (a soft bound). With alignment it also keeps
back what comes from a sender behind its punctuation until all have it (a firm bound).

Rows carry who sent them and to whom, so that a task can tell its channels apart. All senders must end the same
substreams in the same order, as sources do whose substreams come one after the other: then what has come from a sender
is a number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.flow.hashing import hash_rows
from headrace.flow.operators import MAIN, Behaviour, Operator, Outputs, Shape
from headrace.model import plain_json

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PUNCTUATION: Final = 1
"""The kind of a row; records have 0."""
_FIELDS: Final = (pa.field("kind", pa.int8()), pa.field("sender", pa.int32()), pa.field("target", pa.int32()))


def ints(batch: pa.RecordBatch, name: str) -> Ints:
    found: Ints = batch.column(name).to_numpy(zero_copy_only=False)
    return found


def is_punctuation(batch: pa.RecordBatch) -> Bools:
    found: Bools = ints(batch, "kind") == PUNCTUATION
    return found


def to_target(batch: pa.RecordBatch, tasks: int) -> Ints:
    """The route of records and punctuations."""
    return ints(batch, "target")


def _sent(rows: pa.RecordBatch, own: int, kinds: Ints | Bools, sender: int, targets: Ints) -> pa.RecordBatch:
    """The first `own` columns of the rows, and who sends them to whom."""
    said = (kinds.astype(np.int8), np.full(rows.num_rows, sender, np.int32), targets.astype(np.int32))
    return pa.RecordBatch.from_arrays(
        [*rows.columns[:own], *map(pa.array, said)], schema=pa.schema([*list(rows.schema)[:own], *_FIELDS])
    )


class _Counted(Behaviour):
    @property
    def is_stateful(self) -> bool:
        return True

    @property
    def counts_tasks(self) -> bool:
        """What it does depends on how many tasks there are."""
        return True


@dataclass(frozen=True)
class Inject(_Counted):
    """Records to the tasks of the first step, and behind each that is the last of its substream, punctuations to all.

    `last` is the column that says so. `by` is a column whose values decide the task; without one they take turns.
    `first_sender` is the number of its task 0 among all that send to the same step.
    """

    targets: int
    last: str = "last"
    by: str | None = None
    first_sender: int = 0

    def open(self, shape: Shape) -> Operator:
        return _Injecting(self, self.first_sender + shape.index)

    def schema(self, stage: str, given: pa.Schema) -> pa.Schema:
        return pa.schema([*given, *_FIELDS])

    def __str__(self) -> str:
        return "punctuations of a source"


class _Remembering(Operator):
    """Its state is small, and written whole."""

    _is_dirty = False

    @abstractmethod
    def state(self) -> Any: ...

    @abstractmethod
    def go_on(self, state: Any) -> None: ...

    def changes(self) -> bytes | None:
        return self.content() if self._is_dirty else None

    def content(self) -> bytes:
        self._is_dirty = False
        return plain_json.dumps(self.state(), "punctuations")

    def restore(self, parts: Sequence[bytes]) -> None:
        if parts:
            self.go_on(plain_json.loads(parts[-1]))


class _Turns:
    """Who gets a record: as `hr.rebalance`, or by the values of a column."""

    def __init__(self, targets: int, by: str | None, sender: int):
        self.targets, self._by = targets, by
        self.turn = sender

    def of(self, rows: pa.RecordBatch) -> Ints:
        if self._by is not None:
            return (hash_rows(rows, (self._by,)) % np.uint64(self.targets)).astype(np.int64)
        found: Ints = np.arange(self.turn, self.turn + rows.num_rows) % self.targets
        self.turn += rows.num_rows
        return found


class _Injecting(_Remembering):
    def __init__(self, behaviour: Inject, sender: int):
        self._last, self._sender = behaviour.last, sender
        self._turns = _Turns(behaviour.targets, behaviour.by, sender)

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        self._is_dirty = True
        is_last = batch.column(self._last).to_numpy(zero_copy_only=False)
        counts = 1 + is_last * self._turns.targets
        rows = np.repeat(np.arange(batch.num_rows), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        targets = np.where(within > 0, within - 1, self._turns.of(batch)[rows])
        taken = batch.take(pa.array(rows)) if is_last.any() else batch
        return [(MAIN, _sent(taken, batch.num_columns, within > 0, self._sender, targets))]

    def state(self) -> Any:
        return self._turns.turn

    def go_on(self, state: Any) -> None:
        self._turns.turn = state


# ------------------------------------------------------------------------- steps


@dataclass(frozen=True)
class PassOn(_Counted):
    """A step: records to the next one, and a punctuation to all its tasks once it has come from all `senders`.

    `targets` is how many tasks the next step has; 0 where there is none: then each punctuation is given once, behind
    all that came before it.
    """

    senders: int
    targets: int = 0
    aligned: bool = False
    by: str | None = None

    def open(self, shape: Shape) -> Operator:
        return _Passing(self, shape.index)

    def __str__(self) -> str:
        return "passes on, aligned" if self.aligned else "passes on"


class _Passing(_Remembering):
    def __init__(self, behaviour: PassOn, index: int):
        self._aligned, self._index = behaviour.aligned, index
        self._turns = _Turns(max(behaviour.targets, 1), behaviour.by, index)
        self._came: Ints = np.zeros(behaviour.senders, np.int64)
        """How many punctuations each sender has sent."""
        self._held: pa.RecordBatch | None = None
        self._held_for: Ints = np.zeros(0, np.int64)
        """How many punctuations each held record waits for."""

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        if not batch.num_rows:
            return []
        self._is_dirty = True
        marks = is_punctuation(batch)
        if not marks.any() and not self._aligned:
            return [(MAIN, self._to_next(batch, marks))]
        before = int(self._came.min())
        numbers = self._numbered(ints(batch, "sender"), marks)
        after = int(self._came.min())
        whole: Ints = np.zeros(after - before, np.int64)
        """Where the punctuations `before`, `before + 1`, … are complete: of several the last one stays."""
        is_whole = marks & (numbers < after)
        whole[numbers[is_whole] - before] = np.flatnonzero(is_whole)
        if self._aligned:
            return self._in_epochs(batch, marks, numbers, whole, before)
        leaves = ~marks
        leaves[whole] = True
        return self._given(batch, marks, np.flatnonzero(leaves))

    def _numbered(self, senders: Ints, marks: Bools) -> Ints:
        """For each row, how many punctuations its sender has sent before it."""
        if len(set(senders.tolist())) == len(senders):
            found: Ints = self._came[senders]
            self._came[senders[marks]] += 1
            return found
        order = np.argsort(senders, kind="stable")
        sorted_senders, sorted_marks = senders[order], marks[order]
        before: Ints = np.cumsum(sorted_marks) - sorted_marks
        starts = np.flatnonzero(np.diff(sorted_senders, prepend=-1))
        lengths = np.diff(starts, append=len(senders))
        numbers: Ints = np.empty(len(senders), np.int64)
        numbers[order] = before - np.repeat(before[starts], lengths) + self._came[sorted_senders]
        self._came += np.bincount(senders[marks], minlength=len(self._came))
        return numbers

    def _in_epochs(self, batch: pa.RecordBatch, marks: Bools, numbers: Ints, whole: Ints, before: int) -> Outputs:
        """A record leaves once all punctuations that its sender sent before it are complete, behind the last one."""
        if self._held is not None:
            batch = pa.concat_batches([self._held, batch])
            count = self._held.num_rows
            marks = np.concatenate([np.zeros(count, np.bool_), marks])
            numbers, whole = np.concatenate([self._held_for, numbers]), whole + count
        after = before + len(whole)
        waits = ~marks & (numbers > after)
        self._held = batch.filter(pa.array(waits)) if waits.any() else None
        self._held_for = numbers[waits]
        leaves = ~marks & ~waits
        leaves[whole] = True
        rows = np.flatnonzero(leaves)
        until = np.concatenate([[-1], whole])[np.maximum(numbers[rows] - before, 0)]
        is_late = ~marks[rows] & (until > rows)
        order = np.argsort(np.where(is_late, 2 * until + 1, 2 * rows), kind="stable")
        return self._given(batch, marks, rows[order])

    def _given(self, batch: pa.RecordBatch, marks: Bools, rows: Ints) -> Outputs:
        """These rows, in this order."""
        if not len(rows):
            return []
        return [(MAIN, self._to_next(batch.take(pa.array(rows)), marks[rows]))]

    def _to_next(self, batch: pa.RecordBatch, marks: Bools) -> pa.RecordBatch:
        own, count = batch.num_columns - len(_FIELDS), self._turns.targets
        if not marks.any():
            return _sent(batch, own, marks, self._index, self._turns.of(batch))
        targets: Ints = np.zeros(batch.num_rows, np.int64)
        targets[~marks] = self._turns.of(batch.filter(pa.array(~marks)))
        if count > 1:
            counts = np.where(marks, count, 1)
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            rows = np.repeat(np.arange(batch.num_rows), counts)
            batch, marks = batch.take(pa.array(rows)), marks[rows]
            targets = np.where(marks, within, targets[rows])
        return _sent(batch, own, marks, self._index, targets)

    def finish(self) -> Outputs:
        assert self._held is None, "all senders have ended, and not all have sent the same punctuations"
        return []

    def state(self) -> Any:
        held = b""
        if self._held is not None:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self._held.schema) as writer:
                writer.write_batch(self._held)
            held = sink.getvalue().to_pybytes()
        return [self._turns.turn, self._came.tolist(), self._held_for.tolist(), held]

    def go_on(self, state: Any) -> None:
        self._turns.turn, came, held_for, held = state
        self._came, self._held_for = np.array(came, np.int64), np.array(held_for, np.int64)
        self._held = next(iter(pa.ipc.open_stream(held))) if held else None
