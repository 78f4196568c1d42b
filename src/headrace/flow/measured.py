"""`measure` as a stage of a flow: every record leaves with its metrics.

There is a stage for each partitioner, one after the other: a record visits them all and leaves with one answer, so
there is nothing to gather. The order of arrival is that of the inbox of a task, which is decided once: an answer is a
function of it, whatever crashes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import DefinitionError, StateDamaged
from headrace.flow.files import Files
from headrace.flow.operators import MAIN, Behaviour, Operator, Outputs, Shape
from headrace.measure.definition import Definition
from headrace.measure.explain import describe
from headrace.measure.plan import Stage
from headrace.measure.policy import STATUSES
from headrace.measure.recorded import Recorded, check_change
from headrace.measure.task import MeasureTask, TaskSettings
from headrace.state.store import StoredPart
from headrace.state.tables import Delta, Fingerprints, Tables, decode, encode, plain

CODE: Final = "__headrace_code"
"""What became of a record, on its way from stage to stage."""
_LENGTH_BYTES: Final = 8


@dataclass(frozen=True)
class Measured(Behaviour):
    """One stage of the plan of a set of metrics, over one part of the keys."""

    definition: Definition
    stage: Stage
    settings: TaskSettings
    is_last: bool = True

    def open(self, shape: Shape) -> Operator:
        return _Measuring(self, shape)

    @property
    def is_stateful(self) -> bool:
        return True

    @property
    def recorded(self) -> Recorded:
        """What its state is of."""
        definition, names = self.definition, {metric.name for metric in self.stage.metrics}
        return Recorded(
            shards=1,
            partitioner=self.stage.partitioner,
            time=definition.time,
            id=definition.id,
            arrival=definition.arrival,
            policy=asdict(definition.policy),
            metrics={metric.name: describe(metric) for metric in self.stage.metrics},
            columns={name: str(type) for name, type in self.settings.kept.items()},
            added=definition.added & names,
            removed=definition.removed,
        )

    def __str__(self) -> str:
        by = ", ".join(self.stage.partitioner) or "nothing: one task for all"
        return f"measures {', '.join(metric.name for metric in self.stage.metrics)} by {by}"


def measured_stages(
    definition: Definition, schema: pa.Schema, memory_bytes: int, keep_columns: Sequence[str]
) -> list[tuple[Measured, pa.Schema]]:
    """The stages that a record visits, in their order, each with the columns that it gives."""
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
        found.append((Measured(definition, stage, settings, is_last), given))
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
        self._behaviour, self._shape = behaviour, shape
        definition, stage, settings = behaviour.definition, behaviour.stage, behaviour.settings
        self._task = MeasureTask(stage, settings, _Chunks(shape.files))
        self._inputs = list(dict.fromkeys([*settings.columns, *stage.columns, *settings.kept]))
        self._schema = shape.outputs[MAIN]
        self._metrics = [metric.name for metric in stage.metrics]
        reasons = definition.policy.reasons(definition.time, definition.arrival, definition.id)
        self._words = (pa.array(STATUSES, pa.string()), pa.array(reasons, pa.string()))
        self._prints = Fingerprints()
        self._tables: Tables | None = None
        self._header: dict[str, Any] = {}

    def apply(self, batch: pa.RecordBatch) -> Outputs:
        self._tables = None
        answers = self._task.push(batch.select(self._inputs))
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns.update(zip(self._metrics, answers, strict=True))
        if self._behaviour.definition.status is not None:
            columns.update(self._fate(columns.pop(CODE, None)))
        return [(MAIN, pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema))]

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
        return self._packed({name: _whole(table) for name, table in self._tables.items()})

    def _dump(self) -> None:
        self._task.flush()
        self._tables, values, files = self._task.dump(wait=False)
        self._header = {
            "recorded": self._behaviour.recorded.as_json(),
            "tables": list(self._tables),
            "values": values,
            "files": [asdict(file) for file in files],
        }

    def _packed(self, deltas: dict[str, Delta]) -> bytes:
        header = json.dumps(self._header).encode()
        return b"".join([len(header).to_bytes(_LENGTH_BYTES, "little"), header, encode(deltas)])

    def named_files(self) -> Sequence[str]:
        return [file["file"] for file in self._header.get("files", ())]

    def restore(self, parts: Sequence[bytes]) -> None:
        tables: Tables = {}
        for part in parts:
            end = _LENGTH_BYTES + int.from_bytes(part[:_LENGTH_BYTES], "little")
            self._header = json.loads(bytes(part[_LENGTH_BYTES:end]))
            for name, delta in decode(bytes(part[end:])).items():
                tables[name] = delta.apply(tables.get(name))
        if not parts:
            return
        check_change(self._header["recorded"], self._behaviour.recorded, f"stage {self._shape.stage}")
        tables = {name: tables[name] for name in self._header["tables"]}
        self._prints.changes(tables)
        files = [StoredPart(**file) for file in self._header["files"]]
        self._task.restore(plain(tables), self._header["values"], files)


class _Chunks:
    """Chunks of events in the files of the task."""

    def __init__(self, files: Files):
        self._files = files

    def write(self, contents: Sequence[bytes]) -> tuple[StoredPart, list[StoredPart]]:
        whole = b"".join(contents)
        name = self._files.write(whole)
        parts, offset = [], 0
        for content in contents:
            parts.append(StoredPart(name, offset, len(content), zlib.crc32(content)))
            offset += len(content)
        return StoredPart(name, 0, len(whole), zlib.crc32(whole)), parts

    def read(self, part: StoredPart) -> bytes:
        content = self._files.read(part.file, part.offset, part.size_bytes)
        if zlib.crc32(content) != part.crc:
            raise StateDamaged(part.file, "its checksum is not the one it was written with")
        return content


def _whole(table: Any) -> Delta:
    array = getattr(table, "table", table)
    return Delta(array.dtype.str, array.shape, None, array)
