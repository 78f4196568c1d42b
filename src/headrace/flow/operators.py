"""What the stages of a flow do: functions over batches, over records, over keyed state, and classes with their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import pyarrow as pa

from headrace.errors import FlowError, StageFailed
from headrace.flow.files import Files, FilesInMemory
from headrace.model.failures import problem_of, shown, stage_failed
from headrace.model.progress import PROGRESS
from headrace.order import columns
from headrace.order.columns import Keys

MAIN: Final = ""
ERRORS: Final = "errors"

Outputs: TypeAlias = list[tuple[str, pa.RecordBatch]]
"""Batches with the name of the output they leave by, in the order in which they leave."""


@dataclass(frozen=True)
class OnError:
    """What becomes of a record that a function raises for, after it was tried `retries` times more."""

    policy: str = "stop"
    retries: int = 0


STOP: Final = OnError()


class Holds(Protocol):
    """Of a task that is tracked: what it holds back of substreams."""

    def hold(self, labels: Sequence[Any]) -> None: ...

    def release(self, labels: Sequence[Any]) -> None: ...


class Stage(ABC):
    """A stage with state of its own. Must not depend on where its input is cut into batches.

    ```python
    class Numbered(hr.Stage):
        def __init__(self): self.seen = 0
        def on_batch(self, batch): ...
        def snapshot(self): return {"seen": self.seen}
        def restore(self, state): self.seen = state["seen"]
    ```
    """

    order: ClassVar[str] = ""
    """For a stage whose output is to be ordered later: "columns" where its records keep all columns that came, and none
    is kept back; "each" to be given records one by one, so that what it gives is ordered as the record."""

    @abstractmethod
    def on_batch(self, batch: pa.RecordBatch) -> Any:
        """What to send on: a record batch, None, or batches by the name of a side output."""

    def on_end(self) -> Any:
        """All input has come and gone: what is still to be sent on."""
        return None

    def on_started(self, substream: Any) -> Any:
        """Of a stage that reads `tracked(starts=True)`: a substream has begun. What to send on."""
        return None

    def on_ended(self, substream: Any) -> Any:
        """Of a stage that reads a tracked stream: nothing more of a substream will come. What to send on."""
        return None

    def hold(self, *substreams: Any) -> None:
        """Records of these are kept back here: what comes after is not told of their end until `release`."""
        if self._holds is not None:
            self._holds.hold(substreams)

    def release(self, *substreams: Any) -> None:
        """All that was kept back of these has been given, or will never be: as often as `hold`."""
        if self._holds is not None:
            self._holds.release(substreams)

    _holds: Holds | None = None

    def report(self) -> Mapping[str, Any] | None:
        """What is to be known of it, as plain values: in the status of its task."""
        return None

    def snapshot(self) -> Any:
        """Everything needed to go on after the last batch, as plain values; None for nothing."""
        return None

    def restore(self, state: Any) -> None:  # noqa: B027
        """From what `snapshot` gave."""


class Operator(ABC):
    """A stage at work, in one task."""

    hears_starts: bool = False
    hears_ends: bool = False
    """Does it want to know of substreams?"""
    changes_are_all: bool = False
    """Is what `changes` gave last all of the state?"""

    @abstractmethod
    def apply(self, batch: pa.RecordBatch) -> Outputs: ...

    def finish(self) -> Outputs:
        """All input has come and gone."""
        return []

    def started(self, substream: Any) -> Outputs:
        """A substream has begun somewhere."""
        return []

    def ended(self, substream: Any) -> Outputs:
        """Nothing more of a substream will come."""
        return []

    def track(self, holds: Holds) -> None:  # noqa: B027
        """It belongs to what is tracked, and may hold substreams."""

    def changes(self) -> bytes | None:
        """What has changed since the last call; None where nothing has."""
        return None

    def content(self) -> bytes:
        """All of the state: what `changes` would have given, had nothing been asked before."""
        return b""

    def change(self, message: Mapping[str, Any]) -> None:  # noqa: B027
        """It is to do something else from this record on: a control frame of its inbox says so."""

    def report(self) -> Mapping[str, Any] | None:
        """What is to be known of it, as plain values."""
        return None

    def named_files(self) -> Sequence[str]:
        """The files (`Shape.files`) that the state of the last `changes` names."""
        return ()

    def restore(self, parts: Sequence[bytes]) -> None:  # noqa: B027
        """From a content and the changes after it."""


@dataclass(frozen=True)
class Shape:
    """What a stage may give: the columns of each output."""

    stage: str
    outputs: Mapping[str, pa.Schema]
    files: Files = field(default_factory=FilesInMemory, compare=False)
    """Where it can keep what is too large for its state."""
    index: int = 0
    """The number of the task, of `tasks`."""
    tasks: int = 1

    def outputs_of(self, given: Any) -> Outputs:
        if given is None:
            return []
        named = given.items() if isinstance(given, Mapping) else [(MAIN, given)]
        return [(name or MAIN, self._conforming(name or MAIN, batch)) for name, batch in named if batch is not None]

    def of_records(self, output: str, records: Sequence[Mapping[str, Any]]) -> Outputs:
        if not records:
            return []
        schema = self._schema(output)
        names = set(schema.names)
        for record in records:
            if not record.keys() <= names:
                unknown = next(name for name in record if name not in names)
                raise FlowError(
                    f"stage {self.stage} gave a record with {unknown!r}, which is not among its columns, "
                    f"{listed(schema)}; leave it out, or name it in schema=: {shown(record)}"
                )
        try:
            return [(output, self._checked(output, pa.RecordBatch.from_pylist(list(records), schema)))]
        except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
            raise FlowError(
                f"stage {self.stage}: what it gave does not fit its columns ({problem_of(error)}): "
                f"{_misfit(records, schema)}; its columns are {listed(schema)}: give other records, or another schema="
            ) from None

    def _schema(self, output: str) -> pa.Schema:
        if output not in self.outputs:
            raise FlowError(
                f"stage {self.stage} gave something for a side output {output} that it does not have; "
                f"give it sides={{{output!r}: schema}}"
            )
        return self.outputs[output]

    def _conforming(self, output: str, batch: Any) -> pa.RecordBatch:
        schema = self._schema(output)
        if isinstance(batch, pa.Table):
            batches = batch.combine_chunks().to_batches()
            batch = batches[0] if batches else empty(batch.schema)
        if not isinstance(batch, pa.RecordBatch):
            raise FlowError(
                f"stage {self.stage} gave a {type(batch).__name__}, not a record batch; for a function over records "
                f'say each="record"'
            )
        if batch.schema.equals(schema, check_metadata=True):
            return self._checked(output, batch)
        if batch.schema.names != schema.names or batch.schema.types != schema.types:
            raise FlowError(
                f"stage {self.stage} gave the columns {listed(batch.schema)}, not {listed(schema)}; "
                f"give schema= the columns that it really has"
            )
        return self._checked(output, pa.RecordBatch.from_arrays(batch.columns, schema=schema))

    @cached_property
    def _never_null(self) -> Mapping[str, Sequence[str]]:
        """The columns of each output that must have no nulls."""
        return {name: [entry.name for entry in schema if not entry.nullable] for name, schema in self.outputs.items()}

    def _checked(self, output: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A sink would find the nulls far from here."""
        for name in self._never_null[output]:
            if nulls := batch.column(name).null_count:
                raise FlowError(
                    f"stage {self.stage} gave {nulls} of {batch.num_rows} records with null in {name}, which its "
                    f"columns do not allow; give values, or declare it in schema= with nullable=True"
                )
        return batch


def _misfit(records: Sequence[Mapping[str, Any]], schema: pa.Schema) -> str:
    """The first record that does not fit."""
    for record in records:
        try:
            pa.RecordBatch.from_pylist([record], schema)
        except (pa.ArrowException, TypeError, ValueError, AttributeError):
            return shown(record)
    return shown(records[0])


# -------------------------------------------------------------------- behaviours


class Behaviour(ABC):
    """What a stage will do: opened once in every task of it."""

    @abstractmethod
    def open(self, shape: Shape) -> Operator: ...

    def schema(self, stage: str, given: pa.Schema) -> pa.Schema:
        """What it gives for what it is given."""
        return given

    @property
    def is_stateful(self) -> bool:
        return False

    @property
    def is_one_to_one(self) -> bool:
        """Is it known to give one record for each, in their order?"""
        return False

    @property
    def may_multiply(self) -> bool:
        """May it give several records for one?"""
        return False

    @property
    def counts_tasks(self) -> bool:
        """Must it have just as many tasks as were drawn, each with the records that come to it?"""
        return False

    def order_problem(self, given: pa.Schema | None) -> str | None:
        """Why records cannot carry the order of their source through it, with the fix."""
        return None

    def open_ordered(self, shape: Shape, keys: Keys, with_path: bool) -> Operator:
        """For records that carry the order of their source. Here: of a stage that gives one record for each."""
        return SameRows(self.open(shape))

    @abstractmethod
    def __str__(self) -> str: ...


class Wrapped(Operator):
    """An operator around another one."""

    def __init__(self, inner: Operator):
        self.inner = inner

    @property
    def changes_are_all(self) -> bool:  # type: ignore[override]
        return self.inner.changes_are_all

    def changes(self) -> bytes | None:
        return self.inner.changes()

    def content(self) -> bytes:
        return self.inner.content()

    def change(self, message: Mapping[str, Any]) -> None:
        self.inner.change(message)

    def track(self, holds: Holds) -> None:
        self.inner.track(holds)

    @property
    def hears_starts(self) -> bool:  # type: ignore[override]
        return self.inner.hears_starts

    @property
    def hears_ends(self) -> bool:  # type: ignore[override]
        return self.inner.hears_ends

    def started(self, substream: Any) -> Outputs:
        return self.inner.started(substream)

    def ended(self, substream: Any) -> Outputs:
        return self.inner.ended(substream)

    def report(self) -> Mapping[str, Any] | None:
        return self.inner.report()

    def named_files(self) -> Sequence[str]:
        return self.inner.named_files()

    def restore(self, parts: Sequence[bytes]) -> None:
        self.inner.restore(parts)


class SameRows(Wrapped):
    """Of a stage that gives one record for each, in their order."""

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        return [
            (output, columns.joined(given, columns.only(batch)))
            for output, given in self.inner.apply(columns.without(batch))
        ]


@dataclass(frozen=True)
class Identity(Behaviour):
    """Gives what it is given."""

    is_one_to_one = True

    def open(self, shape: Shape) -> Operator:
        return _Identity()

    def __str__(self) -> str:
        return "as it is"


class _Identity(Operator):
    def apply(self, batch: pa.RecordBatch) -> Outputs:
        return [(MAIN, batch)]


# ----------------------------------------------------------------------- helpers


def tried(call: Callable[[], Any], retries: int) -> Any:
    """Raises what the call raises the last time."""
    PROGRESS.calls += 1
    for _ in range(retries):
        try:
            return drained(call())
        except Exception:
            continue
    return drained(call())


def drained(given: Any) -> Any:
    """What a generator gives, now: it may raise as well."""
    return list(given) if isinstance(given, Iterator) else given


def failed_record(shape: Shape, on_error: OnError, error: Exception, record: Mapping[str, Any]) -> Outputs:
    """To the side output with its reason, or stop."""
    if isinstance(error, StageFailed):
        raise error
    if on_error.policy == "stop":
        own = {name: value for name, value in record.items() if name not in columns.HIDDEN}
        raise stage_failed(shape.stage, error, shown(own)) from error
    return shape.of_records(ERRORS, [{**record, "reason": problem_of(error)}])


def empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], entry.type) for entry in schema], schema=schema)


def listed(schema: pa.Schema) -> str:
    return ", ".join(f"{entry.name} {entry.type}" for entry in schema)
