"""What a flow keeps between its runs, in a place that all workers reach.

    NAME/flow                             how the flow is laid out, and when it first began
    NAME/runs/000003                      the third start of its driver
    NAME/tasks/TASK/EPOCH-VERSION.manifest   a commit of a task: small values, and the files it names
    NAME/tasks/TASK/files/…               state of its stages

The newest commit is that of the highest (epoch, version): an older copy of a worker that does not know that it was
replaced writes commits that nobody reads.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import FlowError, StateDamaged, StateMismatch
from headrace.flow.effects import Snapshot
from headrace.flow.plan import Plan
from headrace.state.places import Place, place_of
from headrace.state.sealed import seal, seal_record, unseal, unseal_record

FORMAT: Final = 1
EPOCHS_A_RUN: Final = 1_000_000
_KEPT: Final = 3
_COLLECT_EVERY: Final = 16


@dataclass(frozen=True)
class Restored:
    """A commit as it is found again."""

    version: int
    values: Mapping[str, Any]
    sinks: Mapping[str, Any]
    read: Callable[[str], bytes]


class FlowStore:
    """The state of one flow."""

    def __init__(self, location: str, flow: str):
        self.location = location
        self.flow = flow
        self._place: Place = place_of(location)

    # --------------------------------------------------------------------- runs

    def begin_run(self, plan: Plan) -> tuple[int, int]:
        """The number of this start of the flow, and when it first began, in microseconds.

        Raises FlowError where the state is that of a flow laid out otherwise.
        """
        self._place.check()
        began_us = self._check_layout(plan)
        taken = [int(name) for name in self._place.files(f"{self.flow}/runs") if name.isdigit()]
        run, owner = max(taken, default=0) + 1, uuid.uuid4().hex
        self._place.write(f"{self.flow}/runs/{run:06d}", seal_record({"owner": owner}))
        if unseal_record(self._place.read(f"{self.flow}/runs/{run:06d}"), "")["owner"] != owner:
            raise FlowError(f"flow {self.flow} is being started by somebody else at this very moment")
        return run, began_us

    def _check_layout(self, plan: Plan) -> int:
        name = f"{self.flow}/flow"
        if "flow" not in self._place.files(self.flow):
            record = {"format": FORMAT, "began_us": time.time_ns() // 1000, "layout": plan.layout}
            self._place.write(name, seal_record(record))
        found = unseal_record(self._place.read(name), self._place.path_of(name))
        if found["format"] > FORMAT:
            raise StateMismatch(
                f"flow {self.flow} at {self.location} has format {found['format']}, and this Headrace knows formats up "
                f"to {FORMAT}; upgrade Headrace"
            )
        if found["layout"] != plan.layout:
            difference = _difference(found["layout"], plan.layout)
            raise FlowError(
                f"flow {self.flow} at {self.location} was laid out otherwise: {difference}; draw it as it "
                f"was, or give it another name to begin anew"
            )
        return int(found["began_us"])

    # ------------------------------------------------------------------ commits

    def commit(self, snapshot: Snapshot, sinks: Mapping[str, Any]) -> None:
        """New files, then the manifest."""
        folder = self._folder(snapshot.task)
        for name, content in snapshot.new_files.items():
            self._place.write(f"{folder}/files/{name}", seal(content))
        record = {
            "format": FORMAT,
            "values": snapshot.values,
            "sinks": sinks,
            "files": snapshot.files,
        }
        self._place.write(f"{folder}/{_manifest(snapshot.epoch, snapshot.version)}", seal_record(record))
        if snapshot.version % _COLLECT_EVERY == 0:
            self._collect(folder)

    def restore(self, task: str) -> Restored | None:
        """The newest commit of a task that is whole; None if there is none. Raises StateDamaged if all are damaged."""
        folder = self._folder(task)
        names = sorted((name for name in self._place.files(folder) if name.endswith(".manifest")), reverse=True)
        damage: StateDamaged | None = None
        for name in names[:_KEPT]:
            try:
                return self._restored(folder, name)
            except StateDamaged as error:
                damage = damage or error
        if damage is not None:
            raise damage
        return None

    def _restored(self, folder: str, name: str) -> Restored:
        record = json.loads(self._unsealed(f"{folder}/{name}"))
        contents = {file: self._unsealed(f"{folder}/files/{file}") for file in record["files"]}
        version = int(name.removesuffix(".manifest").partition("-")[2])
        return Restored(version, record["values"], record["sinks"], contents.__getitem__)

    def _unsealed(self, name: str) -> bytes:
        return unseal(self._place.read(name), self._place.path_of(name))

    def _collect(self, folder: str) -> None:
        """What the last commits do not need."""
        names = sorted(name for name in self._place.files(folder) if name.endswith(".manifest"))
        kept = names[-_KEPT:]
        named: set[str] = set()
        try:
            for name in kept:
                named.update(json.loads(self._unsealed(f"{folder}/{name}"))["files"])
        except StateDamaged:
            return  # which files it names nobody knows: they stay until it is old
        oldest = kept[0].removesuffix(".manifest")
        for name in names[:-_KEPT]:
            self._place.delete(f"{folder}/{name}")
        for name in self._place.files(f"{folder}/files"):
            if name not in named and _stamp(name) < oldest:
                self._place.delete(f"{folder}/files/{name}")

    def _folder(self, task: str) -> str:
        return f"{self.flow}/tasks/{task}"

    def forget(self) -> None:
        """Delete everything of this flow."""
        self._place.delete_folder(self.flow)


def _manifest(epoch: int, version: int) -> str:
    return f"{epoch:012d}-{version:08d}.manifest"


def _stamp(file: str) -> str:
    """The epoch and version in the name of a file of state."""
    return file[:21]


def _difference(was: Mapping[str, str], now: Mapping[str, str]) -> str:
    for name in [*was, *now]:
        if was.get(name) != now.get(name):
            return f"{name} was {was.get(name, 'not there')}, and is {now.get(name, 'not there')}"
    return "the order of its stages"
