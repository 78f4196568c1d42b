"""The coordinator: which worker has which tasks, what becomes of those that die, and when a flow is over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace.flow.copies import Replication, copy_of, task_of
from headrace.flow.deaths import HUNG_S, Deaths
from headrace.flow.effects import (
    CancelWorker,
    CoordinatorEffect,
    CoordinatorStimulus,
    Exited,
    Finish,
    Reported,
    StartWorker,
    StopAsked,
    Tell,
    Ticked,
    Truncate,
)
from headrace.flow.placing import Placing
from headrace.flow.plan import Plan
from headrace.flow.seen import Probe, Seen, is_quiet, progress_of

_PROBE_S: Final = 0.05
_UNANSWERED_S: Final = 1.0
"""After this long a question is put again. Sooner, and workers that take longer to answer would never be heard."""
_ALIVE_S: Final = 5.0
_SILENT_S: Final = 30.0
"""A worker that says nothing for so long is taken for dead, and replaced."""
_LEAVE_S: Final = 2.0
"""A worker that has not begun is waited for no longer where all leave."""
_ABSENT_S: Final = 10.0
"""For a worker that does not start for so long, others speak."""
_BEATS_S: Final = 5.0
"""How often beats that all have read are let go."""


class Coordinator:
    """`first_epoch` is higher than any that an earlier run of this flow has given."""

    def __init__(self, plan: Plan, workers: int, first_epoch: int, replication: Replication | None = None):
        self.plan = plan
        self._replication = replication or Replication()
        self._placing = Placing(plan, workers, self._replication)
        self._copies = self._placing.copies
        self._voices = {
            task: copies[0] for task, copies in self._copies.items() if self._replication.one_speaks(plan, task)
        }
        """Where one copy speaks: which."""
        self._keep_from: dict[str, Mapping[str, int]] = {}
        self._beats_at, self._beats_read = 0.0, 0
        self._epoch = first_epoch
        self._workers: dict[int, Seen] = {}
        self._now = 0.0
        self._told_at = 0.0
        self._deaths = Deaths(workers)
        self._truncated: dict[str, int] = {}
        self._stopping: str | None = None
        self._left_at: float | None = None
        self._probe = Probe()
        self._over = False

    @property
    def assignment(self) -> dict[int, tuple[str, ...]]:
        """The copies of tasks that each worker has."""
        return self._placing.of

    def start(self, now_s: float) -> list[CoordinatorEffect]:
        self._now = self._told_at = now_s
        # Workers of a driver that died may still be there, in slots that are wanted now.
        others: list[CoordinatorEffect] = [Tell({"say": "leave", "before": self._epoch})]
        return [*others, *(self._start(worker) for worker in self.assignment)]

    # ---------------------------------------------------------------------- on

    def on(self, stimulus: CoordinatorStimulus) -> list[CoordinatorEffect]:
        if self._over:
            return []
        if isinstance(stimulus, Ticked):
            return self._ticked(stimulus.now_s)
        if isinstance(stimulus, Reported):
            return self._reported(stimulus.message)
        if isinstance(stimulus, Exited):
            return self._exited(stimulus)
        assert isinstance(stimulus, StopAsked)
        if self._stopping is not None and stimulus.drain:
            return []
        self._stopping = "drain" if stimulus.drain else "leave"
        self._probe = Probe()
        return [Tell({"say": "pause" if stimulus.drain else "leave"})]

    def _start(self, worker: int) -> StartWorker:
        self._epoch += 1
        self._workers[worker] = Seen(self._epoch, self._now)
        names = self.assignment[worker]
        silent = tuple(name for name in names if self._voices.get(task_of(name), name) != name)
        return StartWorker(worker, self._epoch, names, silent)

    def _exited(self, exited: Exited) -> list[CoordinatorEffect]:
        seen = self._workers[exited.worker]
        if exited.epoch != seen.epoch:
            return []
        if self._stopping == "leave" or seen.has_left:
            seen.has_left, seen.is_up = True, False
            return self._finished_if_left()
        if exited.failure is not None:
            return self._finish(exited.failure["message"], exited.failure)
        return self._restart(exited.worker, exited.problem)

    def _restart(self, worker: int, problem: str | None, is_silent: bool = False) -> list[CoordinatorEffect]:
        names, was_up = self.assignment[worker], self._workers[worker].is_up
        too_much = self._deaths.died(self._now, worker, names, problem, is_silent=is_silent, was_up=was_up)
        if too_much is not None:
            return self._finish(too_much)
        self._probe = Probe(self._probe.number + 1)
        self._workers[worker].is_up = False
        return [*self._pass_voices(self.assignment[worker]), self._start(worker)]

    def _pass_voices(self, names: Sequence[str]) -> list[CoordinatorEffect]:
        """What spoke in a worker that is gone speaks elsewhere, if it is there."""
        passed = []
        here = {name for seen in self._workers.values() if seen.is_up and seen.report for name in seen.report["tasks"]}
        for name in names:
            task = task_of(name)
            if self._voices.get(task) == name:
                others = [each for each in self._copies[task] if each != name and each in here]
                if others:
                    self._voices[task] = others[0]
                    self._keep_from.pop(others[0], None)
                    passed.append(others[0])
        return [Tell({"say": "speak", "copies": passed})] if passed else []

    def _ticked(self, now_s: float) -> list[CoordinatorEffect]:
        self._now = now_s
        effects: list[CoordinatorEffect] = []
        for worker, seen in list(self._workers.items()):
            if seen.is_up and not seen.has_left and now_s - seen.heard_at > _SILENT_S:
                effects.append(CancelWorker(worker, seen.epoch))
                if self._stopping == "leave":
                    seen.has_left = True
                    effects += self._finished_if_left()
                else:
                    effects += self._restart(worker, f"nothing for {_SILENT_S:.0f} seconds", is_silent=True)
            elif self._stopping == "leave" and not seen.is_up and not seen.has_left and self._has_left_long(now_s):
                # It waits for a slot, or for its stages to open, and hears nothing meanwhile.
                seen.has_left = True
                effects += [CancelWorker(worker, seen.epoch), *self._finished_if_left()]
            elif self._is_absent(seen):
                passed = self._pass_voices(self.assignment[worker])
                if passed:
                    effects += [CancelWorker(worker, seen.epoch), *passed, self._start(worker)]
        if now_s - self._told_at >= _ALIVE_S:
            self._told_at = now_s
            effects.append(Tell({"say": "alive"}))
        is_open = self._probe.was_asked and len(self._probe.answers) < len(self._workers)
        if self._asks() and now_s - self._probe.sent_at >= (_UNANSWERED_S if is_open else _PROBE_S):
            effects += self._ask()
        return effects

    def _has_left_long(self, now_s: float) -> bool:
        """Were workers told to leave a while ago?"""
        self._left_at = now_s if self._left_at is None else self._left_at
        return now_s - self._left_at >= _LEAVE_S

    def _is_absent(self, seen: Seen) -> bool:
        """Is it time that others speak for a worker that does not start? Not where all leave."""
        if not self._voices or self._stopping == "leave" or seen.has_left:
            return False
        return not (seen.is_up or seen.is_restoring) and self._now - seen.heard_at > _ABSENT_S

    def _reported(self, message: Mapping[str, Any]) -> list[CoordinatorEffect]:
        seen = self._workers.get(message["worker"])
        if seen is None or message["epoch"] != seen.epoch:
            return []
        if "failed" in message:
            return self._finish(message["failed"]["message"], message["failed"])
        if "raised" in message:
            too_much = self._deaths.raised(self._now, message["raised"])
            return [] if too_much is None else self._finish(too_much)
        if "busy" in message:
            return self._busy(message["worker"], seen, message["busy"])
        if "restoring" in message:
            seen.heard_at, seen.is_restoring = self._now, True
            for name in self.assignment[message["worker"]]:
                self._keep_from.pop(name, None)
            return []
        seen.heard_at, seen.is_up, seen.is_restoring, seen.report = self._now, True, False, message
        seen.busy = None
        self._deaths.reported(message["worker"], message["tasks"])
        effects = self._truncations(message)
        if message.get("probe") == self._probe.number:
            self._probe.answers[message["worker"]] = message["tasks"]
            effects += self._judge()
        finished = frozenset(name for name, task in message["tasks"].items() if task["finished"] and task["safe"])
        before, seen.finished = seen.finished, finished
        # To look at all tasks of all workers at every report would be too much for a coordinator of hundreds.
        if finished != before and self._stopping is None and self._all_finished():
            self._stopping = "leave"
            effects.append(Tell({"say": "leave"}))
        return [*effects, *self._move()]

    def _busy(self, worker: int, seen: Seen, busy: Mapping[str, Any]) -> list[CoordinatorEffect]:
        """It is at work, and not dead. What takes it long may never end."""
        seen.heard_at, seen.busy = self._now, busy
        if self._stopping == "leave":
            seen.has_left = True
            return [CancelWorker(worker, seen.epoch), *self._finished_if_left()]
        if busy["still_s"] < HUNG_S:
            return []
        problem = f"{busy['what']} was at one thing for {busy['still_s']:.0f} seconds"
        return [CancelWorker(worker, seen.epoch), *self._restart(worker, problem, is_silent=True)]

    def _move(self) -> list[CoordinatorEffect]:
        """Copies that share a host part, one worker at a time: the others serve meanwhile."""
        if not self._placing.has_copies or self._stopping is not None:
            return []
        if not all(seen.is_up for seen in self._workers.values()):
            return []
        before = self.assignment
        worker = self._placing.next_move(self._hosts())
        if worker is None:
            return []
        self._probe = Probe(self._probe.number + 1)
        cancel = CancelWorker(worker, self._workers[worker].epoch)
        self._workers[worker].is_up = False
        return [cancel, *self._pass_voices(before[worker]), self._start(worker)]

    def _hosts(self) -> dict[int, str]:
        return {
            worker: "" if seen.report is None else seen.report.get("host") or ""
            for worker, seen in self._workers.items()
        }

    def placement(self) -> str:
        """Which worker has which copies, as a table."""
        return self._placing.explain(self._hosts(), self._voices)

    # --------------------------------------------------------- when it is over

    def _asks(self) -> bool:
        """Is it to be found out whether all channels are empty?"""
        if self._stopping == "drain":
            return True
        loops = any(edge.back for edge in self.plan.edges)
        return loops and self._stopping is None and self._sources_ended() and not self._all_finished()

    def _ask(self) -> list[CoordinatorEffect]:
        before = self._probe.answers if len(self._probe.answers) == len(self._workers) else None
        self._probe = Probe(self._probe.number + 1, self._now, before, was_asked=True)
        say = "commit" if self._stopping == "drain" else "answer"
        # A worker that started since does not know yet that sources pause.
        paused = [Tell({"say": "pause"})] if self._stopping == "drain" else []
        is_calm = all(seen.report is not None and seen.report["paused"] for seen in self._workers.values())
        return [*paused, Tell({"say": say, "probe": self._probe.number, "all_paused": bool(paused) and is_calm})]

    def _judge(self) -> list[CoordinatorEffect]:
        probe = self._probe
        if len(probe.answers) < len(self._workers) or probe.before is None:
            return []
        if not (is_quiet(probe.before, probe.answers)):
            return []
        if self._stopping == "drain":
            safe = all(task["safe"] for tasks in probe.answers.values() for task in tasks.values())
            paused = all(seen.report is not None and seen.report["paused"] for seen in self._workers.values())
            if not (safe and paused):
                return []
            self._stopping = "leave"
            return [Tell({"say": "leave"})]
        # Said again until all have finished: a loop behind another one ends after it, and a worker may have died.
        self._probe = Probe(probe.number, self._now)
        return [Tell({"say": "end loops"})]

    def _sources_ended(self) -> bool:
        found = self._all_reports()
        sources = [name for name, task in self.plan.tasks.items() if not task.channels]
        return all(
            any(report["source_ended"] or report["finished"] for report in found.get(name, {}).values())
            for name in sources
        )

    def _all_finished(self) -> bool:
        """A task is, where one of its copies is."""
        found = {task_of(name) for seen in self._workers.values() for name in seen.finished}
        return len(found) == len(self.plan.tasks)

    def _finished_if_left(self) -> list[CoordinatorEffect]:
        return self._finish(None) if all(seen.has_left for seen in self._workers.values()) else []

    def _finish(self, problem: str | None, details: Mapping[str, Any] | None = None) -> list[CoordinatorEffect]:
        self._over = True
        cancels = [CancelWorker(worker, seen.epoch) for worker, seen in self._workers.items() if not seen.has_left]
        return [*cancels, Finish(problem, details or {})]

    # ------------------------------------------------------------------ status

    def reports(self) -> dict[str, Mapping[str, Any]]:
        """The newest report of each task: of the copy that speaks, or that has come furthest."""
        return {
            task: max(
                copies.items(), key=lambda pair: (not pair[1]["silent"], progress_of(pair[1]), -copy_of(pair[0]))
            )[1]
            for task, copies in self._all_reports().items()
        }

    def copies(self) -> dict[str, dict[str, Any]]:
        """Where tasks have several: of each copy its worker, and what it is doing."""
        found = {name: report for copies in self._all_reports().values() for name, report in copies.items()}
        return {
            name: {
                "worker": worker,
                "up": self._workers[worker].is_up,
                "silent": name in found and found[name]["silent"],
                "records_in": found[name]["records_in"] if name in found else None,
            }
            for name, worker in self._placing.worker_of.items()
            if len(self._copies[task_of(name)]) > 1
        }

    def _all_reports(self) -> dict[str, dict[str, Mapping[str, Any]]]:
        """Of each task, those of its copies."""
        found: dict[str, dict[str, Mapping[str, Any]]] = {}
        for seen in self._workers.values():
            for name, report in seen.report["tasks"].items() if seen.report is not None else ():
                found.setdefault(task_of(name), {})[name] = report
        return found

    def _truncations(self, message: Mapping[str, Any]) -> list[CoordinatorEffect]:
        """What no copy will read again, wherever it starts from."""
        effects: list[CoordinatorEffect] = []
        effects += self._truncate_beats()
        for name, report in message["tasks"].items():
            task = self.plan.tasks[task_of(name)]
            # One that does not know yet that it is to speak has nothing to begin with again but commits of others.
            is_new = report["silent"] and self._voices.get(task.name) == name
            self._keep_from[name] = {} if is_new else report["keep_from"]
            # A queue from outside may have other readers.
            for queue in report["keep_from"] if task.channels else ():
                position = self._needed_from(task.name, queue)
                if position > self._truncated.get(queue, 0):
                    self._truncated[queue] = position
                    effects.append(Truncate(queue, position))
        return effects

    def needed_from(self, queue: str) -> int:
        """From where on this flow may still read a queue, wherever its copies start from; 0 while that is not known."""
        readers = [task.name for task in self.plan.tasks.values() if queue in task.inboxes]
        return min((self._needed_from(task, queue) for task in readers), default=0)

    def _needed_from(self, task: str, queue: str) -> int:
        copies = [each for each in self._copies[task] if self._counts_for_room(each)]
        return min((self._keep_from.get(each, {}).get(queue, 0) for each in copies), default=0)

    def _truncate_beats(self) -> list[CoordinatorEffect]:
        if self.plan.beats is None or self._now - self._beats_at < _BEATS_S:
            return []
        if any(seen.is_restoring for seen in self._workers.values()):
            return []
        read = [seen.report["beats"] for seen in self._workers.values() if seen.is_up and seen.report is not None]
        # Those of a while ago: a worker that begins just now begins where they end.
        position, self._beats_read, self._beats_at = self._beats_read, min(read, default=0), self._now
        return [Truncate(self.plan.beats, position)] if position else []

    def _counts_for_room(self, name: str) -> bool:
        """Not a copy that is gone: when it comes back it begins with the newest commit there is, and says so first.

        Where one copy speaks, the commits are all its.
        """
        if self._voices.get(task_of(name)) == name:
            return True
        worker = self._placing.worker_of.get(name)
        return worker is not None and (self._workers[worker].is_up or self._workers[worker].is_restoring)

    def status(self) -> dict[str, Any]:
        return {
            "workers": {
                worker: {
                    "epoch": seen.epoch,
                    "up": seen.is_up,
                    "left": seen.has_left,
                    "pid": None if seen.report is None else seen.report.get("pid"),
                    "host": None if seen.report is None else seen.report.get("host"),
                    "tasks": list(self.assignment[worker]),
                    "busy": None if seen.busy is None else f"{seen.busy['what']} for {seen.busy['for_s']:.0f} s",
                }
                for worker, seen in self._workers.items()
            },
            "tasks": dict(self.reports()),
            "copies": self.copies(),
            "notes": list(self._placing.notes),
            "restarts": self._deaths.count,
            "stopping": self._stopping,
        }
