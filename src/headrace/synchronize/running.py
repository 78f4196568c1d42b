"""A program at work: runs of events through `update` or `update_batch`, and what they gave as record batches."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pyarrow as pa

from headrace.errors import ProgramError, StageFailed
from headrace.model.failures import RAISED, problem_of, shown, stage_failed
from headrace.synchronize.program import Program

ROWS_AT_ONCE: Final = 4096
_MISFITS: Final = (
    pa.ArrowException, TypeError, ValueError, AttributeError, KeyError, IndexError, OverflowError
)  # fmt: skip


def event_type(names: Iterable[str]) -> Callable[[Iterable[Any]], Any]:
    """Makes a named tuple of the values of a row. A column whose name is no name in Python is `_3`, by its place."""
    made: Any = namedtuple("Event", list(names), rename=True)  # type: ignore[misc]
    # As its `_make`, without a call in Python for each row: it counts the values, and rows of one batch have as many.
    return partial(tuple.__new__, made)


class Running:
    """One worker's hands: it gives events to the program, and keeps what that gives until it is fetched."""

    def __init__(self, program: Program, schema: pa.Schema):
        """`schema` is of the events."""
        self.program = program
        self._make = event_type(schema.names)
        self._rows: list[Any] = []
        self._batches: list[pa.RecordBatch] = []
        self.is_columnar = program.is_columnar

    def run(self, state: Any, batch: pa.RecordBatch) -> Any:
        """The state after a run of events. Raises StageFailed with the event that the program raised for."""
        return self._run_columns(state, batch) if self.is_columnar else self.run_rows(state, batch)

    def run_rows(self, state: Any, batch: pa.RecordBatch) -> Any:
        """The same with `update` alone: for few events that is several times as fast."""
        update, keep = self.program.update, self._rows.extend
        for events in self._parts(batch):
            for event in events:
                try:
                    state, given = update(state, event)
                    if given:
                        keep(given)
                except RAISED as error:
                    raise self._failed("update", error, event) from error
            if len(self._rows) >= ROWS_AT_ONCE:
                # A long list of rows is what Python looks through for garbage, again and again.
                self._flush_rows()
        return state

    def _run_columns(self, state: Any, batch: pa.RecordBatch) -> Any:
        try:
            state, given = self.program.update_batch(state, batch)  # type: ignore[attr-defined]
        except RAISED as error:
            first = next((each for events in self._parts(batch.slice(0, 1)) for each in events), None)
            raise self._failed("update_batch", error, first, batch.num_rows) from error
        if given is not None:
            found = self._conforming(given)
            self._flush_rows()
            self._batches += [found] if found.num_rows else []
        return state

    def _failed(self, method: str, error: BaseException, event: Any, events: int = 1) -> StageFailed:
        """Where a method gave something else than it must, that is said; its own errors are as they are."""
        is_here = error.__traceback__ is not None and error.__traceback__.tb_next is None
        if is_here and isinstance(error, TypeError | ValueError) and ("unpack" in str(error) or "iter" in str(error)):
            error = TypeError(f"{method} must give (state, outputs), a pair: {error}").with_traceback(None)
        more = f" and the {events - 1} events behind it" if events > 1 else ""
        return stage_failed(self.program.name, error, shown(event) + more)

    def _parts(self, batch: pa.RecordBatch) -> Iterator[Iterable[Any]]:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(start, ROWS_AT_ONCE)
            yield map(self._make, zip(*[column.to_pylist() for column in part.columns], strict=True))

    def fork(self, method: str, state: Any, left: Any, right: Any) -> tuple[Any, Any]:
        try:
            found = getattr(self.program, method)(state, left, right)
        except RAISED as error:
            raise stage_failed(f"{self.program.name}.{method}", error, shown(state)) from error
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise ProgramError(self.program.name, f"{method} must give (left, right), a pair, and gave {shown(found)}")
        return found[0], found[1]

    def join(self, method: str, left: Any, right: Any) -> Any:
        try:
            return getattr(self.program, method)(left, right)
        except RAISED as error:
            raise stage_failed(f"{self.program.name}.{method}", error, f"{shown(left)} and {shown(right)}") from error

    def fetch(self, least_rows: int = 0) -> list[pa.RecordBatch]:
        """What the program gave since the last call; nothing, where that is fewer rows."""
        if len(self._rows) + sum(batch.num_rows for batch in self._batches) < least_rows:
            return []
        self._flush_rows()
        found, self._batches = self._batches, []
        return found

    def _flush_rows(self) -> None:
        if self._rows:
            rows = self._rows.copy()
            self._rows.clear()
            self._batches.append(rows_to_batch(self.program, rows))

    def _conforming(self, batch: Any) -> pa.RecordBatch:
        wanted = self.program.outputs
        if not isinstance(batch, pa.RecordBatch) or batch.schema.names != wanted.names:
            found = batch.schema.names if isinstance(batch, pa.RecordBatch) else type(batch).__name__
            raise ProgramError(
                self.program.name, f"update_batch gave {found}, and its outputs are a record batch of {wanted.names}"
            )
        try:
            return batch if batch.schema.equals(wanted) else batch.cast(wanted)
        except (pa.ArrowException, ValueError) as error:
            columns = ", ".join(f"{field.name} {field.type}" for field in wanted)
            raise ProgramError(
                self.program.name, f"what update_batch gave does not fit its outputs, {columns} ({problem_of(error)})"
            ) from None


def rows_to_batch(program: Program, rows: list[Any]) -> pa.RecordBatch:
    """Rows that `update` gave. Raises ProgramError with the first that does not fit the columns of its outputs."""
    schema = program.outputs
    try:
        return _batch(rows, schema)
    except _MISFITS:
        pass
    for row in rows:
        try:
            _batch([row], schema)
        except _MISFITS as error:
            columns = ", ".join(f"{field.name} {field.type}" for field in schema)
            raise ProgramError(
                program.name,
                f"update gave {shown(row)}, which does not fit its outputs, {columns} ({problem_of(error)})",
            ) from None
    raise ProgramError(program.name, f"what update gave does not fit its outputs: {shown(rows[0])}")


def _batch(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    if any(isinstance(row, Mapping) for row in rows):
        rows = [tuple(row[name] for name in schema.names) if isinstance(row, Mapping) else row for row in rows]
    for row in rows:
        if len(row) != len(schema):
            raise ValueError(f"it has {len(row)} values, not {len(schema)}")
    columns = list(zip(*rows, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )
