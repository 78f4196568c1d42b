"""The state of an agent as bytes, and back. The sums themselves are not kept: they follow from what tasks have said."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from headrace.track.agent import Agent
from headrace.track.labels import as_numbers
from headrace.track.terms import Mode


def dump(agent: Agent) -> bytes:
    opened, said = agent.sums.snapshot()
    memory = agent.memory
    header = {
        "known": memory.known.tolist(),
        "sources": memory.sources.tolist(),
        "dropping": memory.dropping,
        "up_to": memory.up_to,
        "over": memory.over,
        "count": memory.count,
        "opened": agent.sums.opened,
    }
    named = [memory.names.get(word) for word in opened["id"].tolist()]
    has_name = [word in memory.names for word in opened["id"].tolist()]
    names = {"name": pa.array(named, agent.tracking.label), "has_name": pa.array(has_name, pa.bool_())}
    parts = [
        json.dumps(header).encode(),
        _dumped({**opened, **names}),
        _dumped(said),
        _dumped({"id": memory.ended.ids}),
    ]
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def load(agent: Agent, content: bytes) -> None:
    """Into an agent that has heard nothing yet."""
    parts, at = [], 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        parts.append(content[at + 8 : at + 8 + size])
        at += 8 + size
    header, memory = json.loads(parts[0]), agent.memory
    opened, said, ended = (_loaded(part) for part in parts[1:])
    memory.known[:] = header["known"]
    memory.sources[:] = header["sources"]
    memory.dropping, memory.up_to, memory.over = header["dropping"], header["up_to"], header["over"]
    memory.count = header["count"]
    columns = {name: opened.column(name).to_numpy() for name in opened.schema.names if name not in ("name", "has_name")}
    agent.sums.restore(columns, {name: said.column(name).to_numpy() for name in said.schema.names})
    agent.sums.opened = header["opened"]
    memory.ended.extend(ended.column("id").to_numpy())
    named = opened.filter(opened.column("has_name"))
    labels = named.column("name")
    ticks = as_numbers(labels).to_pylist() if agent.tracking.mode == Mode.RISING else None
    agent.names_again(named.column("id").to_pylist(), labels.to_pylist(), ticks)


def _dumped(columns: dict[str, Any]) -> bytes:
    batch = pa.record_batch([pa.array(column) for column in columns.values()], names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _loaded(content: bytes) -> pa.RecordBatch:
    table = pa.ipc.open_stream(content).read_all()
    return table.combine_chunks().to_batches()[0] if table.num_rows else _empty(table.schema)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)
