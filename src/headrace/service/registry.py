"""The streams of a front end: created, remembered on disk, started again, deleted."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import FlowError, RequestRefused
from headrace.flow.job import forget
from headrace.flow.local_places import whole_path
from headrace.language.names import did_you_mean
from headrace.queues.protocol import Queues
from headrace.service.engine import Engine, flow_of, state_of
from headrace.service.streams import StreamSpec
from headrace.spark.live import state_at
from headrace.spark.slots import slot_count
from headrace.state.places import place_of
from headrace.state.sealed import seal_record, unseal_record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOLDER: Final = "streams"
_DELETED: Final = "deleted"
"""What a stream that is being deleted is remembered by: the names of its queues."""


class Registry:
    """All streams at one place."""

    def __init__(self, spark: SparkSession, at: str, queues: Queues, parallelism: int = 1, replicas: int = 1):
        self._spark, self._at, self._queues, self._parallelism = spark, whole_path(at), queues, parallelism
        self._replicas = replicas
        self._place = place_of(self._at)
        self._engines: dict[str, Engine] = {}
        self._lock = threading.Lock()
        self._slots = slot_count(spark)

    def start(self, wanted: list[StreamSpec]) -> None:
        """Those that are known at this place go on; those that are new begin. Raises where they differ."""
        found = [self._remembered(name) for name in self._place.files(_FOLDER) if not name.startswith(".")]
        known = {spec.name: spec for spec in found if spec is not None}
        for spec in wanted:
            before = known.setdefault(spec.name, spec)
            if (before.columns, before.time, before.id) != (spec.columns, spec.time, spec.id):
                raise FlowError(
                    f"stream {spec.name} at {self._at} has other columns than this text: "
                    f"{dict(before.columns)}, not {dict(spec.columns)}; use another place, or delete the stream first"
                )
        for spec in known.values():
            self.create(spec)

    def create(self, spec: StreamSpec) -> None:
        with self._lock:
            if spec.name in self._engines:
                raise FlowError(f"there is a stream {spec.name} already; delete it first, or use another name")
            slots = (len(self._engines) + 1) * self._replicas
            if slots > self._slots:
                raise FlowError(
                    f"{len(self._engines) + 1} streams need {slots} task slots, and this session has {self._slots}; "
                    f"delete a stream, or start Spark with more cores"
                )
            self._remembered(spec.name)
            engine = Engine(self._spark, spec, self._at, self._queues, self._parallelism, replicas=self._replicas)
            self._place.write(f"{_FOLDER}/{spec.name}", seal_record(spec.as_json()))
            self._engines[spec.name] = engine

    def delete(self, name: str) -> None:
        with self._lock:
            engine = self.engine(name)
            # From here on it is deleted: who is killed now goes on with it at the next start.
            queues = engine.job.queues
            self._place.write(f"{_FOLDER}/{name}", seal_record({_DELETED: queues}))
            self._engines.pop(name)
            engine.close()
            self._forget(name, queues)

    def _remembered(self, name: str) -> StreamSpec | None:
        """A stream at this place; None where there is none. What is left of one that was deleted goes."""
        path = f"{_FOLDER}/{name}"
        if name not in self._place.files(_FOLDER):
            return None
        record = unseal_record(self._place.read(path), path)
        if _DELETED not in record:
            return StreamSpec.from_json(record)
        self._forget(name, record[_DELETED])
        return None

    def _forget(self, name: str, queues: list[str]) -> None:
        forget(flow_of(name), state_at(self._at), self._queues, queues)
        self._place.delete(f"{_FOLDER}/{name}")

    def engine(self, name: str) -> Engine:
        found = self._engines.get(name)
        if found is None:
            names = list(self._engines)
            hint = did_you_mean(name, names) or (f"there are {', '.join(names)}" if names else "there is none yet")
            raise RequestRefused(f"there is no stream {name}; {hint}", 404)
        return found

    def specs(self) -> list[StreamSpec]:
        return [engine.spec for engine in list(self._engines.values())]

    def about(self, name: str) -> dict[str, Any]:
        engine = self.engine(name)
        return {**engine.spec.as_json(), "metrics": engine.metrics(), **state_of(engine)}

    def close(self) -> None:
        for engine in list(self._engines.values()):
            engine.close()
