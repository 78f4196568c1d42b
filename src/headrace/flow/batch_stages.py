"""Stages over record batches: functions, and classes with state of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import FlowError, HeadraceError
from headrace.flow import plain_json
from headrace.flow.failures import problem_of, shown, stage_failed
from headrace.flow.operators import (
    MAIN,
    STOP,
    Behaviour,
    OnError,
    Operator,
    Outputs,
    Shape,
    Stage,
    empty,
    failed_record,
    name_of,
    tried,
)


@dataclass(frozen=True)
class ForBatch(Behaviour):
    """A function over record batches, or a class of `Stage`."""

    function: Callable[..., Any]
    on_error: OnError = STOP
    is_class: bool = False

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

    def __str__(self) -> str:
        return name_of(self.function)


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
    def __init__(self, stage: Stage, shape: Shape):
        self._stage, self._shape = stage, shape
        self._last: bytes | None = None

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        return self._called(lambda: self._stage.on_batch(batch), batch)

    def finish(self) -> Outputs:
        return self._called(self._stage.on_end, None)

    def _called(self, call: Callable[[], Any], batch: pa.RecordBatch | None) -> Outputs:
        try:
            given = call()
        except HeadraceError:
            raise
        except Exception as error:
            records = batch.slice(0, 1).to_pylist() if batch is not None else []
            first = shown(records[0]) if records else "none: at the end of its input"
            raise stage_failed(
                self._shape.stage, error, f"one of {batch.num_rows if batch else 0} from {first}"
            ) from error
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
