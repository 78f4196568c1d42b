"""What a streaming query of `hr.synchronize` has done, and which stream it waits for, read from its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from headrace.spark.synchronized_stream import FAR
from headrace.synchronize.inputs import time_text
from headrace.synchronize.versions import Version, Versions


@dataclass(frozen=True)
class ProgramProgress:
    """As of the last batch."""

    query: str
    batch: int
    """-1 before there was one."""
    streams: Mapping[str, int | None]
    """How far each has come: all its events before that time. It is a number, of a time stamp its microseconds and of a
    date its days, and after a heartbeat one more than the time of that. None where nothing has come of it."""
    waiting: int
    """Events that have come, and wait."""
    waits_for: tuple[str, ...]
    """Whom they wait for: the streams that have come least far."""

    def __str__(self) -> str:
        waiting = "no event waits" if not self.waiting else f"{self.waiting:,} events wait"
        return "\n".join(
            [f"query {self.query}, batch {self.batch}: {waiting}", *(f"  {each}" for each in self.waits_for)]
        )


def read_program_progress(versions: Versions, query: str, streams: tuple[str, ...], time: str) -> ProgramProgress:
    """`streams`: all there are."""
    batch = versions.last()
    version = versions.load(batch + 1, None)
    reached = {name: version.newest.get(name, FAR) for name in streams}
    waiting = sum(table.num_rows for table in version.waiting)
    found = {name: None if at == FAR else at for name, at in reached.items()}
    waits_for = _waits_for(versions, batch, version, reached, time) if waiting else ()
    return ProgramProgress(query, batch, found, waiting, waits_for)


def _waits_for(
    versions: Versions, batch: int, version: Version, reached: Mapping[str, int], time: str
) -> tuple[str, ...]:
    least = min(reached.values())
    slow = {name: at for name, at in reached.items() if at == least}
    since = versions.since(batch, {name: at for name, at in slow.items() if at != FAR})
    oldest, type = versions.oldest(), version.waiting[0].schema.field(time).type
    found = []
    for name, at in slow.items():
        stream = "a later event" if name == "None" else f"stream {name}"
        found.append(f"waiting for {stream}: {_come(at, since.get(name, batch), oldest, type)}")
    return tuple(found)


def _come(at: int, since: int, oldest: int, type: pa.DataType) -> str:
    if at == FAR:
        return "nothing has come of it"
    or_before = " or before" if since == oldest > 0 else ""
    return f"since batch {since}{or_before} it has come to {time_text(at, type)}"
