"""What a streaming query has done and keeps, read from its state."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.state.places import Place, place_of
from headrace.state.store import ShardVersion, StageStore


@dataclass(frozen=True)
class StageProgress:
    """One stage, as of its last batch."""

    name: str
    batch: int
    counts: Mapping[str, int]
    """Rows by status since the stream began: ok, late, rewritten, duplicate, discarded."""
    groups: int
    events: int
    """How many events it remembers."""
    oldest: dt.datetime | None
    newest: dt.datetime | None
    """The times of the oldest and the newest of them."""
    state_bytes: int
    event_bytes: int
    bytes: Mapping[str, int]
    """What takes how much of the state: strings, keys, events that are not in files, times and ids, metrics."""
    complete_from: Mapping[str, dt.datetime]
    """Metrics that came later than the stream: the time after which they have seen every event."""


@dataclass(frozen=True)
class Progress:
    """What a query has done: one entry for each stage of its plan."""

    query: str
    batch: int
    """The last batch of which there is state; -1 if there is none."""
    stages: tuple[StageProgress, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Rows by status. Stages may judge differently: the one with the fewest rows that are ok."""
        worst = min(self.stages, key=lambda stage: stage.counts["ok"], default=None)
        return {} if worst is None else dict(worst.counts)

    @property
    def rows(self) -> int:
        return max((sum(stage.counts.values()) for stage in self.stages), default=0)

    def __str__(self) -> str:
        return "\n".join([f"query {self.query}, batch {self.batch}: {self.rows:,} rows", *self._lines()])

    def _lines(self) -> Iterator[str]:
        for stage in self.stages:
            said = ", ".join(f"{count:,} {status}" for status, count in stage.counts.items() if count) or "no rows yet"
            yield f"  {stage.name}: {said}"
            span = "" if stage.oldest is None else f" from {stage.oldest:%Y-%m-%d %H:%M:%S} on"
            yield (
                f"    {stage.groups:,} groups in {stage.state_bytes:,} bytes; remembers {stage.events:,} events"
                f"{span}, {stage.event_bytes:,} bytes in files"
            )
            for metric, moment in stage.complete_from.items():
                yield f"    {metric} has seen every event after {moment:%Y-%m-%d %H:%M:%S}"


def read_progress(location: str, query: str) -> Progress:
    place = place_of(location)
    stages = tuple(
        progress for name in place.folders(query) if (progress := stage_progress(place, query, name)) is not None
    )
    return Progress(query, max((stage.batch for stage in stages), default=-1), stages)


def stage_progress(place: Place, query: str, name: str) -> StageProgress | None:
    store = StageStore(place, f"{query}/{name}")
    batch = next((b for b in reversed(store.batches()) if store.has_batch(b)), None)
    if batch is None:
        return None
    shards = list(store.all_shards(batch).values())
    oldest = [shard.values["oldest"] for shard in shards if shard.values["oldest"] is not None]
    newest = [shard.values["newest"] for shard in shards if shard.values["newest"] is not None]
    reach: dict[str, int] = {}
    for shard in shards:
        for metric, until in shard.values["reach"].items():
            reach[metric] = max(until, reach.get(metric, until))
    return StageProgress(
        name=name,
        batch=batch,
        counts=_summed(shards, "counts"),
        groups=sum(shard.values["groups"] for shard in shards),
        events=sum(shard.values["events"] for shard in shards),
        oldest=moment(min(oldest, default=None)),
        newest=moment(max(newest, default=None)),
        state_bytes=sum(part.size_bytes for shard in shards for part in shard.parts),
        bytes=_summed(shards, "bytes"),
        event_bytes=sum(file.size_bytes for shard in shards for file in shard.files),
        complete_from={metric: found for metric, until in reach.items() if (found := moment(until)) is not None},
    )


def _summed(shards: Sequence[ShardVersion], what: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for shard in shards:
        for name, value in shard.values[what].items():
            found[name] = found.get(name, 0) + value
    return found


def moment(ticks: int | None) -> dt.datetime | None:
    """A time of an event for people; None where there is none, or none that a calendar has."""
    if ticks is None:
        return None
    try:
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=ticks)
    except OverflowError:
        return None
