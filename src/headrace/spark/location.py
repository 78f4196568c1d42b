"""Where the state of a stream is, and whether it can be used: asked on the driver, before the query starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.errors import DefinitionError
from headrace.measure.definition import Definition
from headrace.measure.plan import Stage
from headrace.measure.recorded import check_change, last_record, recorded_of
from headrace.spark.versions import StageState
from headrace.state.places import place_of
from headrace.state.store import StageStore

STATE_CONF: Final = "headrace.state.location"
_CHECKPOINT_CONF: Final = "spark.sql.streaming.checkpointLocation"
_EVERY_BATCH: Final = 1 << 62


def find_location(spark: SparkSession, given: str | None) -> tuple[str, bool]:
    """The state location, and whether it is of these metrics alone: what is given, else what the session says."""
    if given is not None:
        return given, True
    shared = spark.conf.get(STATE_CONF, None)
    if shared:
        return shared, False
    checkpoints = spark.conf.get(_CHECKPOINT_CONF, None)
    if checkpoints:
        return f"{checkpoints.removeprefix('file:').rstrip('/')}/headrace-state", False
    raise DefinitionError(
        "a streaming DataFrame needs a place to keep state between batches: "
        f'state="/path/to/state" or spark.conf.set("{STATE_CONF}", "/path/to/state")'
    )


def check_location(location: str, states: Sequence[StageState]) -> None:
    """Raises StateError where no state can be kept there, StateMismatch where there is one of other metrics."""
    place = place_of(location)
    place.check()
    for query in place.folders(""):
        for state in states:
            store = StageStore(place, f"{query}/{state.folder}")
            found = last_record(store, _EVERY_BATCH)
            if found is not None:
                check_change(found, state.recorded, place.path_of(store.folder))


def stage_state(
    location: str,
    stage: Stage,
    definition: Definition,
    schema: pa.Schema,
    *,
    keep_columns: Sequence[str],
    memory_bytes: int,
    shards: int,
    versions: int,
    backend: str,
    stages: Sequence[Stage] = (),
) -> StageState:
    columns = tuple(dict.fromkeys([*stage.columns, *keep_columns]))
    settings = definition.settings(max(1, memory_bytes // shards), schema=schema, columns=columns)
    folders = tuple(stage_folder(other) for other in stages)
    recorded = recorded_of(definition, stage, settings, shards=shards, backend=backend, stages=folders)
    return StageState(location, stage_folder(stage), stage, settings, shards, recorded, versions)


def stage_folder(stage: Stage) -> str:
    """A name that stays, whatever other stages there are."""
    if not stage.partitioner:
        return "whole-stream"
    return "by-" + "+".join(quote(name, safe="") for name in stage.partitioner)
