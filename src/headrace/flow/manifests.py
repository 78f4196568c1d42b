"""What a flow keeps between its runs, in a place that all workers reach.

    NAME/flow                             how the flow is laid out, and when and where it first began
    NAME/runs/000003                      the third start of its driver
    NAME/tasks/TASK/EPOCH-VERSION.manifest   a commit of a task: small values, and the files it names
    NAME/tasks/TASK/EPOCH-VERSION~1.manifest   the same of its second copy
    NAME/tasks/TASK/holds~1.LIFE          files that a copy needs before it has a commit of its own
    NAME/tasks/TASK/files/…               state of its stages
    NAME/tasks/TASK/moment                when its sinks last showed something, see `losses`

The newest commit of a copy is that of the highest (epoch, version): a worker that does not know that it was replaced
writes commits that nobody reads. All copies of a task go the same way, so any of them can go on from a commit of
another: from the one that has come furthest. They share files, and none travels.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import FlowError, StateDamaged, StateMismatch
from headrace.flow.copies import copy_of, task_of
from headrace.flow.effects import Snapshot
from headrace.flow.files import Files
from headrace.flow.losses import Loss, loss_of
from headrace.flow.plan import TRACKING, Plan
from headrace.queues.protocol import Queues
from headrace.state.places import Place, place_of
from headrace.state.sealed import seal, seal_record, unseal, unseal_record

FORMAT: Final = 1
EPOCHS_A_RUN: Final = 1_000_000
_KEPT: Final = 3
_COLLECT_EVERY: Final = 16
_SWEEP_S: Final = 30.0


@dataclass(frozen=True)
class Restored:
    """A commit as it is found again."""

    version: int
    values: Mapping[str, Any]
    sinks: Mapping[str, Any]
    moment: int
    incarnation: str
    read: Callable[[str], bytes]
    copy: int = 0
    """Whose it is."""


class FlowStore:
    """The state of one flow."""

    def __init__(self, location: str, flow: str):
        self.location = location
        self.flow = flow
        self._place: Place = place_of(location)
        self._held: dict[str, tuple[str, ...]] = {}
        self._life = uuid.uuid4().hex[:8]
        self._unnamed: dict[str, dict[str, float]] = {}
        """By copy: its files that nobody names, and since when."""
        self._swept_s: dict[str, float] = {}

    # --------------------------------------------------------------------- runs

    def check(self, plan: Plan) -> int:
        """When the flow first began, in microseconds. Raises FlowError where its state is of one laid out otherwise."""
        self._place.check()
        return self._check_layout(plan)

    def beginnings(self) -> dict[str, Any]:
        """How sources and sinks were when the flow first began."""
        return dict(json.loads(self._unsealed(f"{self.flow}/flow")).get("beginnings", {}))

    def begin_run(self, plan: Plan, queues: Queues) -> tuple[int, int, tuple[Loss, ...]]:
        """The number of this start of the flow, when it first began, and what was lost in power cuts."""
        began_us = self.check(plan)
        taken = [int(name) for name in self._place.files(f"{self.flow}/runs") if name.isdigit()]
        run, owner = max(taken, default=0) + 1, uuid.uuid4().hex
        losses = self._losses(plan, queues, run - 1)
        record = {"owner": owner, "incarnation": queues.incarnation(), "losses": [loss.as_json() for loss in losses]}
        # Who has this number has its epochs, alone.
        self._place.create(f"{self.flow}/runs/{run:06d}", seal_record(record))
        if unseal_record(self._place.read(f"{self.flow}/runs/{run:06d}"), "")["owner"] != owner:
            raise FlowError(f"flow {self.flow} is being started by somebody else at this very moment")
        return run, began_us, losses

    def _losses(self, plan: Plan, queues: Queues, last: int) -> tuple[Loss, ...]:
        """Those that the last run knew of, and one more if the queues have gone down since it began."""
        if not last:
            return ()
        found = json.loads(self._unsealed(f"{self.flow}/runs/{last:06d}"))
        known = tuple(Loss(**loss) for loss in found["losses"])
        if found["incarnation"] == queues.incarnation():
            return known
        commits = {task: commit for task in plan.tasks if (commit := self.restore(task)) is not None}
        moments = {task: self._moment(task, found["incarnation"]) for task in plan.tasks}
        ends = {queue: queues.bounds(queue)[1] for task in plan.tasks.values() for queue in task.inboxes}
        # What is before the commit of a reader will not be read again.
        passed: dict[str, int] = {}
        for task, commit in commits.items():
            own, position = _senders(commit.values), commit.values["position"]
            passed.update({queue: own.get(queue, [position])[0] for queue in plan.tasks[task].inboxes})
        still = tuple(loss for loss in known if any(end > passed.get(queue, 0) for queue, end in loss.ends.items()))
        return (*still, loss_of(plan, known, ends, moments))

    def _check_layout(self, plan: Plan) -> int:
        name = f"{self.flow}/flow"
        if "flow" not in self._place.files(self.flow):
            ends = {node.name: node.source or node.sink for node in plan.graph.nodes}
            beginnings = {name: end.beginning() for name, end in ends.items() if end is not None}
            record = {
                "format": FORMAT,
                "began_us": time.time_ns() // 1000,
                "layout": plan.layout,
                "beginnings": beginnings,
            }
            self._place.create(name, seal_record(record))
        found = unseal_record(self._place.read(name), self._place.path_of(name))
        if found["format"] > FORMAT:
            raise StateMismatch(
                f"flow {self.flow} at {self.location} has format {found['format']}, and this Headrace knows formats up "
                f"to {FORMAT}; upgrade Headrace"
            )
        layout = {name: words for name, words in plan.layout.items() if name != TRACKING or name in found["layout"]}
        if found["layout"] != layout:
            difference = _difference(found["layout"], layout)
            raise FlowError(
                f"flow {self.flow} at {self.location} was laid out otherwise: {difference}; draw it as it "
                f"was, or give it another name to begin anew"
            )
        return int(found["began_us"])

    # ------------------------------------------------------------------ commits

    def commit(self, snapshot: Snapshot, sinks: Mapping[str, Any], moment: int = 0, incarnation: str = "") -> None:
        """New files, then the manifest. `moment` is that of the snapshot, by the clock of the queues."""
        folder = self._folder(snapshot.task)
        for name, content in snapshot.new_files.items():
            self._place.write(f"{folder}/files/{name}", seal(content))
        record = {
            "format": FORMAT,
            "values": snapshot.values,
            "sinks": sinks,
            "files": snapshot.files,
            "kept": snapshot.kept,
            "moment": moment,
            "incarnation": incarnation,
        }
        name = _manifest(snapshot.epoch, snapshot.version, copy_of(snapshot.task))
        self._place.write(f"{folder}/{name}", seal_record(record))
        if self._held.pop(snapshot.task, None) is not None:
            self._place.delete(f"{folder}/{self._holds(snapshot.task)}")
        if snapshot.version % _COLLECT_EVERY == 0:
            self._collect(folder, copy_of(snapshot.task))

    def note_moment(self, task: str, moment: int, incarnation: str) -> None:
        """All that this task depends on by this moment is safe: its sinks may show what came of it."""
        name = _of_copy("moment", copy_of(task))
        self._place.write(f"{self._folder(task)}/{name}", seal_record({"moment": moment, "incarnation": incarnation}))

    def _moment(self, task: str, incarnation: str) -> int:
        """The last one of a task, noted or committed; -1 if there was none in this incarnation."""
        found: list[dict[str, Any]] = [{"moment": -1, "incarnation": incarnation}]
        folder = self._folder(task)
        names = [name for name in self._place.files(folder) if name.partition("~")[0] == "moment"]
        found += [json.loads(self._unsealed(f"{folder}/{name}")) for name in names]
        found += [dict(record) for _, record in self._newest(folder, set()).values()]
        return max(int(each["moment"]) for each in found if each["incarnation"] == incarnation)

    def restore(self, task: str, holds: bool = False) -> Restored | None:
        """Of the commits of a task that are whole, the one that has come furthest; None if there is none.

        With `holds` other copies do not collect its files, until this copy commits. Raises StateDamaged if all are
        damaged.
        """
        folder = self._folder(task)
        tried: set[str] = set()
        damage: StateDamaged | None = None
        while True:
            # Another copy may commit, and collect what is old, meanwhile.
            newest = self._newest(folder, tried)
            if not newest:
                break
            name, record = _furthest(list(newest.values()))
            if holds:
                self.hold(task, (*record["files"], *record.get("kept", ())))
                self._forget_lives(task)
                if name not in self._place.files(folder):
                    continue  # it was collected before it was held
            try:
                return self._restored(folder, name, record)
            except StateDamaged as error:
                damage = damage or error
                tried.add(name)
        if damage is not None:
            raise damage
        return None

    def committed(self, task: str) -> Mapping[str, Any] | None:
        """The commit that has come furthest, without its files; None where there is none."""
        found = list(self._newest(self._folder(task), set()).values())
        return _furthest(found)[1] if found else None

    def _newest(self, folder: str, tried: set[str]) -> dict[int, tuple[str, Mapping[str, Any]]]:
        """For each copy the name of its newest commit, and what is in it. Raises StateDamaged if all are damaged.

        Those in `tried` do not count, and neither does what is damaged, which is put there.
        """
        found: dict[int, tuple[str, Mapping[str, Any]]] = {}
        damage: StateDamaged | None = None
        for copy, names in self._manifests(folder).items():
            for name in reversed(names[-_KEPT:]):
                if name in tried:
                    continue
                try:
                    found[copy] = name, json.loads(self._unsealed(f"{folder}/{name}"))
                    break
                except StateDamaged as error:
                    tried.add(name)
                    damage = damage or error
        if damage is not None and not found:
            raise damage
        return found

    def _manifests(self, folder: str) -> dict[int, list[str]]:
        """By copy, the newest last."""
        found: dict[int, list[str]] = {}
        for name in sorted(each for each in self._place.files(folder) if each.endswith(".manifest")):
            found.setdefault(copy_of(name.removesuffix(".manifest")), []).append(name)
        return found

    def _restored(self, folder: str, name: str, record: Mapping[str, Any]) -> Restored:
        contents = {file: self._unsealed(f"{folder}/files/{file}") for file in record["files"]}
        version = int(name.removesuffix(".manifest").partition("~")[0].partition("-")[2])
        moment, incarnation = record["moment"], record["incarnation"]
        copy = copy_of(name.removesuffix(".manifest"))
        return Restored(version, record["values"], record["sinks"], moment, incarnation, contents.__getitem__, copy)

    def hold(self, copy: str, files: tuple[str, ...]) -> None:
        """What a copy needs that has no commit of its own. What it wrote itself and needs no longer goes, by and by."""
        if self._held.get(copy) != files:
            self._held[copy] = files
            self._place.write(f"{self._folder(copy)}/{self._holds(copy)}", seal_record({"files": files}))
        if time.monotonic() - self._swept_s.get(copy, 0.0) > _SWEEP_S:
            self._swept_s[copy] = time.monotonic()
            self._sweep(copy)

    def _holds(self, copy: str) -> str:
        """Of this life of a copy: an earlier one may not know yet that it is over."""
        return f"holds~{copy_of(copy)}.{self._life}"

    def _forget_lives(self, copy: str) -> None:
        folder, mine = self._folder(copy), self._holds(copy)
        for name in self._place.files(folder):
            if name.startswith(mine.partition(".")[0] + ".") and name != mine:
                self._place.delete(f"{folder}/{name}")

    def _sweep(self, copy: str) -> None:
        folder = self._folder(copy)
        try:
            named = self._named(folder)
        except StateDamaged:
            return  # or gone meanwhile: the next time
        own = [name for name in self._place.files(f"{folder}/files") if writer_of(name) == copy_of(copy)]
        loose = {f"{folder}/files/{name}" for name in own if name.endswith(".kept") and name not in named}
        before, now = self._unnamed.get(copy, {}), time.monotonic()
        self._unnamed[copy] = {name: before.get(name, now) for name in loose}
        for name, since in self._unnamed[copy].items():
            if now - since > _SWEEP_S:
                self._place.delete(name)

    def _named(self, folder: str) -> set[str]:
        """The files that the last commits of all copies need, and those that copies hold. Raises StateDamaged."""
        named: set[str] = set()
        # First what is held: a copy lets go of it when it has a commit of its own, which is then there.
        for name in self._place.files(folder):
            if name.partition("~")[0] == "holds":
                named.update(json.loads(self._unsealed(f"{folder}/{name}"))["files"])
        for names in self._manifests(folder).values():
            for name in names[-_KEPT:]:
                record = json.loads(self._unsealed(f"{folder}/{name}"))
                named.update((*record["files"], *record.get("kept", ())))
        return named

    def _unsealed(self, name: str) -> bytes:
        return unseal(self._place.read(name), self._place.path_of(name))

    def _collect(self, folder: str, copy: int) -> None:
        """What a copy has written, and the last commits of all copies do not need."""
        manifests = self._manifests(folder)
        own = manifests.get(copy)
        if not own:
            return  # the flow was deleted meanwhile
        try:
            named = self._named(folder)
        except StateDamaged:
            return  # which files it names nobody knows: they stay until it is old
        oldest = _stamp(own[-_KEPT:][0])
        for name in own[:-_KEPT]:
            self._place.delete(f"{folder}/{name}")
        for name in self._place.files(f"{folder}/files"):
            if name not in named and writer_of(name) == copy and _stamp(name) < oldest:
                self._place.delete(f"{folder}/files/{name}")

    def delete(self) -> None:
        """All that there is of this flow."""
        self._place.delete_folder(self.flow)

    def files(self, task: str, epoch: int) -> Files:
        """For what the stages of a task keep themselves."""
        return _StoredFiles(self._place, f"{self._folder(task)}/files", epoch, copy_of(task))

    def _folder(self, task: str) -> str:
        return f"{self.flow}/tasks/{task_of(task)}"


class _StoredFiles(Files):
    def __init__(self, place: Place, folder: str, epoch: int, copy: int):
        self._place, self._folder, self._epoch, self._copy = place, folder, epoch, copy

    def write(self, content: bytes) -> str:
        name = _of_copy(f"{self._epoch:012d}-{self.version:08d}-{uuid.uuid4().hex[:16]}", self._copy) + ".kept"
        self._place.write(f"{self._folder}/{name}", content)
        return name

    def read(self, name: str, offset: int, size: int) -> bytes:
        return self._place.read(f"{self._folder}/{name}", offset, size)


def _manifest(epoch: int, version: int, copy: int) -> str:
    return _of_copy(f"{epoch:012d}-{version:08d}", copy) + ".manifest"


def _of_copy(name: str, copy: int) -> str:
    return f"{name}~{copy}" if copy else name


def _stamp(file: str) -> str:
    """The epoch and version in the name of a file of state, or of a commit."""
    return file[:21]


def writer_of(file: str) -> int:
    """The copy that wrote a file of state."""
    found = re.search(r"~(\d+)[-. ]", file)
    return int(found[1]) if found else 0


def _furthest(commits: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[str, Mapping[str, Any]]:
    return commits[0] if len(commits) == 1 else max(commits, key=lambda pair: way_of(pair[1]["values"]))


def way_of(values: Mapping[str, Any]) -> tuple[int, ...]:
    """How far a commit has come: all copies of a task go the same way."""
    return (
        int(values["finished"]),
        int(values["records_in"]),
        sum(map(int, values.get("next", {}).values())) + int(values.get("pulse", 0)) + int(values.get("changed", 0)),
        int(values["source_ended"]),
        int(values["position"]) + sum(int(sender[0]) for sender in _senders(values).values()),
    )


def _senders(values: Mapping[str, Any]) -> dict[str, Any]:
    """The queues of single senders, with their positions first."""
    found = {**values.get("merging", {"senders": {}})["senders"], **values.get("agreed", {"senders": {}})["senders"]}
    log = values.get("agreed", {}).get("log")
    return found if log is None else {**found, "log": [log["position"]]}


def _difference(was: Mapping[str, str], now: Mapping[str, str]) -> str:
    for name in [*was, *now]:
        if was.get(name) != now.get(name):
            return f"{name} was {was.get(name, 'not there')}, and is {now.get(name, 'not there')}"
    return "the order of its stages"
