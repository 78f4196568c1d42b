"""A worker of the tree as bytes, and back: what it needs to go on after all that it was given."""

from __future__ import annotations

import json
import struct
from collections import deque
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.synchronize.codec import Codec
from headrace.synchronize.mailbox import Events, merged
from headrace.synchronize.node import Item, TreeNode

_LENGTH: Final = struct.Struct("<I")
_ITEMS: Final = -1
"""In place of a lane: events of requests that are on their way."""
_COLUMNS: Final = ("__headrace_lane", "__headrace_time", "__headrace_rank", "__headrace_tag")


def dump(node: TreeNode, codec: Codec) -> bytes:
    header = {
        "frontiers": node.lanes.frontiers,
        "requests": [[*key, tag] for key, tag in node.requests],
        "above": node.above,
        "told": node.told,
        "marks": node.marks,
        "items": [[*item.key, item.tag, item.events is not None] for item in node.items],
        "is_up": node.is_up,
        "states": [[sender, codec.dumps(state).decode()] for sender, state in node.answers.items()],
        "state": codec.dumps(node.state).decode() if node.has_state else None,
    }
    content = json.dumps(header).encode()
    parts = [(_ITEMS, item.events) for item in node.items if item.events is not None]
    parts += [(lane, events) for lane, events in enumerate(node.lanes.content()) if events is not None]
    return _LENGTH.pack(len(content)) + content + _events_to_bytes(parts)


def load(node: TreeNode, codec: Codec, content: bytes) -> None:
    """Into a new worker of the same plan."""
    (size,) = _LENGTH.unpack_from(content)
    values = json.loads(content[_LENGTH.size : _LENGTH.size + size])
    events = _events_of_bytes(content[_LENGTH.size + size :])
    node.lanes.frontiers = [(time, rank) for time, rank in values["frontiers"]]
    node.requests = deque(((time, rank), tag) for time, rank, tag in values["requests"])
    node.above, node.told = _key(values["above"]), _key(values["told"])
    node.marks = [_key(mark) for mark in values["marks"]]
    node.is_up = values["is_up"]
    node.answers = {sender: codec.loads(state.encode()) for sender, state in values["states"]}
    node.has_state = values["state"] is not None
    node.state = codec.loads(values["state"].encode()) if node.has_state else None
    for lane, held in events.items():
        if lane != _ITEMS:
            node.lanes.put_back(lane, held)
    at = 0
    node.items = deque()
    for time, rank, tag, is_own in values["items"]:
        node.items.append(Item((time, rank), events[_ITEMS].slice(at, at + 1) if is_own else None, tag))
        at += is_own


def _key(found: Any) -> tuple[int, int]:
    time, rank = found
    return int(time), int(rank)


def _events_to_bytes(parts: list[tuple[int, Events]]) -> bytes:
    if not parts:
        return b""
    joined = merged([events for _, events in parts], is_ordered=False)
    lanes = np.repeat(np.array([lane for lane, _ in parts], np.int64), [len(events) for _, events in parts])
    batch = joined.batch
    for name, values in zip(_COLUMNS, (lanes, joined.times, joined.ranks, joined.tags), strict=True):
        batch = batch.append_column(name, pa.array(values, pa.int64()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _events_of_bytes(content: bytes) -> dict[int, Events]:
    if not content:
        return {}
    table = pa.ipc.open_stream(content).read_all().combine_chunks()
    batch = table.to_batches()[0]
    lanes, times, ranks, tags = (batch.column(name).to_numpy() for name in _COLUMNS)
    own = batch.drop_columns(list(_COLUMNS))
    whole = Events(own, times, ranks, tags)
    return {lane: whole.take(np.flatnonzero(lanes == lane)) for lane in np.unique(lanes).tolist()}
