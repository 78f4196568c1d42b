"""Stages over record batches: functions, and classes with state of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.errors import FlowError, HeadraceError
from headrace.flow.operators import (
    MAIN,
    STOP,
    Behaviour,
    Holds,
    OnError,
    Operator,
    Outputs,
    Shape,
    Stage,
    Wrapped,
    empty,
    failed_record,
    tried,
)
from headrace.model import plain_json
from headrace.model.failures import name_of, problem_of, shown, stage_failed
from headrace.order import columns
from headrace.order.columns import Keys


@dataclass(frozen=True)
class ForBatch(Behaviour):
    """A function over record batches, or a class of `Stage`."""

    function: Callable[..., Any]
    on_error: OnError = STOP
    is_class: bool = False
    one_to_one: bool = False

    def open(self, shape: Shape) -> Operator:
        return _OwnState(self.function(), shape) if self.is_class else _BatchFunction(self, shape)

    def schema(self, stage: str, given: pa.Schema) -> pa.Schema:
        """What the function gives for no records."""
        if self.is_class:
            return given
        try:
            found = self.function(empty(given))
        except Exception as error:
            raise FlowError(
                f"stage {stage}: cannot tell which columns it gives: it raised {problem_of(error)} for a batch of no "
                f"records; say schema=pa.schema([...])"
            ) from error
        if isinstance(found, Mapping):
            found = found.get(MAIN, found.get(None))
        if found is not None and not isinstance(found, pa.RecordBatch | pa.Table):
            raise FlowError(
                f"stage {stage} gave a {type(found).__name__} for a batch of no records, not a record batch; for a "
                f'function over records say each="record"'
            )
        return given if found is None else found.schema

    @property
    def is_stateful(self) -> bool:
        return self.is_class

    @property
    def may_multiply(self) -> bool:
        return not self.one_to_one

    @property
    def is_one_to_one(self) -> bool:
        return self.one_to_one and self.on_error.policy == "stop"

    def order_problem(self, given: pa.Schema | None) -> str | None:
        if self.is_class:
            if self.function.order in ("columns", "each"):  # type: ignore[attr-defined]
                return None
            return (
                f"class {name_of(self.function)} may keep records back; if it does not, say so in it: order = "
                f'"columns" where its records keep all columns that came, order = "each" to be given them one by one, '
                f"so that what it gives is ordered as the record it was given"
            )
        if self.one_to_one or given is None or self._keeps_columns(given):
            return None
        return (
            f"{name_of(self.function)} makes new batches (or none of a batch of no records), and nothing tells which "
            f"record came of which; say "
            f"one_to_one=True if it gives one for each, in their order; or let it keep columns that it does not know "
            f'(batch.filter, batch.append_column); or give it records, each="record"'
        )

    def _keeps_columns(self, given: pa.Schema) -> bool:
        try:
            found = self.function(empty(given.append(pa.field(columns.SEQUENCE, pa.int64()))))
        except Exception:
            return False
        parts = found.values() if isinstance(found, Mapping) else [found]
        return all(
            isinstance(part, pa.RecordBatch | pa.Table) and columns.SEQUENCE in part.schema.names for part in parts
        )

    def open_ordered(self, shape: Shape, keys: Keys, with_path: bool) -> Operator:
        carrying = replace(
            shape,
            outputs={
                name: pa.schema([*schema, *keys.fields(with_path)]) if schema is not None else None
                for name, schema in shape.outputs.items()
            },
        )
        if not self.is_class:
            keeps = _OneToOne if self.one_to_one else _KeepsLast
            return _BatchFunction(replace(self, function=keeps(self.function, shape.stage)), carrying)
        stage = self.function()
        if stage.order == "each":
            return _Each(_OwnState(stage, shape), keys, with_path)
        stage.on_batch = _KeepsLast(stage.on_batch, shape.stage)
        return _NothingInTheEnd(_OwnState(stage, carrying), shape.stage)

    def __str__(self) -> str:
        return name_of(self.function)


@dataclass(frozen=True)
class _KeepsLast:
    """A function over batches that keeps what records carry, which goes behind all other columns."""

    function: Callable[..., Any]
    stage: str

    def __call__(self, batch: pa.RecordBatch) -> Any:
        given = self.function(batch)
        if isinstance(given, Mapping):
            return {name: self._moved(part) for name, part in given.items()}
        return self._moved(given)

    def _moved(self, part: Any) -> Any:
        if not isinstance(part, pa.RecordBatch | pa.Table):
            return part
        if columns.SEQUENCE not in part.schema.names:
            raise FlowError(
                f"stage {self.stage} gave records without the columns that they carry for their order, and had kept "
                f"them for a batch of no records; say one_to_one=True, or let it keep all columns always"
            )
        return columns.moved_last(part)


@dataclass(frozen=True)
class _OneToOne:
    """A function over batches that gives one record for each: each carries on what its record carried."""

    function: Callable[..., Any]
    stage: str

    def __call__(self, batch: pa.RecordBatch) -> Any:
        given = self.function(columns.without(batch))
        if isinstance(given, Mapping):
            if any(name not in (MAIN, None) and part is not None and part.num_rows for name, part in given.items()):
                raise FlowError(f"stage {self.stage}: one_to_one has no side outputs but those of errors")
            given = given.get(MAIN, given.get(None))
        rows = 0 if given is None else given.num_rows
        if rows != batch.num_rows:
            raise FlowError(
                f"stage {self.stage} gave {rows} records for {batch.num_rows}, and one_to_one says one for each"
            )
        if isinstance(given, pa.Table):
            given = (given.combine_chunks().to_batches() or [empty(given.schema)])[0]
        return columns.joined(given, columns.only(batch))


class _Each(Wrapped):
    """A class that is given its records one by one: what it gives is ordered as the record; in the end, after all."""

    def __init__(self, inner: Operator, keys: Keys, with_path: bool):
        super().__init__(inner)
        self._fields = keys.fields(with_path)

    def finish(self) -> Outputs:
        found: Outputs = []
        for output, given in self.inner.finish():
            hidden = [pa.array([0] * given.num_rows, pa.int64()) for _ in self._fields]
            found.append((output, columns.joined(given, pa.record_batch(hidden, schema=pa.schema(self._fields)))))
        return found

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        plain, hidden = columns.without(batch), columns.only(batch)
        return [
            (output, columns.joined(given, hidden.take(pa.array([row] * given.num_rows, pa.int64()))))
            for row in range(batch.num_rows)
            for output, given in self.inner.apply(plain.slice(row, 1))
        ]


class _NothingInTheEnd(Wrapped):
    """A class whose records keep their columns: in the end there is no record that they could be of."""

    def __init__(self, inner: Operator, stage: str):
        super().__init__(inner)
        self._stage = stage

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        return self.inner.apply(batch)

    def finish(self) -> Outputs:
        return self._nothing(self.inner.finish, "on_end")

    def started(self, substream: Any) -> Outputs:
        return self._nothing(lambda: self.inner.started(substream), "on_started")

    def ended(self, substream: Any) -> Outputs:
        return self._nothing(lambda: self.inner.ended(substream), "on_ended")

    def _nothing(self, call: Callable[[], Outputs], where: str) -> Outputs:
        try:
            given = call()
        except FlowError:
            given = [(MAIN, empty(pa.schema([])))]
        if given:
            raise FlowError(
                f'stage {self._stage}: it says order = "columns", and gives records in {where}, which have no place in '
                f'the order; say order = "each"'
            )
        return []


class _BatchFunction(Operator):
    def __init__(self, behaviour: ForBatch, shape: Shape):
        self._function, self._on_error, self._shape = behaviour.function, behaviour.on_error, shape

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        try:
            return self._called(batch)
        except FlowError:
            raise
        except Exception as error:
            return self._isolated(batch, error)

    def _called(self, batch: pa.RecordBatch) -> Outputs:
        return self._shape.outputs_of(tried(lambda: self._function(batch), self._on_error.retries))

    def _isolated(self, batch: pa.RecordBatch, error: Exception) -> Outputs:
        """The function is pure: halves tell which record it raises for."""
        if batch.num_rows <= 1:
            record = batch.to_pylist()[0] if batch.num_rows else {}
            return failed_record(self._shape, self._on_error, error, record)
        half = batch.num_rows // 2
        found: Outputs = []
        for part in (batch.slice(0, half), batch.slice(half)):
            try:
                found += self._called(part)
            except FlowError:
                raise
            except Exception as inner:
                found += self._isolated(part, inner)
        return found


class _OwnState(Operator):
    changes_are_all = True

    def __init__(self, stage: Stage, shape: Shape):
        self._stage, self._shape = stage, shape
        self._last: bytes | None = None

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        return self._called(lambda: self._stage.on_batch(batch), batch)

    def finish(self) -> Outputs:
        return self._called(self._stage.on_end, None)

    def track(self, holds: Holds) -> None:
        self._stage._holds = holds
        kind = type(self._stage)
        self.hears_starts, self.hears_ends = (
            kind.on_started is not Stage.on_started,
            kind.on_ended is not Stage.on_ended,
        )

    def started(self, substream: Any) -> Outputs:
        return self._called(lambda: self._stage.on_started(substream), None, f"the start of {shown(substream)}")

    def ended(self, substream: Any) -> Outputs:
        return self._called(lambda: self._stage.on_ended(substream), None, f"the end of {shown(substream)}")

    def report(self) -> Mapping[str, Any] | None:
        return self._stage.report()

    def _called(
        self, call: Callable[[], Any], batch: pa.RecordBatch | None, at: str = "the end of its input"
    ) -> Outputs:
        try:
            given = call()
        except HeadraceError:
            raise
        except Exception as error:
            records = batch.slice(0, 1).to_pylist() if batch is not None else []
            record = f"one of {batch.num_rows} from {shown(records[0])}" if batch and records else f"none: at {at}"
            raise stage_failed(self._shape.stage, error, record) from error
        return self._shape.outputs_of(given)

    def changes(self) -> bytes | None:
        content = self.content()
        if content == self._last:
            return None
        self._last = content
        return content

    def content(self) -> bytes:
        return plain_json.dumps(self._stage.snapshot(), f"stage {self._shape.stage}: its snapshot")

    def restore(self, parts: Sequence[bytes]) -> None:
        if parts:
            self._last = bytes(parts[-1])
            state = plain_json.loads(self._last)
            if state is not None:
                self._stage.restore(state)
