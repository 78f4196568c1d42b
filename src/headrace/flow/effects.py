"""What the machines of a flow are told (stimuli), and what they want done (effects). Drivers do it; machines decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from headrace.flow.io import Feed
from headrace.queues.protocol import Entry

# ------------------------------------------------------------- told to a worker


@dataclass(frozen=True)
class Arrived:
    """Frames of one queue, in their order."""

    queue: str
    entries: list[Entry]


@dataclass(frozen=True)
class Fed:
    """What the source of a task has next."""

    task: str
    feed: Feed


@dataclass(frozen=True)
class Ticked:
    """Time has passed. `wall_s` is the time that all machines share, as well as they can; as `now_s` if not given."""

    now_s: float
    wall_s: float | None = None


@dataclass(frozen=True)
class Saved:
    """A commit is safe."""

    task: str
    version: int


@dataclass(frozen=True)
class Told:
    """By the coordinator."""

    message: Mapping[str, Any]


@dataclass(frozen=True)
class Looked:
    """The values of the newest commit of a task, of whichever copy; None if there is none."""

    task: str
    values: Mapping[str, Any] | None


Stimulus: TypeAlias = Arrived | Fed | Ticked | Saved | Told | Looked

# ------------------------------------------------------------ wanted by a worker


@dataclass(frozen=True)
class Append:
    """Encoded frames to a queue."""

    queue: str
    frames: list[bytes]


@dataclass(frozen=True)
class Deliver:
    """Records to the sink of a task."""

    task: str
    node: str
    first: int
    batch: pa.RecordBatch


@dataclass(frozen=True)
class Snapshot:
    """A version of a task: the small values, the files that are new in it, and all files that it names.

    `kept` are files that stages wrote themselves; nobody reads them at a start.
    """

    task: str
    epoch: int
    version: int
    values: Mapping[str, Any]
    new_files: Mapping[str, bytes]
    files: tuple[str, ...]
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Save:
    """Make safe: first what is in these queues, then the snapshot. `Saved` says that it is."""

    snapshot: Snapshot
    queues: tuple[str, ...]


@dataclass(frozen=True)
class Acknowledge:
    """What is before the position of a queue was taken."""

    queue: str
    position: int


@dataclass(frozen=True)
class Report:
    """Tell the coordinator."""

    message: Mapping[str, Any]


@dataclass(frozen=True)
class LookAtCommit:
    """How far has the copy of this task come that speaks? `Looked` says so.

    `copy` is who asks, and `kept` the files that it needs: they are not to be collected.
    """

    task: str
    copy: str
    kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpenSinks:
    """Of a copy that begins to speak, as the newest commit of its task has them."""

    task: str


@dataclass(frozen=True)
class Leave:
    """The worker is done."""


Effect: TypeAlias = Append | Deliver | Save | Acknowledge | Report | LookAtCommit | OpenSinks | Leave

# ------------------------------------------------------ told to the coordinator


@dataclass(frozen=True)
class Reported:
    """By a worker."""

    message: Mapping[str, Any]


@dataclass(frozen=True)
class Exited:
    """A worker is gone: its process ended, or the machine says so."""

    worker: int
    epoch: int
    problem: str | None = None
    failure: Mapping[str, Any] | None = None
    """Where it ended by an error of ours, as in the report of a failure: to start it again would not help."""


@dataclass(frozen=True)
class StopAsked:
    """By the user. To drain is to let all that the sources gave reach the sinks."""

    drain: bool


CoordinatorStimulus: TypeAlias = Reported | Exited | StopAsked | Ticked

# ----------------------------------------------------- wanted by the coordinator


@dataclass(frozen=True)
class StartWorker:
    """With these copies of tasks, from their newest commits; those in `silent` keep silent."""

    worker: int
    epoch: int
    tasks: tuple[str, ...]
    silent: tuple[str, ...] = ()


@dataclass(frozen=True)
class CancelWorker:
    """End it, whatever it is doing."""

    worker: int
    epoch: int


@dataclass(frozen=True)
class Tell:
    """All workers."""

    message: Mapping[str, Any]


@dataclass(frozen=True)
class Truncate:
    """What is before the position is not wanted any more."""

    queue: str
    position: int


@dataclass(frozen=True)
class Finish:
    """The flow is over."""

    problem: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


CoordinatorEffect: TypeAlias = StartWorker | CancelWorker | Tell | Truncate | Finish
