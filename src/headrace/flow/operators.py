"""What the stages of a flow do: functions over batches, over records, over keyed state, and classes with their own."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from headrace.errors import FlowError, HeadraceError, StageFailed
from headrace.flow import plain_json
from headrace.flow.failures import problem_of, shown, stage_failed

MAIN: Final = ""
ERRORS: Final = "errors"
_NAN: Final = float("nan")

Outputs: TypeAlias = list[tuple[str, pa.RecordBatch]]
"""Batches with the name of the output they leave by, in the order in which they leave."""


@dataclass(frozen=True)
class OnError:
    """What becomes of a record that a function raises for, after it was tried `retries` times more."""

    policy: str = "stop"
    retries: int = 0


class Stage:
    """A stage with state of its own. Must not depend on where its input is cut into batches.

    ```python
    class Numbered(hr.Stage):
        def __init__(self): self.seen = 0
        def on_batch(self, batch): ...
        def snapshot(self): return {"seen": self.seen}
        def restore(self, state): self.seen = state["seen"]
    ```
    """

    def on_batch(self, batch: pa.RecordBatch) -> Any:
        """What to send on: a record batch, None, or batches by the name of a side output."""
        raise NotImplementedError

    def on_end(self) -> Any:
        """All input has come and gone: what is still to be sent on."""
        return None

    def snapshot(self) -> Any:
        """Everything needed to go on after the last batch, as plain values; None for nothing."""
        return None

    def restore(self, state: Any) -> None:
        """From what `snapshot` gave."""


class Operator(ABC):
    """A stage at work, in one task."""

    @abstractmethod
    def apply(self, batch: pa.RecordBatch) -> Outputs: ...

    def finish(self) -> Outputs:
        """All input has come and gone."""
        return []

    def changes(self) -> bytes | None:
        """What has changed since the last call; None where nothing has."""
        return None

    def content(self) -> bytes:
        """All of the state: what `changes` would have given, had nothing been asked before."""
        return b""

    def restore(self, parts: Sequence[bytes]) -> None:  # noqa: B027
        """From a content and the changes after it."""


@dataclass(frozen=True)
class Shape:
    """What a stage may give: the columns of each output."""

    stage: str
    outputs: Mapping[str, pa.Schema]

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
            return [(output, pa.RecordBatch.from_pylist(list(records), schema))]
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
        if batch.schema.names != schema.names or batch.schema.types != schema.types:
            raise FlowError(
                f"stage {self.stage} gave the columns {listed(batch.schema)}, not {listed(schema)}; "
                f"give schema= the columns that it really has"
            )
        return batch if batch.schema.equals(schema, check_metadata=True) else _relabelled(batch, schema)


def _misfit(records: Sequence[Mapping[str, Any]], schema: pa.Schema) -> str:
    """The first record that does not fit."""
    for record in records:
        try:
            pa.RecordBatch.from_pylist([record], schema)
        except (pa.ArrowException, TypeError, ValueError, AttributeError):
            return shown(record)
    return shown(records[0])


def _relabelled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


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

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Identity(Behaviour):
    """Gives what it is given."""

    def open(self, shape: Shape) -> Operator:
        return _Identity()

    def __str__(self) -> str:
        return "as it is"


class _Identity(Operator):
    def apply(self, batch: pa.RecordBatch) -> Outputs:
        return [(MAIN, batch)]


@dataclass(frozen=True)
class ForBatch(Behaviour):
    """A function over record batches, or a class of `Stage`."""

    function: Callable[..., Any]
    on_error: OnError = OnError()
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


@dataclass(frozen=True)
class ForRecord(Behaviour):
    """A function of one record, a dict: gives a record, a list of them, or None."""

    function: Callable[[dict[str, Any]], Any]
    on_error: OnError = OnError()

    def open(self, shape: Shape) -> Operator:
        return _RecordFunction(self, shape)

    def __str__(self) -> str:
        return f"{name_of(self.function)}, record by record"


class _RecordFunction(Operator):
    def __init__(self, behaviour: ForRecord, shape: Shape):
        self._function, self._on_error, self._shape = behaviour.function, behaviour.on_error, shape

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        runs = Runs(self._shape)
        for record in batch.to_pylist():
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
        self._done: Outputs = []

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

    def close(self) -> Outputs:
        self._cut()
        return self._done

    def _take(self, output: str, records: Sequence[Mapping[str, Any]]) -> None:
        if output != self._output:
            self._cut()
            self._output = output
        self._run += records

    def _cut(self) -> None:
        self._done += self._shape.of_records(self._output, self._run)
        self._run = []


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
    on_error: OnError = OnError()

    def open(self, shape: Shape) -> Operator:
        return _KeyedFunction(self, shape)

    @property
    def is_stateful(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"{name_of(self.function)}, state by {', '.join(self.columns)}"


class _KeyedFunction(Operator):
    def __init__(self, behaviour: Keyed, shape: Shape):
        self._behaviour, self._shape = behaviour, shape
        self._initial = plain_json.dumps(behaviour.initial, f"stage {shape.stage}: initial=")
        self._states: dict[tuple[Any, ...], Any] = {}
        self._dirty: set[tuple[Any, ...]] = set()

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        runs = Runs(self._shape)
        for record in batch.to_pylist():
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
        return found if self._behaviour.on_error == OnError() else copy.deepcopy(found)

    def _pair(self, given: Any) -> tuple[Any, Any]:
        if not isinstance(given, tuple) or len(given) != 2:
            raise FlowError(
                f"stage {self._shape.stage} gave {shown(given)}; a function over keyed state gives two things: "
                f"the state from now on, and what to send on (return state, record)"
            )
        return given

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


# ----------------------------------------------------------------------- helpers


def tried(call: Callable[[], Any], retries: int) -> Any:
    """Raises what the call raises the last time."""
    for _ in range(retries):
        try:
            return drained(call())
        except Exception:
            continue
    return drained(call())


def drained(given: Any) -> Any:
    """What a generator gives, now: it may raise as well."""
    return list(given) if isinstance(given, Iterator) else given


def _key(values: Iterable[Any]) -> tuple[Any, ...]:
    """All that are not a number are one key."""
    return tuple(_NAN if isinstance(value, float) and value != value else value for value in values)


def failed_record(shape: Shape, on_error: OnError, error: Exception, record: Mapping[str, Any]) -> Outputs:
    """To the side output with its reason, or stop."""
    if isinstance(error, StageFailed):
        raise error
    if on_error.policy == "stop":
        raise stage_failed(shape.stage, error, shown(record)) from error
    return shape.of_records(ERRORS, [{**record, "reason": problem_of(error)}])


def empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], entry.type) for entry in schema], schema=schema)


def listed(schema: pa.Schema) -> str:
    return ", ".join(f"{entry.name} {entry.type}" for entry in schema)


def name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    if name != "<lambda>":
        return name
    try:
        line = inspect.getsourcelines(function)[1]
    except (OSError, TypeError):
        return "a lambda"
    return f"the lambda of line {line}"
