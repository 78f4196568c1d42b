"""What a task keeps over a restart: small values, and the files of its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.flow.effects import Snapshot
from headrace.flow.pieces import copied
from headrace.flow.state_files import Keeper
from headrace.flow.tracked import STATE

if TYPE_CHECKING:
    from headrace.flow.task import Task


def snapshot(task: Task, epoch: int, version: int) -> Snapshot:
    """Everything needed to go on after the last frame."""
    new = task.files.written(_keepers(task), f"{epoch:012d}-{version:08d}-{task.name}")
    values = {
        "position": task.position,
        "fed": task.fed,
        "source_ended": task.source_ended,
        "finished": task.finished,
        "next": task.next,
        "ended": sorted(task.ended),
        "sent": task.sent,
        "routed": task.sending.routed,
        "delivered": task.delivering.delivered,
        "changed": task.changed,
        "changed_at": task.changed_at,
        "records_in": task.records_in,
        "records_out": task.records_out,
        "files": task.files.parts,
    }
    if task.merging is not None:
        values["merging"] = task.merging.snapshot()
    if task.agreed is not None:
        values["agreed"] = task.agreed.snapshot()
    if task.plan.takes_beats:
        values["pulse"] = task.pulse
    if task.tracking is not None:
        values["tracking"] = task.tracking.values()
    if task.order is not None:
        values["newest"] = task.order.newest
        values["own"] = task.order.own
        values["heard"] = task.order.heard
    kept = task.kept_files()
    task.kept.version = version
    return Snapshot(task.name, epoch, version, copied(values), new, task.files.names, kept)


def _keepers(task: Task) -> dict[str, Keeper]:
    """All that has state of its own."""
    found: dict[str, Keeper] = dict(task.operators)
    if task.tracking is not None and task.telling is not None:
        found |= {STATE: task.tracking, f"{STATE}-held": task.telling}
    return found


def restore(task: Task, values: Mapping[str, Any], read: Callable[[str], bytes]) -> None:
    """From the values of a snapshot, and the files it names."""
    task.position, task.fed = values["position"], values["fed"]
    task.source_ended, task.finished = values["source_ended"], values["finished"]
    task.receiving.next = {int(channel): number for channel, number in values["next"].items()}
    task.ended = set(values["ended"])
    task.sending.sent = {int(channel): number for channel, number in values["sent"].items()}
    task.sending.routed = {int(edge): count for edge, count in values["routed"].items()}
    task.delivering.delivered = dict(values["delivered"])
    task.changed, task.changed_at = values.get("changed", 0), values.get("changed_at", 0)
    task.records_in, task.sending.records = values["records_in"], values["records_out"]
    if task.merging is not None:
        task.merging.restore(values["merging"])
    if task.agreed is not None:
        task.agreed.restore(values["agreed"])
    task.pulse = values.get("pulse", 0)
    if task.tracking is not None:
        task.tracking.set_values(values["tracking"])
    if task.order is not None:
        task.order.newest, task.order.own = values["newest"], values["own"]
        task.order.heard = {int(channel): tick for channel, tick in values["heard"].items()}
    task.files.restore(values["files"], _keepers(task), read)
