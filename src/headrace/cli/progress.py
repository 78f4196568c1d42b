"""What Spark is doing, as a bar: read from its status tracker while a job runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import uuid4

from pyspark import SparkContext
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from headrace.cli import screen

_PERIOD_SECONDS: Final = 0.15


@contextmanager
def spark_progress(context: SparkContext, title: str, stages: int) -> Iterator[None]:
    """Show a bar while the body runs Spark jobs; `stages` is how many stages they are expected to have."""
    group = f"headrace-{uuid4().hex}"
    context.setJobGroup(group, title)
    ended = threading.Event()
    with _bar() as progress:
        task = progress.add_task(title, total=1.0)
        watcher = threading.Thread(target=_watch, args=(context, group, stages, progress, task, ended), daemon=True)
        watcher.start()
        try:
            yield
            progress.update(task, completed=1.0)
        finally:
            ended.set()
            watcher.join()


def done_share(stages: list[tuple[int, int]], expected: int) -> float:
    """How much is done, from (finished tasks, all tasks) of every stage seen so far.

    Spark plans stage after stage, so the stages to come are not known, only expected;
    and stages that it skips stay at no finished tasks, so they must not weigh.
    """
    started = [finished / tasks for finished, tasks in stages if tasks and finished]
    return min(0.99, sum(started) / max(expected, len(started), 1))


def _watch(
    context: SparkContext, group: str, expected: int, progress: Progress, task: TaskID, ended: threading.Event
) -> None:
    tracker = context.statusTracker()
    while not ended.wait(_PERIOD_SECONDS):
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        ids = {stage for job in jobs if job is not None for stage in job.stageIds}
        stages = [stage for stage in map(tracker.getStageInfo, sorted(ids)) if stage is not None]
        share = done_share([(stage.numCompletedTasks, stage.numTasks) for stage in stages], expected)
        progress.update(task, completed=share)


def _bar() -> Progress:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(40),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=screen.err, transient=True, disable=not screen.err.is_terminal)
