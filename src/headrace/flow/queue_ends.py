"""Queues as the ends of a flow: one flow's output is another one's input, exactly once and with no server between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import FlowError
from headrace.flow.io import Opening, Sink, Source


@dataclass(frozen=True)
class QueueEnd(Source, Sink):
    """A queue by its name. As a source it wants the columns, and ends once so many producers have (None: never)."""

    name: str
    schema: pa.Schema = None
    producers: int | None = None

    def splits(self) -> int | None:
        if self.schema is None:
            raise FlowError(f"queue {self.name}: as a source it needs its columns, hr.queue({self.name!r}, schema)")
        return 1

    def open(self, opening: Opening, position: Any) -> Any:
        raise AssertionError("the worker reads and writes queues itself")


def queue(name: str, schema: pa.Schema | None = None, *, producers: int | None = None) -> QueueEnd:
    """A queue that outlives the flow: the sink of one, the source of another."""
    return QueueEnd(name, schema, producers)
