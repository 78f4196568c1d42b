"""Stages over records: functions of a record, and functions of the state of a key and a record."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.operators import (
    MAIN,
    STOP,
    Behaviour,
    OnError,
    Operator,
    Outputs,
    Shape,
    Wrapped,
    drained,
    failed_record,
    tried,
)
from headrace.model import plain_json
from headrace.model.failures import name_of, shown, stage_failed
from headrace.model.moments import moment
from headrace.order import columns
from headrace.order.columns import Keys

_NAN: Final = float("nan")


@dataclass(frozen=True)
class ForRecord(Behaviour):
    """A function of one record, a dict: gives a record, a list of them, or None."""

    function: Callable[[dict[str, Any]], Any]
    on_error: OnError = STOP

    def open(self, shape: Shape) -> Operator:
        return _RecordFunction(self, shape)

    @property
    def may_multiply(self) -> bool:
        return True

    def open_ordered(self, shape: Shape, keys: Keys, with_path: bool) -> Operator:
        return _ListedRows(self.open(shape))

    def __str__(self) -> str:
        return f"{name_of(self.function)}, record by record"


class _ListedRows(Wrapped):
    """Of a stage that lists, for each record it gives, the row that it came of."""

    inner: _RecordFunction | _KeyedFunction

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        given, hidden = self.inner.apply(columns.without(batch)), columns.only(batch)
        return [
            (output, columns.joined(part, hidden.take(pa.array(origins, pa.int64()))))
            for (output, part), origins in zip(given, self.inner.origins, strict=True)
        ]


class _RecordFunction(Operator):
    def __init__(self, behaviour: ForRecord, shape: Shape):
        self._function, self._on_error, self._shape = behaviour.function, behaviour.on_error, shape
        self.origins: list[list[int]] = []
        """For each batch of the last call, the rows that its records came of."""

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        runs = Runs(self._shape)
        self.origins = runs.origins
        for runs.row, record in enumerate(batch.to_pylist()):
            try:
                given = tried(lambda record=record: self._function(dict(record)), self._on_error.retries)  # type: ignore[misc]
            except Exception as error:
                runs.outputs(failed_record(self._shape, self._on_error, error, record))
            else:
                runs.records(given)
        return runs.close()


class Runs:
    """Records gathered into batches, in the order in which they come, by output."""

    def __init__(self, shape: Shape):
        self._shape = shape
        self._output = MAIN
        self._run: list[Mapping[str, Any]] = []
        self._rows: list[int] = []
        self._done: Outputs = []
        self.row = 0
        """The row of the input that is being worked at."""
        self.origins: list[list[int]] = []

    def records(self, given: Any) -> None:
        """A record, a list of records, or None; or any of these by the name of a side output."""
        if given is None:
            return
        if isinstance(given, Sided):
            self._take(given.output, given.records)
        elif isinstance(given, Mapping):
            # What is kept as state may change before the batch is made.
            self._take(MAIN, [{name: _apart(value) for name, value in given.items()}])
        elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
            for each in given:
                self.records(each)
        else:
            raise FlowError(
                f"stage {self._shape.stage} gave {shown(given)}, not a record: give a dict, a list of dicts, or None"
            )

    def outputs(self, batches: Outputs) -> None:
        self._cut()
        self._done += batches
        self.origins += [[self.row] * batch.num_rows for _, batch in batches]

    def close(self) -> Outputs:
        self._cut()
        return self._done

    def _take(self, output: str, records: Sequence[Mapping[str, Any]]) -> None:
        if output != self._output:
            self._cut()
            self._output = output
        self._run += records
        self._rows += [self.row] * len(records)

    def _cut(self) -> None:
        if self._run:
            self._done += self._shape.of_records(self._output, self._run)
            self.origins.append(self._rows)
        self._run, self._rows = [], []


def _apart(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, list | dict | set) else value


@dataclass(frozen=True)
class Sided:
    """Records for a side output of a function over records."""

    output: str
    records: tuple[Mapping[str, Any], ...]


def side(output: str, *records: Mapping[str, Any]) -> Sided:
    """From a function over records: these go to a side output."""
    return Sided(output, records)


@dataclass(frozen=True)
class Keyed(Behaviour):
    """A function of the state of a key and a record: gives the state from now on, and what to send on."""

    function: Callable[[Any, dict[str, Any]], Any]
    columns: tuple[str, ...]
    initial: Any = None
    on_error: OnError = STOP
    on_ended: Callable[[Any, Any], Any] | None = None

    def open(self, shape: Shape) -> Operator:
        return _KeyedFunction(self, shape)

    @property
    def is_stateful(self) -> bool:
        return True

    @property
    def may_multiply(self) -> bool:
        return True

    def open_ordered(self, shape: Shape, keys: Keys, with_path: bool) -> Operator:
        return _ListedRows(self.open(shape))

    def __str__(self) -> str:
        return f"{name_of(self.function)}, state by {', '.join(self.columns)}"


class _KeyedFunction(Operator):
    def __init__(self, behaviour: Keyed, shape: Shape):
        self._behaviour, self._shape = behaviour, shape
        self._initial = plain_json.dumps(behaviour.initial, f"stage {shape.stage}: initial=")
        self._states: dict[tuple[Any, ...], Any] = {}
        self._dirty: set[tuple[Any, ...]] = set()
        self.origins: list[list[int]] = []
        """For each batch of the last call, the rows that its records came of."""

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        runs = Runs(self._shape)
        self.origins = runs.origins
        for runs.row, record in enumerate(batch.to_pylist()):
            key = _key(record[name] for name in self._behaviour.columns)
            try:
                given = tried(lambda k=key, r=record: self._called(k, r), self._behaviour.on_error.retries)  # type: ignore[misc]
                state, outputs = self._pair(given)
            except FlowError:
                raise
            except Exception as error:
                runs.outputs(failed_record(self._shape, self._behaviour.on_error, error, record))
                continue
            self._dirty.add(key)
            if state is None:
                self._states.pop(key, None)
            else:
                self._states[key] = state
            runs.records(outputs)
        return runs.close()

    def _called(self, key: tuple[Any, ...], record: dict[str, Any]) -> Any:
        given = self._behaviour.function(self._state(key), dict(record))
        if isinstance(given, tuple) and len(given) == 2:
            return given[0], drained(given[1])
        return given

    def _state(self, key: tuple[Any, ...]) -> Any:
        found = self._states.get(key)
        if found is None:
            return plain_json.loads(self._initial)
        # A function that fails may have changed what it was given.
        return found if self._behaviour.on_error == STOP else copy.deepcopy(found)

    def _pair(self, given: Any) -> tuple[Any, Any]:
        if not isinstance(given, tuple) or len(given) != 2:
            raise FlowError(
                f"stage {self._shape.stage} gave {shown(given)}; a function over keyed state gives two things: "
                f"the state from now on, and what to send on (return state, record)"
            )
        return given

    @property
    def hears_ends(self) -> bool:  # type: ignore[override]
        return self._behaviour.on_ended is not None

    def ended(self, substream: Any) -> Outputs:
        key = _key([substream])
        if self._behaviour.on_ended is None or key not in self._states:
            return []
        try:
            given = self._behaviour.on_ended(self._states[key], substream)
        except Exception as error:
            raise stage_failed(self._shape.stage, error, f"none: at the end of {substream!r}") from error
        state, outputs = self._pair(given)
        self._dirty.add(key)
        if state is None:
            del self._states[key]
        else:
            self._states[key] = state
        runs = Runs(self._shape)
        runs.records(outputs)
        return runs.close()

    def changes(self) -> bytes | None:
        if not self._dirty:
            return None
        changed = [[list(key), self._states.get(key)] for key in sorted(self._dirty, key=repr)]
        self._dirty = set()
        return self._dumped(changed)

    def content(self) -> bytes:
        self._dirty = set()
        return self._dumped([[list(key), state] for key, state in self._states.items()])

    def _dumped(self, pairs: list[Any]) -> bytes:
        return plain_json.dumps(pairs, f"stage {self._shape.stage}: the state of a key")

    def restore(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            for key, state in plain_json.loads(bytes(part)):
                if state is None:
                    self._states.pop(_key(key), None)
                else:
                    self._states[_key(key)] = state


def _key(values: Iterable[Any]) -> tuple[Any, ...]:
    """All that are not a number are one key, and no two times are."""
    return tuple(_NAN if isinstance(value, float) and value != value else moment(value) for value in values)
