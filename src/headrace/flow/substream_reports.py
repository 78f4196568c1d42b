"""When a worker reports on substreams: what its tasks have to say goes in one frame, some milliseconds after it began.
Where substreams begin and where ends are waited for, it goes at once, if none went in the milliseconds before. A worker
that has much to do gathers for longer: a report of many rows costs hardly more than one of few.

A sink that shows its records at a commit has not received them before: its task reports when the commit is safe.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final

from headrace.flow.effects import Append, Effect
from headrace.flow.plan import Plan
from headrace.flow.task import Task
from headrace.flow.tracked import report_frames
from headrace.track.local import NO_TIME
from headrace.track.reports import TaskSaid

_MOST_ROWS: Final = 1 << 14
"""Noted records are kept until they are folded: so many at most."""
_BUSY_RECORDS: Final = 32
"""A worker that takes so many records in each `flush_s` has much to do."""
_BUSY_FLUSHES: Final = 8
"""It gathers for so many times as long: a report of few rows costs it a third of a millisecond."""
_WATCHED_FLUSHES: Final = 16
"""Over so many it is judged: what comes all at once, as at the end of a window, is soon done, and then waited for."""
_LEAST_FLUSH_S: Final = 0.001


class SubstreamReports:
    """Of one worker."""

    def __init__(self, plan: Plan, tasks: Mapping[str, Task]):
        self._plan = plan
        self._region = plan.region
        # Those that pass records on have nothing to say.
        self._tasks = {n: task for n, task in tasks.items() if task.tracking and not task.tracking.is_passing}
        self._waits = {name for name, task in self._tasks.items() if task.tracking and task.tracking.says_after_commits}
        self._again: list[tuple[Task, bool]] = []
        """Had they finished when they were restored?"""
        self._ending: set[str] = set()
        """They have finished as of the commit that is being made."""
        self._all_tasks = tasks
        self._began_s: float | None = None
        self._sent_s = -math.inf
        self._judged_s, self._records_judged, self._is_busy = 0.0, 0, False
        """Had it much to do, when that was last looked at, and how many records its tasks had taken by then."""
        self._now = 0.0
        self._beaten = NO_TIME
        self._is_behind = False
        self.coarse = NO_TIME
        """The time at sources, as coarse as it must be for all machines to agree on it."""

    @property
    def knows_time(self) -> bool:
        """Where ends are told in the order of starts, nothing may start before."""
        return self._region is None or not self._region.tracking.needs_clock or self.coarse != NO_TIME

    def look(self, now_s: float, wall_s: float) -> None:
        """At the clocks."""
        self._now = now_s
        self._judge()
        if self._region is not None and self._region.tracking.needs_clock:
            self.coarse = math.ceil(wall_s / self._region.tracked.slack_s)

    def see(self, full: Collection[str]) -> None:
        """The queues without room: an agent that is behind is not told what time it is, over and over."""
        self._is_behind = self._region is not None and any(queue in full for queue in self._plan.agents)

    def restored(self, name: str) -> None:
        """What was committed may not have been said."""
        task = self._tasks[name] if name in self._waits else None
        if task is not None and task.tracking is not None:
            task.tracking.keep_said()
            self._again.append((task, task.finished))

    def due(self) -> list[Effect]:
        if self._region is None or not self._tasks:
            return []
        if self._again:
            again, self._again = self._again, []
            return [effect for task, had_ended in again for effect in self._committed(task, had_ended)]
        if self.coarse != self._beaten and not self._is_behind:
            return self._beat()
        is_due = any(self._is_due(name) for name in self._tasks)
        if not is_due:
            self._began_s = None
            return []
        self._began_s = self._now if self._began_s is None else self._began_s
        if self._now - self._began_s < self._region.tracked.flush_s * self._patience(1):
            return []
        return self._said([name for name in self._tasks if self._is_due(name)])

    def _beat(self) -> list[Effect]:
        """Sources say what time it is: nothing earlier will come."""
        self._beaten = self.coarse
        sources = [n for n, task in self._tasks.items() if task.tracking and task.tracking.is_source]
        for name in sources:
            tracking = self._tasks[name].tracking
            if tracking is not None and not self._tasks[name].finished:
                tracking.begin(self.coarse)
        names = [n for n in self._tasks if self._is_due(n) or (n in sources and not self._tasks[n].finished)]
        return self._said(names) if names else []

    def after(self, task: Task) -> list[Effect]:
        """It has worked. Was so much noted, or is it of such interest, that it is better not to wait?"""
        tracking = task.tracking
        if self._region is None or tracking is None or task.name not in self._tasks or not self._is_due(task.name):
            return []
        if tracking.table.noted_rows >= _MOST_ROWS:
            return self._said([task.name])
        is_end = tracking.is_source or tracking.reader is not None
        # A tick sees that there is something, the next one sends it: no more often than that.
        if is_end and self._now - self._sent_s >= self._region.tracked.flush_s * self._patience(2):
            return self._said([name for name in self._tasks if self._is_due(name)])
        return []

    def _judge(self) -> None:
        if self._region is None or not self._tasks:
            return
        flushes = (self._now - self._judged_s) / max(self._region.tracked.flush_s, _LEAST_FLUSH_S)
        if flushes >= _WATCHED_FLUSHES:
            records = sum([task.records_in for task in self._all_tasks.values()])
            self._is_busy = records - self._records_judged >= _BUSY_RECORDS * flushes
            self._judged_s, self._records_judged = self._now, records

    def _patience(self, flushes: int) -> int:
        """So many flushes, or more where there is much to do."""
        return _BUSY_FLUSHES if self._is_busy else flushes

    def asked(self) -> list[Effect]:
        """It is to be known whether all has been said."""
        return self._said([name for name in self._tasks if name not in self._waits], is_asked=True)

    def wants_commit(self, name: str) -> bool:
        """Does a firm reader hold back what comes next, until what it has shown is committed?"""
        telling = self._tasks[name].telling if name in self._waits else None
        return telling is not None and telling.is_firm and telling.keeps and self._has_news(name)

    def before_save(self, name: str) -> list[Effect]:
        """Names of substreams are not in a snapshot: they are said before."""
        if name in self._waits:
            task = self._tasks[name]
            assert task.tracking is not None
            if task.owes_end or not task.finished:
                task.tracking.keep_said()
            if task.owes_end:
                self._ending.add(name)
            return []
        return self._said([name]) if name in self._tasks and self._is_due(name) else []

    def after_save(self, name: str) -> list[Effect]:
        if name not in self._waits:
            return []
        has_ended = name in self._ending
        self._ending.discard(name)
        return self._committed(self._tasks[name], has_ended)

    def _committed(self, task: Task, has_ended: bool) -> list[Effect]:
        """What it said, and that this is all, where it is."""
        assert task.tracking is not None
        said = self._sent(task.tracking.kept(), is_asked=True)
        return [*said, *task.end_reports()] if has_ended else said

    def _is_due(self, name: str) -> bool:
        return name not in self._waits and self._has_news(name)

    def _has_news(self, name: str) -> bool:
        tracking = self._tasks[name].tracking
        # After the last report of a task there is none.
        return tracking is not None and tracking.table.is_due and not self._tasks[name].finished

    def _said(self, names: list[str], is_asked: bool = False) -> list[Effect]:
        self._began_s, self._sent_s = None, self._now
        tasks = [self._tasks[name].tracking for name in names if not self._tasks[name].finished]
        return self._sent([tracking.said() for tracking in tasks if tracking is not None], is_asked)

    def _sent(self, said: list[TaskSaid], is_asked: bool) -> list[Effect]:
        if not said:
            return []
        return [Append(queue, [frame]) for queue, frame in report_frames(self._plan, said, is_asked)]
