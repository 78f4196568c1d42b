"""`measure` as a stage of a flow: every record leaves with its metrics.

There is a stage for each partitioner, one after the other: a record visits them all and leaves with one answer, so
there is nothing to gather. The order of arrival is that of the inbox of a task, which is decided once: an answer is a
function of it, whatever crashes.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import DefinitionError, StateDamaged
from headrace.flow.files import Files
from headrace.flow.operators import MAIN, Behaviour, Operator, Outputs, Shape
from headrace.measure.definition import Definition
from headrace.measure.plan import Stage
from headrace.measure.policy import STATUSES
from headrace.measure.recorded import Recorded, check_change, recorded_of
from headrace.measure.task import MeasureTask, TaskSettings
from headrace.model.latencies import Latencies
from headrace.state.store import StoredPart, parts_of
from headrace.state.tables import Delta, Fingerprints, Tables, decode, pieces, plain, whole

CODE: Final = "__headrace_code"
"""What became of a record, on its way from stage to stage."""
_LENGTH_BYTES: Final = 8


@dataclass(frozen=True)
class Measured(Behaviour):
    """One stage of the plan of a set of metrics, over one part of the keys. `name` is that of the set.

    `events` are the columns that come to the first stage, `given` those that leave this one.
    """

    name: str
    definition: Definition
    stage: Stage
    settings: TaskSettings
    events: pa.Schema
    given: pa.Schema
    keep_columns: tuple[str, ...] = ()
    is_last: bool = True

    def open(self, shape: Shape) -> Operator:
        return _Measuring(self, shape)

    @property
    def is_stateful(self) -> bool:
        return True

    @property
    def recorded(self) -> Recorded:
        """What its state is of."""
        return recorded_of(self.definition, self.stage, self.settings)

    def changed(self, definition: Definition) -> Measured:
        """The same stage of other metrics. Raises DefinitionError where they need other stages."""
        memory_bytes = self.settings.memory_bytes
        stages = measured_stages(self.name, definition, self.events, memory_bytes, self.keep_columns)
        found = next((each for each in stages if each.stage.partitioner == self.stage.partitioner), None)
        before = measured_stages(self.name, self.definition, self.events, memory_bytes, self.keep_columns)
        if found is None or [s.stage.partitioner for s in stages] != [s.stage.partitioner for s in before]:
            raise DefinitionError(
                f"these metrics need other stages than the flow has, which are by "
                f"{', and by '.join(', '.join(s.stage.partitioner) or 'nothing' for s in before)}; stop the flow, "
                f"change the metrics where it is drawn, and start it again under another name"
            )
        return found

    def __str__(self) -> str:
        by = ", ".join(self.stage.partitioner) or "nothing: one task for all"
        return f"measures {', '.join(metric.name for metric in self.stage.metrics)} by {by}"


def measured_stages(
    name: str, definition: Definition, schema: pa.Schema, memory_bytes: int, keep_columns: Sequence[str]
) -> list[Measured]:
    """The stages that a record visits, in their order."""
    for column in keep_columns:
        if column not in schema.names:
            raise DefinitionError(f"keep_columns: {column} is not in the data")
    plan = definition.plan(schema)
    _check_status(definition, schema)
    given, found = schema, []
    for number, stage in enumerate(plan.stages, 1):
        columns = tuple(dict.fromkeys([*stage.columns, *keep_columns]))
        settings = definition.settings(memory_bytes, schema=schema, columns=columns)
        is_last = number == len(plan.stages)
        if is_last:
            types = {metric.name: metric.type for metric in plan.metrics}
            given = pa.schema([*schema, *((each, types[each]) for each in definition.names), *_status(definition)])
        else:
            more = [(metric.name, metric.type) for metric in stage.metrics]
            code = [(CODE, pa.int32())] if definition.status is not None and CODE not in given.names else []
            given = pa.schema([*given, *more, *code])
        found.append(Measured(name, definition, stage, settings, schema, given, tuple(keep_columns), is_last))
    return found


def _check_status(definition: Definition, schema: pa.Schema) -> None:
    taken = [column.lower() for column in (*schema.names, *definition.names)]
    for name, _ in _status(definition):
        if name.lower() in taken:
            raise DefinitionError(f'there is a column {name} already; name another one: status="fate"')


def _status(definition: Definition) -> list[tuple[str, pa.DataType]]:
    status = definition.status
    return [] if status is None else [(status, pa.string()), (f"{status}_reason", pa.string())]


class _Measuring(Operator):
    def __init__(self, behaviour: Measured, shape: Shape):
        self._drawn, self._shape = behaviour, shape
        self._chunks = _Chunks(shape.files)
        self._next: _Next | None = None
        self._problem: str | None = None
        self._header: dict[str, Any] = {}
        self._tables: Tables | None = None
        self._took = Latencies()
        self._take_up(behaviour, MeasureTask(behaviour.stage, behaviour.settings, self._chunks))

    def _take_up(self, behaviour: Measured, task: MeasureTask) -> None:
        """These metrics from now on, and the state that they have."""
        definition, stage = behaviour.definition, behaviour.stage
        self._behaviour, self._task = behaviour, task
        self._inputs = task.inputs
        self._metrics = [metric.name for metric in stage.metrics]
        reasons = definition.policy.reasons(definition.time, definition.arrival, definition.id)
        self._words = (pa.array(STATUSES, pa.string()), pa.array(reasons, pa.string()))
        self._prints = Fingerprints()

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        began = time.perf_counter()
        self._tables = None
        if self._next is not None:
            self._next.push(batch)
        answers = self._task.push(batch.select(self._inputs))
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns.update(zip(self._metrics, answers, strict=True))
        if self._behaviour.definition.status is not None:
            columns.update(self._fate(columns.pop(CODE, None)))
        schema = self._behaviour.given
        given = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        self._took.add(time.perf_counter() - began, batch.num_rows)
        return [(MAIN, given)]

    def _fate(self, before: pa.Array | None) -> dict[str, pa.Array]:
        """What became of the records: here, or at a stage before."""
        codes = self._task.codes.astype(np.int32)
        if before is not None:
            codes = np.maximum(codes, before.to_numpy())
        if not self._behaviour.is_last:
            return {CODE: pa.array(codes)}
        status, reason = (name for name, _ in _status(self._behaviour.definition))
        index = pa.array(codes)
        return {status: self._words[0].take(index), reason: self._words[1].take(index)}

    # ------------------------------------------------------------------ change

    def change(self, message: Mapping[str, Any]) -> None:
        """Make other metrics ready, beside those that answer; answer with them from this record on; or forget them."""
        self._tables = None
        if message["say"] == "prepare":
            self._prepare(message)
        elif message["say"] == "switch" and self._next is not None:
            ready, self._next = self._next, None
            self._take_up(ready.behaviour, ready.take())
        elif message["say"] == "forget" and self._next is not None:
            self._next.stop()
            self._next = None
            self._remember(self._behaviour)
            self._task.forgets = True

    def _prepare(self, message: Mapping[str, Any]) -> None:
        if self._next is not None:
            self._next.stop()
        behaviour = _announced(self._behaviour, message)
        # All that the new metrics will see stays from here on: after a crash they are made ready again.
        self._remember(behaviour)
        self._task.forgets = False
        tables, values, files = self._task.dump(wait=False)
        self._next = _Next(message, behaviour, self._chunks, (plain(tables), values, files))

    def _remember(self, later: Measured) -> None:
        """The columns that these metrics read too, and no others."""
        task = _remembering(self._behaviour, later, self._chunks)
        if task.inputs != self._inputs:
            tables, values, files = self._task.dump(wait=False)
            task.restore(plain(tables), values, files)
            self._take_up(self._behaviour, task)

    def report(self) -> Mapping[str, Any]:
        definition = self._behaviour.definition
        events = self._task.reservoir
        found: dict[str, Any] = {
            "metrics": plain_definition(definition),
            "counts": self._task.counts,
            "took": self._took.as_json(),
            "groups": self._task.groups,
            "events": len(events),
            "chunks": {
                "in_memory": events.resident_chunks,
                "in_files": events.spilled_chunks,
                "reads": events.reads,
                "misses": events.misses,
            },
            "bytes": self._header.get("values", {}).get("bytes", {}),
        }
        if self._next is not None:
            found["ready"] = self._next.message["change"] if self._next.ready.is_set() else 0
            found["problem"] = self._next.problem
        return found

    # ------------------------------------------------------------------- state

    def changes(self) -> bytes | None:
        if self._tables is not None:
            return None
        self._dump()
        return self._packed(self._prints.changes(self._tables or {}))

    def content(self) -> bytes:
        if self._tables is None:
            self._dump()
        assert self._tables is not None
        return self._packed({name: whole(table) for name, table in self._tables.items()})

    def _dump(self) -> None:
        self._task.flush()
        self._tables, values, files = self._task.dump(wait=False)
        is_changed = self._behaviour is not self._drawn
        self._header = {
            "drawn": self._drawn.recorded.as_json(),
            "recorded": self._behaviour.recorded.as_json(),
            "metrics": plain_definition(self._behaviour.definition) if is_changed else None,
            "preparing": None if self._next is None else dict(self._next.message),
            "tables": list(self._tables),
            "values": values,
            "files": [dict(vars(file)) for file in files],
        }

    def _packed(self, deltas: dict[str, Delta]) -> bytes:
        header = json.dumps(self._header).encode()
        return b"".join([len(header).to_bytes(_LENGTH_BYTES, "little"), header, *pieces(deltas)])

    def named_files(self) -> Sequence[str]:
        mine = [file["file"] for file in self._header.get("files", ())]
        return mine if self._next is None else [*mine, *self._next.files]

    def restore(self, parts: Sequence[bytes]) -> None:
        tables: Tables = {}
        for part in parts:
            end = _LENGTH_BYTES + int.from_bytes(part[:_LENGTH_BYTES], "little")
            self._header = json.loads(bytes(part[_LENGTH_BYTES:end]))
            for name, delta in decode(bytes(part[end:])).items():
                tables[name] = delta.apply(tables.get(name))
        if not parts:
            return
        behaviour = self._as_it_was()
        check_change(self._header["recorded"], behaviour.recorded, f"stage {self._shape.stage}")
        tables = {name: tables[name] for name in self._header["tables"]}
        preparing = self._header["preparing"]
        later = behaviour if preparing is None else _announced(behaviour, preparing)
        task = _remembering(behaviour, later, self._chunks)
        task.restore(plain(tables), self._header["values"], [StoredPart(**file) for file in self._header["files"]])
        self._take_up(behaviour, task)
        self._prints.changes(tables)
        if preparing is not None:
            self._prepare(preparing)

    def _as_it_was(self) -> Measured:
        """Metrics that were changed while the flow ran stay so, unless they are drawn otherwise now."""
        if self._header["metrics"] is None or self._header["drawn"] != self._drawn.recorded.as_json():
            return self._drawn
        return self._drawn.changed(definition_of(self._drawn.definition, self._header["metrics"]))


def _announced(behaviour: Measured, message: Mapping[str, Any]) -> Measured:
    """The same stage with the metrics that a message has."""
    return behaviour.changed(definition_of(behaviour.definition, message["metrics"]))


def _remembering(behaviour: Measured, later: Measured, chunks: _Chunks) -> MeasureTask:
    """A task that remembers what other metrics will want, beside its own."""
    settings = replace(behaviour.settings, kept={**behaviour.settings.kept, **later.settings.kept})
    return MeasureTask(behaviour.stage, settings, chunks)


class _Next:
    """Metrics that will answer soon: made ready in a thread, from the events remembered and those that come."""

    def __init__(
        self,
        message: Mapping[str, Any],
        behaviour: Measured,
        chunks: _Chunks,
        state: tuple[Tables, Mapping[str, Any], Sequence[StoredPart]],
    ):
        self.message, self.behaviour = message, behaviour
        self.ready = threading.Event()
        self.problem: str | None = None
        self.files = [file.file for file in state[2]]
        self._error: Exception | None = None
        self._task = MeasureTask(behaviour.stage, behaviour.settings, chunks)
        self._batches: SimpleQueue[pa.RecordBatch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=state, name="headrace-metrics", daemon=True)
        self._thread.start()

    def push(self, batch: pa.RecordBatch) -> None:
        self._batches.put(batch)

    def take(self) -> MeasureTask:
        """Once it has caught up. Raises what went wrong."""
        self.stop()
        if self._error is not None:
            raise self._error
        return self._task

    def stop(self) -> None:
        self._batches.put(None)
        self._thread.join()

    def _run(self, tables: Tables, values: Mapping[str, Any], files: Sequence[StoredPart]) -> None:
        try:
            self._task.restore(tables, values, files)
            while True:
                if self._batches.empty():
                    self.ready.set()
                batch = self._batches.get()
                if batch is None:
                    return
                self._task.push(batch.select(self._task.inputs))
        except Exception as error:
            self._error, self.problem = error, f"{type(error).__name__}: {error}"


def plain_definition(definition: Definition) -> dict[str, Any]:
    """What of a definition can change, for JSON."""
    return {"text": definition.text, "added": sorted(definition.added), "removed": sorted(definition.removed)}


def definition_of(before: Definition, found: Mapping[str, Any]) -> Definition:
    return replace(before, text=found["text"], added=frozenset(found["added"]), removed=frozenset(found["removed"]))


class _Chunks:
    """Chunks of events in the files of the task."""

    def __init__(self, files: Files):
        self._files = files

    def write(self, contents: Sequence[bytes]) -> tuple[StoredPart, list[StoredPart]]:
        content = b"".join(contents)
        name = self._files.write(content)
        return StoredPart(name, 0, len(content), zlib.crc32(content)), parts_of(name, contents)

    def read(self, part: StoredPart) -> bytes:
        content = self._files.read(part.file, part.offset, part.size_bytes)
        if zlib.crc32(content) != part.crc:
            raise StateDamaged(part.file, "its checksum is not the one it was written with")
        return content
