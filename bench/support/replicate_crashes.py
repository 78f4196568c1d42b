"""Crashes of the bench of replicated tasks: which worker is killed, and when what it held is there again."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headrace.flow.copies import by_task, copy_name, task_of
from headrace.flow.job import Job

Choice = Callable[[Job], int]
"""Which worker is killed."""
_REBUILT_LIMIT_S: Final = 40.0
_LOOK_S: Final = 0.2


@dataclass(frozen=True)
class Crash:
    """kill -9 of a worker."""

    at_us: int
    worker: int
    held: tuple[str, ...]
    led: int
    """How many of the copies that it held led those of their task."""
    rebuilt_s: float
    """Until the worker that took its place was up and its copies were level with the others."""


def holder_of(copy: str) -> Choice:
    """The worker that holds this copy of a task."""

    def choose(job: Job) -> int:
        return _holder(job.status(), copy)

    return choose


def leader_of(task: str) -> Choice:
    """The worker that holds the copy of a task that leads; the first copy, where none does."""

    def choose(job: Job) -> int:
        return _holder(job.status(), _leading(job).get(task, task))

    return choose


def most_leading(job: Job) -> int:
    led = _led(job)
    return max(led, key=lambda worker: led[worker])


def least_leading(job: Job) -> int:
    """After a crash that is the worker that took the place of the dead one: others lead what that one did."""
    led = _led(job)
    return min(led, key=lambda worker: led[worker])


def _holder(status: dict[str, Any], copy: str) -> int:
    return next(int(worker) for worker, seen in status["workers"].items() if copy in seen["tasks"])


def _leading(job: Job) -> dict[str, str]:
    """Of tasks whose copies follow one of them: which."""
    found = {task: report["stages"].get("agreement", {}).get("leader") for task, report in job.reports().items()}
    return {task: copy_name(task, copy) for task, copy in found.items() if copy is not None}


def _led(job: Job) -> Counter[int]:
    status = job.status()
    found = Counter(dict.fromkeys(status["workers"], 0))
    found.update(_holder(status, copy) for copy in _leading(job).values())
    return found


def kill(job: Job, worker: int, after_s: float, slack: float) -> Crash:
    """kill -9 of this worker; it returns `after_s` later, or when its copies are level with the others to `slack`."""
    seen, led = job.status()["workers"][worker], _led(job)[worker]
    os.kill(seen["pid"], signal.SIGKILL)
    at_us, began, rebuilt_s = time.time_ns() // 1000, time.monotonic(), None
    while rebuilt_s is None or time.monotonic() - began < after_s:
        job.look(_LOOK_S)
        if rebuilt_s is None and _is_rebuilt(job.status(), worker, seen["epoch"], slack):
            rebuilt_s = time.monotonic() - began
        if rebuilt_s is None and time.monotonic() - began > _REBUILT_LIMIT_S:
            raise RuntimeError(f"worker {worker} was killed and is not level again after {_REBUILT_LIMIT_S:.0f} s")
    return Crash(at_us, worker, tuple(seen["tasks"]), led, rebuilt_s)


def _is_rebuilt(status: dict[str, Any], worker: int, epoch: int, slack: float) -> bool:
    """Reports are up to half a second old: so many records may lie between copies that are level."""
    seen, copies = status["workers"][worker], status["copies"]
    if seen["epoch"] == epoch or not seen["up"]:
        return False
    own = [copy for copy in copies if copies[copy]["worker"] == worker]
    others = by_task(copies)
    return all(
        copies[copy]["records_in"] is not None
        and all(
            copies[copy]["records_in"] >= (copies[each]["records_in"] or 0) - slack for each in others[task_of(copy)]
        )
        for copy in own
    )
