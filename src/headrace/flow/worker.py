"""A worker: owns some tasks of a flow, gives them what comes, and commits them one by one.

Tasks commit on their own: each is a function of its inbox, so no two of them need to agree on a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.flow.agents import heard_reports
from headrace.flow.copies import task_of
from headrace.flow.effects import (
    Acknowledge,
    Arrived,
    Deliver,
    Effect,
    Fed,
    Leave,
    LookAtCommit,
    Looked,
    OpenSinks,
    Report,
    Save,
    Saved,
    Stimulus,
    Ticked,
    Told,
)
from headrace.flow.files import Files, FilesInMemory
from headrace.flow.losses import Loss
from headrace.flow.plan import Plan
from headrace.flow.pulses import Pulse
from headrace.flow.rooms import ROOM_BYTES
from headrace.flow.silence import Silence
from headrace.flow.substream_reports import SubstreamReports
from headrace.flow.task import Task

_ALONE_S: Final = 120.0
"""A worker that hears nothing of its coordinator for so long is an orphan, and leaves."""
_LISTENED_S: Final = 1.0
"""More than that between two looks at the clock it was at work, and did not listen."""
_KEPT: Final = 3
"""How many commits back a task can be started from."""
_SOON: Final = 0.05
"""A commit that a firm reader waits for comes after this part of the time between two commits, ..."""
_SOON_SAVES: Final = 4
"""... and after as many times as long as the last one took."""
_MOST_SILENT_BYTES: Final = 64 << 20
"""A copy that has kept so much waits for the one that speaks."""


@dataclass(frozen=True)
class Pace:
    """How often, in seconds."""

    commit_s: float = 1.0
    report_s: float = 0.5
    beat_s: float = 0.01
    """How far sources have come, where something is ordered."""


class Worker:
    """`epoch` rises with every start of this worker: what an older one still says or writes does not count."""

    def __init__(
        self,
        plan: Plan,
        number: int,
        epoch: int,
        tasks: Collection[str],
        pace: Pace,
        losses: Sequence[Loss] = (),
        files: Callable[[str], Files] = lambda task: FilesInMemory(),
        silent: Collection[str] = (),
        has_copies: bool = False,
        room_bytes: int = ROOM_BYTES,
    ):
        """`files` are those of a task, see `Task`. `silent`: the copies that keep silent.

        `room_bytes`: how much the sinks of a task may be given between two commits.
        """
        planned = {name: plan.tasks[task_of(name)] for name in tasks}
        self._synced = {name: tuple(plan.synced_with(planned[name])) for name in tasks}
        self.number = number
        self.epoch = epoch
        self.tasks = {name: Task(plan, planned[name], losses, files(name), name, has_copies) for name in tasks}
        self._silent = {name: Silence(self.tasks[name].outside_channels) for name in tasks if name in silent}
        self._looking: set[str] = set()
        self._pulse = None if plan.beats is None else Pulse(plan.beats, number, self._entries, pace.beat_s)
        # Others have nothing to say at a tick.
        self._beating = [task for task in self.tasks.values() if task.order is not None]
        self._agreeing = [task for task in self.tasks.values() if task.agreed is not None]
        self._by_inbox = {queue: task for task in self.tasks.values() for queue in task.plan.inboxes}
        self.blocking = sorted(
            {queue for task in self.tasks.values() for queue in (*task.plan.blocking, *task.plan.pooled)}
        )
        """The queues whose room is of interest."""
        self._pace = pace
        self._versions = dict.fromkeys(tasks, 0)
        self._saving: dict[str, int] = {}
        self._positions: dict[str, list[dict[str, int]]] = {name: [] for name in tasks}
        self._saved_at = dict.fromkeys(tasks, 0.0)
        self._save_s = dict.fromkeys(tasks, 0.0)
        """How long the last one took."""
        self._keeping = {node.name for node in plan.graph.nodes if node.sink and node.sink.keeps_until_commit}
        self._room_bytes = room_bytes
        self._given_bytes = dict.fromkeys(tasks, 0)
        """What the sinks of a task keep until its next commit."""
        self._changed = dict.fromkeys(tasks, 0)
        """The last change that is in a commit."""
        self._reports = SubstreamReports(plan, self.tasks)
        self._reported_at, self._wants_report = 0.0, False
        self._beaten_at = 0.0
        self._unheard_s, self._looked_at = 0.0, 0.0
        self._now = 0.0
        self._at = ""
        self._hurry = False
        self._paused = False

    def restore(self, task: str, version: int, values: Mapping[str, Any], read: Callable[[str], bytes]) -> None:
        """Before anything else: where a task goes on."""
        self.tasks[task].restore(values, read)
        self._versions[task] = version
        self._changed[task] = self.tasks[task].changed
        self._reports.restored(task)
        if self._pulse is not None:
            self._pulse.last = max(self._pulse.last, self.tasks[task].pulse)

    # ------------------------------------------------------------------- wants

    def inboxes(self, full: Collection[str]) -> list[str]:
        """The queues to read, where those in `full` have no room for more.

        Also of tasks that have finished: a producer that starts again sends again, and waits for room.
        """
        self._reports.see(full)
        found = [] if self._pulse is None else [self._pulse.log]
        is_read = not self._paused and self._reports.knows_time  # a queue that is a source
        for task in self.tasks.values():
            if not self._has_no_room(task, full) and (is_read or task.plan.channels):
                found += task.wanted()
            elif task.plan.order_log is not None:
                found.append(task.plan.order_log)  # who leads is to be heard always
        return found

    def sources(self, full: Collection[str]) -> list[str]:
        """The tasks whose sources to read."""
        if self._paused or not self._reports.knows_time:
            return []
        return [
            name
            for name, task in self.tasks.items()
            if task.is_source and not task.source_ended and not self._has_no_room(task, full)
        ]

    def _entries(self) -> list[str]:
        """The inboxes that beats come to."""
        tasks = [task for task in self.tasks.values() if task.plan.takes_beats and not task.finished]
        return [task.plan.inbox for task in tasks if task.plan.inbox is not None]

    def _has_no_room(self, task: Task, full: Collection[str]) -> bool:
        silence = self._silent.get(task.name)
        if silence is not None:
            return silence.size_bytes > _MOST_SILENT_BYTES
        return self._has_given_much(task.name) or _has_no_room(task, full)

    def _has_given_much(self, name: str) -> bool:
        return self._given_bytes[name] > self._room_bytes

    @property
    def positions(self) -> dict[str, int]:
        """Of its queues; of the beats none, which are read from where they end."""
        return {queue: position for task in self.tasks.values() for queue, position in task.positions.items()}

    def task_of(self, stimulus: Arrived | Fed) -> str:
        """Whose it is."""
        if isinstance(stimulus, Fed):
            return stimulus.task
        task = self._by_inbox.get(stimulus.queue)
        return stimulus.queue if task is None else task.name

    @property
    def records_in(self) -> int:
        return sum(task.records_in for task in self.tasks.values())

    @property
    def beats(self) -> str | None:
        return None if self._pulse is None else self._pulse.log

    # ---------------------------------------------------------------------- on

    def at(self) -> str:
        """What it is working at, for people; another thread may ask."""
        return self._at

    def on(self, stimulus: Stimulus) -> list[Effect]:
        self._at = self.task_of(stimulus) if isinstance(stimulus, Arrived | Fed) else "what is due by the clock"
        if isinstance(stimulus, Arrived) and self._pulse is not None and stimulus.queue == self._pulse.log:
            return [*self._pulse.take(stimulus.entries), Acknowledge(self._pulse.log, self._pulse.position)]
        if isinstance(stimulus, Arrived):
            return self._arrived(self._by_inbox[stimulus.queue], stimulus)
        if isinstance(stimulus, Fed):
            task = self.tasks[stimulus.task]
            return [*self._said(task, task.feed(stimulus.feed, self._reports.coarse)), *self._reports.after(task)]
        if isinstance(stimulus, Saved):
            return self._saved(stimulus)
        if isinstance(stimulus, Looked):
            return self._looked(stimulus)
        if isinstance(stimulus, Ticked):
            self._unheard_s += min(stimulus.now_s - self._looked_at, _LISTENED_S)
            self._looked_at = stimulus.now_s
            self._reports.look(stimulus.now_s, stimulus.now_s if stimulus.wall_s is None else stimulus.wall_s)
            return [Leave()] if self._unheard_s > _ALONE_S else self._ticked(stimulus.now_s)
        assert isinstance(stimulus, Told)
        return self._told(stimulus.message)

    def _arrived(self, task: Task, arrived: Arrived) -> list[Effect]:
        if arrived.queue == task.plan.inbox:
            effects = self._said(task, task.take(arrived.entries, self._reports.coarse))
            return [*effects, Acknowledge(arrived.queue, task.position), *self._reports.after(task)]
        # What a merge keeps is no reason to send it less: it may be waiting for just this path.
        effects = self._said(task, task.take_path(arrived.queue, arrived.entries))
        return [*effects, Acknowledge(arrived.queue, arrived.entries[-1].next), *self._reports.after(task)]

    def _ticked(self, now_s: float) -> list[Effect]:
        self._now = now_s
        effects: list[Effect] = []
        if now_s - self._beaten_at >= self._pace.beat_s:
            self._beaten_at = now_s
            effects += [effect for task in self._beating for effect in self._said(task, task.beat(now_s))]
        effects += self._reports.due()
        effects += [] if self._pulse is None else self._pulse.tick(now_s)
        for task in self._agreeing:
            effects += task.say(now_s, task.name in self._silent)
        for name in self._silent:
            effects += self._look(name, now_s)
        for name, task in self.tasks.items():
            # Whatever it waits for: one that has given much takes nothing more until it has saved.
            is_due = self._has_given_much(name)
            if not (task.dirty or is_due) or name in self._silent or name in self._saving:
                continue
            if is_due or self._hurry or task.finished or self._is_time(name):
                effects += self._reports.before_save(name)
                effects.append(self._save(name))
        if self._wants_report or now_s - self._reported_at >= self._pace.report_s:
            effects.append(self._report())
        return effects

    def _is_time(self, name: str) -> bool:
        """For its next commit."""
        since_s, commit_s = self._now - self._saved_at[name], self._pace.commit_s
        if since_s < commit_s and self._reports.wants_commit(name):
            return since_s >= max(_SOON * commit_s, _SOON_SAVES * self._save_s[name])
        return since_s >= commit_s

    def _save(self, name: str) -> Save:
        task = self.tasks[name]
        version = self._versions[name] + 1
        self._versions[name] = version
        self._saving[name] = version
        self._saved_at[name] = self._now
        self._given_bytes[name] = 0
        self._at = f"the snapshot of {name}"
        snapshot = task.snapshot(self.epoch, version)
        self._changed[name] = task.changed
        self._positions[name].append(dict(task.positions))
        return Save(snapshot, self._synced[name])

    def _saved(self, saved: Saved) -> list[Effect]:
        del self._saving[saved.task]
        self._save_s[saved.task] = self._now - self._saved_at[saved.task]
        told = self._reports.after_save(saved.task)
        # A report is of all tasks, and many finish at a time: it goes when nothing else is being saved, or at a tick.
        self._wants_report |= self._hurry or self.tasks[saved.task].finished
        return [*told, self._report()] if self._wants_report and not self._saving else told

    def _told(self, message: Mapping[str, Any]) -> list[Effect]:
        say = message["say"]
        if message.get("before", self.epoch + 1) <= self.epoch:
            return []
        self._unheard_s = 0.0
        if say == "alive":
            return []
        if say == "pause":
            self._paused = True
        elif say == "commit":
            self._hurry = True
            if message.get("all_paused") and self._pulse is not None:
                self._pulse.stop_soon()
            return [*self._ticked(self._now), *self._reports.asked(), self._report(message.get("probe"))]
        elif say == "end loops":
            effects = [effect for task in self.tasks.values() for effect in self._said(task, task.end_loops())]
            return [*effects, self._report()]
        elif say == "speak":
            return [effect for name in message["copies"] for effect in self._speak(name)]
        elif say == "leave":
            return [self._report(), Leave()]
        return [*(self._reports.asked() if "probe" in message else ()), self._report(message.get("probe"))]

    # ------------------------------------------------------------------- voice

    def _said(self, task: Task, effects: list[Effect]) -> list[Effect]:
        silence = self._silent.get(task.name)
        if silence is None:
            self._count(task.name, effects)
            return effects
        silence.keep(effects)
        return []

    def _count(self, name: str, effects: Sequence[Effect]) -> None:
        given = [each for each in effects if isinstance(each, Deliver) and each.node in self._keeping]
        self._given_bytes[name] += sum(each.batch.nbytes for each in given)

    def _look(self, name: str, now_s: float) -> list[Effect]:
        if name in self._looking or now_s - self._saved_at[name] < self._pace.commit_s:
            return []
        self._saved_at[name] = now_s
        self._looking.add(name)
        return [LookAtCommit(task_of(name), name, self.tasks[name].kept_files())]

    def _looked(self, looked: Looked) -> list[Effect]:
        for name in [name for name in self._looking if task_of(name) == looked.task]:
            self._looking.discard(name)
            if looked.values is not None and name in self._silent:
                self._silent[name].forget(looked.values)
        return []

    def _speak(self, name: str) -> list[Effect]:
        """The copy that spoke is gone."""
        if name not in self._silent:
            return []
        kept = self._silent.pop(name).break_it()
        self._count(name, kept)
        self.tasks[name].begin_to_speak()
        self._saved_at[name] = 0.0
        self.tasks[name].dirty = True
        return [OpenSinks(name), *kept, self._report()]

    # ------------------------------------------------------------------ report

    def _report(self, probe: int | None = None) -> Report:
        self._reported_at, self._wants_report = self._now, False
        return Report(
            {
                "worker": self.number,
                "epoch": self.epoch,
                "probe": probe,
                "paused": self._paused,
                "beats": 0 if self._pulse is None else self._pulse.position,
                "tasks": {name: self._task_report(name, task) for name, task in self.tasks.items()},
            }
        )

    def _task_report(self, name: str, task: Task) -> dict[str, Any]:
        safe = name not in self._saving
        kept = self._positions[name][: None if safe else -1][-_KEPT:]
        self._positions[name] = self._positions[name][-(_KEPT + 1) :]
        heard = heard_reports(task.operators)
        return {
            "records_in": task.records_in,
            "records_out": task.records_out,
            "position": task.position,
            "next": {**{str(channel): number for channel, number in task.next.items()}, **heard},
            "sent": {
                **{str(channel): number for channel, number in task.sent.items()},
                # Behind the last report of a task is its end; what it is told after that it does not report.
                **(task.tracking.owed() if task.tracking and not task.finished else {}),
            },
            "source_ended": task.source_ended,
            "finished": task.finished and name not in self._silent,
            "silent": name in self._silent,
            "safe": name in self._silent or (safe and not task.dirty),
            "changed": self._changed[name] if safe else 0,
            "changed_at": task.changed_at,
            "last_change": task.changed,
            "stages": task.reports(),
            # One that keeps silent has no commits, and begins again with those of the one that speaks.
            "keep_from": dict(task.positions) if name in self._silent else kept[0] if len(kept) == _KEPT else {},
        }


def _has_no_room(task: Task, full: Collection[str]) -> bool:
    """Has what it sends no place? A merge that waits for one of its paths must get it, so one with room is enough."""
    pooled = task.plan.pooled
    return any(queue in full for queue in task.plan.blocking) or (
        bool(pooled) and all(queue in full for queue in pooled)
    )
