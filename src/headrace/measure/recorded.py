"""What a state is of, written down where it is: so that no query goes on from the state of another.

A record is written at the first batch, and again at the batch from which metrics or columns are others.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from headrace.errors import StateDamaged, StateMismatch
from headrace.language.type_names import spark_name
from headrace.measure.definition import Definition
from headrace.measure.explain import describe
from headrace.measure.plan import Stage
from headrace.measure.task import TaskSettings
from headrace.measure.words import type_named
from headrace.state.store import FORMAT, StageStore, check_format

_FIX: Final = "start the query anew with a checkpoint and a state location of its own"
_FIXED: Final = (
    ("shards", "shards"),
    ("partitioner", "groups"),
    ("time", "time"),
    ("arrival", "arrival"),
    ("backend", "backend"),
)
_checked: dict[tuple[str, str], tuple[int, Recorded]] = {}

# What may become what, while state lives: every value of the old type is one of the new.
_WIDENINGS: Final = {
    "int8": ("int16", "int32", "int64", "float", "double"),
    "int16": ("int32", "int64", "float", "double"),
    "int32": ("int64", "double"),
    "float": ("double",),
}


@dataclass(frozen=True)
class Recorded:
    """`metrics` by name; `columns` that they read, with types; `added` and `removed` are names of metrics."""

    shards: int
    partitioner: tuple[str, ...]
    time: str
    id: str | None
    arrival: str | None
    policy: Mapping[str, Any]
    metrics: Mapping[str, str]
    columns: Mapping[str, str]
    backend: str = "columnar"
    stages: tuple[str, ...] = ()
    """The folders of all stages of the query."""
    added: frozenset[str] = field(default_factory=frozenset)
    removed: frozenset[str] = field(default_factory=frozenset)

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        del found["added"], found["removed"]
        return {"format": FORMAT, **found, "partitioner": list(self.partitioner), "stages": list(self.stages)}


def recorded_of(
    definition: Definition,
    stage: Stage,
    settings: TaskSettings,
    *,
    shards: int = 1,
    backend: str = "columnar",
    stages: tuple[str, ...] = (),
) -> Recorded:
    """What the state of a stage of these metrics is of."""
    return Recorded(
        shards=shards,
        partitioner=stage.partitioner,
        time=definition.time,
        id=definition.id,
        arrival=definition.arrival,
        policy=asdict(definition.policy),
        metrics={metric.name: describe(metric) for metric in stage.metrics},
        columns={name: str(type) for name, type in settings.kept.items()},
        backend=backend,
        stages=stages,
        added=definition.added & {metric.name for metric in stage.metrics},
        removed=definition.removed,
    )


def record(store: StageStore, batch: int, recorded: Recorded) -> None:
    store.place.write(f"{store.folder}/definitions/{batch:012d}.json", sealed(recorded.as_json()))


def sealed(found: Mapping[str, Any]) -> bytes:
    """A record as it is written, with its checksum."""
    return json.dumps({"crc": _crc(found), "record": found}, indent=1).encode()


def _crc(found: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(found, sort_keys=True).encode())


def last_record(store: StageStore, before: int) -> dict[str, Any] | None:
    """What the state of the batch before was of; None if there is no such state."""
    names = sorted(name for name in store.place.files(f"{store.folder}/definitions") if name.endswith(".json"))
    names = [name for name in names if int(name.partition(".")[0]) < before]
    if not names:
        return None
    path = f"{store.folder}/definitions/{names[-1]}"
    try:
        content = json.loads(store.place.read(path))
        found: dict[str, Any] = content["record"]
        whole = content["crc"] == _crc(found)
    except (ValueError, LookupError, TypeError):
        whole = False
    if not whole:
        raise StateDamaged(store.place.path_of(path), "its checksum is not the one it was written with")
    check_format(found["format"], store.place.path_of(path))
    return found


def check_recorded(store: StageStore, batch: int, recorded: Recorded) -> bool:
    """May this batch start from the state of the one before it? True if it must start from nothing: it is a new stage.

    Raises StateMismatch, with the fix, if not. A change that is meant is recorded.
    """
    key = (store.place.location, store.folder)
    if _checked.get(key, (batch, None))[1] == recorded and _checked[key][0] < batch:
        return False
    found = last_record(store, batch)
    if found is None:
        if recorded.metrics.keys() <= recorded.added and not _was_there(store, batch):
            record(store, batch, recorded)
            return True
        path = store.place.path_of(f"{store.folder}/definitions")
        raise StateDamaged(path, f"there is no record of what the state before batch {batch} is of")
    check_change(found, recorded, store.place.path_of(store.folder))
    # An attempt at this very batch may have left the record of other metrics.
    if last_record(store, batch + 1) != recorded.as_json():
        record(store, batch, recorded)
    _checked[key] = (batch, recorded)
    return False


def _was_there(store: StageStore, batch: int) -> bool:
    """Is there anything that tells of this stage before the batch?"""
    if any(other < batch for other in store.batches()):
        return True
    query, _, name = store.folder.partition("/")
    others = [last_record(StageStore(store.place, f"{query}/{other}"), batch) for other in store.place.folders(query)]
    return any(name in other["stages"] for other in others if other is not None)


def check_change(found: Mapping[str, Any], wanted: Recorded, path: str) -> None:
    """Raises StateMismatch unless a query with `wanted` can go on from a state that is of `found`."""
    new = wanted.as_json()
    for what, name in _FIXED:
        if found[what] != new[what]:
            raise StateMismatch(f"the state at {path} has {name} {found[what]}, the query has {new[what]}; {_FIX}")
    if wanted.backend == "rocksdb" and (found["metrics"] != new["metrics"] or found["columns"] != new["columns"]):
        raise StateMismatch(
            f"the state at {path} is in RocksDB, where metrics and the types of their columns cannot change; {_FIX}, "
            f"with the past from metrics.backfill(df)"
        )
    for name, type in wanted.columns.items():
        check_column(name, found["columns"].get(name), type, name in wanted.partitioner, path)
    _check_metrics(found, wanted, path)


def _check_metrics(found: Mapping[str, Any], wanted: Recorded, path: str) -> None:
    for name, said in wanted.metrics.items():
        was = found["metrics"].get(name)
        if was is None and name not in wanted.added:
            raise StateMismatch(
                f"the state at {path} has no metric {name}; to add it to the stream, say so: "
                f'metrics.add("SELECT … AS {name} …"), or {_FIX}'
            )
        if was is not None and without_types(was) != without_types(said) and name not in wanted.added:
            raise StateMismatch(
                f"the state at {path} has {name} = {was}, the query has {name} = {said}; give the new one another name "
                f'and add it (metrics.add, metrics.remove("{name}")), or {_FIX}'
            )
    for name in found["metrics"].keys() - wanted.metrics.keys() - wanted.removed:
        raise StateMismatch(
            f"the state at {path} has a metric {name}, which the query does not have; to give it up, say so: "
            f'metrics.remove("{name}"), or {_FIX}'
        )


def without_types(description: str) -> str:
    """A metric whose column has become wider is the same metric."""
    call, separator, rest = description.partition(") of ")
    return call + rest.partition(" ")[2] if separator else description


def check_column(name: str, was: str | None, now: str, is_key: bool, path: str) -> None:
    if was is None or was == now or _is_wider(was, now, is_key):
        return
    raise StateMismatch(
        f"column {name} was {_said(was)} when the state at {path} was written and is {_said(now)} now, which "
        f"cannot hold all its values; cast it back: withColumn({name!r}, col({name!r}).cast({_said(was)!r})), or {_FIX}"
    )


def _is_wider(was: str, now: str, is_key: bool) -> bool:
    old, new = type_named(was), type_named(now)
    decimals = [str(type).startswith("decimal") for type in (old, new)]
    if all(decimals):
        whole = new.precision - new.scale >= old.precision - old.scale and new.scale >= old.scale
        # The words of a key must stay what they are.
        same_words = old.scale == new.scale and (old.precision > 18) == (new.precision > 18)
        return bool(whole and (same_words or not is_key))
    wider = now in _WIDENINGS.get(was, ())
    return wider and not (is_key and was.startswith("int") and not now.startswith("int"))


def _said(type: str) -> str:
    return spark_name(type_named(type))
